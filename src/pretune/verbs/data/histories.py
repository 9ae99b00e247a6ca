"""The `histories` verb: convert user-item interactions to text for sequential recommendation."""

from __future__ import annotations

from pathlib import Path

from pretune.runtime.output_paths import check_new_file
from pretune.verbs import options as opt
from pretune.verbs.results import ResultSummary
from pretune.verbs.verb import verb


@verb(out=check_new_file)
def histories(
    files: opt.Paths,
    *,
    out: str | Path,
    user_column: opt.UserColumn = None,
    item_column: opt.ItemColumn = None,
    time_column: opt.TimeColumn = None,
    min_items: int = 3,
) -> ResultSummary:
    """Convert user-item interactions to text with one user per line, items in chronological order.

    Tokenize the text with a tokenizer of kind `items`.

    Parameters
    ----------
    files
        .jsonl, .csv, .tsv, or .parquet files with one row per interaction, or one row per user with all items; or ratings of
        MovieLens: ratings.dat, u.data, ratings.csv.
    out
        Text file to write.
    min_items
        Minimum number of items of a user; users with fewer are dropped.

    Examples
    --------
    >>> histories("ratings.csv", out="histories.txt").facts["users"]  # doctest: +SKIP
    6040
    """
    from pretune.text.corpus.files import find_files
    from pretune.text.corpus.user_histories import FORMATS, write_histories
    from pretune.verbs.shared_inputs import as_path_list

    return ResultSummary(
        write_histories(
            find_files(as_path_list(files), FORMATS),
            Path(out),
            min_items,
            user=user_column,
            item=item_column,
            time=time_column,
        )
    )
