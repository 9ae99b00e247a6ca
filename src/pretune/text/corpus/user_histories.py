"""Read user-item interactions, and convert them to text: one user per line, with the user's items in order of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import PretuneError, quote
from pretune.text.corpus.documents import read_rows
from pretune.text.corpus.files import check_text, file_suffix, read_lines
from pretune.text.corpus.movielens import RATING_LAYOUTS, TITLE_LAYOUTS, read_movies, read_ratings

USERS = ("user", "user_id", "userid", "customer", "customer_id", "session", "session_id")
SEQUENCES = ("items", "history", "sequence")  # columns with all items of a user, separated by spaces
ITEMS = (*SEQUENCES, "item", "item_id", "itemid", "product", "product_id", "movie_id", "movieid")
TITLES = ("title", "name", "movie_title")
TIMES = ("time", "timestamp", "date", "datetime")
FORMATS = (".jsonl", ".csv", ".tsv", ".parquet", *RATING_LAYOUTS)  # of interactions
TITLE_FORMATS = (".jsonl", ".csv", ".tsv", ".parquet", *TITLE_LAYOUTS)


def read_histories(files: Iterable[Path], **columns: str | None) -> dict[str, list[str]]:
    """Return the items of each user in order of time, by user; users are in the order of their first row.

    A row of the .jsonl, .csv, .tsv or .parquet files has a user, an item and optionally a time; or a user and all items
    of this user, as a list or separated by spaces. Without times, the order of the rows is the order of the items.
    Files with the suffixes .dat and .data are those of MovieLens. A line of a .txt file has all items of a user, whose
    name is the number of the line. The keyword arguments `user`, `item` and `time` name columns with unusual names.
    """
    seen: dict[str, list[tuple[Any, str]]] = {}
    for file in files:
        for line, row in _read_interactions(file):
            place = f"{file}, line {line}"
            user = row[_column(row, columns.get("user"), USERS, "user", place)]
            name = _column(row, columns.get("item"), ITEMS, "item", place)
            time = _column(row, columns.get("time"), TIMES, "", place)
            items = row[name].split() if name.lower() in SEQUENCES and isinstance(row[name], str) else row[name]
            history = seen.setdefault(str(user), [])
            if history and file_suffix(file) == ".txt":
                raise PretuneError(
                    f"{place}: in .txt files, the line number identifies the user, and another file has the same line number; "
                    "pass a single .txt file"
                )
            for item in map(str, items if isinstance(items, list) else [items]):
                if check_text(item, f"{place}: an item").split() != [item]:
                    raise PretuneError(f"{place}: the item {quote(item)} is empty or contains spaces; rename it")
                history.append((_sort_key(row[time]) if time else (0, 0), item))
    return {user: [item for _, item in sorted(events, key=lambda event: event[0])] for user, events in seen.items()}


def _read_interactions(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return an iterator over (line number, row) of a file with interactions or histories."""
    suffix = file_suffix(file)
    if suffix in RATING_LAYOUTS:
        return read_ratings(file)
    if suffix == ".txt":
        lines = ((line, text) for line, text in read_lines(file) if text.strip())
        return ((line, {"user": line, "items": text}) for line, text in lines)
    return read_rows(file)


def read_titles(file: Path) -> dict[str, str]:
    """Return the title of each item in movies.dat, u.item, or a table with columns such as movieId and title."""
    if file_suffix(file) in TITLE_LAYOUTS:
        return {row["item"]: row["title"] for _, row in read_movies(file)}
    found = {}
    for line, row in read_rows(file):
        place = f"{file}, line {line}"
        for names, role in ((ITEMS, "item"), (TITLES, "title")):
            if not any(key.lower() in names for key in row):
                known = ", ".join(map(repr, row))
                raise PretuneError(
                    f"{place}: no column {role!r}; the columns are {known}; rename the column with {role}s"
                )
        item, title = (row[_column(row, None, names, "", place)] for names in (ITEMS, TITLES))
        found[str(item)] = check_text(str(title), f"{place}: the title")
    return found


def write_histories(files: Iterable[Path], out: Path, min_items: int = 3, **columns: str | None) -> dict[str, Any]:
    """Write a text file with one line per user: the items of the user in order of time; return counts for a report.

    The files and the keyword arguments are those of `read_histories`. Users with fewer than `min_items` items are left
    out.
    """
    seen = read_histories(files, **columns)
    kept = [items for items in seen.values() if len(items) >= min_items]
    if not kept:
        raise PretuneError(
            f"none of the {len(seen)} users has at least {min_items} items; choose a smaller --min-items"
        )
    write_bytes(out, "".join(" ".join(items) + "\n" for items in kept).encode())
    return {
        "histories": str(out),
        "users": len(kept),
        "dropped_users": len(seen) - len(kept),
        "items": len({item for items in kept for item in items}),
        "events": sum(map(len, kept)),
    }


def _column(row: dict[str, Any], name: str | None, usual_names: tuple[str, ...], role: str, place: str) -> str:
    """Return the name of the column to read: the given `name`, else the first column with one of the `usual_names`.

    `role` is what the column contains, such as "user", or "" for an optional column. A missing column raises an error
    that begins with `place`; a missing optional column without a given name does not: the result is "".
    """
    column = name or next((key for key in row if key.lower() in usual_names), "")
    if row.get(column) is None and (role or name):
        known = ", ".join(map(repr, row))
        raise PretuneError(
            f"{place}: no column {column or role!r}; the columns are {known}; give the name of the column with {role or 'time'}s"
        )
    return column


def _sort_key(time: Any) -> tuple[int, Any]:
    """Return a sort key for a time, so that numbers are sorted numerically and ISO dates chronologically."""
    try:
        return (0, float(time))
    except (TypeError, ValueError):
        return (1, str(time))
