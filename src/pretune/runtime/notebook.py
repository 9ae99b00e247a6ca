"""Convert rows of results to HTML tables for notebooks and to pandas data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from pretune.runtime.errors import shorten
from pretune.runtime.optional_imports import import_optional

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_ROWS = 20  # of an HTML table; of longer ones, the first and last rows are shown
MAX_CELL = 120  # characters of a cell


def as_dataframe(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return rows (mappings by column name) as a pandas data frame; raise an error if pandas is not installed."""
    frame: DataFrame = import_optional("pandas", "to_pandas()").DataFrame(list(map(dict, rows)))
    return frame


def as_html(rows: Sequence[Mapping[str, Any]], caption: str = "") -> str:
    """Return rows (mappings by column name) as an HTML table; long tables and long cells are shortened.

    >>> as_html([{"a": "<b>"}])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown: list[Mapping[str, Any]] = list(rows)
    if len(shown) > MAX_ROWS:
        shown = [*shown[: MAX_ROWS // 2], dict.fromkeys(names, "…"), *shown[-(MAX_ROWS // 2) :]]
        caption = ", ".join(filter(None, [caption, f"{len(rows):,} rows"]))
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(_cell(row.get(name)) for name in names) + "</tr>" for row in shown)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    """Return a value as an HTML table cell; long texts are shortened."""
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"<td>{escape(shorten(text, MAX_CELL))}</td>"
