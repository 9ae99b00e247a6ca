"""Write tables row by row as .csv, .tsv, .jsonl, .parquet or CoNLL columns, chosen by the suffix of the file name.

The file appears under its name only when it is complete.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any

from pretune.runtime.atomic_io import atomic_file
from pretune.runtime.errors import PretuneError

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], None]

CONLL = ".conll"
UNTYPED = (".csv", ".tsv")  # formats that spreadsheets open and in which they evaluate formulas
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # first characters of formulas


class TableColumns:
    """The column names of a table, fixed by the rows that are written first.

    Later rows may lack columns but must not add new ones.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []
        self.number = count(1)  # row numbers

    def cells(self, rows: Sequence[Row]) -> Iterator[tuple[int, list[Any]]]:
        """Yield (row number, list of cells in column order) for each row; numbering continues across calls."""
        self.names = self.names or list(dict.fromkeys(name for row in rows for name in row))
        known = set(self.names)
        for row, number in zip(rows, self.number, strict=False):
            for name in row.keys() - known:
                raise PretuneError(
                    f"{self.path}: row {number} has a column {name!r}, which the first rows do not have; "
                    "write a .jsonl file, where columns may differ between rows"
                )
            yield number, [row.get(name) for name in self.names]


@contextmanager
def table_writer(path: str | Path, *, safe: bool = False) -> Iterator[Write]:
    """Open a table file for writing, and yield a function that appends rows to the table.

    With `safe`, cells of .csv and .tsv files that a spreadsheet would evaluate as formulas are escaped.

    >>> with table_writer("example.csv") as write:
    ...     write([{"text": "a, b", "label": "x"}])
    >>> Path("example.csv").read_text()
    'text,label\\n"a, b",x\\n'
    """
    path = Path(path)
    kind = check_table_suffix(path, tagged=True)
    options: dict[str, Any] = {"safe": True} if safe and kind in UNTYPED else {}
    with atomic_file(path) as file, KINDS[kind](path, file, **options) as write:
        yield write


def check_table_suffix(path: str | Path, tagged: bool = False) -> str:
    """Return the suffix of a path; raise an error if tables cannot be written in the format that it indicates.

    The CoNLL format is for tables with one tag per word, `tagged`.
    """
    suffix, known = Path(path).suffix.lower(), [kind for kind in KINDS if tagged or kind != CONLL]
    if suffix not in known:
        raise PretuneError(f"{path}: unsupported output format; expected one of {', '.join(known)}")
    return suffix


@contextmanager
def _text_writer(
    path: Path, file: IO[bytes], *, line: Callable[[list[str]], str], safe: bool = False
) -> Iterator[Write]:
    """Yield a function that writes rows to a file as lines of text.

    `line` formats the cells of a row as a line; with `safe`, cells that a spreadsheet would evaluate as formulas are
    escaped.
    """
    columns = TableColumns(path)
    spell = escape_formula if safe else str

    def write(rows: Sequence[Row]) -> None:
        new = not columns.names
        cells = [(number, [format_cell(cell) for cell in row]) for number, row in columns.cells(rows)]
        for number, row in [(0, columns.names)] * new + cells:
            try:
                file.write(line([spell(cell) for cell in row]).encode())
            except UnicodeEncodeError as error:
                advice = "correct it, or write a .jsonl file"
                raise PretuneError(f"{path}: row {number} contains a lone surrogate, invalid text; {advice}") from error
            except ValueError as error:
                raise PretuneError(f"{path}: row {number}: {error}; write a .csv or .jsonl file") from error

    yield write


def escape_formula(cell: str) -> str:
    """Return a cell, prefixed with a single quote if a spreadsheet would evaluate it as a formula (OWASP's advice).

    >>> escape_formula("=1+1"), escape_formula("a=1")
    ("'=1+1", 'a=1')
    """
    return f"'{cell}" if cell.startswith(FORMULA) else cell


