"""`neighbors`: nearest words in context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretune.verbs.option_modes import reading
from pretune.verbs.results import Rows
from pretune.verbs.verb import only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


@verb(
    only("uses", where="without a text", when=lambda o: not o.text),
    *reading("layout", "column", "errors", files=lambda o: o.in_, of=" of --in"),
)
def neighbors(
    model: str | Path | Run,
    word: str,
    text: str = "",
    *,
    in_: Sequence[str | Path] | str | Path = (),
    uses: int = 3,
    top: int = 10,
    layer: int = -1,
    words: int = 20_000,
    language: str = "en",
    layout: Literal["auto", "line", "blank", "file"] = "auto",
    column: str | None = None,
    errors: Literal["strict", "replace"] = "strict",
    partial: bool = False,
) -> Rows:
    """Words of a corpus that are used as a word is used in a text: the nearest in context.

    Without a text, the word's own uses in the corpus are looked up, and the neighbors of some that differ most are shown.

    Parameters
    ----------
    model
        A run or model folder.
    word
        The word to find neighbors of.
    text
        A text it stands in.
    in_
        Files, folders and globs of text to look in; the example messages of the package by default.
    uses
        Without a text: how many uses of the word to show.
    top
        How many neighbors.
    layer
        0 are the embeddings, where context counts for nothing; -1 the top layer.
    words
        How many words of the corpus to read.
    language
        Language of the sentence splitter, or `lines`.
    layout
        How .txt files are split into documents: one per line, separated by blank lines, or whole files.
    column
        The text field of .jsonl, .csv, .tsv and .parquet files.
    errors
        What to do with invalid UTF-8.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> neighbors("runs/mine", "bank", "He sat on the bank of the river.", in_="corpus/")[0]["word"]  # doctest: +SKIP
    'shore'
    """
    import os

    from pretune.inference.neighbors import find_neighbors
    from pretune.sample_data import example
    from pretune.text.corpus.documents import read_documents
    from pretune.text.corpus.files import find_files

    paths = [in_] if isinstance(in_, str | Path) else list(in_)
    files = find_files(paths) if paths else [example("messages_train.csv"), example("messages_test.csv")]
    documents = (document.text for document in read_documents(files, layout=layout, column=column, errors=errors))
    options = {"top": top, "layer": layer, "most": words, "language": language, "partial": partial, "uses": uses}
    return Rows("neighbors", find_neighbors(os.fspath(model), word, text or None, documents, **options))  # type: ignore[arg-type]
