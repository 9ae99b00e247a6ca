"""Documents from files: one text after the other, streamed, each with the place it came from."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pretune.runtime.errors import PretuneError, if_option, nearest
from pretune.text.corpus.annotations import ANNOTATED, Spans, read_spans
from pretune.text.corpus.files import Errors, Meter, file_format, open_stream, read_lines

TextLayout = Literal["auto", "line", "blank", "file"]
TEXT_COLUMNS = ("text", "content", "body", "document", "sentence", "review")
PARQUET_ROWS = 1024
csv.field_size_limit(1 << 30)


@dataclass(frozen=True, slots=True)
class Document:
    """One text and where it stands: file and line (or row); with the spans of characters that its row annotates."""

    text: str
    file: Path
    line: int
    spans: Spans = ()


def read_documents(
    files: Iterable[Path],
    *,
    layout: TextLayout = "auto",
    column: str | None = None,
    spans: str | None = None,
    errors: Errors = "strict",
    meter: Meter | None = None,
) -> Iterator[Document]:
    """All documents of some files, in order; those of white space alone are left out.

    `layout` is how a .txt file is cut: a document a `line`, `blank`-line separated, or the whole `file`; `auto` looks
    for a blank line near the beginning. `column` names the text field of .jsonl, .csv, .tsv and .parquet, `spans` one
    of .jsonl and .parquet that has annotated spans of it.

    >>> for document in read_documents([Path("a.txt")]): print(document.text)  # doctest: +SKIP
    """
    for file in files:
        for document in _read_file(file, layout, column, spans, errors, meter):
            text = document.text
            if text and not text.isspace():
                yield document


def _read_file(
    file: Path, layout: TextLayout, column: str | None, spans: str | None, errors: Errors, meter: Meter | None
) -> Iterator[Document]:
    rows: Iterator[tuple[int, dict[str, Any]]]
    if spans and file_format(file) not in ANNOTATED:
        raise PretuneError(f"{file}: annotated spans are read from {' and '.join(ANNOTATED)} files alone")
    match file_format(file):
        case ".txt":
            yield from _read_text(file, layout, errors, meter)
            return
        case ".jsonl":
            rows = read_jsonl(file, errors, meter)
        case ".csv" | ".tsv":
            rows = read_table(file, errors, meter)
        case ".parquet":
            rows = read_parquet(file, column and [column, *([spans] if spans else [])], meter)
        case _:
            raise PretuneError(f"{file}: unknown kind of file")
    for line, row in rows:
        yield _from_row(row, file, line, column, spans, errors)


def guess_text_layout(file: Path, errors: Errors = "strict") -> TextLayout:
    """`blank` when a blank line stands between text in the first 2,000 lines, else `line`."""
    text_before = gap = False
    for _, line in islice(read_lines(file, errors), 2000):
        if line.isspace() or not line:
            gap = text_before
        elif gap:
            return "blank"
        else:
            text_before = True
    return "line"


def _read_text(file: Path, layout: TextLayout, errors: Errors, meter: Meter | None) -> Iterator[Document]:
    if layout == "auto":
        layout = guess_text_layout(file, errors)
    if layout == "line":
        for number, line in read_lines(file, errors, meter):
            yield Document(line, file, number)
        return
    start, lines = 1, list[str]()
    for number, line in read_lines(file, errors, meter):
        if layout == "blank" and (not line or line.isspace()):
            if lines:
                yield Document("\n".join(lines), file, start)
            lines = []
            continue
        if not lines:
            start = number
        lines.append(line)
    if lines:
        yield Document("\n".join(lines), file, start)


def read_jsonl(
    file: Path, errors: Errors = "strict", meter: Meter | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a .jsonl file with their line numbers; blank lines are passed over."""
    for number, line in read_lines(file, errors, meter):
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PretuneError(
                f"{file}, line {number}: not valid JSON ({error}); each line must be one object"
            ) from error
        if not isinstance(row, dict):
            raise PretuneError(
                f"{file}, line {number}: a JSON {type(row).__name__}, but an object with fields is needed"
            )
        yield number, row


def csv_rows(file: Path, errors: Errors = "strict") -> Iterator[list[str]]:
    """Yield the rows of a .csv or .tsv file as lists of cells, the header among them."""
    return (row for _, row in _numbered_rows(file, errors))


def _numbered_rows(file: Path, errors: Errors, meter: Meter | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a .csv or .tsv file with the line that each ends on."""
    lines = (line + "\n" for _, line in read_lines(file, errors, meter))
    reader = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if file_format(file) == ".tsv" else csv.reader(lines)
    )
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise PretuneError(f"{file}, line {reader.line_num}: not readable as a table ({error})") from error


def read_table(
    file: Path, errors: Errors = "strict", meter: Meter | None = None, names: list[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a .csv or .tsv file with the line each ends on. `names` replaces a header that the file does not have.

    Tab-separated files are read without quoting, as the benchmarks write them: a quotation mark there is text.
    """
    header = names
    for number, row in _numbered_rows(file, errors, meter):
        if not row and header is not None and len(header) == 1 and file_format(file) == ".tsv":
            row = [""]  # an empty text has no other way to stand there
        if not row:
            continue
        if header is None:
            header = [name.strip() for name in row]
            continue
        if len(row) != len(header):
            raise PretuneError(f"{file}, line {number}: {len(row)} fields where the header has {len(header)}")
        yield number, dict(zip(header, row, strict=True))


def read_parquet(
    file: Path, columns: Sequence[str] | None = None, meter: Meter | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a .parquet file, numbered from 1; with `columns`, these fields alone are read where they exist."""
    import pyarrow
    import pyarrow.parquet

    with open_stream(file):  # its checks: existence, permission
        pass
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            if columns and not set(columns) <= set(table.schema_arrow.names):
                columns = None  # a row with all its fields tells which there are
            number = 0
            for batch in table.iter_batches(batch_size=PARQUET_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        if meter:
            meter.bytes += file.stat().st_size
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # the last for texts that are not UTF-8
        raise PretuneError(f"{file}: damaged or not a parquet file ({error})") from error


def _from_row(
    row: dict[str, Any], file: Path, line: int, column: str | None, spans: str | None, errors: Errors
) -> Document:
    name = column or guess_text_column(row)
    for field in (name, spans) if spans else (name,):
        if field is None or field not in row:
            names = ", ".join(map(repr, row)) or "none"
            name_one = if_option("column", "; name one with --column") or if_option("text", "; name one with --text")
            hint = f"; {nearest(field, row)}" if field and row else name_one
            raise PretuneError(f"{file}, line {line}: no field {field or 'text'!r} among {names}{hint}")
    assert name is not None
    value = row[name]
    if value is None:
        value = ""
    if not isinstance(value, str):
        raise PretuneError(f"{file}, line {line}: field {name!r} holds {type(value).__name__}, not text")
    if not value.isascii():  # JSON escapes can spell halves of surrogate pairs, which are no text
        try:
            value.encode()
        except UnicodeEncodeError as error:
            if errors == "strict":
                raise PretuneError(
                    f"{file}, line {line}: field {name!r} holds half of a surrogate pair, which is no text; "
                    f"mend it{if_option('errors', ', or go on with --errors replace')}"
                ) from error
            value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    marked = read_spans(row[spans], len(value), f"{file}, line {line}, field {spans!r}") if spans else ()
    return Document(value, file, line, marked)


def guess_text_column(row: dict[str, Any]) -> str | None:
    """The usual names first, else the only field that holds text."""
    for name in TEXT_COLUMNS:
        if name in row:
            return name
    texts = [name for name, value in row.items() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 else None
