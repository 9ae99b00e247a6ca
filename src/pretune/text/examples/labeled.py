"""Read labeled files: rows with a text or a pair of texts and a label; columns are inferred, logged, and overridable.

A Table is a file whose columns have roles. `read_labeled` assigns the roles text, pair and label, and further roles of
a task; tasks with another kind of rows use a Table directly (text/examples/multiple_choice.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, if_option, suggest
from pretune.runtime.progress import log_info
from pretune.text.corpus.documents import read_csv_rows, read_jsonl, read_parquet, read_table
from pretune.text.corpus.files import Errors, check_text, file_format, find_files, is_valid_text

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
class LabeledRows:
    """The rows of a labeled file, in order."""

    file: Path
    columns: dict[str, str]  # role → column, e.g. {"text": "sentence", "label": "label"}
    texts: list[str] = field(default_factory=list)
    pairs: list[str] | None = None
    labels: list[Any] | None = None  # one per row: a string, a number, or a tuple of strings
    lines: list[int] = field(default_factory=list)  # line number of each row
    more: dict[str, list[Any]] = field(default_factory=dict)  # role → cells, for the further roles of a task

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Iterable[int]) -> LabeledRows:
        """Return the rows at the given indices."""
        chosen = list(rows)
        pairs, labels = (None if c is None else [c[row] for row in chosen] for c in (self.pairs, self.labels))
        texts, lines = [self.texts[row] for row in chosen], [self.lines[row] for row in chosen]
        more = {role: [cells[row] for row in chosen] for role, cells in self.more.items()}
        return LabeledRows(self.file, self.columns, texts, pairs, labels, lines, more)

    def empty(self) -> list[int]:
        """Return the indices of rows without text, that is, with only whitespace in all of their texts."""
        sides = [self.texts, *([] if self.pairs is None else [self.pairs])]
        return [row for row, texts in enumerate(zip(*sides, strict=True)) if not any(text.strip() for text in texts)]

    @property
    def queries(self) -> Array:
        """Return an integer per row, (rows,), that is equal for rows of one `group`."""
        known = [str(group) for group in self.more.get("group", self.texts)]
        return np.unique(np.array(known, dtype=object), return_inverse=True)[1].astype(np.int64)

    def asked(self, row: int) -> str:
        """Return a key of a row's input, ignoring its label, that is equal for duplicates and for rows of one `group`."""
        if "group" in self.more:
            return str(self.more["group"][row])
        parts = [self.texts[row], *([] if self.pairs is None else [self.pairs[row]])]
        parts += [str(self.more["spans"][row])] if "spans" in self.more else []
        return "\0".join(parts).casefold().strip()

    def place(self, row: int) -> str:
        """Return the file and line of a row, for messages."""
        return f"{self.file}, line {self.lines[row]}" if self.lines else f"{self.file}, row {row + 1}"

    def show(self, row: int) -> dict[str, Any]:
        """Return the inputs of a row, to be shown beside its answer."""
        return {"text": self.texts[row], **({} if self.pairs is None else {"pair": self.pairs[row]})}


@dataclass(frozen=True)
class TableChunk:
    """A chunk of a file's rows, with line numbers, which can be read as if it were a file."""

    file: Path
    rows: list[tuple[int, Row]]
    first: Row  # first row of the file, which defines the columns


def table_rows(file: str | Path, errors: Errors = "strict") -> Iterator[tuple[int, Row]]:
    """Yield all rows of a table with their line numbers."""
    (path,) = find_files(file, FORMATS)[:1]
    return _rows(path, _header(path, errors), errors)


