"""`finetune`: a pretrained model and examples of a task in, a model for that task out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.training.settings import Batching, Budget, Optimizer, Schedule, Watching

if TYPE_CHECKING:
    from pretune.training.runs import Run


def finetune(
    model: str | Path | Run,
    train: str | Path,
    *,
    out: str | Path,
    dev: str | Path | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    objective: str = "classify",
    strategy: str = "full",
    epochs: float = 3.0,
    budget: Budget | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    batch: Batching | None = None,
    watching: Watching | None = None,
    seed: int = 0,
    seeds: int | None = None,
    report: bool = True,
    tokenizer: str | Path | None = None,
    scratch: bool = False,
    deterministic: bool = False,
    resume: bool = False,
    device: str | None = None,
    devices: int = 1,
    partial: bool = False,
) -> Run:
    """Fine-tune a model for a task: to classify texts or pairs of them, rate, choose, compare or rank them, tag words, answer
    questions from passages.

    Columns are guessed from names and contents, shown, and overridable.

    Parameters
    ----------
    model
        A run, a model folder, or a preset (random weights; then with --tokenizer).
    train
        Labeled rows: .csv, .tsv, .jsonl or .parquet; to tag words, CoNLL's columns, .conllu, .jsonl or .parquet; to answer,
        SQuAD's .json, .jsonl or .parquet.
    out
        Folder of the new run.
    dev
        Rows to evaluate on. Without them a fifth of the others is set aside, of 50 or more.
    text
        Column of the text: words, questions.
    pair
        Column of the second text: passages.
    label
        Column of the label: tags, answers. Columns without names are numbered from 1.
    columns
        Columns of what else a task reads, e.g. --columns.choices options.
    objective
        classify, classify(multi=true), tag, answer, regress, choose, match, rank, contrast, entity; classify(pooling=mean),
        classify on mix/bilstm, classify+0.5*lm …
    strategy
        What moves: full, frozen, top(4), gradual, lora(8); and reset(1), freelb(3), joined with +; auto chooses.
    epochs
        How often every row is seen.
    budget
        Limits instead of epochs.
    optimizer
        name, lr, betas, eps, decay, clip, matrix_lr, momentum.
    schedule
        kind, warmup, final.
    batch
        sequences (in a step), length.
    watching
        log, evaluate, save, keep, patience (end after so many evaluations, one an epoch, without a better one).
    seed
        All chance follows from it.
    seeds
        Train so many times, with other chance each time; the best is kept, mean and spread are told. 5 where there are fewer
        than 10,000 examples, unless it is given.
    report
        Write report.html: scores with intervals, controls, confusions, calibration, the worst examples.
    tokenizer
        For a preset: the tokenizer to use.
    scratch
        Start from random weights instead of the model's, to see what those are worth.
    deterministic
        Same seed, same machine, same bits, on a GPU too, where that takes longer.
    resume
        Go on with the run in --out.
    device
        cpu or cuda; a GPU is used where there is one.
    devices
        Share the seeds out to so many devices of this machine, a process for each; on a CPU, to so many processes.
    partial
        Go on where the checkpoint lacks tensors (these are left random), or has some that are unknown or of another shape.

    Examples
    --------
    >>> task = finetune("runs/mine", "train.csv", dev="dev.csv", out="runs/task")  # doctest: +SKIP
    >>> task.predict(["a delightful film"])  # doctest: +SKIP
    """
    import os

    from pretune.evaluation.task_report import write_report
    from pretune.progress import say
    from pretune.training.finetuning import make_plan, read_material
    from pretune.training.seeds import finetune_seeds
    from pretune.verbs.inputs import name_columns

    given = {
        "train": str(train),
        "dev": str(dev) if dev is not None else None,
        "out": Path(out),
        "columns": name_columns(columns, text=text, pair=pair, label=label),
        "objective": objective,
        "strategy": strategy,
        "epochs": epochs,
        "budget": budget,
        "optimizer": optimizer,
        "schedule": schedule,
        "batch": batch,
        "watching": watching,
        "deterministic": deterministic,
        "partial": partial,
        "seed": seed,
        "seeds": seeds,
        "tokenizer": str(tokenizer) if tokenizer is not None else None,
        "scratch": scratch,
        "device": device,
        "devices": devices,
    }
    plan = make_plan(os.fspath(model), given)
    material = read_material(plan)
    run = finetune_seeds(plan, material, resume)
    if report and (page := write_report(run, material)):
        say(f"report: {page}")
    return run
