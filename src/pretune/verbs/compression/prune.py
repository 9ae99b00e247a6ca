"""The `prune` verb: remove layers, heads, feed-forward units, weights, or vocabulary, and fine-tune."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import EPOCHS_RULE, NO_TEXT_KEYS, TRAINING, has_budget, reading_rules
from pretune.verbs.verb import Options, only, verb


def trains(o: Options) -> bool:
    """Return whether the command-line options `o` ask for fine-tuning of the pruned model."""
    return bool(o.epochs) or has_budget(o)


def measures(o: Options) -> bool:
    """Return whether pruning with the options `o` needs examples, to measure what is least important."""
    return bool(o.heads or o.ffn_units or (o.drop_layers or "").startswith("contributions"))


@verb(
    only("baseline", *TRAINING, where="with --epochs or a budget", when=trains),
    only(
        "train",
        where="with --epochs, a budget, --heads, --ffn-units or --drop-layers contributions(…)",
        when=lambda o: trains(o) or measures(o),
    ),
    only("text", "pair", "label", "columns", where="with --train or --dev", when=lambda o: o.train or o.dev),
    only(
        "seed",
        where="with --epochs, a budget or --drop-layers random(…)",
        when=lambda o: trains(o) or (o.drop_layers or "").startswith("random"),
    ),
    *reading_rules("text_field", "encoding_errors", files=lambda o: o.vocabulary_texts, of=" of --vocabulary-texts"),
    EPOCHS_RULE,
    NO_TEXT_KEYS,
    common=(
        "drop_layers",
        "heads",
        "ffn_units",
        "sparsity",
        "vocabulary_texts",
        "train",
        "dev",
        "text",
        "label",
        "epochs",
        "device",
    ),
    out=check_new_folder,
)
def prune(
    model: opt.Model,
    *,
    out: opt.RunFolder,
    drop_layers: str | None = None,
    heads: float = 0.0,
    ffn_units: float = 0.0,
    sparsity: float = 0.0,
    vocabulary_texts: opt.Paths = (),
    text_field: opt.TextField = None,
    encoding_errors: opt.EncodingErrors = "strict",
    train: str | Path | opt.Table | None = None,
    dev: opt.DevFile = None,
    text: opt.Text = None,
    pair: opt.Pair = None,
    label: opt.Label = None,
    columns: opt.Columns = None,
    baseline: bool = False,
    epochs: opt.Epochs = 0.0,
    budget: opt.Limits = None,
    optimizer: opt.OptimizerSettings = None,
    schedule: opt.ScheduleSettings = None,
    batch: opt.RowBatch = None,
    monitor: opt.RowMonitor = None,
    seed: opt.Seed = 0,
    device: opt.Device = None,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> opt.Run:
    """Prune layers, heads, feed-forward units, weights, or vocabulary, then fine-tune to recover.

    The result compares the pruned model with the original by quality, size, and speed.

    Parameters
    ----------
    out
        Folder for the new run. With --epochs, OUT/intermediate/pruned is the pruned model before fine-tuning.
    drop_layers
        Layers to drop: top(4), bottom(4), even(4), odd(4), symmetric(4), contributions(4) (those that change the hidden states least),
        or random(4).
    heads
        Fraction of the attention heads to remove, the least important first.
    ffn_units
        Fraction of the hidden units of each feed-forward network to remove, the least important first.
    sparsity
        Fraction of each weight matrix to set to zero, the smallest weights first; with --epochs, gradually during
        fine-tuning. Zeros are not stored.
    vocabulary_texts
        Files, folders, or glob patterns of text; tokens that do not occur in it are removed from the vocabulary.
    text_field
        Text field of .jsonl, .csv, .tsv, and .parquet files of --vocabulary-texts.
    encoding_errors
        How to handle invalid UTF-8 in --vocabulary-texts.
    train
        Labeled examples to measure the importance of heads and units on, and to fine-tune on.
    baseline
        Also fine-tune the unpruned model for as long, in OUT/intermediate/baseline, and compare.
    epochs
        Passes over the training data to fine-tune the pruned model.

    Examples
    --------
    >>> prune("runs/task", drop_layers="top(6)", train="train.csv", epochs=1, out="runs/half")  # doctest: +SKIP
    """
    from pretune.compression.pruning import PruningSpec
    from pretune.compression.pruning_job import PruningJob, run_pruning
    from pretune.text.corpus.documents import read_documents
    from pretune.text.corpus.files import find_files
    from pretune.verbs.shared_inputs import as_path_list, compression_options

    files = as_path_list(vocabulary_texts)

    def texts() -> Iterator[str]:
        return (
            document.text
            for document in read_documents(find_files(files), text_field=text_field, encoding_errors=encoding_errors)
        )

    given = compression_options(PruningJob, locals())
    reading = {"text_field": text_field, "encoding_errors": encoding_errors}
    given |= {"vocabulary_texts": files, "reading": reading if files else {}}
    pruning = PruningSpec(drop_layers, heads, ffn_units, sparsity, texts if files else None, seed)
    return run_pruning(PruningJob(**given, pruning=pruning))