def read_chunks(
    path: Path, rows: int, read: Callable[[Path], Iterator[tuple[int, Row]]] = table_rows
) -> Iterator[TableChunk]:
    """Yield a file of any size in chunks of `rows` rows; `read` yields its rows.

    >>> for part in read_chunks(Path("large.csv"), 1000): print(len(part.rows))  # doctest: +SKIP
    """
    left = read(path)
    part = list(islice(left, rows))
    if not part:
        raise PretuneError(f"{path}: the file contains no rows")
    _, first = part[0]
    while part:
        yield TableChunk(path, part, first)
        part = list(islice(left, rows))


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
    """Read the examples of a .csv, .tsv, .jsonl or .parquet file, or of an excerpt of one.

    Rows without a label are an error, which lists them.

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
        Whether to leave out rows without a label and rows without any text.

    >>> rows = read_labeled("train.csv", {"label": "sentiment"})  # doctest: +SKIP
    """
    further = dict(roles or {})
    table = LabeledTable.open(file, columns or {}, {**USUAL, **further}, errors)
    named = table.named(further)
    given = {role: name for role, name in table.given.items() if role in USUAL}
    found = guess_columns(table.sample, given, labels, taken=set(named.values())) | named
    table.check_columns(found, needed=("text", "label") if labels else ("text",))
    made = LabeledRows(
        table.path, found, pairs=[] if "pair" in found else None, labels=[] if "label" in found else None
    )
    made.more = {role: [] for role in further if role in found}
    unlabeled = []
    for line, row in table.rows():
        if made.labels is not None:
            try:
                made.labels.append(table.cell(row, found["label"], line, label or parse_label))
            except MissingLabel:
                unlabeled.append(line)
                continue
        made.lines.append(line)
        made.texts.append(table.text_or_empty(row, found["text"], line))
        if made.pairs is not None:
            made.pairs.append(table.text_or_empty(row, found["pair"], line))
        for role, cells in made.more.items():
            cells.append(row.get(found[role]))
    if unlabeled:
        what = (
            f"{table.path}: {len(unlabeled)} of {len(made) + len(unlabeled)} rows have no label in {found['label']!r}"
        )
        drop_or_raise(what, [f"line {line}" for line in unlabeled], drop_invalid)
    if drop_invalid and labels and (empty := made.empty()):
        what = f"{table.path}: {len(empty)} of {len(made)} rows have no text"
        drop_or_raise(what, [f"line {made.lines[row]}" for row in empty], drop_invalid)
        made = made.take(sorted({*range(len(made))} - {*empty}))
    if not made.texts:
        raise PretuneError(f"{table.path}: no row has both a text and a label")
    return made


