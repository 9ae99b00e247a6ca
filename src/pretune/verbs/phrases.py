"""`phrases`: words that belong together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretune.runtime.output_paths import new_file
from pretune.verbs.results import Facts
from pretune.verbs.verb import verb

if TYPE_CHECKING:
    from pretune.text.store.store import Store


@verb(out=new_file)
def phrases(
    store: Store | str | Path,
    *,
    out: str | Path,
    count: int = 10_000,
    least: int = 10,
    bits: float = 3.0,
    tokens: float = 1e8,
) -> Facts:
    """Find pairs and triples of words that meet more often than by chance, for mlm(unit=phrase,phrases=FILE).

    Parameters
    ----------
    store
        A store made by `pretune prepare`.
    out
        The file to write, a phrase a line; look at it, and take out or put in what you like.
    count
        How many phrases, at most.
    least
        How often one must occur.
    bits
        How much of a pair is no chance, for each joint between words: 3 is 8 times as often as by chance.
    tokens
        Read no more of the store than this.

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
    found = find_collocations(opened, count=count, least=least, bits=bits, tokens=tokens)
    if not found:
        raise PretuneError(f"{opened.folder}: no phrases that occur {least} times; ask for less with --least or --bits")
    write_bytes(Path(out), "".join(row["phrase"] + "\n" for row in found).encode())
    return Facts({"file": str(out), "phrases": len(found), "first": found[:10]})
