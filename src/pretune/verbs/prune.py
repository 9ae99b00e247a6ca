"""`prune`: a smaller model by leaving out what it needs least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretune.runtime.output_paths import new_folder
from pretune.training.settings import Batching, Budget, Optimizer, Schedule, Watching
from pretune.verbs.option_modes import EPOCHS, ON_ROWS, TRAINING, has_budget, reading
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


def learns(o: Options) -> bool:
    """Return whether what is left is trained again."""
    return bool(o.epochs) or has_budget(o)


def measures(o: Options) -> bool:
    """Return whether examples tell what to prune."""
    return bool(o.heads or o.units or (o.drop or "").startswith("contributions"))


@verb(
    only("control", *TRAINING, where="with --epochs or a budget", when=learns),
    only(
        "train",
        where="with --epochs, a budget, --heads, --units or --drop contributions(…)",
        when=lambda o: learns(o) or measures(o),
    ),
    only("text", "pair", "label", "columns", where="with --train or --dev", when=lambda o: o.train or o.dev),
    only(
        "seed",
        where="with --epochs, a budget or --drop random(…)",
        when=lambda o: learns(o) or (o.drop or "").startswith("random"),
    ),
    *reading("column", "errors", files=lambda o: o.vocabulary, of=" of --vocabulary"),
    EPOCHS,
    ON_ROWS,
    out=new_folder,
)
def prune(
    model: str | Path | Run,
    *,
    out: str | Path,
    drop: str | None = None,
    heads: float = 0.0,
    units: float = 0.0,
    weights: float = 0.0,
    vocabulary: Sequence[str | Path] | str | Path = (),
    column: str | None = None,
    errors: Literal["strict", "replace"] = "strict",
    train: str | Path | None = None,
    dev: str | Path | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    control: bool = False,
    epochs: float = 0.0,
    budget: Budget | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    batch: Batching | None = None,
    watching: Watching | None = None,
    seed: int = 0,
    device: str | None = None,
    partial: bool = False,
) -> Run:
    """Prune a model: leave out layers, heads, inner units, weights, tokens, and learn again to do without them.

    The new model is shown beside the old one: quality, bytes, time.

    Parameters
    ----------
    model
        A run or model folder.
    out
        Folder of the new run. With --epochs, OUT/intermediate/pruned is the pruned model before it was trained again.
    drop
        Layers to drop: top(4), bottom(4), even(4), odd(4), symmetric(4), contributions(4), random(4).
    heads
        Share of the attention heads to remove, those the task needs least.
    units
        Share of the inner units of each feed-forward network to remove.
    weights
        Share of each matrix to set to 0; with --epochs, little by little. They are saved without the zeros.
    vocabulary
        Files, folders and globs of text: tokens that it does not need go.
    column
        The text field of these files, where they are .jsonl, .csv, .tsv or .parquet.
    errors
        What to do with invalid UTF-8 in them.
    train
        Rows of the model's task: what heads and units are worth is measured on them, and --epochs learn from them.
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
    control
        Train the whole model as long, too, in OUT/intermediate/control.
    epochs
        Fine-tune what is left so long.
    budget
        Limits instead of epochs.
    optimizer
        name, lr, betas, eps, decay, clip.
    schedule
        kind, warmup, final.
    batch
        sequences (in a step), length.
    watching
        log, evaluate, save, keep.
    seed
        All chance follows from it.
    device
        cpu or cuda; a GPU is used where there is one.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> prune("runs/task", drop="top(6)", train="train.csv", epochs=1, out="runs/half")  # doctest: +SKIP
    """
    import os

    from pretune.compression.pruning import Pruning
    from pretune.compression.pruning_job import Order, carry_out
    from pretune.text.corpus.documents import read_documents
    from pretune.text.corpus.files import find_files
    from pretune.verbs.shared_inputs import name_columns

    files = [vocabulary] if isinstance(vocabulary, str | Path) else list(vocabulary)

    def texts() -> Iterator[str]:
        return (document.text for document in read_documents(find_files(files), column=column, errors=errors))

    learning = {"optimizer": optimizer, "schedule": schedule, "batch": batch, "watching": watching}
    order = Order(
        model=os.fspath(model),
        out=Path(out),
        pruning=Pruning(drop, heads, units, weights, texts if files else None, seed),
        train=None if train is None else str(train),
        dev=None if dev is None else str(dev),
        columns=name_columns(columns, text=text, pair=pair, label=label),
        epochs=epochs,
        budget=budget,
        learning={name: section for name, section in learning.items() if section is not None},
        seed=seed,
        device=device,
        partial=partial,
        vocabulary=[str(file) for file in files],
        reading={"column": column, "errors": errors} if files else {},
        control=control,
    )
    return carry_out(order)
