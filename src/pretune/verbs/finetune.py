"""`finetune`: a pretrained model and examples of a task in, a model for that task out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.runtime.output_paths import run_folder
from pretune.training.settings import Batching, Budget, Optimizer, Schedule, Watching
from pretune.verbs.option_modes import EPOCHS, LOADED, ON_ROWS, TOKENIZER, starts_from_preset
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


def several_tasks(o: Options) -> bool:
    """Return whether files of several tasks are given."""
    from pretune.verbs.shared_inputs import name_files

    return isinstance(name_files(o.train), Mapping)


@verb(
    ON_ROWS,
    EPOCHS,
    TOKENIZER,
    LOADED,
    only(
        "scratch",
        where="to models that have weights; a preset starts from random ones",
        when=lambda o: not starts_from_preset(o),
    ),
    only(
        "dropout",
        where="to models that have weights; a preset says it under `config`",
        when=lambda o: not starts_from_preset(o),
    ),
    only("sampling", where="to several tasks (NAME=FILE …)", when=several_tasks),
    only("unlabeled", where="to one task", when=lambda o: not several_tasks(o)),
    only("soft", "teacher", where="with --unlabeled", when=lambda o: o.unlabeled is not None),
    only(
        "confident",
        where="with --unlabeled and without --soft",
        when=lambda o: o.unlabeled is not None and o.soft is None,
    ),
    only(
        "curve",
        "control",
        where="to one task and without --unlabeled",
        when=lambda o: o.unlabeled is None and not several_tasks(o),
    ),
    only(
        "devices", where="to several seeds, --curve or --control", when=lambda o: o.seeds != 1 or o.curve or o.control
    ),
    out=run_folder,
)
def finetune(
    model: str | Path | Run,
    train: str | Path | Sequence[str] | Mapping[str, str],
    *,
    out: str | Path,
    dev: str | Path | Sequence[str] | Mapping[str, str] | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    drop_bad: bool = False,
    objective: str = "classify",
    strategy: str = "full",
    sampling: str = "proportional",
    epochs: float = 3.0,
    budget: Budget | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    batch: Batching | None = None,
    watching: Watching | None = None,
    shots: int | None = None,
    unlabeled: str | Path | None = None,
    confident: float = 0.9,
    soft: float | None = None,
    teacher: Sequence[str | Path | Run] | str | Path | Run = (),
    seed: int = 0,
    seeds: int | None = None,
    report: bool = True,
    curve: Sequence[int] = (),
    control: bool = False,
    tokenizer: str | Path | None = None,
    scratch: bool = False,
    dropout: Mapping[str, float] | None = None,
    deterministic: bool = False,
    resume: bool = False,
    device: str | None = None,
    devices: int = 1,
    partial: bool = False,
    vectors: str | Path | None = None,
) -> Run:
    """Fine-tune a model for a task: to classify texts or pairs of them, rate, choose, compare or rank them, tag words, answer
    questions from passages, write texts; or for several tasks at once.

    Columns are guessed from names and contents, shown, and overridable.

    Parameters
    ----------
    model
        A run, a model folder, or a preset (random weights; then with --tokenizer).
    train
        Labeled rows: .csv, .tsv, .jsonl or .parquet; to tag words, CoNLL's columns, .conllu, .jsonl or .parquet; to answer,
        SQuAD's .json, .jsonl or .parquet. Of several tasks at once: NAME=FILE each.
    out
        Folder of the new run.
    dev
        Rows to evaluate on; of several tasks, NAME=FILE each. Without them a fifth of the others is set aside, of 50 or more.
    text
        Column of the text: words, questions.
    pair
        Column of the second text: passages.
    label
        Column of the label: tags, answers. Columns without names are numbered from 1.
    columns
        Columns of what else a task reads, e.g. --columns.choices options.
    drop_bad
        Leave out rows without a label or a text, and examples whose answers or spans are not in their texts; without it those
        without a label, answer or span are listed, and refused.
    objective
        classify, classify(multi=true), tag, answer, regress, choose, match, rank, contrast, entity, generate, prompt;
        classify(pooling=mean), classify on mix/bilstm, classify on elmo/biattentive,
        classify+0.5*lm …; of several tasks, a: classify | b: generate …, or one
        for all.
    strategy
        What moves: full, frozen, top(4), gradual, lora(8); and reset(1), freelb(3), sparse(0.8), int8, joined with +; auto chooses.
    sampling
        Whose turn it is, of several tasks: proportional, uniform, temperature(2), annealed(0.2).
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
    shots
        Learn from so many examples of each class, drawn by the seed.
    unlabeled
        Texts without labels: a teacher labels those it is sure of, and a student learns from all (self-training).
    confident
        How sure the teacher must be.
    soft
        Learn the teacher's probabilities for all texts instead, softened by this temperature (distillation).
    teacher
        Runs that label the texts, together; without any, one is trained on the labeled rows.
    seed
        All chance follows from it.
    seeds
        Train so many times, with other chance each time; the best is kept, mean and spread are told. 5 where there are fewer
        than 10,000 examples, unless it is given.
    report
        Write report.html: scores with intervals, controls, confusions, calibration, the worst examples.
    curve
        Train on so many of the examples too, e.g. 50 100 500, three seeds each; the report draws how good each was.
    control
        Train from random weights too, at every size of the curve, or on all examples where there is none.
    tokenizer
        For a preset: the tokenizer to use.
    scratch
        Start from random weights instead of the model's, to see what those are worth.
    dropout
        Other dropout than the model's, under the names of its config.json, e.g. --dropout.hidden_dropout_prob 0.2.
    deterministic
        Same seed, same machine, same bits, on a GPU too, where that takes longer.
    resume
        Go on with the run in --out.
    device
        cpu or cuda; a GPU is used where there is one.
    devices
        Share the seeds out to so many devices of this machine, a process for each (several share a GPU
        where there are fewer); on a CPU, to so many processes.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).
    vectors
        A file of word vectors (word2vec, GloVe, fastText) that words start from: the task's own (`on elmo300`), or the model's.

    Examples
    --------
    >>> task = finetune("runs/mine", "train.csv", dev="dev.csv", out="runs/task")  # doctest: +SKIP
    >>> task.predict(["a delightful film"])  # doctest: +SKIP
    """
    import os

    from pretune.evaluation.learning_curve import check_sizes, learning_curve
    from pretune.evaluation.task_report import write_report
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import say
    from pretune.training.jobs.finetuning import make_plan, read_material
    from pretune.training.jobs.multitask import finetune_tasks, read_tasks
    from pretune.training.jobs.self_training import self_train
    from pretune.training.jobs.several_seeds import finetune_seeds
    from pretune.training.run_folder import check_same
    from pretune.verbs.shared_inputs import name_columns, name_files, one_or_more

    given = {
        "train": name_files(train),
        "dev": name_files(dev) if dev is not None else None,
        "out": Path(out),
        "columns": name_columns(columns, text=text, pair=pair, label=label),
        "objective": objective,
        "strategy": strategy,
        "sampling": sampling,
        "epochs": epochs,
        "budget": budget,
        "optimizer": optimizer,
        "schedule": schedule,
        "batch": batch,
        "watching": watching,
        "deterministic": deterministic,
        "partial": partial,
        "drop_bad": drop_bad,
        "shots": shots,
        "unlabeled": str(unlabeled) if unlabeled is not None else None,
        "confident": confident,
        "soft": soft,
        "teacher": tuple(one_or_more(teacher)) or None,
        "vectors": str(vectors) if vectors is not None else None,
        "seed": seed,
        "seeds": seeds,
        "tokenizer": str(tokenizer) if tokenizer is not None else None,
        "scratch": scratch,
        "dropout": dict(dropout) if dropout else None,
        "device": device,
        "devices": devices,
    }
    plan = make_plan(os.fspath(model), given)
    material: Any
    check_same(plan.out, plan.recipe())
    if isinstance(plan.train, Mapping):
        material = read_tasks(plan)
        run = finetune_seeds(plan, material, resume, finetune_tasks)
    elif isinstance(plan.dev, Mapping):
        raise PretuneError(f"--dev names tasks ({', '.join(plan.dev)}) and --train none; name both, or neither")
    elif unlabeled is not None:
        run, material = self_train(plan, finetune_seeds, resume)
    else:
        material = read_material(plan)
        if curve or control:
            check_sizes(material, curve)
        run = finetune_seeds(plan, material, resume)
        if curve or control:
            learning_curve(plan, material, run, curve, control)
    if report and (page := write_report(run, material)):
        say(f"report: {page}")
    return run
