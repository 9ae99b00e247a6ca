"""Detect the delimiter and the quoting of .csv and .tsv files."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pretune.runtime.progress import log_info
from pretune.text.corpus.files import Errors, file_format, read_lines

SAMPLE = 500  # lines from which delimiter and quoting are detected
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
SAME_WIDTH = 0.9  # least share of rows as wide as the first in a file with another delimiter than its extension's
QUOTE = '"'
DECLARED = "sep="  # begins a first line of Excel that declares the delimiter


class Dialect(NamedTuple):
    """The format of a table file: the delimiter between cells, and whether double quotation marks may quote cells."""

    delimiter: str
    quoted: bool

    def reader(self, lines: Iterable[str]) -> Any:
        """Return a `csv.reader` of the rows of a table, as lists of cells."""
        if self.quoted:
            return csv.reader(lines, delimiter=self.delimiter)
        return csv.reader(lines, delimiter=self.delimiter, quoting=csv.QUOTE_NONE)

    def declares(self, row: Sequence[str]) -> bool:
        """Return whether a row only declares the delimiter, like the first line "sep=;" of some Excel files."""
        return list(row) == [DECLARED, ""]


CSV, TSV = Dialect(",", True), Dialect("\t", False)


def detect_dialect(file: Path, errors: Errors = "strict") -> Dialect:
    """Return the dialect of a .csv or .tsv file, detected from its first lines.

    By default, the suffix determines the delimiter. Another delimiter is chosen, and logged, only if it splits all rows
    into the same number of cells (at least two) and the delimiter of the suffix does not. A delimiter that is followed
    by a space in the first line, as commas in prose are, is never chosen instead.
    """
    # Invalid UTF-8 is reported when the rows are read, after the names of the columns have been checked.
    lines = [line for _, line in islice(read_lines(file, "replace" if errors == "strict" else errors), SAMPLE)]
    usual = TSV if file_format(file) in (".tsv", ".txt") else CSV
    found = choose_dialect(lines, usual)
    if found != usual:
        _report(file, found)
    return found


def has_tab_columns(file: Path, errors: Errors = "strict") -> bool:
    """Return whether tabs split the first lines of a file, at least two, into the same number of cells, at least two."""
    lines = [line for _, line in islice(read_lines(file, "replace" if errors == "strict" else errors), SAMPLE)]
    widths = _widths(lines, Dialect("\t", is_quoted(lines, "\t")))
    return len(widths) > 1 and widths[0] > 1 and len(set(widths)) == 1


@cache
def _report(file: Path, found: Dialect) -> None:
    """Log, once per process, that a file is read with the dialect `found`, which its suffix does not suggest."""
    quoted = ", and cells are quoted" if found.quoted and file_format(file) in (".tsv", ".txt") else ""
    log_info(
        f"{file}: columns are separated by {NAMES[found.delimiter]}{quoted}, although the file is {file_format(file)}"
    )


def choose_dialect(lines: Sequence[str], usual: Dialect) -> Dialect:
    """Return the dialect of a table, given its first lines: `usual`, unless another dialect fits clearly better.

    >>> choose_dialect(["text;label", "Well, yes;1"], CSV)
    Dialect(delimiter=';', quoted=True)
    >>> choose_dialect(["text", "Well; yes"], CSV)
    Dialect(delimiter=',', quoted=True)
    """
    if lines and lines[0].startswith(DECLARED) and (declared := lines[0].removeprefix(DECLARED)) in NAMES:
        return Dialect(declared, quoted=True)
    widths = _widths(lines, usual)
    if is_quoted(lines, usual.delimiter):
        usual = usual._replace(quoted=True)
        widths = _widths(lines, usual)
    if not widths or (widths[0] > 1 and len(set(widths)) == 1):
        return usual
    best, highest = usual, 0.0
    for delimiter in NAMES:
        quoted = delimiter != "\t" or is_quoted(lines, delimiter)
        other = _widths(lines, Dialect(delimiter, quoted))
        if delimiter == usual.delimiter or len(other) < 2 or other[0] < 2:
            continue
        share = Counter(other)[other[0]] / len(other)
        # Rows with the usual delimiter may just be damaged: only a delimiter that fits all of them is better.
        least = 1.0 if widths[0] > 1 else SAME_WIDTH
        if share >= least and share > highest and f"{delimiter} " not in _first_line(lines):
            best, highest = Dialect(delimiter, quoted), share
    return best


def _first_line(lines: Sequence[str]) -> str:
    return next((line for line in lines if line.strip()), "")


def _widths(lines: Sequence[str], dialect: Dialect) -> list[int]:
    """Return the number of cells of each nonblank row in `lines`, except for a last row that may be incomplete."""
    try:
        rows = [row for row in dialect.reader(line + "\n" for line in lines) if row]
    except csv.Error:
        return []
    widths = [len(row) for row in rows]
    return widths[:-1] if len(lines) >= SAMPLE and len(widths) > 1 else widths


def is_quoted(lines: Sequence[str], delimiter: str) -> bool:
    r"""Return whether double quotation marks quote cells in a table, given its first lines.

    They do if all cells of the first row are quoted, or if exactly those cells are quoted that need quotation marks.

    >>> is_quoted(['text\tlabel', '"a ""b"" c"\t0'], "\t"), is_quoted(['text\tlabel', '"No", he says\t0'], "\t")
    (True, False)
    """
    if not any(QUOTE in line for line in lines):
        return False
    first = _first_line(lines).split(delimiter)
    if len(first) > 1 and all(len(cell) > 1 and cell == QUOTE + cell.strip(QUOTE) + QUOTE for cell in first):
        return True
    try:
        rows = list(Dialect(delimiter, True).reader(line + "\n" for line in lines))
    except csv.Error:
        return False
    written = io.StringIO(newline="")
    complete = rows[:-1] if len(lines) >= SAMPLE else rows
    csv.writer(written, delimiter=delimiter, lineterminator="\n").writerows(complete)
    return "".join(line + "\n" for line in lines).startswith(written.getvalue())
