"""The `distill` verb: train a small student to match one or several teachers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import EPOCHS_RULE, ROW_KEYS, TEXT_KEYS, reading_rules
from pretune.verbs.verb import Options, only, verb


def uses_predictions(o: Options) -> bool:
    """Return whether, with the options `o`, the student learns from predictions of the teacher, not only its states."""
    return bool(o.data or o.unlabeled or o.num_augmentations or o.alpha)


def has_probabilities(o: Options) -> bool:
    """Return whether the teacher in the options `o` predicts probabilities of tokens or of classes."""
    from pretune.inference.predict import find_task
    from pretune.verbs.shared_inputs import split_models

    if o.data:
        return True
    task = find_task(split_models(o.teacher, [])[0][0])[1]
    return bool(task.labels) and task.output_per != "text"


@verb(
    only(
        "dev", "text", "pair", "label", "columns", "alpha", "loss", "num_augmentations", "epochs", "processes", "executor", *ROW_KEYS,
        where="to a student for a task (--train or --unlabeled), not with --data", when=lambda o: not o.data,
    ),
    *reading_rules("split_by", "text_field", "encoding_errors", files=lambda o: o.data, of=" of --data"),
    only("loss_weights", "generate_tokens", *TEXT_KEYS, where="with --data", when=lambda o: bool(o.data)),
    only("alpha", where="with --train, against whose labels it is weighted", when=lambda o: o.train is not None),
    only("baseline", where="with --train or --data", when=lambda o: o.train is not None or bool(o.data)),
    only(
        "temperature", "loss", "processes", "executor",
        where="if the teacher predicts: with --unlabeled, --num-augmentations or --alpha above 0", when=uses_predictions,
    ),
    only("temperature", "loss", where="to teachers that classify or predict tokens", when=has_probabilities),
    EPOCHS_RULE,
    common=("student", "train", "unlabeled", "data", "dev", "text", "label", "temperature", "alpha", "epochs", "seed", "device"),
    out=check_new_folder,
)  # fmt: skip
def distill(
    teacher: opt.Models,
    *,
    student: str,
    out: opt.RunFolder,
    train: str | Path | opt.Table | None = None,
    unlabeled: str | Path | opt.Table | None = None,
    data: opt.Paths = (),
    split_by: opt.SplitBy = "auto",
    text_field: opt.TextField = None,
    encoding_errors: opt.EncodingErrors = "strict",
    dev: opt.DevFile = None,
    text: opt.Text = None,
    pair: opt.Pair = None,
    label: opt.Label = None,
    columns: opt.Columns = None,
    temperature: float = 2.0,
    alpha: float = 0.5,
    loss: Literal["kl", "mse"] = "kl",
    match_layers: str | None = None,
    loss_weights: Mapping[str, float] | None = None,
    num_augmentations: int = 0,
    generate_tokens: int = 0,
    baseline: bool = False,
    epochs: opt.Epochs = 3.0,
    budget: opt.Limits = None,
    optimizer: opt.OptimizerSettings = None,
    schedule: opt.ScheduleSettings = None,
    batch: opt.Batch = None,
    monitor: opt.AnyMonitor = None,
    processes: opt.Processes = 1,
    executor: opt.Executor = "local",
    seed: opt.Seed = 0,
    device: opt.Device = None,
) -> opt.Run:
    """Distill a model, or an ensemble of several, into a smaller student of any family.

    With --train or --unlabeled, the student learns the teacher's task; with --data, it becomes a general language model. The result
    compares student and teacher by quality, size, and speed.

    Parameters
    ----------
    teacher
        Run folder or model folder; the predictions of several teachers are averaged.
    student
        layers=6 (evenly spaced layers of the teacher), first=6 (its lower layers), shared=128 (one layer shared by all depths, with
        embeddings of this width), a preset (randomly initialized), or a run folder or model folder (a pretrained student).
    out
        Folder for the new run. OUT/intermediate holds the initial student, the baseline, and the teacher's predictions.
    train
        Labeled examples.
    unlabeled
        Unlabeled texts for the teacher to label: a table, or a .txt file with one text per line. Its predictions are cached.
    data
        Running text for task-agnostic distillation, with the losses of DistilBERT: language modeling (mlm or lm), the teacher's token
        probabilities (distillation), and its hidden states (cosine).
    split_by
        How .txt files of --data are split into documents: one per line, separated by blank lines, or one per file.
    text_field
        Text field of .jsonl, .csv, .tsv, and .parquet files of --data.
    encoding_errors
        How to handle invalid UTF-8 in --data.
    temperature
        Temperature of the softmax of teacher and student; larger values give softer probabilities.
    alpha
        Weight of the distillation loss relative to that of the labels in --train, from 0 to 1. For text generation: 0 for the labels, 1
        for the teacher's texts, anything between for both.
    loss
        Distillation loss: kl (divergence of probabilities) or mse (squared error of logits).
    match_layers
        Layers of the teacher to match, too, joined with +: 100*hidden(skip) (patient knowledge distillation), states(last),
        attention(1:2/2:4), embedding, or cosine.
    loss_weights
        Weights of the losses with --data, e.g. --loss-weights.cosine 0; by default those of DistilBERT: distillation 5, mlm (or lm) 2,
        cosine 1.
    num_augmentations
        Number of augmented copies of each text, with words removed, for the teacher to label.
    generate_tokens
        Train on texts that a generative teacher continues from the beginning of each text in --data, with this many tokens; 0 trains
        on --data itself.
    baseline
        Also train the same student without a teacher, in OUT/intermediate/baseline, and compare.

    Examples
    --------
    >>> distill("runs/task", student="layers=6", train="train.csv", match_layers="100*hidden(skip)", out="runs/half")  # doctest: +SKIP
    """
    from pretune.compression.distillation import DistillationJob, run_distillation
    from pretune.verbs.shared_inputs import as_path_list, compression_options

    given = compression_options(DistillationJob, locals())
    given |= {"data": as_path_list(data), "loss_weights": dict(loss_weights or {})}
    return run_distillation(DistillationJob(**given, teachers=as_path_list(teacher)))
