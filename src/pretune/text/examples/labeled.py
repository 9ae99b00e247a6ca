"""Read labeled files: rows with a text or a pair of texts and a label; columns are inferred, logged, and overridable.

A LabeledTable is a file whose columns have roles. `read_labeled` assigns the roles text, pair and label, and further
roles of a task; tasks with another kind of rows use a LabeledTable directly (text/examples/multiple_choice.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, if_option, suggest
from pretune.runtime.progress import log_info
from pretune.text.corpus.documents import read_csv_rows, read_rows
from pretune.text.corpus.files import Errors, check_text, file_format, find_files, is_valid_text
from pretune.text.examples.examples import Examples

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
LABELS = (
    "label", "labels", "class", "category", "target", "gold_label", "sentiment", "intent", "topic", "score",
    "similarity", "is_duplicate", "quality", "y",
)  # fmt: skip
PAIRS = (
    ("text", "pair"), ("text", "text_pair"), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("question", "sentence"), ("question", "passage"), ("query", "passage"),
    ("query", "document"), ("query", "candidate"), ("anchor", "positive"), ("#1 string", "#2 string"), ("first", "second"),
)  # fmt: skip
TEXTS = (
    "text", "sentence", "review", "content", "body", "message", "comment", "tweet", "utterance", "question",
    "document", "title",
)  # fmt: skip
SEPARATORS = ";|,"  # between the labels of a multi-label row
SAMPLE = 1000  # rows from which column roles are inferred
LISTED = 3  # bad rows listed in a message
MISSING_VALUES = ("nan", "none", "null", "na", "n/a", "<na>")  # common spellings of missing values
ROLES = ("text", "pair", "label")  # roles with command-line options of their own
USUAL: dict[str, Sequence[str]] = {
    "text": (*TEXTS, *(first for first, _ in PAIRS)),
    "pair": [second for _, second in PAIRS],
    "label": LABELS,
}
KNOWN = {name for usual in USUAL.values() for name in usual}  # names that mark a first row as a header

Row = dict[str, Any]


@dataclass
class LabeledRows(Examples):
    """The rows of a labeled file, in order: a text or a pair of texts, and a label."""

    texts: list[str] = field(default_factory=list)
    pairs: list[str] | None = None
    labels: list[Any] | None = None  # one per row: a string, a number, or a tuple of strings
    extra: dict[str, list[Any]] = field(default_factory=dict)  # role → cells, for the further roles of a task

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Iterable[int]) -> LabeledRows:
        """Return the rows at the given indices, which may repeat."""
        chosen = list(rows)
        extra = {role: [cells[row] for row in chosen] for role, cells in self.extra.items()}
        return replace(super().take(chosen), extra=extra)

    def empty(self) -> list[int]:
        """Return the indices of rows without text, that is, with only whitespace in all of their texts."""
        sides = [self.texts, *([] if self.pairs is None else [self.pairs])]
        return [row for row, texts in enumerate(zip(*sides, strict=True)) if not any(text.strip() for text in texts)]

    @property
    def queries(self) -> Array:
        """Return an integer per row, (rows,), equal for rows with the same `group` (without groups, the same text)."""
        groups = [str(group) for group in self.extra.get("group", self.texts)]
        return np.unique(np.array(groups, dtype=object), return_inverse=True)[1].astype(np.int64)

    def duplicate_key(self, row: int) -> str:
        """Return a string that is equal for rows with the same texts, or the same `group` if there are groups."""
        if "group" in self.extra:
            return str(self.extra["group"][row])
        parts = [self.texts[row], *([] if self.pairs is None else [self.pairs[row]])]
        parts += [str(self.extra["spans"][row])] if "spans" in self.extra else []
        return "\0".join(parts).casefold().strip()

    def inputs(self, row: int) -> dict[str, Any]:
        """Return the texts of a row as a dictionary with the keys `text` and `pair`, for reports."""
        return {"text": self.texts[row], **({} if self.pairs is None else {"pair": self.pairs[row]})}


@dataclass(frozen=True)
class TableChunk:
    """Consecutive rows of a table file with their line numbers; functions that read a table file accept it, too."""

    file: Path
    rows: list[tuple[int, Row]]
    first: Row  # first row of the file, which defines the columns


def table_rows(file: str | Path, errors: Errors = "strict") -> Iterator[tuple[int, Row]]:
    """Return an iterator over (line number, row) of a table file."""
    path = find_files(file, FORMATS)[0]
    return read_rows(path, errors, names=_header(path, errors))


def read_chunks(
    path: Path, rows: int, read: Callable[[Path], Iterator[tuple[int, Row]]] = table_rows
) -> Iterator[TableChunk]:
    """Yield the rows of a file in chunks of `rows` rows; `read` is a function that iterates over (line number, row)."""
    remaining = read(path)
    first: Row | None = None
    while chunk := list(islice(remaining, rows)):
        first = chunk[0][1] if first is None else first
        yield TableChunk(path, chunk, first)
    if first is None:
        raise PretuneError(f"{path}: the file contains no rows; pass a file with data")


def read_labeled(
    file: str | Path | TableChunk,
    columns: Mapping[str, str] | None = None,
    *,
    errors: Errors = "strict",
    labels: bool = True,
    label: Callable[[Any], Any] | None = None,
    roles: Mapping[str, Sequence[str]] | None = None,
    drop_invalid: bool = False,
) -> LabeledRows:
    """Read labeled examples from a .csv, .tsv, .jsonl or .parquet file, or from a chunk of one.

    Parameters
    ----------
    columns
        Role → column, for the `text`, the `pair` (a second text) and the `label`. Other roles are inferred from column names,
        then from contents, and logged. Tables without a header have columns 1, 2, 3, …; a nested field of a .jsonl file is
        OUTER.INNER.
    label
        Converts a cell to a label, by default to a string; its ValueError describes what is wrong with the cell.
    roles
        Further roles, with the usual names of their columns.
    drop_invalid
        Whether to leave out rows without any text, and rows without a label, which otherwise raise an error.

    >>> rows = read_labeled("train.csv", {"label": "sentiment"})  # doctest: +SKIP
    """
    further = dict(roles or {})
    table = LabeledTable.open(file, columns or {}, {**USUAL, **further}, errors)
    extra = table.find_columns(further)
    requested = {role: name for role, name in table.requested.items() if role in USUAL}
    found = guess_columns(table.sample, requested, labels, taken=set(extra.values())) | extra
    table.check_columns(found, needed=("text", "label") if labels else ("text",))
    examples = LabeledRows(table.path, found, extra={role: [] for role in further if role in found})
    examples.pairs, examples.labels = [] if "pair" in found else None, [] if "label" in found else None
    unlabeled = []
    for line, row in table.rows():
        if examples.labels is not None:
            try:
                examples.labels.append(table.cell(row, found["label"], line, label or parse_label))
            except MissingLabel:
                unlabeled.append(f"line {line}")
                continue
        examples.lines.append(line)
        examples.texts.append(table.text_or_empty(row, found["text"], line))
        if examples.pairs is not None:
            examples.pairs.append(table.text_or_empty(row, found["pair"], line))
        for role, cells in examples.extra.items():
            cells.append(row.get(found[role]))
    if unlabeled:
        total = len(examples) + len(unlabeled)
        problem = f"{table.path}: {len(unlabeled)} of {total} rows have no label in {found['label']!r}"
        drop_or_raise(problem, unlabeled, drop_invalid)
    if drop_invalid and labels and (empty := examples.empty()):
        problem = f"{table.path}: {len(empty)} of {len(examples)} rows have no text"
        drop_or_raise(problem, [f"line {examples.lines[row]}" for row in empty], drop_invalid)
        examples = examples.take(sorted({*range(len(examples))} - {*empty}))
    if not examples.texts:
        raise PretuneError(f"{table.path}: no row has both a text and a label; add such rows")
    return examples


@dataclass
class LabeledTable:
    """A table file, or a chunk of one, whose columns have roles such as text and label, some of them set by the user."""

    path: Path
    roles: Collection[str]
    requested: dict[str, str]  # role → column, as the user set it
    first: Row  # defines the columns
    sample: list[Row]  # the first rows
    names: list[str] | None  # column names, if the file has no header
    rows: Callable[[], Iterator[tuple[int, Row]]]  # yields all rows with their line numbers

    @classmethod
    def open(
        cls,
        file: str | Path | TableChunk,
        columns: Mapping[str, str],
        roles: Mapping[str, Sequence[str]],
        errors: Errors,
    ) -> LabeledTable:
        """Open a table file and read its first rows; `roles` maps roles such as text to usual column names."""
        requested = {role: name for role, name in columns.items() if name}
        for role in requested:
            if role not in roles:
                raise PretuneError(f"unknown column role {role!r}; {suggest(role, roles)}")
        path = file.file if isinstance(file, TableChunk) else find_files(file, FORMATS)[0]
        known = {name for usual in roles.values() for name in usual}
        names = None if isinstance(file, TableChunk) else _header(path, errors, known)

        def rows() -> Iterator[tuple[int, Row]]:
            numbered = file.rows if isinstance(file, TableChunk) else read_rows(path, errors, names=names)
            return ((line, _flatten(row)) for line, row in numbered)

        sample = [row for _, row in islice(rows(), SAMPLE)]
        if not sample:
            raise PretuneError(f"{path}: the file contains no rows; pass a file with data")
        first = _flatten(file.first) if isinstance(file, TableChunk) else sample[0]
        return cls(path, roles, requested, first, sample, names, rows)

    def find_columns(self, roles: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Map roles to columns: the column that the user set, else the first of the usual names that `roles` lists."""
        lower = {name.lower(): name for name in self.first}
        guesses = {role: next((lower[name] for name in usual if name in lower), None) for role, usual in roles.items()}
        found = {role: self.requested.get(role) or guess for role, guess in guesses.items()}
        return {role: name for role, name in found.items() if name}

    def check_columns(self, found: Mapping[str, str], needed: Collection[str]) -> None:
        """Check that the columns in `found` exist and include the roles in `needed`; log inferred columns."""
        listed = ", ".join(map(repr, self.first))
        for role, names in found.items():
            for name in self.split_names(names):
                if name not in self.first:
                    columns = f"the columns are {listed}; {suggest(name, self.first)}"
                    raise PretuneError(f"{self.path}: no column {name!r} for the {role}; {columns}")
        for role in needed:
            if role not in found:
                columns = f"the columns are {listed}{advise_options('choose one', [role])}"
                raise PretuneError(f"{self.path}: cannot infer the {role} column; {columns}")
        if set(found) != set(self.requested):
            guessed = ", ".join(f"{role} = {name!r}" for role, name in found.items())
            note = " (no header: columns are numbered)" if self.names is not None else ""
            roles = [role for role in self.roles if role in ROLES or role in found]
            log_info(f"{self.path}: using the columns {guessed}{note}{advise_options('override', roles)}")

    def split_names(self, names: str) -> list[str]:
        """Split a comma-separated string of column names into a list."""
        return [names] if names in self.first else names.split(",")

    def text(self, row: Row, name: str, line: int) -> str:
        """Return the text in the column `name` of a row; raise an error if the cell is missing, a list or an object."""
        value = row.get(name)
        if value is None:
            raise PretuneError(f"{self.path}, line {line}: the field {name!r} is missing")
        if isinstance(value, list | dict):
            kind = type(value).__name__
            raise PretuneError(f"{self.path}, line {line}: expected text in {name!r}, but found a {kind}")
        return check_text(value if isinstance(value, str) else str(value), f"{self.path}, line {line}: {name!r}")

    def text_or_empty(self, row: Row, name: str, line: int) -> str:
        """Return the text in the column `name` of a row, "" if it is null; raise an error without such a column."""
        return "" if name in row and is_missing(row[name]) else self.text(row, name, line)

    def cell(self, row: Row, name: str, line: int, read: Callable[[Any], Any]) -> Any:
        """Convert the cell in the column `name` of a row with the function `read`; raise an error if it is invalid."""
        try:
            return read(row.get(name))
        except MissingLabel:
            raise
        except ValueError as error:
            raise PretuneError(f"{self.path}, line {line}: {error} in {name!r}") from error


