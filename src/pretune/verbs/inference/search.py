"""The `search` verb: find texts by their meaning."""

from __future__ import annotations

from collections.abc import Sequence

from pretune.verbs import options as opt
from pretune.verbs.option_modes import TEXT_COLUMN_RULE
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import verb


@verb(TEXT_COLUMN_RULE)
def search(
    model: opt.Model,
    inputs: opt.TextInputs,
    query: str | Sequence[str],
    *,
    top_k: int = 5,
    text: opt.Text = None,
    pooling: opt.Pooling = None,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Find the texts whose embeddings are most similar to that of a query, best first.

    Embeddings are compared by their cosine, or with the similarity function of a sentence-transformers model; the
    model's prompts for queries and documents are used, if it has any. Blank lines are skipped. Each result has the
    number of its line (in a .parquet file, of its row; in a list, its position from 1), and its file if there are
    several.

    Parameters
    ----------
    query
        Text to search for; repeat the option for several queries.
    top_k
        Number of texts to show for each query.

    Examples
    --------
    >>> texts = ["Where is my parcel?", "I want a refund."]
    >>> search("pretune-small-en", texts, "I want my money back.", top_k=1)[0]["text"]
    'I want a refund.'
    """
    from pretune.inference.search import search_texts
    from pretune.runtime.errors import PretuneError
    from pretune.verbs.shared_inputs import open_reference, read_texts

    queries = [query] if isinstance(query, str) else list(query)
    if not queries:
        raise PretuneError("no query was given; describe what to search for with --query")
    sources = read_texts(inputs, text)
    files = list(dict.fromkeys(source.file for source in sources))
    if not any(source.text.strip() for source in sources):
        where = f"{files[0]}: " if files[0] else ""
        raise PretuneError(f"{where}all texts are blank; give texts with words")
    found = search_texts(
        open_reference(model), queries, [source.text for source in sources], top_k, pooling, ignore_mismatched
    )
    rows = []
    for given, matches in zip(queries, found, strict=True):
        for rank, match in enumerate(matches, 1):
            source = sources[match.index]
            row = {"query": given, "rank": rank, "similarity": round(match.similarity, 4), "line": source.line}
            rows.append(row | ({"file": str(source.file)} if len(files) > 1 else {}) | {"text": source.text})
    return ResultTable("matches", rows, hidden=("query",) if len(queries) == 1 else ())
