"""`neighbors`: nearest words in context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.verbs.results import Rows

if TYPE_CHECKING:
    from pretune.training.runs import Run


def neighbors(
    model: str | Path | Run,
    word: str,
    text: str,
    *,
    data: Sequence[str | Path] | str | Path = (),
    top: int = 10,
    layer: int = -1,
    words: int = 20_000,
    language: str = "en",
    partial: bool = False,
) -> Rows:
    """Words of a corpus that are used as a word is used in a text: the nearest in context.

    Parameters
    ----------
    model
        A run or model folder.
    word
        The word to find neighbors of.
    text
        A text it stands in.
    data
        Files, folders and globs of text to look in; the example messages of the package by default.
    top
        How many neighbors.
    layer
        0 are the embeddings, where context counts for nothing; -1 the top layer.
    words
        How many words of the corpus to read.
    language
        Language of the sentence splitter, or `lines`.
    partial
        Go on where the checkpoint lacks tensors (these are left random), or has some that are unknown or of another shape.

    Examples
    --------
    >>> neighbors("runs/mine", "bank", "He sat on the bank of the river.", data="corpus/")[0]["word"]  # doctest: +SKIP
    'shore'
    """
    import os

    from pretune.examples import example
    from pretune.inference.neighbors import find_neighbors
    from pretune.text.documents import read_documents
    from pretune.text.files import find_files

    paths = [data] if isinstance(data, str | Path) else list(data)
    files = find_files(paths) if paths else [example("messages_train.csv"), example("messages_test.csv")]
    documents = (document.text for document in read_documents(files))
    options = {"top": top, "layer": layer, "most": words, "language": language, "partial": partial}
    return Rows("neighbors", find_neighbors(os.fspath(model), word, text, documents, **options))  # type: ignore[arg-type]
