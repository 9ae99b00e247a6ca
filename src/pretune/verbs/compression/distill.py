"""The `distill` verb: train a small student to match one or several teachers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import EPOCHS_RULE, ROW_KEYS, TEXT_KEYS, reading_rules
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


def uses_predictions(o: Options) -> bool:
    """Return whether the student is trained on the teacher's predictions, and not only on its hidden states."""
    return bool(o.data or o.unlabeled or o.augment or o.soft)


def has_probabilities(o: Options) -> bool:
    """Return whether the teacher predicts probabilities, of tokens or of classes."""
    from pretune.inference.predict import find_task
    from pretune.verbs.shared_inputs import split_models

    if o.data:
        return True
    task = find_task(split_models(o.teacher, [])[0][0])[1]
    return bool(task.labels) and task.output_per != "text"


@verb(
    only(
        "dev", "text", "pair", "label", "columns", "soft", "loss", "augment", "epochs", "processes", "engine", *ROW_KEYS,
        where="to a student for a task (--train or --unlabeled), not with --data", when=lambda o: not o.data,
    ),
    *reading_rules("layout", "column", "errors", files=lambda o: o.data, of=" of --data"),
    only("loss_weights", "write", *TEXT_KEYS, where="with --data", when=lambda o: bool(o.data)),
    only("soft", where="with --train, against whose labels it is weighted", when=lambda o: o.train is not None),
    only("control", where="with --train or --data", when=lambda o: o.train is not None or bool(o.data)),
    only(
        "temperature", "loss", "processes", "engine",
        where="if the teacher predicts: with --unlabeled, --augment or --soft above 0", when=uses_predictions,
    ),
    only("temperature", "loss", where="to teachers that classify or predict tokens", when=has_probabilities),
    EPOCHS_RULE,
    out=check_new_folder,
)  # fmt: skip
def distill(
    teacher: opt.Models,
    *,
    student: str,
    out: opt.RunFolder,
    train: str | Path | None = None,
    unlabeled: str | Path | None = None,
    data: Sequence[str | Path] | str | Path = (),
    layout: opt.Layout = "auto",
    column: opt.TextField = None,
    errors: opt.Errors = "strict",
    dev: opt.DevFile = None,
    text: opt.Text = None,
    pair: opt.Pair = None,
    label: opt.Label = None,
    columns: opt.Columns = None,
    temperature: float = 2.0,
    soft: float = 0.5,
    loss: Literal["kl", "mse"] = "kl",
    match: str | None = None,
    loss_weights: Mapping[str, float] | None = None,
    augment: int = 0,
    write: int = 0,
    control: bool = False,
    epochs: opt.Epochs = 3.0,
    budget: opt.Limits = None,
    optimizer: opt.OptimizerSettings = None,
    schedule: opt.ScheduleSettings = None,
    batch: opt.Batch = None,
    watching: opt.AnyWatching = None,
    processes: opt.Processes = 1,
    engine: opt.Engine = "local",
    seed: opt.Seed = 0,
    device: opt.Device = None,
) -> Run:
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
        Folder for the new run. OUT/intermediate holds the initial student, the control, and the teacher's predictions.
    train
        Labeled examples.
    unlabeled
        Unlabeled texts for the teacher to label: a table, or a .txt file with one text per line. Its predictions are cached.
    data
        Running text for task-agnostic distillation, with the losses of DistilBERT: language modeling (mlm or lm), the teacher's token
        probabilities (distillation), and its hidden states (cosine).
    layout
        How .txt files of --data are split into documents: one per line, separated by blank lines, or one per file.
    column
        Text field of .jsonl, .csv, .tsv, and .parquet files of --data.
    errors
        How to handle invalid UTF-8 in --data.
    temperature
        Temperature that softens the probabilities of teacher and student.
    soft
        Weight of the teacher relative to the labels of --train, from 0 to 1. For generated texts: 0 for the labels, 1 for the
        teacher's texts, anything between for both.
    loss
        Distillation loss: kl (divergence of probabilities) or mse (squared error of logits).
    match
        Layers to match as well, joined with +: 100*hidden(skip) (patient distillation), states(last), attention(1:2/2:4), embedding,
        or cosine.
    loss_weights
        Weights of the losses with --data, e.g. --loss-weights.cosine 0; by default those of DistilBERT: distillation 5, mlm (or lm) 2,
        cosine 1.
    augment
        Number of variants of each text, with words removed, for the teacher to label.
    write
        Number of tokens that a generative teacher generates from the beginning of each text in --data, to train on.
    control
        Also train the same student without a teacher, in OUT/intermediate/control.

    Examples
    --------
    >>> distill("runs/task", student="layers=6", train="train.csv", match="100*hidden(skip)", out="runs/half")  # doctest: +SKIP
    """
    from pretune.compression.distillation import DistillationJob, run_distillation
    from pretune.verbs.shared_inputs import as_path_list, compression_options, split_models

    given = compression_options(DistillationJob, locals())
    given |= {"data": as_path_list(data), "loss_weights": dict(loss_weights or {})}
    return run_distillation(DistillationJob(**given, teachers=split_models(teacher, [])[0]))
