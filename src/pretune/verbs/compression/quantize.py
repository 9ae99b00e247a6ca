"""The `quantize` verb: quantize a model to int8, int4, or half precision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import BY_BUDGET, EPOCHS_RULE, NO_TEXT_KEYS
from pretune.verbs.verb import only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


@verb(
    only("bits", where="with --method weights", when=lambda o: o.method == "weights"),
    only("backend", where="to int8 weights, not with --method bf16 or fp16", when=lambda o: o.method not in ("bf16", "fp16")),
    only(
        "per_channel",
        where="with --method dynamic or static and the onnx engine",
        when=lambda o: o.method in ("dynamic", "static") and o.backend != "torch",
    ),
    only("train", where="with --method static or aware", when=lambda o: o.method in ("static", "aware")),
    only(
        *BY_BUDGET,
        "seed",
        "device",
        where="to training, with --method aware and --train",
        when=lambda o: o.method == "aware" and o.train,
    ),
    only("text", "pair", "label", "columns", where="with --train or --dev", when=lambda o: o.train or o.dev),
    EPOCHS_RULE,
    NO_TEXT_KEYS,
    out=check_new_folder,
)
def quantize(
    model: opt.Model,
    *,
    out: str | Path,
    method: Literal["dynamic", "static", "aware", "weights", "bf16", "fp16"] = "dynamic",
    backend: Literal["onnx", "torch"] | None = None,
    per_channel: bool = True,
    bits: int = 8,
    train: str | Path | None = None,
    dev: opt.DevFile = None,
    text: opt.Text = None,
    pair: opt.Pair = None,
    label: opt.Label = None,
    columns: opt.Columns = None,
    epochs: opt.Epochs = 1.0,
    budget: opt.Limits = None,
    optimizer: opt.OptimizerSettings = None,
    schedule: opt.ScheduleSettings = None,
    batch: opt.RowBatch = None,
    monitor: opt.RowMonitor = None,
    seed: opt.Seed = 0,
    device: opt.Device = None,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> Run:
    """Quantize a model, and compare it with the original by quality, size, and speed.

    int8 models give the same results on every processor, with or without VNNI, as weights of int8 products have 7 bits. Use the new
    folder like any model.

    Parameters
    ----------
    out
        Folder for the new run. With --method aware, OUT/intermediate holds the fine-tuned model (aware) and the model that is quantized
        without training (control).
    method
        Method: dynamic, activation ranges computed in each call; static, calibrated on --train; aware, quantization-aware training
        on --train (Q8BERT); weights, int8 or int4 weights only, for generative models; bf16 or fp16, half precision on disk.
    backend
        onnx for ONNX Runtime, or torch for PyTorch's own int8 kernels; by default torch for generative models, otherwise onnx.
    per_channel
        Use one range per row of a weight matrix instead of one per matrix.
    bits
        Bits per weight: 8, or 4 with --method weights.
    train
        Labeled examples, for --method static and aware. A model made by `pretune finetune --strategy full+int8` needs none for aware.
    epochs
        Passes over the training data of quantization-aware training.

    Examples
    --------
    >>> quantize("runs/task", dev="dev.csv", out="runs/int8").results["compression_ratio"]  # doctest: +SKIP
    3.9
    """
    from pretune.compression.quantization import QuantizationJob, run_quantization
    from pretune.verbs.shared_inputs import compression_options

    return run_quantization(QuantizationJob(**compression_options(QuantizationJob, locals())))
