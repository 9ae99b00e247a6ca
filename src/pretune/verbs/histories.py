"""`histories`: what users did, as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pretune.runtime.output_paths import new_file
from pretune.verbs.results import Facts
from pretune.verbs.verb import verb


@verb(out=new_file)
def histories(
    files: Sequence[str | Path] | str | Path,
    *,
    out: str | Path,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    least: int = 3,
) -> Facts:
    """Write the items of every user in order of time, a line a user: text for a tokenizer of kind `items`.

    Parameters
    ----------
    files
        .jsonl, .csv, .tsv or .parquet: a row for each user and item, or a row a user with all items.
    out
        The text file to write.
    user
        Column of the user; guessed from the usual names.
    item
        Column of the item, or of all items of a user; guessed.
    time
        Column to sort by; guessed; without one, the order of the rows counts.
    least
        Leave out users with fewer items.

    Examples
    --------
    >>> histories("ratings.csv", out="histories.txt").facts["users"]  # doctest: +SKIP
    6040
    """
    from pretune.text.corpus.files import find_files
    from pretune.text.corpus.user_histories import write_histories

    formats = (".jsonl", ".csv", ".tsv", ".parquet")
    return Facts(write_histories(find_files(files, formats), Path(out), least, user=user, item=item, time=time))
