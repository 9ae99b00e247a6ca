"""The `prune` verb: remove layers, heads, units, weights, or vocabulary, and fine-tune."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import EPOCHS_RULE, NO_TEXT_KEYS, TRAINING, has_budget, reading_rules
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


def trains(o: Options) -> bool:
    """Return whether the pruned model is fine-tuned."""
    return bool(o.epochs) or has_budget(o)


def measures(o: Options) -> bool:
    """Return whether importance is measured on examples."""
    return bool(o.heads or o.units or (o.drop or "").startswith("contributions"))


@verb(
    only("control", *TRAINING, where="with --epochs or a budget", when=trains),
    only(
        "train",
        where="with --epochs, a budget, --heads, --units or --drop contributions(…)",
        when=lambda o: trains(o) or measures(o),
    ),
    only("text", "pair", "label", "columns", where="with --train or --dev", when=lambda o: o.train or o.dev),
    only(
        "seed",
        where="with --epochs, a budget or --drop random(…)",
        when=lambda o: trains(o) or (o.drop or "").startswith("random"),
    ),
    *reading_rules("column", "errors", files=lambda o: o.vocabulary, of=" of --vocabulary"),
    EPOCHS_RULE,
    NO_TEXT_KEYS,
    out=check_new_folder,
)
def prune(
    model: opt.Model,
    *,
    out: opt.RunFolder,
    drop: str | None = None,
    heads: float = 0.0,
    units: float = 0.0,
    weights: float = 0.0,
    vocabulary: opt.Paths = (),
    column: opt.TextField = None,
    errors: opt.Errors = "strict",
    train: str | Path | None = None,
    dev: opt.DevFile = None,
    text: opt.Text = None,
    pair: opt.Pair = None,
    label: opt.Label = None,
    columns: opt.Columns = None,
    control: bool = False,
    epochs: opt.Epochs = 0.0,
    budget: opt.Limits = None,
    optimizer: opt.OptimizerSettings = None,
    schedule: opt.ScheduleSettings = None,
    batch: opt.RowBatch = None,
    monitor: opt.RowMonitor = None,
    seed: opt.Seed = 0,
    device: opt.Device = None,
    partial: opt.Partial = False,
) -> Run:
    """Prune layers, heads, feed-forward units, weights, or vocabulary, then fine-tune to recover.

    The result compares the pruned model with the original by quality, size, and speed.

    Parameters
    ----------
    out
        Folder for the new run. With --epochs, OUT/intermediate/pruned is the pruned model before fine-tuning.
    drop
        Layers to drop: top(4), bottom(4), even(4), odd(4), symmetric(4), contributions(4), or random(4).
    heads
        Fraction of the attention heads to remove, the least important for the task.
    units
        Fraction of the units of each feed-forward network to remove.
    weights
        Fraction of each weight matrix to set to zero, gradually with --epochs. The file stores only the other weights.
    vocabulary
        Files, folders, and glob patterns of text; tokens that do not occur in it are removed.
    column
        Text field of .jsonl, .csv, .tsv, and .parquet files of --vocabulary.
    errors
        How to handle invalid UTF-8 in --vocabulary.
    train
        Labeled examples to measure the importance of heads and units on, and to fine-tune on.
    control
        Also fine-tune the unpruned model for the same time, in OUT/intermediate/control.
    epochs
        Passes over the training data to fine-tune the pruned model.

    Examples
    --------
    >>> prune("runs/task", drop="top(6)", train="train.csv", epochs=1, out="runs/half")  # doctest: +SKIP
    """
    from pretune.compression.pruning import PruningSpec
    from pretune.compression.pruning_job import PruningJob, run_pruning
    from pretune.text.corpus.documents import read_documents
    from pretune.text.corpus.files import find_files
    from pretune.verbs.shared_inputs import as_path_list, compression_options

    files = as_path_list(vocabulary)

    def texts() -> Iterator[str]:
        return (document.text for document in read_documents(find_files(files), column=column, errors=errors))

    given = compression_options(PruningJob, locals())
    given |= {"vocabulary": files, "reading": {"column": column, "errors": errors} if files else {}}
    pruning = PruningSpec(drop, heads, units, weights, texts if files else None, seed)
    return run_pruning(PruningJob(**given, pruning=pruning))
