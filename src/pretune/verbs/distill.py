"""`distill`: a small model that learns from a large one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretune.runtime.output_paths import new_folder
from pretune.training.settings import Batching, Budget, Optimizer, Schedule, Watching
from pretune.verbs.option_modes import EPOCHS, ROW_KEYS, TEXT_KEYS, reading
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run

    Runs = Sequence[str | Path | Run]


def asks_teacher(o: Options) -> bool:
    """Return whether the student learns from the teacher's answers, not only from what is inside it."""
    return bool(o.data or o.unlabeled or o.augment or o.soft)


def has_probabilities(o: Options) -> bool:
    """Return whether the teacher has probabilities to learn: of tokens, or of classes."""
    from pretune.inference.predict import task_of
    from pretune.verbs.shared_inputs import split_runs

    return bool(o.data) or task_of(split_runs(o.teacher, [])[0][0])[1].name not in ("regress", "generate")


@verb(
    only(
        "dev", "text", "pair", "label", "columns", "soft", "loss", "augment", "epochs", "processes", "engine", *ROW_KEYS,
        where="to a student of a task (--train or --unlabeled), not with --data", when=lambda o: not o.data,
    ),
    *reading("layout", "column", "errors", files=lambda o: o.data, of=" of --data"),
    only("loss_weights", "write", *TEXT_KEYS, where="with --data", when=lambda o: bool(o.data)),
    only("soft", where="with --train, whose labels it is weighed against", when=lambda o: o.train is not None),
    only("control", where="with --train or --data", when=lambda o: o.train is not None or bool(o.data)),
    only(
        "temperature", "loss", "processes", "engine",
        where="where the teacher is asked: with --unlabeled, --augment or --soft above 0", when=asks_teacher,
    ),
    only("temperature", "loss", where="to teachers that classify or predict tokens", when=has_probabilities),
    EPOCHS,
    out=new_folder,
)  # fmt: skip
def distill(
    teacher: str | Path | Run | Runs,
    *,
    student: str,
    out: str | Path,
    train: str | Path | None = None,
    unlabeled: str | Path | None = None,
    data: Sequence[str | Path] | str | Path = (),
    layout: Literal["auto", "line", "blank", "file"] = "auto",
    column: str | None = None,
    errors: Literal["strict", "replace"] = "strict",
    dev: str | Path | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    temperature: float = 2.0,
    soft: float = 0.5,
    loss: Literal["kl", "mse"] = "kl",
    match: str | None = None,
    loss_weights: Mapping[str, float] | None = None,
    augment: int = 0,
    write: int = 0,
    control: bool = False,
    epochs: float = 3.0,
    budget: Budget | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    batch: Batching | None = None,
    watching: Watching | None = None,
    processes: int = 1,
    engine: Literal["local", "ray"] = "local",
    seed: int = 0,
    device: str | None = None,
) -> Run:
    """Distill a model, or several together, into a smaller one of any family: of its task, or, from running text, of none in
    particular.

    The student is shown beside its teacher: quality, bytes, time.

    Parameters
    ----------
    teacher
        A run or model folder; several are averaged.
    student
        layers=6 (every so many of the teacher's layers), first=6 (its lower ones), shared=128 (one layer for all depths, token
        vectors of this width), a preset (random weights), or a run or model folder (a student that was pretrained).
    out
        Folder of the new run. OUT/intermediate has what it was made from: the student at the start, the control, the teacher's
        answers.
    train
        Rows with labels.
    unlabeled
        Texts without: a table, or a .txt file with a text a line. The teacher's answers to them are kept.
    data
        Running text, for a general student of no task: it learns the tokens (mlm or lm), the teacher's probabilities of them
        (distillation) and the direction of its states (cosine).
    layout
        How .txt files of --data are split into documents: one per line, separated by blank lines, or whole files.
    column
        The text field of --data, where they are .jsonl, .csv, .tsv or .parquet files.
    errors
        What to do with invalid UTF-8 in --data.
    dev
        Rows to judge by.
    text
        Column of the text.
    pair
        Column of the second text.
    label
        Column of the label.
    columns
        Columns of what else the task reads.
    temperature
        Softens the teacher's probabilities.
    soft
        How much the teacher counts beside the labels of --train, from 0 to 1; of texts that it writes: 0 none, 1 these alone, else
        both.
    loss
        kl: of probabilities; mse: of logits.
    match
        What else becomes alike: 100*hidden(skip) (patient distillation), states(last), attention(1:2/2:4), embedding, cosine,
        joined with +.
    loss_weights
        Weights of the losses with --data; by default those of DistilBERT's published training, distillation 5, mlm (or lm) 2,
        cosine 1, e.g. --loss-weights.cosine 0.
    augment
        So many variants of each text, with words left out, for the teacher to label too.
    write
        A teacher that writes goes on by so many tokens from the beginning of each text in --data, and what it wrote is learned.
    control
        Train the same student without a teacher, too, in OUT/intermediate/control.
    epochs
        How often every row is seen.
    budget
        Limits instead of epochs.
    optimizer
        name, lr, betas, eps, decay, clip.
    schedule
        kind, warmup, final.
    batch
        sequences (in a step), length; of running text, tokens.
    watching
        log, evaluate, save, keep.
    processes
        The teacher answers in so many processes, on a CPU.
    engine
        Where it answers: here, or on the machines of a Ray cluster (the extra `cluster`).
    seed
        All chance follows from it.
    device
        cpu or cuda; a GPU is used where there is one.

    Examples
    --------
    >>> distill("runs/task", student="layers=6", train="train.csv", match="100*hidden(skip)", out="runs/half")  # doctest: +SKIP
    """
    from pretune.compression.distillation import Order, carry_out
    from pretune.verbs.shared_inputs import name_columns, split_runs

    teachers, _ = split_runs(teacher, [])
    learning = {"optimizer": optimizer, "schedule": schedule, "batch": batch, "watching": watching}
    order = Order(
        teachers=teachers,
        student=str(student),
        out=Path(out),
        train=None if train is None else str(train),
        unlabeled=None if unlabeled is None else str(unlabeled),
        data=[str(data)] if isinstance(data, str | Path) else [str(path) for path in data],
        layout=layout,
        column=column,
        errors=errors,
        dev=None if dev is None else str(dev),
        columns=name_columns(columns, text=text, pair=pair, label=label),
        temperature=temperature,
        soft=soft,
        loss=loss,
        match=match,
        loss_weights=dict(loss_weights or {}),
        augment=augment,
        write=write,
        control=control,
        epochs=epochs,
        budget=budget,
        learning={name: section for name, section in learning.items() if section is not None},
        processes=processes,
        engine=engine,
        seed=seed,
        device=device,
    )
    return carry_out(order)
