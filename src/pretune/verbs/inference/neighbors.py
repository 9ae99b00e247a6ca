"""The `neighbors` verb: nearest neighbors of a word in context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pretune.verbs import options as opt
from pretune.verbs.option_modes import reading_rules
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import only, verb


@verb(
    only("uses", where="without a text", when=lambda o: not o.text),
    *reading_rules("layout", "column", "errors", files=lambda o: o.in_, of=" of --in"),
)
def neighbors(
    model: opt.Model,
    word: str,
    text: str = "",
    *,
    in_: Sequence[str | Path] | str | Path = (),
    uses: int = 3,
    top: int = 10,
    layer: int = -1,
    words: int = 20_000,
    language: opt.Language = "en",
    layout: opt.Layout = "auto",
    column: opt.TextField = None,
    errors: opt.Errors = "strict",
    partial: opt.Partial = False,
) -> ResultTable:
    """Find the words of a corpus whose contextual embeddings are nearest to that of a word in a text.

    Without a text, the word is looked up in the corpus, and the neighbors of its most different occurrences are shown.

    Parameters
    ----------
    word
        Word to find neighbors of.
    text
        Text that contains the word.
    in_
        Files, folders, and glob patterns of text to search; by default the example messages of the package.
    uses
        Number of occurrences of the word to show, without a text.
    top
        Number of neighbors to show.
    layer
        Layer to compare: 0 for the embeddings, which do not depend on the context, -1 for the top layer.
    words
        Maximum number of words of the corpus to read.

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
    return ResultTable("neighbors", find_neighbors(os.fspath(model), word, text or None, documents, **options))  # type: ignore[arg-type]
