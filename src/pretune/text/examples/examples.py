"""Define the base class of the examples of all kinds of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self


@dataclass
class Examples:
    """The examples of a file, in order, as parallel lists with one entry per example.

    `columns` maps roles, such as text, to the columns they were read from; `lines` has the line number of each example.
    """

    file: Path
    columns: dict[str, str]  # role → column, e.g. {"text": "sentence", "label": "label"}
    lines: list[int] = field(default_factory=list, kw_only=True)  # line number of each example

    def take(self, rows: Iterable[int]) -> Self:
        """Return the examples at the given indices, which may repeat."""
        chosen = list(rows)
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        lists: Any = {name: [x[row] for row in chosen] for name, x in values.items() if isinstance(x, list) and x}
        return replace(self, **lists)

    def location(self, row: int) -> str:
        """Return the file and line of an example, for error messages."""
        return f"{self.file}, line {self.lines[row]}" if self.lines else f"{self.file}, row {row + 1}"