def advise_options(advice: str, roles: Iterable[str]) -> str:
    """Return `advice` and the command-line options that set the columns of `roles`; "" if the command has none of them.

    >>> advise_options("override", ["text", "group"])
    '; override with --text, --columns.group'
    """
    pairs = ((role, role) if role in ROLES else ("columns", f"columns.{role}") for role in roles)
    options = ", ".join(filter(None, (if_option(option, f"--{name}") for option, name in pairs)))
    return f"; {advice} with {options}" if options else ""


def drop_or_raise(problem: str, bad: Sequence[str], drop: bool | None) -> None:
    """Raise an error that describes a problem and lists the first bad rows; with `drop=True`, log it instead."""
    if not drop:
        advice = "" if drop is None else if_option("drop-invalid", ", or leave them out with --drop-invalid")
        raise PretuneError(f"{problem}: {list_first(bad)}; correct them{advice}")
    log_info(f"{problem}: {list_first(bad)}; these rows are left out")


def list_first(names: Iterable[str]) -> str:
    """Return the first few names, separated by commas.

    >>> list_first("abcde")
    'a, b, c …'
    """
    known = list(names)
    return ", ".join(known[:LISTED]) + (" …" if len(known) > LISTED else "")


def column_names(path: Path, errors: Errors = "strict") -> list[str]:
    """Return the column names of a table file."""
    return list(LabeledTable.open(path, {}, USUAL, errors).first)


