"""The `compress` verb: search for the best compressed model that meets a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import BY_BUDGET, EPOCHS_RULE, NO_TEXT_KEYS
from pretune.verbs.verb import only, verb


@verb(
    only(
        *BY_BUDGET,
        "seed",
        "device",
        where="to pipelines that train, not to int8 alone",
        when=lambda o: not o.pipelines or any(text.strip() != "int8" for text in o.pipelines),
    ),
    EPOCHS_RULE,
    NO_TEXT_KEYS,
    common=("target", "dev", "pipelines", "text", "pair", "label", "epochs", "seed", "device"),
    out=check_new_folder,
)
def compress(
    model: opt.FineTuned,
    *,
    target: Sequence[str] | str,
    train: opt.TrainFile,
    dev: str | Path | opt.Table,
    out: opt.RunFolder,
    pipelines: Sequence[str] = (),
    text: opt.Text = None,
    pair: opt.Pair = None,
    label: opt.Label = None,
    columns: opt.Columns = None,
    epochs: opt.Epochs = 3.0,
    budget: opt.Limits = None,
    optimizer: opt.OptimizerSettings = None,
    schedule: opt.ScheduleSettings = None,
    batch: opt.RowBatch = None,
    monitor: opt.RowMonitor = None,
    seed: opt.Seed = 0,
    device: opt.Device = None,
) -> opt.Run:
    """Compress a fine-tuned model to a target: try pipelines of distillation, pruning, and quantization, and keep the best.

    pareto.png plots quality against size and against latency.

    Parameters
    ----------
    target
        Targets that the model must meet, all at once: latency=5ms (for one text), size=20MB, quality>=0.97 (relative to
        the uncompressed model). With a limit on latency or size, the most accurate model within it is kept; otherwise
        the fastest model.
    dev
        Labeled examples to compare the candidates on.
    out
        Folder for the new run, with the candidates in it.
    pipelines
        Pipelines to try instead of the default ones, such as "layers=6 > ffn_units=0.5 > int8". Steps: layers=N (distill into the N
        lowest layers), heads=F, ffn_units=F, and sparsity=F (prune this fraction), int8 (quantize).
    epochs
        Passes over the training data in each step.
    budget
        Training budget of each step, instead of --epochs.

    Examples
    --------
    >>> compress("runs/task", target="quality>=0.97", train="train.csv", dev="dev.csv", out="runs/fast")  # doctest: +SKIP
    """
    from pretune.compression.pipeline_search import CompressionSearch, run_search
    from pretune.compression.targets import parse_target
    from pretune.verbs.shared_inputs import compression_options

    given = compression_options(CompressionSearch, locals())
    targets = [parse_target(one) for one in ([target] if isinstance(target, str) else target)]
    return run_search(CompressionSearch(**given, targets=targets))
