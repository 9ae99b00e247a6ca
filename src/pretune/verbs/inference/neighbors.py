"""The `neighbors` verb: nearest neighbors of a word in context."""

from __future__ import annotations

from typing import Any

from pretune.verbs import options as opt
from pretune.verbs.option_modes import reading_rules
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import only, verb


@verb(
    only("occurrences", where="without a context", when=lambda o: not o.context),
    only("layer", where="without --all-layers", when=lambda o: not o.all_layers),
    *reading_rules("split_by", "text_field", "encoding_errors", files=lambda o: o.corpus, of=" of --corpus"),
    common=("word", "context", "corpus", "occurrences", "top_k", "layer", "all_layers", "max_words", "language"),
)
def neighbors(
    model: opt.Model,
    word: str,
    context: str = "",
    *,
    corpus: opt.Paths = (),
    occurrences: int = 3,
    top_k: int = 10,
    layer: int | None = None,
    all_layers: bool = False,
    max_words: int = 20_000,
    language: opt.Language = "en",
    split_by: opt.SplitBy = "auto",
    text_field: opt.TextField = None,
    encoding_errors: opt.EncodingErrors = "strict",
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Find the words of a corpus whose contextual embeddings are nearest to that of a word in its context.

    This finds single words, each with a sentence where it occurs. To find texts by their meaning, use `search`.

    Without a context, the word is looked up in the corpus, and neighbors of its most different occurrences are shown.

    Parameters
    ----------
    word
        Word to find neighbors of.
    context
        Text in which the word occurs.
    corpus
        Files, folders, or glob patterns of text to search; by default the example messages of the package.
    occurrences
        Number of occurrences of the word to show, without a context.
    top_k
        Number of neighbors to show.
    layer
        Layer to compare: 0 for the embeddings, which do not depend on the context; the top layer by default.
    all_layers
        Compare every layer, to see where the context changes the neighbors.
    max_words
        Maximum number of words of the corpus to read.

    Examples
    --------
    >>> neighbors("runs/mine", "bank", "He sat on the bank of the river.", corpus="corpus/")[0]["word"]  # doctest: +SKIP
    'shore'
    """
    from pretune.inference.neighbors import find_neighbors
    from pretune.sample_data import example
    from pretune.text.corpus.documents import read_documents
    from pretune.text.corpus.files import find_files
    from pretune.verbs.shared_inputs import as_path_list, open_reference

    paths = as_path_list(corpus)
    files = find_files(paths) if paths else [example("messages_train.csv"), example("messages_test.csv")]
    documents = (
        document.text
        for document in read_documents(files, split_by=split_by, text_field=text_field, encoding_errors=encoding_errors)
    )
    options: dict[str, Any] = {"top_k": top_k, "max_words": max_words, "occurrences": occurrences}
    options["layer"] = None if all_layers else -1 if layer is None else layer
    options |= {"language": language, "ignore_mismatched": ignore_mismatched}
    return ResultTable("neighbors", find_neighbors(open_reference(model), word, context or None, documents, **options))