def _flatten(row: Row) -> Row:
    """Return a row with the fields of nested objects added under dotted names."""
    nested = ((outer, inner) for outer, inner in row.items() if isinstance(inner, dict))
    inside = {f"{outer}.{name}": value for outer, inner in nested for name, value in inner.items()}
    return {**row, **inside} if inside else row


def _header(path: Path, errors: Errors, known: Collection[str] = KNOWN) -> list[str] | None:
    """Return the column names 1, 2, 3, … for a table file whose first row is data; None if it has a header."""
    if (suffix := file_format(path)) not in (".csv", ".tsv"):
        return None
    rows = (row for _, row in read_csv_rows(path, errors, tabs=suffix == ".tsv") if row)
    first = [cell.strip() for cell in next(rows, [])]
    data = any(len(cell.split()) > 3 or cell.replace(".", "", 1).removeprefix("-").isdigit() for cell in first)
    if any(cell.lower() in known for cell in first) or not data:
        return None
    return [str(i + 1) for i in range(len(first))]


def guess_columns(
    sample: list[Row], requested: Mapping[str, str], labels: bool = True, taken: Collection[str] = ()
) -> dict[str, str]:
    """Map the roles text, pair and, if `labels`, label to columns: `requested` ones, else inferred, none in `taken`."""
    found = dict(requested)
    lower = {name.lower(): name for name in sample[0] if isinstance(name, str)}

    def used() -> set[str]:
        return {*found.values(), *taken}

    def free(*names: str) -> bool:
        return all(name in lower and lower[name] not in used() for name in names)

    if labels and "label" not in found and (name := next(filter(free, LABELS), None)):
        found["label"] = lower[name]
    if "text" not in found and "pair" not in found and (pair := next((p for p in PAIRS if free(*p)), None)):
        found |= {"text": lower[pair[0]], "pair": lower[pair[1]]}
    if "text" not in found and (name := next(filter(free, TEXTS), None)):
        found["text"] = lower[name]
    if labels and "label" not in found and (name := _label_by_content(sample, used())):
        found["label"] = name
    if "text" not in found and (name := _text_by_content(sample, used())):
        found["text"] = name
    return {role: found[role] for role in ROLES if role in found and (labels or role != "label" or role in requested)}


