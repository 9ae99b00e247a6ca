"""A folder with the figures (.svg and .png) and tables (.csv and .json) of an analysis, and a page that shows them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.figures import save_figure
from pretune.runtime.html_report import embed_figure, paragraph, render_page, render_table, section
from pretune.text.corpus.table_writer import table_writer

REPORT = "report.html"
SHOWN = 40  # rows of a table in the report


@dataclass
class ReportFolder:
    """A folder that collects figures and tables, and writes them into report.html at the end."""

    folder: Path
    title: str
    sections: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def add_text(self, title: str, *paragraphs: str) -> None:
        """Add a section of plain paragraphs to the report."""
        self.sections.append(section(title, *map(paragraph, paragraphs)))

    def add_figure(self, name: str, figure: Any, title: str, *notes: str) -> None:
        """Save a matplotlib figure as NAME.svg and NAME.png, and add it with notes to the report."""
        self.files += [path.name for path in save_figure(figure, self.folder, name)]
        self.sections.append(section(title, *map(paragraph, notes), embed_figure(figure)))

    def add_table(self, name: str, rows: Sequence[Mapping[str, Any]], title: str, *notes: str) -> None:
        """Save rows as NAME.csv and NAME.json, and add a table of the first rows, with notes, to the report."""
        with table_writer(self.folder / f"{name}.csv") as write:
            write([dict(row) for row in rows])
        write_json(self.folder / f"{name}.json", list(rows))
        self.files += [f"{name}.csv", f"{name}.json"]
        more = [f"{len(rows) - SHOWN} more rows are in {name}.csv."] if len(rows) > SHOWN else []
        shown = [{key: "" if value is None else value for key, value in row.items()} for row in rows[:SHOWN]]
        self.sections.append(section(title, *map(paragraph, notes), render_table(shown), *map(paragraph, more)))

    def finish(self) -> list[str]:
        """Write report.html, and return the names of all files that were written."""
        write_bytes(self.folder / REPORT, render_page(self.title, *self.sections).encode())
        return [*self.files, REPORT]
