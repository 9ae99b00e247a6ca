"""`ulmfit`: a language model becomes a classifier, by way of the task's own texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretune.runtime.output_paths import folder_of
from pretune.verbs.option_modes import reading
from pretune.verbs.verb import verb

if TYPE_CHECKING:
    from pretune.training.jobs.ulmfit import Fitted
    from pretune.training.run_folder import Run


@verb(
    *reading("layout", "column", "errors", files=lambda o: o.texts, of=" of --texts"),
    out=folder_of("texts.jsonl", "a run of ULMFiT"),
)
def ulmfit(
    model: str | Path | Run,
    train: str | Path,
    *,
    out: str | Path,
    backward: str | Path | Run | None = None,
    dev: str | Path | None = None,
    texts: Sequence[str | Path] = (),
    layout: Literal["auto", "line", "blank", "file"] = "auto",
    column: str | None = None,
    errors: Literal["strict", "replace"] = "strict",
    text: str | None = None,
    label: str | None = None,
    vocabulary: int | None = None,
    lm_epochs: float = 5.0,
    epochs: float | None = None,
    length: int = 400,
    rows: int = 32,
    rate: float = 4e-3,
    dropout: Mapping[str, float] | None = None,
    language: str = "en",
    seed: int = 0,
    seeds: int = 1,
    device: str | None = None,
) -> Fitted:
    """ULMFiT's second and third stage: adapt a language model to the task's texts, then make a classifier of it.

    The first stage is `pretune pretrain ulmfit`, and `ulmfit-backward`. Words that the task's texts share with the old
    vocabulary keep their vectors. Lower layers move more slowly, rates are slanted triangles, layers are unfrozen one after
    the other. The same command goes on with what is not finished.

    Parameters
    ----------
    model
        A pretrained recurrent language model.
    train
        Labeled rows: .csv, .tsv, .jsonl or .parquet.
    out
        Folder of the new runs: forward/texts and forward/task, backward/texts and backward/task.
    backward
        A second one that reads backward; the classifiers of both answer together.
    dev
        Rows to evaluate on. Without them a fifth of the others is set aside, of 50 or more.
    texts
        Files of further texts of the same kind, without labels.
    layout
        How .txt files of --texts are split into documents: one per line, separated by blank lines, or whole files.
    column
        The text field of --texts, where they are .jsonl, .csv, .tsv or .parquet files.
    errors
        What to do with invalid UTF-8 in --texts.
    text
        Column of the text.
    label
        Column of the label.
    vocabulary
        Words of the new vocabulary; as many as the model's by default.
    lm_epochs
        How often the language model reads the texts.
    epochs
        How often the classifier sees every row; 50 times where there are fewer than 1,000, else 10.
    length
        Tokens of a text that the classifier reads, at most.
    rows
        In a step of the classifier.
    rate
        The classifier's and the top layer's, at its highest. 2e-3 may suit few long texts, 1e-2 many short ones.
    dropout
        Of the classifier, instead of the language model's, e.g. --dropout.weight_drop 0.5.
    language
        Language of the sentence splitter, or `lines`.
    seed
        All chance follows from it.
    seeds
        Train so many classifiers; the best is kept, mean and spread are told.
    device
        cpu or cuda; a GPU is used where there is one.

    Examples
    --------
    >>> fitted = ulmfit("runs/lm", "imdb.csv", backward="runs/backward", out="runs/imdb")  # doctest: +SKIP
    >>> predict(fitted.classifiers, ["a delightful film"])  # doctest: +SKIP
    """
    import os

    from pretune.training.jobs.ulmfit import Stages, fit

    stages = Stages(
        train=str(train),
        dev=str(dev) if dev is not None else None,
        columns={role: name for role, name in (("text", text), ("label", label)) if name},
        texts=tuple(map(str, [texts] if isinstance(texts, str | Path) else texts)),
        layout=layout,
        column=column,
        errors=errors,
        vocabulary=vocabulary,
        lm_epochs=lm_epochs,
        epochs=epochs,
        length=length,
        rows=rows,
        rate=rate,
        dropout=dict(dropout) if dropout else None,
        language=language,
        seed=seed,
        seeds=seeds,
        device=device,
    )
    models = [os.fspath(one) for one in (model, backward) if one is not None]
    return fit(models, stages, Path(out))
