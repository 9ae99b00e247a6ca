"""The `phrases` verb: mine collocations from a token store."""

from __future__ import annotations

from pathlib import Path

from pretune.runtime.output_paths import check_new_file
from pretune.verbs import options as opt
from pretune.verbs.results import ResultSummary
from pretune.verbs.verb import verb


@verb(out=check_new_file)
def phrases(
    store: opt.Store,
    *,
    out: str | Path,
    max_phrases: int = 10_000,
    min_count: int = 10,
    min_pmi: float = 3.0,
    max_tokens: float = 1e8,
) -> ResultSummary:
    """Find collocations of two or three words in a store, for whole-phrase masking with mlm(unit=phrase,phrases=FILE).

    Parameters
    ----------
    out
        File to write, with one phrase per line; edit it as you like.
    max_phrases
        Maximum number of phrases.
    min_count
        Minimum number of occurrences of a phrase.
    min_pmi
        Minimum pointwise mutual information of neighboring words, in bits; 3 means that they occur together 8 times as often as independent words would.
    max_tokens
        Maximum number of tokens of the store to read.

    Examples
    --------
    >>> phrases("store/", out="phrases.txt").facts["first"][0]["phrase"]  # doctest: +SKIP
    'New York'
    """
    from pretune.runtime.atomic_io import write_bytes
    from pretune.runtime.errors import PretuneError
    from pretune.text.store.phrase_mining import find_collocations
    from pretune.text.store.store import Store

    opened = store if isinstance(store, Store) else Store(store)
    found = find_collocations(
        opened, max_phrases=max_phrases, min_count=min_count, min_pmi=min_pmi, max_tokens=max_tokens
    )
    if not found:
        raise PretuneError(f"{opened.folder}: no phrase occurs {min_count} times; lower --min-count or --min-pmi")
    write_bytes(Path(out), "".join(row["phrase"] + "\n" for row in found).encode())
    return ResultSummary({"file": str(out), "phrases": len(found), "first": found[:10]})
