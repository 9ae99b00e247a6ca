"""What verbs return that is no object of ours: rows or facts to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

WIDTH = 80  # of a cell, where only some rows are shown


@dataclass(frozen=True)
class Rows:
    """A list of results, one a row, and what was asked."""

    name: str
    rows: list[dict[str, Any]]
    hidden: tuple[str, ...] = ()  # columns for programs, which people see in another form
    shown: int | None = None  # how many rows people see
    facts: dict[str, Any] = field(default_factory=dict)  # what else there is to say

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]

    def describe(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {self.name: self.rows, **self.facts}

    def table(self) -> dict[str, Any]:
        """For people."""
        rows = [{k: v for k, v in row.items() if k not in self.hidden} for row in self.rows[: self.shown]]
        if self.shown is not None:
            rows = [{k: _short(v) for k, v in row.items()} for row in rows]
        left = len(self.rows) - len(rows)
        note = {"rows_left_out": left} if left else {}
        return {self.name: rows, **note, **self.facts}


@dataclass(frozen=True)
class Facts:
    """What there is to say about something that was written."""

    facts: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """For reports."""
        return self.facts


def _short(value: Any) -> Any:
    """What fits into a table for people."""
    return f"{value[:WIDTH]}…" if isinstance(value, str) and len(value) > WIDTH else value
