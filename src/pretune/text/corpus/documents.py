"""Stream documents from text, JSON Lines, CSV, TSV and Parquet files, each with its file and line number."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pretune.runtime.errors import PretuneError, if_option, suggest
from pretune.text.corpus.annotations import Spans, read_spans
from pretune.text.corpus.delimiters import NAMES, Dialect, detect_dialect
from pretune.text.corpus.files import ByteMeter, Errors, file_format, open_stream, read_lines

SplitBy = Literal["auto", "line", "blank-line", "file"]
NESTED_FORMATS = (".jsonl", ".parquet")  # formats whose cells can be lists and objects
TEXT_COLUMNS = ("text", "content", "body", "document", "sentence", "review")
PARQUET_ROWS = 1024
csv.field_size_limit(1 << 30)


@dataclass(frozen=True, slots=True)
class Document:
    """A document of a corpus: its text, its file and line (or row) number, and the character spans annotated in it."""

    text: str
    file: Path
    line: int
    spans: Spans = ()


def read_documents(
    files: Iterable[Path],
    *,
    split_by: SplitBy = "auto",
    text_field: str | None = None,
    span_field: str | None = None,
    encoding_errors: Errors = "strict",
    meter: ByteMeter | None = None,
) -> Iterator[Document]:
    """Yield the documents of files in order, skipping documents that contain only whitespace.

    Parameters
    ----------
    split_by
        How .txt files are split: one document per `line`, documents separated by a `blank-line`, or the whole `file` as one
        document. `auto` chooses `blank-line` if a blank line separates text near the beginning of the file, else `line`.
    text_field
        The text field of .jsonl, .csv, .tsv and .parquet files; guessed by default.
    span_field
        A field of .jsonl and .parquet files that lists annotated character spans of the text.
    encoding_errors
        What to do with invalid UTF-8: "strict" raises an error, "replace" replaces the invalid bytes.
    meter
        A counter of the bytes read, for progress bars.
    """
    columns = [text_field, *([span_field] if span_field else [])] if text_field else None
    for file in files:
        if span_field and file_format(file) not in NESTED_FORMATS:
            raise PretuneError(
                f"{file}: annotated spans can be read only from {' and '.join(NESTED_FORMATS)} files; convert the file"
            )
        if file_format(file) == ".txt":
            documents = _read_text(file, split_by, encoding_errors, meter)
        else:
            rows = read_rows(file, encoding_errors, meter, columns=columns)
            documents = (_from_row(row, file, line, text_field, span_field, encoding_errors) for line, row in rows)
        yield from (document for document in documents if document.text and not document.text.isspace())


def read_rows(
    file: Path,
    errors: Errors = "strict",
    meter: ByteMeter | None = None,
    *,
    columns: Sequence[str] | None = None,
    names: list[str] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return an iterator over (line number, row) of a .jsonl, .csv, .tsv or .parquet file.

    `columns` limits the columns that are read from a .parquet file; `names` gives column names to a .csv or .tsv file
    without a header. `meter` counts the bytes read.
    """
    match file_format(file):
        case ".jsonl":
            return read_jsonl(file, errors, meter)
        case ".parquet":
            return read_parquet(file, columns, meter)
        case ".csv" | ".tsv":
            return read_table(file, errors, meter, names)
        case _:
            raise PretuneError(
                f"{file}: unsupported file format; use .jsonl, .csv, .tsv or .parquet, or .txt for texts"
            )


def guess_split_by(file: Path, errors: Errors = "strict") -> SplitBy:
    """Return how to split a .txt file into documents: `blank-line` or `line`.

    It is `blank-line` if a blank line separates text within the first 2,000 lines of the file.
    """
    text_before = gap = False
    for _, line in islice(read_lines(file, errors), 2000):
        if not line.strip():
            gap = text_before
        elif gap:
            return "blank-line"
        else:
            text_before = True
    return "line"


