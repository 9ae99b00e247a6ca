"""The `ulmfit` verb: fine-tune a recurrent language model into a text classifier (Howard and Ruder, 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.runtime.output_paths import check_resumable_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import reading_rules
from pretune.verbs.verb import verb

if TYPE_CHECKING:
    from pretune.training.jobs.ulmfit import UlmfitResult


@verb(
    *reading_rules("split_by", "text_field", "encoding_errors", files=lambda o: o.unlabeled, of=" of --unlabeled"),
    common=("dev", "unlabeled", "text", "label", "epochs", "batch_size", "lr", "language", "seed", "device"),
    out=check_resumable_folder("texts.jsonl", "a run of ULMFiT"),
)
def ulmfit(
    model: str | Path | opt.ModelHandle,
    train: opt.TrainFile,
    *,
    out: str | Path,
    backward_model: str | Path | opt.ModelHandle | None = None,
    dev: str | Path | opt.Table | None = None,
    unlabeled: opt.Paths = (),
    split_by: opt.SplitBy = "auto",
    text_field: opt.TextField = None,
    encoding_errors: opt.EncodingErrors = "strict",
    text: opt.Text = None,
    label: opt.Label = None,
    vocab_size: int | None = None,
    lm_epochs: float = 5.0,
    epochs: float | None = None,
    max_length: int = 400,
    batch_size: int = 32,
    lr: float = 4e-3,
    dropout: Mapping[str, float] | None = None,
    language: opt.Language = "en",
    seed: opt.Seed = 0,
    num_seeds: int = 1,
    device: opt.Device = None,
) -> UlmfitResult:
    """Fine-tune a recurrent language model on the texts of a task, then train a classifier on top of it (ULMFiT).

    These are the second and third stage of ULMFiT; the first is `pretune pretrain ulmfit` (and `ulmfit-backward`). Words that are in
    both vocabularies keep their embeddings. Training uses discriminative learning rates, slanted triangular schedules, and gradual
    unfreezing. Run the same command again to continue after an interruption.

    Parameters
    ----------
    model
        Pretrained recurrent language model.
    out
        Folder for the new runs: forward/texts and forward/task, backward/texts and backward/task.
    backward_model
        Second language model, trained on reversed text; the predictions of both classifiers are averaged.
    dev
        Labeled examples to evaluate on. By default a fifth of the training examples is held out, if there are at least 50.
    unlabeled
        Files, folders, or glob patterns of more unlabeled text from the same domain, for the language model.
    split_by
        How .txt files of --unlabeled are split into documents: one per line, separated by blank lines, or one per file.
    text_field
        Text field of .jsonl, .csv, .tsv, and .parquet files of --unlabeled.
    encoding_errors
        How to handle invalid UTF-8 in --unlabeled.
    vocab_size
        Size of the new vocabulary; by default that of the pretrained language model.
    lm_epochs
        Passes of the language model over the texts.
    epochs
        Passes of the classifier over the training examples; by default 50 if there are fewer than 1,000, otherwise 10.
    max_length
        Maximum number of tokens of a text that the classifier reads.
    batch_size
        Batch size of the classifier.
    lr
        Peak learning rate of the classifier and the top layer. 2e-3 may suit few long texts, 1e-2 many short ones.
    dropout
        Dropout probabilities of the classifier that replace the language model's, e.g. --dropout.weight_drop 0.5.
    num_seeds
        Number of classifiers to train with different seeds; the best is kept, and mean and standard deviation are reported.

    Examples
    --------
    >>> fitted = ulmfit("runs/lm", "imdb.csv", backward_model="runs/backward", out="runs/imdb")  # doctest: +SKIP
    >>> predict(fitted.classifiers, ["a delightful film"])  # doctest: +SKIP
    """
    from pretune.training.jobs.ulmfit import UlmfitJob, run_ulmfit
    from pretune.verbs.shared_inputs import as_path_list, columns_by_role, job_options, model_reference

    given = job_options(UlmfitJob, locals())
    given["columns"] = columns_by_role(None, text=text, label=label)
    given["unlabeled"] = tuple(as_path_list(unlabeled))
    given["dropout"] = dict(dropout) if dropout else None
    models = [model_reference(one) for one in (model, backward_model) if one is not None]
    return run_ulmfit(models, UlmfitJob(**given), Path(out))
