"""`quantize`: make a model with int8 weights and activations, and measure what that gains and costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretune.runtime.output_paths import new_folder
from pretune.training.settings import Batching, Budget, Optimizer, Schedule, Watching
from pretune.verbs.option_modes import BY_BUDGET, EPOCHS, ON_ROWS
from pretune.verbs.verb import only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


@verb(
    only("bits", where="with --how weights", when=lambda o: o.how == "weights"),
    only("engine", where="to int8 weights, not with --how bf16 or fp16", when=lambda o: o.how not in ("bf16", "fp16")),
    only(
        "per_channel",
        where="with --how dynamic or static and the onnx engine",
        when=lambda o: o.how in ("dynamic", "static") and o.engine != "torch",
    ),
    only("train", where="with --how static or aware", when=lambda o: o.how in ("static", "aware")),
    only(
        *BY_BUDGET,
        "seed",
        "device",
        where="with --how aware and --train, which trains",
        when=lambda o: o.how == "aware" and o.train,
    ),
    only("text", "pair", "label", "columns", where="with --train or --dev", when=lambda o: o.train or o.dev),
    EPOCHS,
    ON_ROWS,
    out=new_folder,
)
def quantize(
    model: str | Path | Run,
    *,
    out: str | Path,
    how: Literal["dynamic", "static", "aware", "weights", "bf16", "fp16"] = "dynamic",
    engine: Literal["onnx", "torch"] | None = None,
    per_channel: bool = True,
    bits: int = 8,
    train: str | Path | None = None,
    dev: str | Path | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    epochs: float = 1.0,
    budget: Budget | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    batch: Batching | None = None,
    watching: Watching | None = None,
    seed: int = 0,
    device: str | None = None,
    partial: bool = False,
) -> Run:
    """Quantize a model to int8, and compare it with the old one: quality, bytes, time. Use the new folder like any model.

    It gives the same answers on every processor, with or without VNNI: weights that are multiplied as integers have 7 bits.

    Parameters
    ----------
    model
        A run or model folder.
    out
        The new folder. With aware, OUT/intermediate has the fine-tuned model (aware) and the model with int8 weights and no
        training (control).
    how
        dynamic: ranges of activations are found in each call; static: they are measured on --train before; aware:
        quantization-aware training on --train learns them (Q8BERT), and the graph keeps them; weights: only weights are int8,
        for generative models; bf16, fp16: half of the bytes, on disk alone.
    engine
        onnx: ONNX Runtime; torch: torch's own kernels, where it has exact ones. Generative models take torch, others onnx.
    per_channel
        One range per row of a weight matrix instead of one per matrix.
    bits
        Bits of weights: 8, or 4 with --how weights.
    train
        Rows of the model's task, for aware and static. A model made by `pretune finetune --strategy full+int8` needs none for aware.
    dev
        Rows to evaluate on.
    text
        Column of the text.
    pair
        Column of the second text.
    label
        Column of the label.
    columns
        Columns of what else the task reads.
    epochs
        How long aware trains.
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
        cpu or cuda; where aware trains.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> quantize("runs/task", dev="dev.csv", out="runs/int8").results["times_smaller"]  # doctest: +SKIP
    3.9
    """
    import os

    from pretune.compression.quantization import Order, carry_out
    from pretune.verbs.shared_inputs import name_columns

    learning = {"optimizer": optimizer, "schedule": schedule, "batch": batch, "watching": watching}
    order = Order(
        model=os.fspath(model),
        out=Path(out),
        how=how,
        engine=engine,
        per_channel=per_channel,
        bits=bits,
        train=None if train is None else str(train),
        dev=None if dev is None else str(dev),
        columns=name_columns(columns, text=text, pair=pair, label=label),
        epochs=epochs,
        budget=budget,
        learning={name: section for name, section in learning.items() if section is not None},
        seed=seed,
        device=device,
        partial=partial,
    )
    return carry_out(order)