def _read_text(file: Path, split_by: SplitBy, errors: Errors, meter: ByteMeter | None) -> Iterator[Document]:
    if split_by == "auto":
        split_by = guess_split_by(file, errors)
    if split_by == "line":
        for number, line in read_lines(file, errors, meter):
            yield Document(line, file, number)
        return
    start, lines = 1, list[str]()
    for number, line in read_lines(file, errors, meter):
        if split_by == "blank-line" and not line.strip():
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
    file: Path, errors: Errors = "strict", meter: ByteMeter | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, row) for each JSON object in a .jsonl file, skipping blank lines."""
    for number, line in read_lines(file, errors, meter):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            rule = "each line must be one JSON object"
            raise PretuneError(f"{file}, line {number}: not valid JSON ({error}); {rule}") from error
        if not isinstance(row, dict):
            raise PretuneError(
                f"{file}, line {number}: expected a JSON object, not a {type(row).__name__}; write one object per line"
            )
        yield number, row


def read_csv_rows(
    file: Path, errors: Errors = "strict", meter: ByteMeter | None = None, *, dialect: Dialect | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) for every row of a .csv or .tsv file, including the header.

    Without a `dialect`, the delimiter is detected.
    """
    dialect = dialect or detect_dialect(file, errors)
    reader = dialect.reader(line + "\n" for _, line in read_lines(file, errors, meter))
    try:
        for row in reader:
            if reader.line_num > 1 or not dialect.declares(row):
                yield reader.line_num, row
    except csv.Error as error:
        raise PretuneError(
            f"{file}, line {reader.line_num}: the file is not a valid table ({error}); correct this line"
        ) from error


def read_table(
    file: Path, errors: Errors = "strict", meter: ByteMeter | None = None, names: list[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, row) for a .csv or .tsv file; rows map column names to cells.

    `names` are the column names of a file without a header.
    """
    header = names
    dialect = detect_dialect(file, errors)
    for number, row in read_csv_rows(file, errors, meter, dialect=dialect):
        if not row and header is not None and len(header) == 1 and dialect.delimiter == "\t":
            row = [""]  # in a one-column table, a blank line is an empty text
        if not row:
            continue
        if header is None:
            header = [name.strip() for name in row]
            continue
        if len(row) != len(header):
            place = f"{file}, line {number}"
            raise PretuneError(
                f"{place}: expected {len(header)} fields as in the header, but found {len(row)}, separated by "
                f"{NAMES[dialect.delimiter]}; correct this line"
            )
        yield number, dict(zip(header, row, strict=True))


def read_parquet(
    file: Path, columns: Sequence[str] | None = None, meter: ByteMeter | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row number, row) for a .parquet file, counting from 1.

    If `columns` are given and all of them exist, only these columns are read.
    """
    import pyarrow
    import pyarrow.parquet

    with open_stream(file):  # reports a missing or unreadable file
        pass
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            if columns and not set(columns) <= set(table.schema_arrow.names):
                columns = None  # read all fields, so that the caller's error can list them
            batches = table.iter_batches(batch_size=PARQUET_ROWS, columns=columns)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
        if meter:
            meter.bytes += file.stat().st_size
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise PretuneError(f"{file}: damaged, or not a Parquet file ({error}); restore it from its source") from error


def _from_row(
    row: dict[str, Any], file: Path, line: int, text_field: str | None, span_field: str | None, errors: Errors
) -> Document:
    """Return the document in a row of a table; `text_field` and `span_field` name the fields of text and spans.

    Without a `text_field`, the field is guessed. `file` and `line` are recorded in the document and named in errors.
    """
    name = text_field or guess_text_column(row)
    for field in (name, span_field) if span_field else (name,):
        if field is None or field not in row:
            names = ", ".join(map(repr, row)) or "none"
            choose = if_option("text-field", "; choose one with --text-field") or if_option(
                "text", "; choose one with --text"
            )
            hint = f"; {suggest(field, row)}" if field and row else choose
            raise PretuneError(f"{file}, line {line}: no field named {field or 'text'!r}; the fields are {names}{hint}")
    assert name is not None
    value = "" if row[name] is None else row[name]
    if not isinstance(value, str):
        raise PretuneError(
            f"{file}, line {line}: field {name!r} has type {type(value).__name__}; expected text, so convert the values of this field"
        )
    if not value.isascii():  # JSON escapes can encode lone surrogates, which are not valid text
        try:
            value.encode()
        except UnicodeEncodeError as error:
            if errors == "strict":
                raise PretuneError(
                    f"{file}, line {line}: field {name!r} contains a lone surrogate, which is not valid text; "
                    f"correct the file{if_option('encoding-errors', ', or replace such characters with --encoding-errors replace')}"
                ) from error
            value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    annotated = (
        read_spans(row[span_field], len(value), f"{file}, line {line}, field {span_field!r}") if span_field else ()
    )
    return Document(value, file, line, annotated)


def guess_text_column(row: dict[str, Any]) -> str | None:
    """Return the name of the column of a row that contains the text, or None if it is unclear.

    This is a column with a usual name such as "text", else the only column whose value is a string.
    """
    for name in TEXT_COLUMNS:
        if name in row:
            return name
    texts = [name for name, value in row.items() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 else None
