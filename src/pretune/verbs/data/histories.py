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
    user_column: str | None = None,
    item_column: str | None = None,
    time_column: str | None = None,
    min_items: int = 3,
) -> ResultSummary:
    """Convert user-item interactions to text with one user per line, items in chronological order.

    Tokenize the text with a tokenizer of kind `items`.

    Parameters
    ----------
    files
        .jsonl, .csv, .tsv, or .parquet files with one row per interaction, or one row per user with all items.
    out
        Text file to write.
    user_column
        Column with the user; inferred from its name by default.
    item_column
        Column with the item, or with all items of a user; inferred from its name by default.
    time_column
        Column with the time, to sort by; inferred from its name by default. Without one, rows keep their order.
    min_items
        Minimum number of items of a user; users with fewer are dropped.

    Examples
    --------
    >>> histories("ratings.csv", out="histories.txt").facts["users"]  # doctest: +SKIP
    6040
    """
    from pretune.text.corpus.files import find_files
    from pretune.text.corpus.user_histories import write_histories
    from pretune.verbs.shared_inputs import as_path_list

    formats = (".jsonl", ".csv", ".tsv", ".parquet")
    return ResultSummary(
        write_histories(
            find_files(as_path_list(files), formats),
            Path(out),
            min_items,
            user=user_column,
            item=item_column,
            time=time_column,
        )
    )