def _label_by_content(sample: list[Row], taken: set[str]) -> str | None:
    """Return the column, not in `taken`, with the fewest distinct values in a sample of rows, if its values repeat."""
    best: tuple[int, str] | None = None
    for name in sample[0]:
        values = [str(row.get(name, "")) for row in sample]
        kinds = len(set(values))
        repeats = 2 <= kinds <= max(2, len(values) // 2) and kinds < len(values)
        if name not in taken and all(values) and repeats and (best is None or kinds < best[0]):
            best = (kinds, name)
    return best[1] if best else None


def _text_by_content(sample: list[Row], taken: set[str]) -> str | None:
    """Return the column, not in `taken`, with the longest texts in a sample of rows; None if there are no texts."""
    sizes = {
        name: sum(len(row[name]) for row in sample if isinstance(row.get(name), str))
        for name in sample[0]
        if name not in taken
    }
    best = max(sizes, key=lambda name: sizes[name], default=None)
    return best if best is not None and sizes[best] else None


class MissingLabel(ValueError):  # noqa: N818
    """An error for a cell that should contain a label and is empty."""


def is_missing(value: Any) -> bool:
    """Return whether a cell is null, or NaN as in tables of numbers.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    return value is None or (isinstance(value, float) and math.isnan(value))


def parse_label(value: Any) -> str:
    """Convert a cell to a single label, a string.

    >>> parse_label(True)
    'true'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if is_missing(value) or str(value).strip() == "":
        raise MissingLabel("no label")
    if isinstance(value, list | dict):
        raise ValueError(f"expected a single label, but found a {type(value).__name__}")
    if not is_valid_text(label := str(value).strip()):
        raise ValueError("a lone surrogate, which is not valid text,")
    return label


def parse_labels(value: Any) -> Any:
    """Convert a cell of a multi-label column: a list to a tuple, others to a string, for `split_labels` to split."""
    if isinstance(value, list):
        return tuple(dict.fromkeys(parse_label(item) for item in value))
    return "" if is_missing(value) or value == "" else parse_label(value)


def split_labels(cells: Sequence[Any], known: Collection[str] = ()) -> list[tuple[str, ...]]:
    """Return the labels of each cell of a multi-label column.

    Texts are split at the first of ; | , that any of them contains; a cell that is a `known` label is not split.

    >>> split_labels(["red; blue", "", "light, very light"])
    [('red', 'blue'), (), ('light, very light',)]
    """
    cells = [(cell,) if cell in known else cell for cell in cells]
    texts = [cell for cell in cells if isinstance(cell, str)]
    mark = next((mark for mark in SEPARATORS if any(mark in text for text in texts)), SEPARATORS[0])
    split = [cell.split(mark) if isinstance(cell, str) else cell for cell in cells]
    return [tuple(dict.fromkeys(label.strip() for label in labels if label.strip())) for labels in split]


def parse_number(value: Any) -> float:
    """Convert a cell to a finite number.

    >>> parse_number(" 3.50 ")
    3.5
    """
    if is_missing(value) or (isinstance(value, str) and value.strip().casefold() in ("", *MISSING_VALUES)):
        raise MissingLabel("no number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"{value!r} is not a number")
    return number
