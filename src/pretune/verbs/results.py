"""Results of verbs that return a table or a set of facts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

from pretune.runtime.errors import quote

if TYPE_CHECKING:
    from pandas import DataFrame

WIDTH = 80  # characters of a cell, where only some rows are shown
REPR_ROWS = 5  # rows that `repr` shows


@dataclass(frozen=True)
class ResultTable:
    """A table of results, with one dictionary per row, and named values about the whole table.

    >>> table = ResultTable("words", [{"word": "a"}, {"word": "b"}, {"word": "c"}])
    >>> len(table), table[0], table[1:].to_dicts()
    (3, {'word': 'a'}, [{'word': 'b'}, {'word': 'c'}])
    >>> table[:2]
    ResultTable('words', 2 rows)
      {'word': 'a'}
      {'word': 'b'}
    """

    name: str
    rows: list[dict[str, Any]]
    hidden: tuple[str, ...] = ()  # columns that only --json shows
    shown: int | None = None  # number of rows printed in the terminal; None: all
    facts: dict[str, Any] = field(default_factory=dict)
    failure: str = ""  # why the command exits with an error after it has printed the table

    def __repr__(self) -> str:
        """Return the name of the table, the number of its rows, its named values, and the first rows, one per line."""
        count = f"{len(self.rows)} {'row' if len(self.rows) == 1 else 'rows'}"
        facts = [f"{name}={quote(value)}" for name, value in self.facts.items()]
        rows = [{k: _shorten(v) for k, v in row.items() if k not in self.hidden} for row in self.rows[:REPR_ROWS]]
        left = len(self.rows) - len(rows)
        lines = [f"ResultTable({', '.join([repr(self.name), count, *facts])})", *map(repr, rows)]
        return "\n  ".join([*lines, f"… {left} more"] if left else lines)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> ResultTable: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | ResultTable:
        return replace(self, rows=self.rows[index]) if isinstance(index, slice) else self.rows[index]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return all rows as a list of dictionaries from column to value.

        >>> ResultTable("words", [{"word": "a"}]).to_dicts()
        [{'word': 'a'}]
        """
        return [dict(row) for row in self.rows]

    def to_pandas(self) -> DataFrame:
        """Return all rows as a pandas data frame; raise an error if pandas is not installed.

        >>> ResultTable("words", [{"word": "a"}]).to_pandas()  # doctest: +SKIP
        """
        from pretune.runtime.notebook import as_dataframe

        return as_dataframe(self.rows)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks, without the columns that only --json shows."""
        from pretune.runtime.notebook import as_html

        return as_html([{k: v for k, v in row.items() if k not in self.hidden} for row in self.rows], self.name)

    def describe(self) -> dict[str, Any]:
        """Return all rows and the named values of the table as a dictionary, for --json."""
        return {self.name: self.rows, **self.facts}

    def table(self) -> dict[str, Any]:
        """Return the rows and columns to print in the terminal."""
        rows = [{k: v for k, v in row.items() if k not in self.hidden} for row in self.rows[: self.shown]]
        if self.shown is not None:
            rows = [{k: _shorten(v) for k, v in row.items()} for row in rows]
        left = len(self.rows) - len(rows)
        note = {"rows_left_out": left} if left else {}
        if self.shown is not None:  # many rows, which would push the named values out of sight
            return {**self.facts, self.name: rows, **note}
        return {self.name: rows, **self.facts}


@dataclass(frozen=True)
class ResultSummary:
    """A summary of what a command did or wrote, as named values."""

    facts: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """Return the summary as a dictionary, for --json."""
        return self.facts

    def _repr_html_(self) -> str:
        """Return the summary as an HTML table with one row per value, for notebooks."""
        from pretune.runtime.notebook import as_html

        return as_html([{"": name, "value": value} for name, value in self.facts.items()])


def _shorten(value: Any) -> Any:
    """Return a value, truncated if it is a long string."""
    return f"{value[:WIDTH]}…" if isinstance(value, str) and len(value) > WIDTH else value