@dataclass
class LabeledTable:
    """A file, or an excerpt of one, whose columns have roles, some of them given by the user."""

    path: Path
    roles: Collection[str]
    given: dict[str, str]  # role → column
    first: Row  # defines the columns
    sample: list[Row]
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
        """Open a file and sample its first rows; `roles` maps the possible roles to usual column names."""
        given = {role: name for role, name in columns.items() if name}
        for role in given:
            if role not in roles:
                raise PretuneError(f"Unknown column role {role!r}; {suggest(role, roles)}")
        path = file.file if isinstance(file, TableChunk) else find_files(file, FORMATS)[0]
        known = {name for usual in roles.values() for name in usual}
        names = None if isinstance(file, TableChunk) else _header(path, errors, known)

        def rows() -> Iterator[tuple[int, Row]]:
            found = file.rows if isinstance(file, TableChunk) else _rows(path, names, errors)
            return ((line, _flat(row)) for line, row in found)

        sample = [row for _, row in islice(rows(), SAMPLE)]
        if not sample:
            raise PretuneError(f"{path}: the file contains no rows")
        first = _flat(file.first) if isinstance(file, TableChunk) else sample[0]
        return cls(path, roles, given, first, sample, names, rows)

    def named(self, roles: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return role → column: the given column, else the first of the role's usual names that the table has."""
        lower = {name.lower(): name for name in self.first}
        guesses = {role: next((lower[name] for name in usual if name in lower), None) for role, usual in roles.items()}
        found = {role: self.given.get(role) or guess for role, guess in guesses.items()}
        return {role: name for role, name in found.items() if name}

    def check_columns(self, found: Mapping[str, str], needed: Collection[str]) -> None:
        """Raise an error for missing columns and roles without a column; log inferred columns."""
        listed = ", ".join(map(repr, self.first))
        for role, names in found.items():
            for name in self.several(names):
                if name not in self.first:
                    hint = suggest(name, self.first)
                    raise PretuneError(
                        f"{self.path}: no column {name!r} for the {role}; the columns are {listed}; {hint}"
                    )
        for role in needed:
            if role not in found:
                raise PretuneError(
                    f"{self.path}: cannot infer the {role} column; the columns are {listed}{advise_options('choose one', [role])}"
                )
        if set(found) != set(self.given):
            guessed = ", ".join(f"{role} = {name!r}" for role, name in found.items())
            note = " (no header: columns are numbered)" if self.names is not None else ""
            roles = [role for role in self.roles if role in ROLES or role in found]
            log_info(f"{self.path}: {guessed}{note}{advise_options('override', roles)}")

    def several(self, names: str) -> list[str]:
        """Return the columns of a role that may have several, separated by commas."""
        return [names] if names in self.first else names.split(",")

    def text(self, row: Row, name: str, line: int) -> str:
        """Return a cell as text; raise an error if it is missing or nested."""
        value = row.get(name)
        if value is None:
            raise PretuneError(f"{self.path}, line {line}: the field {name!r} is missing")
        if isinstance(value, list | dict):
            raise PretuneError(
                f"{self.path}, line {line}: expected text in {name!r}, but found a {type(value).__name__}"
            )
        return check_text(value if isinstance(value, str) else str(value), f"{self.path}, line {line}: {name!r}")

    def text_or_empty(self, row: Row, name: str, line: int) -> str:
        """Return a cell as text; an empty text if the cell exists and has no value."""
        return "" if name in row and is_missing(row[name]) else self.text(row, name, line)

    def cell(self, row: Row, name: str, line: int, read: Callable[[Any], Any]) -> Any:
        """Return `read` of a cell; a ValueError becomes an error that names the file and line."""
        try:
            return read(row.get(name))
        except MissingLabel:
            raise
        except ValueError as error:
            raise PretuneError(f"{self.path}, line {line}: {error} in {name!r}") from error


def advise_options(advice: str, roles: Iterable[str]) -> str:
    """Return advice that names the options for the columns of some roles; "" if the running command has none of them.

    >>> advise_options("override", ["text", "group"])
    '; override with --text, --columns.group'
    """
    options = (
        if_option(role, f"--{role}") if role in ROLES else if_option("columns", f"--columns.{role}") for role in roles
    )
    known = ", ".join(filter(None, options))
    return f"; {advice} with {known}" if known else ""


def drop_or_raise(what: str, bad: Sequence[str], drop: bool | None) -> None:
    """Log that bad examples were left out if `drop` is set; otherwise raise an error that lists them.
    With `drop=None`, the error does not mention that they can be left out.
    """
    listed = ", ".join(bad[:LISTED]) + (" …" if len(bad) > LISTED else "")
    if not drop:
        advice = "" if drop is None else if_option("drop-invalid", ", or leave them out with --drop-invalid")
        raise PretuneError(f"{what}: {listed}; correct them{advice}")
    log_info(f"{what}: {listed}; these rows are left out")


def column_names(path: Path, errors: Errors = "strict") -> list[str]:
    """Return the column names of a table."""
    return list(LabeledTable.open(path, {}, USUAL, errors).first)


def _rows(path: Path, names: list[str] | None, errors: Errors) -> Iterator[tuple[int, Row]]:
    match file_format(path):
        case ".jsonl":
            return read_jsonl(path, errors)
        case ".parquet":
            return read_parquet(path)
        case _:
            return read_table(path, errors, names=names)


def _flat(row: Row) -> Row:
    """Return a row with the fields of nested objects added under dotted names."""
    inside = [
        (f"{outer}.{name}", x) for outer, inner in row.items() if isinstance(inner, dict) for name, x in inner.items()
    ]
    return {**row, **dict(inside)} if inside else row


def _header(path: Path, errors: Errors, known: Collection[str] = KNOWN) -> list[str] | None:
    """Return 1, 2, 3, … as column names if the first row of a table looks like data; None if it is a header."""
    if (suffix := file_format(path)) not in (".csv", ".tsv"):
        return None
    rows = (row for _, row in read_csv_rows(path, errors, tabs=suffix == ".tsv") if row)
    first = [cell.strip() for cell in next(rows, [])]
    if any(cell.lower() in known for cell in first) or not any(map(_reads_like_data, first)):
        return None
    return [str(i + 1) for i in range(len(first))]


def _reads_like_data(cell: str) -> bool:
    return len(cell.split()) > 3 or cell.replace(".", "", 1).removeprefix("-").isdigit()


def guess_columns(
    sample: list[Row], given: Mapping[str, str], labels: bool = True, taken: Collection[str] = ()
) -> dict[str, str]:
    """Return role → column: given ones, then by usual names, then by contents, without columns in `taken`."""
    found = dict(given)
    lower = {name.lower(): name for name in sample[0] if isinstance(name, str)}

    def used() -> set[str]:
        return {*found.values(), *taken}

    def free(name: str) -> bool:
        return name in lower and lower[name] not in used()

    if labels and "label" not in found and (named := next((lower[name] for name in LABELS if free(name)), None)):
        found["label"] = named
    if "text" not in found and "pair" not in found:
        for first, second in PAIRS:
            if free(first) and free(second):
                found |= {"text": lower[first], "pair": lower[second]}
                break
    if "text" not in found and (named := next((lower[name] for name in TEXTS if free(name)), None)):
        found["text"] = named
    if labels and "label" not in found and (named := _label_by_content(sample, used())):
        found["label"] = named
    if "text" not in found and (named := _text_by_content(sample, used())):
        found["text"] = named
    return {role: found[role] for role in ROLES if role in found and (labels or role != "label" or role in given)}


def _label_by_content(sample: list[Row], taken: set[str]) -> str | None:
    """Return the column with the fewest distinct values, if values repeat."""
    best: tuple[int, str] | None = None
    for name in sample[0]:
        values = [str(row.get(name, "")) for row in sample]
        kinds = len(set(values))
        repeats = 2 <= kinds <= max(2, len(values) // 2) and kinds < len(values)
        if name not in taken and all(values) and repeats and (best is None or kinds < best[0]):
            best = (kinds, name)
    return best[1] if best else None


def _text_by_content(sample: list[Row], taken: set[str]) -> str | None:
    """Return the column with the longest values."""
    sizes = {
        name: sum(len(row[name]) for row in sample if isinstance(row.get(name), str))
        for name in sample[0]
        if name not in taken
    }
    best = max(sizes, key=lambda name: sizes[name], default=None)
    return best if best is not None and sizes[best] else None


class MissingLabel(ValueError):  # noqa: N818
    """The error for a cell that has no label."""


def is_missing(value: Any) -> bool:
    """Return whether a cell has no value: null, or NaN as in tables of numbers.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    return value is None or (isinstance(value, float) and math.isnan(value))


def parse_label(value: Any) -> str:
    """Convert a cell to a single label.

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
    """Convert a cell to any number of labels: a tuple from a list, or a text to be split when all rows are known."""
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
    cut = [cell.split(mark) if isinstance(cell, str) else cell for cell in cells]
    return [tuple(dict.fromkeys(label.strip() for label in labels if label.strip())) for labels in cut]


def parse_number(value: Any) -> float:
    """Convert a cell to a number.

    >>> parse_number(" 3.50 ")
    3.5
    """
    if is_missing(value) or (isinstance(value, str) and value.strip().casefold() in ("", *MISSING_VALUES)):
        raise MissingLabel("no number")
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(value, bool) or not math.isfinite(found):
        raise ValueError(f"{value!r} is not a number")
    return found
