"""The `quantize` verb: quantize a model to int8, int4, or half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import BY_BUDGET, EPOCHS_RULE, NO_TEXT_KEYS
from pretune.verbs.verb import only, verb


@verb(
    only("bits", where="with --method weight-only", when=lambda o: o.method == "weight-only"),
    only(
        "backend",
        where="to int8 and int4 weights, not with --method bf16 or fp16",
        when=lambda o: o.method not in ("bf16", "fp16"),
    ),
    only(
        "per_channel",
        where="with --method dynamic or static and the onnx backend",
        when=lambda o: o.method in ("dynamic", "static") and o.backend != "torch",
    ),
    only("train", where="with --method static or qat", when=lambda o: o.method in ("static", "qat")),
    only(
        *BY_BUDGET,
        "seed",
        "device",
        where="to training, with --method qat and --train",
        when=lambda o: o.method == "qat" and o.train,
    ),
    only("text", "pair", "label", "columns", where="with --train or --dev", when=lambda o: o.train or o.dev),
    EPOCHS_RULE,
    NO_TEXT_KEYS,
    common=("method", "backend", "bits", "train", "dev", "text", "label", "epochs", "device"),
    out=check_new_folder,
)
def quantize(
    model: opt.Model,
    *,
    out: str | Path,
    method: Literal["dynamic", "static", "qat", "weight-only", "bf16", "fp16"] = "dynamic",
    backend: Literal["onnx", "torch"] | None = None,
    per_channel: bool = True,
    bits: int = 8,
    train: str | Path | opt.Table | None = None,
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
) -> opt.Run:
    """Quantize a model, and compare it with the original by quality, size, and speed.

    The new folder is used like any model. int8 models give the same results on every processor, with or without VNNI, because the
    weights of int8 matrix products are limited to 7 bits.

    Parameters
    ----------
    out
        Folder for the new run. With --method qat, OUT/intermediate/qat is the fine-tuned model before quantization, and
        OUT/intermediate/baseline the original model, quantized without fine-tuning.
    method
        dynamic: int8, activation ranges computed at run time; static: int8, activation ranges calibrated on --train; qat: int8,
        quantization-aware training on --train (Q8BERT); weight-only: int8 or int4 weights, for generative models; bf16 or fp16: half
        precision on disk.
    backend
        onnx for ONNX Runtime, or torch for PyTorch's int8 kernels; by default torch for generative models, and onnx for all others.
    per_channel
        Use one scale per output channel of a weight matrix instead of one per matrix.
    bits
        Bits per weight with --method weight-only: 8 or 4.
    train
        Labeled examples for --method static and qat. A model trained by `pretune finetune --strategy full+int8` needs none for qat.
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
