"""Writing tables row by row: .csv, .tsv, .jsonl, .parquet or CoNLL's columns, by the suffix of the name; whole or not at all."""

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


UNTYPED = (".csv", ".tsv")  # suffixes of tables that spreadsheets open, and read formulas in
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # how formulas begin, full-width letters too


class Columns:
    """The columns of a table: those of the first rows. A later row may lack some, and has no others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []
        self.number = count(1)  # of the next row

    def cells(self, rows: Sequence[Row]) -> Iterator[tuple[int, list[Any]]]:
        """The number of each row, and its cells."""
        self.names = self.names or list(dict.fromkeys(name for row in rows for name in row))
        known = set(self.names)
        for row, number in zip(rows, self.number, strict=False):
            for name in row.keys() - known:
                raise PretuneError(
                    f"{self.path}: row {number} has a column {name!r} that the first rows do not have; "
                    "write a .jsonl file, whose rows may differ"
                )
            yield number, [row.get(name) for name in self.names]


@contextmanager
def table_writer(path: str | Path, *, safe: bool = False) -> Iterator[Write]:
    """Yield a function that writes some more rows at a time.

    With `safe`, no cell of a .csv or .tsv file is a formula to a spreadsheet.

    >>> with table_writer("/tmp/example.csv") as write:
    ...     write([{"text": "a, b", "label": "x"}])
    >>> Path("/tmp/example.csv").read_text()
    'text,label\\n"a, b",x\\n'
    """
    path = Path(path)
    kind = check_suffix(path)
    options: dict[str, Any] = {"safe": True} if safe and kind in UNTYPED else {}
    with atomic_file(path) as file, KINDS[kind](path, file, **options) as write:
        yield write


def check_suffix(path: str | Path) -> str:
    """The suffix of a table that can be written; any other is refused."""
    suffix = Path(path).suffix.lower()
    if suffix not in KINDS:
        raise PretuneError(f"{path}: unknown kind of file to write; expected one of {', '.join(KINDS)}")
    return suffix


@contextmanager
def _lines(path: Path, file: IO[bytes], *, line: Callable[[list[str]], str], safe: bool = False) -> Iterator[Write]:
    columns = Columns(path)
    spell = not_a_formula if safe else str

    def write(rows: Sequence[Row]) -> None:
        new = not columns.names
        cells = [(number, [as_text(cell) for cell in row]) for number, row in columns.cells(rows)]
        for number, row in [(0, columns.names)] * new + cells:
            try:
                file.write(line([spell(cell) for cell in row]).encode())
            except UnicodeEncodeError as error:
                raise PretuneError(
                    f"{path}: row {number} holds half of a surrogate pair, which is no text; mend it, or write .jsonl"
                ) from error
            except ValueError as error:
                raise PretuneError(f"{path}: row {number} has {error}; write .csv or .jsonl") from error

    yield write


def not_a_formula(cell: str) -> str:
    """Return a cell with a single quote before it where a spreadsheet would take it for a formula, as OWASP recommends.

    >>> not_a_formula("=1+1"), not_a_formula("a=1")
    ("'=1+1", 'a=1')
    """
    return f"'{cell}" if cell.startswith(FORMULA) else cell


def csv_line(row: list[str]) -> str:
    """Cells with quotation marks where they need them."""
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="\r\n").writerow(row)  # cells with either character need quotes
    return line.getvalue().removesuffix("\r\n") + "\n"


def tsv_line(row: list[str]) -> str:
    """Cells as they are."""
    if any(mark in cell for cell in row for mark in "\t\n\r"):
        raise ValueError("a tab or a line end in a cell, for which a .tsv file has no place")
    return "\t".join(row) + "\n"


@contextmanager
def _jsonl(path: Path, file: IO[bytes]) -> Iterator[Write]:
    def write(rows: Sequence[Row]) -> None:
        for row in rows:
            line = json.dumps(row, ensure_ascii=False, default=str)
            try:
                file.write(line.encode() + b"\n")
            except UnicodeEncodeError:  # halves of surrogate pairs have a place as escapes alone
                file.write(json.dumps(row, default=str).encode() + b"\n")

    yield write


@contextmanager
def _parquet(path: Path, file: IO[bytes]) -> Iterator[Write]:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    columns, schema, writer = Columns(path), None, None

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
                    f"{path}: rows {numbers[0]} to {numbers[-1]}: the values of {name!r} are not all of one kind "
                    f"({str(error).splitlines()[0]}); write a .jsonl file"
                ) from error
            # What is missing in all of the first rows may be a text later.
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
def _conll(path: Path, file: IO[bytes]) -> Iterator[Write]:
    """A line a word, of the columns that have something for each, and a blank line after each row."""
    numbers = count(1)

    def write(rows: Sequence[Row]) -> None:
        for row, number in zip(rows, numbers, strict=False):
            cells = {name: cell.split() if isinstance(cell, str) else cell for name, cell in row.items()}
            lists = [cell for cell in cells.values() if is_list(cell)]
            words, _ = max(Counter(map(len, filter(None, lists))).items(), key=lambda item: item[1], default=(0, 0))
            columns = [cell for cell in lists if len(cell) == words]
            if len(columns) < 2:
                raise PretuneError(f"{path}: row {number} has no words with something beside each; write .jsonl")
            lines = ["\t".join(str(value) for value in line) for line in zip(*columns, strict=True)]
            file.write("".join(f"{line}\n" for line in [*lines, ""]).encode())

    yield write


def is_list(cell: Any) -> bool:
    """Whether a cell holds plain values, one after the other."""
    return isinstance(cell, list) and not any(isinstance(value, list | dict) for value in cell)


KINDS: dict[str, Any] = {
    ".csv": partial(_lines, line=csv_line),
    ".tsv": partial(_lines, line=tsv_line),
    ".jsonl": _jsonl,
    ".parquet": _parquet,
    ".conll": _conll,
}


def as_text(value: Any) -> str:
    """A cell of a table without types.

    >>> [as_text(value) for value in ("a", None, True, 0.5, ["b", 1])]
    ['a', '', 'true', '0.5', '["b", 1]']
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)
