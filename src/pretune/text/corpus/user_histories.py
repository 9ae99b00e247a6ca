"""Convert user-item interactions to text: one user per line, with the user's items in order of time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import PretuneError, quote
from pretune.text.corpus.documents import read_rows
from pretune.text.corpus.files import check_text

USERS = ("user", "user_id", "userid", "customer", "customer_id", "session", "session_id")
SEQUENCES = ("items", "history", "sequence")  # columns with all items of a user, separated by spaces
ITEMS = (*SEQUENCES, "item", "item_id", "itemid", "product", "product_id", "movie_id", "movieid")
TIMES = ("time", "timestamp", "date", "datetime")


def write_histories(files: Iterable[Path], out: Path, min_items: int = 3, **columns: str | None) -> dict[str, Any]:
    """Write a text file with one line per user: the items of the user in order of time; return counts for a report.

    A row of the .jsonl, .csv, .tsv or .parquet files has a user, an item and optionally a time; or a user and all items
    of this user, as a list or separated by spaces. Without times, the order of the rows is the order of the items.
    Users with fewer than `min_items` items are left out. The keyword arguments `user`, `item` and `time` name columns
    with unusual names.
    """
    seen: dict[str, list[tuple[Any, str]]] = {}
    for file in files:
        for line, row in read_rows(file):
            place = f"{file}, line {line}"
            user = row[_column(row, columns.get("user"), USERS, "user", place)]
            name = _column(row, columns.get("item"), ITEMS, "item", place)
            time = _column(row, columns.get("time"), TIMES, "", place)
            items = row[name].split() if name.lower() in SEQUENCES and isinstance(row[name], str) else row[name]
            history = seen.setdefault(str(user), [])
            for item in map(str, items if isinstance(items, list) else [items]):
                if check_text(item, f"{place}: an item").split() != [item]:
                    raise PretuneError(f"{place}: the item {quote(item)} is empty or contains spaces; rename it")
                history.append((_sort_key(row[time]) if time else (0, 0), item))
    long = (history for history in seen.values() if len(history) >= min_items)
    kept = [[item for _, item in sorted(history, key=lambda event: event[0])] for history in long]
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
    """Return the name of the column to read for a role, such as "user"; "" if there is none and the role is optional.

    This is the column `name` if the user set it, else the first column of the row with one of the `usual_names`. A
    missing column that the user named, or whose `role` is not "", raises an error that begins with `place`.
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
