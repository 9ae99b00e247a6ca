"""What verbs return that is no object of ours: rows or facts to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Rows:
    """A list of results, one a row, and what was asked."""

    name: str
    rows: list[dict[str, Any]]
    hidden: tuple[str, ...] = ()  # columns for programs, which people see in another form
    facts: dict[str, Any] = field(default_factory=dict)  # what there is to say of all rows together

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]

    def describe(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {**self.facts, self.name: self.rows}

    def table(self) -> dict[str, Any]:
        """For people."""
        shown = [{k: v for k, v in row.items() if k not in self.hidden} for row in self.rows]
        return {**self.facts, self.name: shown}


@dataclass(frozen=True)
class Facts:
    """What there is to say about something that was written."""

    facts: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """For reports."""
        return self.facts