def format_csv_line(row: list[str]) -> str:
    """Return the cells of a row as a line of CSV, with quotation marks where they are needed."""
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="\r\n").writerow(row)  # cells with either character need quotes
    return line.getvalue().removesuffix("\r\n") + "\n"


def format_tsv_line(row: list[str]) -> str:
    """Return the cells of a row as a line of TSV; raise ValueError for a cell with a tab or line break."""
    if any(mark in cell for cell in row for mark in "\t\n\r"):
        raise ValueError("a .tsv file cannot contain cells with a tab or a line break")
    return "\t".join(row) + "\n"


@contextmanager
def _jsonl_writer(path: Path, file: IO[bytes]) -> Iterator[Write]:
    """Yield a function that writes rows to a file as one JSON object per line."""

    def write(rows: Sequence[Row]) -> None:
        for row in rows:
            try:
                file.write(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n")
            except UnicodeEncodeError:  # lone surrogates can be written only as escapes
                file.write(json.dumps(row, default=str).encode() + b"\n")

    yield write


@contextmanager
def _parquet_writer(path: Path, file: IO[bytes]) -> Iterator[Write]:
    """Yield a function that writes rows to a Parquet file; the first rows determine the types of the columns."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    columns, schema, writer = TableColumns(path), None, None

    def write(rows: Sequence[Row]) -> None:
        nonlocal schema, writer
        numbers, cells = zip(*columns.cells(rows), strict=True)
        by_column = dict(zip(columns.names, zip(*cells, strict=True), strict=True))
        arrays = []
        for number, (name, values) in enumerate(by_column.items()):
            try:
                array = pyarrow.array(values, None if schema is None else schema.field(number).type)
            except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, UnicodeEncodeError) as error:
                raise PretuneError(
                    f"{path}: rows {numbers[0]} to {numbers[-1]}: the values of {name!r} do not all have the same type "
                    f"({str(error).splitlines()[0]}); write a .jsonl file"
                ) from error
            # A column that is null in all of the first rows may contain text later.
            arrays.append(array.cast(pyarrow.string()) if pyarrow.types.is_null(array.type) else array)
        table = pyarrow.Table.from_arrays(arrays, names=columns.names)
        if writer is None:
            schema, writer = table.schema, ParquetWriter(file, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def _conll_writer(path: Path, file: IO[bytes]) -> Iterator[Write]:
    """Yield a function that writes rows in CoNLL format: one line per word, and a blank line after each row."""
    numbers = count(1)

    def write(rows: Sequence[Row]) -> None:
        for row, number in zip(rows, numbers, strict=False):
            cells = {name: cell.split() if isinstance(cell, str) else cell for name, cell in row.items()}
            lists = [cell for cell in cells.values() if isinstance(cell, list)]
            lists = [cell for cell in lists if not any(isinstance(value, list | dict) for value in cell)]
            words, _ = max(Counter(map(len, filter(None, lists))).items(), key=lambda item: item[1], default=(0, 0))
            columns = [cell for cell in lists if len(cell) == words]
            if len(columns) < 2:
                raise PretuneError(
                    f"{path}: row {number} lacks two columns with a value per word, which CoNLL files need; write a .jsonl file"
                )
            lines = ["\t".join(map(str, line)) + "\n" for line in zip(*columns, strict=True)]
            file.write("".join([*lines, "\n"]).encode())

    yield write


KINDS: dict[str, Any] = {
    ".csv": partial(_text_writer, line=format_csv_line),
    ".tsv": partial(_text_writer, line=format_tsv_line),
    ".jsonl": _jsonl_writer,
    ".parquet": _parquet_writer,
    CONLL: _conll_writer,
}


def format_cell(value: Any) -> str:
    """Return a cell as text, for table formats without types.

    >>> [format_cell(value) for value in ("a", None, True, 0.5, ["b", 1])]
    ['a', '', 'true', '0.5', '["b", 1]']
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)
