"""`compress`: the smallest or fastest model that is still good enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.runtime.output_paths import new_folder
from pretune.training.settings import Batching, Budget, Optimizer, Schedule, Watching
from pretune.verbs.option_modes import BY_BUDGET, EPOCHS, ON_ROWS
from pretune.verbs.verb import only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


@verb(
    only(
        *BY_BUDGET,
        "seed",
        "device",
        where="to sequences that train, not to int8 alone",
        when=lambda o: not o.sequences or any(text.strip() != "int8" for text in o.sequences),
    ),
    EPOCHS,
    ON_ROWS,
    out=new_folder,
)
def compress(
    model: str | Path | Run,
    *,
    target: Sequence[str] | str,
    train: str | Path,
    dev: str | Path,
    out: str | Path,
    sequences: Sequence[str] = (),
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    epochs: float = 3.0,
    budget: Budget | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    batch: Batching | None = None,
    watching: Watching | None = None,
    seed: int = 0,
    device: str | None = None,
) -> Run:
    """Compress a model to a target: distilled, pruned and quantized in several sequences, compared, and the best one kept.

    pareto.png shows quality against size and against latency.

    Parameters
    ----------
    model
        A fine-tuned run or model folder.
    target
        latency=5ms (for one text), size=20MB, quality>=0.97 (of the uncompressed model's); several hold together. Of models
        within limits of cost the best is kept; where only quality is limited, the fastest.
    train
        Rows with labels, to learn from.
    dev
        Rows to judge by.
    out
        Folder of the new run; candidates stand in it.
    sequences
        Others than the usual ones, such as "layers=6 > units=0.5 > int8".
    text
        Column of the text.
    pair
        Column of the second text.
    label
        Column of the label.
    columns
        Columns of what else the task reads.
    epochs
        How long each step learns.
    budget
        Limits of each step instead of epochs.
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

    Examples
    --------
    >>> compress("runs/task", target="quality>=0.97", train="train.csv", dev="dev.csv", out="runs/fast")  # doctest: +SKIP
    """
    import os

    from pretune.compression.search import Order, carry_out
    from pretune.compression.targets import parse_target
    from pretune.verbs.shared_inputs import name_columns

    learning = {"optimizer": optimizer, "schedule": schedule, "batch": batch, "watching": watching}
    order = Order(
        model=os.fspath(model),
        out=Path(out),
        targets=[parse_target(one) for one in ([target] if isinstance(target, str) else target)],
        train=str(train),
        dev=str(dev),
        columns=name_columns(columns, text=text, pair=pair, label=label),
        sequences=list(sequences),
        epochs=epochs,
        budget=budget,
        learning={name: section for name, section in learning.items() if section is not None},
        seed=seed,
        device=device,
    )
    return carry_out(order)
