"""`vectors train`: word vectors from raw text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pretune.runtime.output_paths import new_folder
from pretune.verbs.option_modes import reading
from pretune.verbs.results import Facts
from pretune.verbs.verb import verb


@verb(*reading("layout", "column", files=lambda o: o.data), out=new_folder)
def train_vectors(
    data: Sequence[str | Path] | str | Path,
    *,
    out: str | Path,
    kind: Literal["skipgram", "cbow", "fasttext"] = "skipgram",
    width: int = 100,
    window: int = 5,
    negatives: int = 5,
    rarest: int = 5,
    epochs: int = 5,
    lowercase: bool = True,
    language: str = "en",
    layout: Literal["auto", "line", "blank", "file"] = "auto",
    column: str | None = None,
    errors: Literal["strict", "replace"] = "strict",
    seed: int = 0,
    processes: int = 1,
) -> Facts:
    """Train word vectors with gensim (the extra `vectors`) and make a model folder of them.

    With one process, the same seed gives the same vectors.

    Parameters
    ----------
    data
        Files, folders and globs of text.
    out
        Folder of the model.
    kind
        skipgram and cbow are word2vec's; fasttext is the skip-gram with pieces of words.
    width
        Of a vector.
    window
        Words to either side that a word is told by.
    negatives
        Words drawn for each that is there.
    rarest
        Words that come less often are left out.
    epochs
        How often the text is read.
    lowercase
        Make capitals small.
    language
        Language of the sentence splitter, or `lines`.
    layout
        How .txt files are split into documents: one per line, separated by blank lines, or whole files.
    column
        The text field of .jsonl, .csv, .tsv and .parquet files.
    errors
        What to do with invalid UTF-8.
    seed
        All chance follows from it.
    processes
        Threads; with several, vectors differ from run to run.

    Examples
    --------
    >>> train_vectors("corpus/", out="vectors/")  # doctest: +SKIP
    """
    from pretune.inference.word_vector_models import make_static, train_static
    from pretune.text.corpus.documents import read_documents
    from pretune.text.corpus.files import find_files

    options = {"vector_size": width, "window": window, "negative": negatives, "min_count": rarest, "epochs": epochs}
    documents = read_documents(find_files(data), layout=layout, column=column, errors=errors)
    vectors = train_static(documents, kind, language, lowercase, seed=seed, workers=processes, **options)
    make_static(vectors).save(out)
    return Facts({"model": str(out), "words": len(vectors), "width": vectors.width, "kind": kind})
