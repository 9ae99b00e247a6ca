"""Read labeled files: rows with a text or a pair of texts and a label; columns are inferred, logged, and overridable.

A LabeledTable is a file whose columns have roles. `read_labeled` assigns the roles text, pair and label, and further
roles of a task; tasks with another kind of rows use a LabeledTable directly (text/examples/multiple_choice.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, if_option, suggest
from pretune.runtime.progress import log_info
from pretune.text.corpus.delimiters import has_tab_columns
from pretune.text.corpus.documents import read_csv_rows, read_rows, read_table
from pretune.text.corpus.files import Errors, check_text, file_format, find_files, is_valid_text
from pretune.text.examples.column_roles import KNOWN, USUAL, MissingLabel, guess_columns, label_columns, text_columns
from pretune.text.examples.examples import Examples

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
TAB_SEPARATED = ".txt"  # also a table, if tabs separate its columns
SEPARATORS = ";|,"  # between the labels of a multi-label row
SAMPLE = 1000  # rows from which column roles are inferred
LISTED = 3  # bad rows listed in a message
MISSING_VALUES = ("nan", "none", "null", "na", "n/a", "<na>")  # common spellings of missing values
ROLES = ("text", "pair", "label")  # roles with command-line options of their own
UNUSED = 8  # unused columns listed in a message

Row = dict[str, Any]


@dataclass
class LabeledRows(Examples):
    """The rows of a labeled file, in order: a text or a pair of texts, and a label.

    `pairs` has the second text of each row, `labels` its label, and `extra` maps further roles to one value per row.
    """

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
        """Return the indices of rows whose texts all consist of whitespace only."""
        sides = [self.texts, *([] if self.pairs is None else [self.pairs])]
        return [row for row, texts in enumerate(zip(*sides, strict=True)) if not any(text.strip() for text in texts)]

    def spelled_missing(self) -> list[int]:
        """Return the indices of rows that are not blank but whose texts only spell a missing value, such as NaN."""
        sides = [self.texts, *([] if self.pairs is None else [self.pairs])]
        missing = ("", *MISSING_VALUES)
        rows = (row for row, texts in enumerate(zip(*sides, strict=True)) if any(text.strip() for text in texts))
        return [row for row in rows if all(side[row].strip().casefold() in missing for side in sides)]

    def line(self, row: int) -> str:
        """Return the place of a row in its file, such as "line 3", for messages that have named the file already."""
        return f"line {self.lines[row]}" if self.lines else f"row {row + 1}"

    @property
    def queries(self) -> Array:
        """Return an integer per row, (rows,), which is equal for rows that belong to the same query.

        These are rows with the same `group` or, if the rows have no groups, with the same first text.
        """
        groups = [str(group) for group in self.extra.get("group", self.texts)]
        return np.unique(np.array(groups, dtype=object), return_inverse=True)[1].astype(np.int64)

    def duplicate_key(self, row: int) -> str:
        """Return a key that is equal for duplicates of a row.

        Duplicates are rows with the same `group` or, if the rows have no groups, with the same texts and, if they have
        any, the same spans and image.
        """
        if "group" in self.extra:
            return str(self.extra["group"][row])
        parts = [self.texts[row], *([] if self.pairs is None else [self.pairs[row]])]
        parts += [str(self.extra[role][row]) for role in ("spans", "image") if role in self.extra]
        return "\0".join(parts).casefold().strip()

    def inputs(self, row: int) -> dict[str, Any]:
        """Return the texts and the image of a row as a dictionary with the keys `text`, `pair` and `image`, for reports."""
        pair = {} if self.pairs is None else {"pair": self.pairs[row]}
        image = {"image": str(self.extra["image"][row])} if "image" in self.extra else {}
        return {"text": self.texts[row], **pair, **image}


@dataclass(frozen=True)
class TableChunk:
    """Consecutive rows of a table file, as (line number, row), for functions that read a file or a chunk of one.

    `first` is the first row of the whole file, which defines its columns.
    """

    file: Path
    rows: list[tuple[int, Row]]
    first: Row  # first row of the file, which defines the columns


def table_rows(file: str | Path, errors: Errors = "strict") -> Iterator[tuple[int, Row]]:
    """Return an iterator over (line number, row) of a table file, with columns 1, 2, 3, … if it has no header."""
    path = find_table(file, errors)
    return numbered_rows(path, errors, _header(path, errors))


def find_table(file: str | Path, errors: Errors = "strict") -> Path:
    """Return the path of a table file; a .txt file is one if tabs separate its columns, otherwise it is an error."""
    path = find_files(file, (*FORMATS, TAB_SEPARATED))[0]
    if file_format(path) == TAB_SEPARATED and not has_tab_columns(path, errors):
        raise PretuneError(
            f"{path}: a .txt file is read as a table only if tabs separate the same number of columns in every line; "
            f"use one of {', '.join(FORMATS)}"
        )
    return path


def numbered_rows(path: Path, errors: Errors, names: list[str] | None) -> Iterator[tuple[int, Row]]:
    """Return an iterator over (line number, row) of a table file; `names` are the columns of a file without a header."""
    if file_format(path) == TAB_SEPARATED:
        return read_table(path, errors, None, names)
    return read_rows(path, errors, names=names)


def read_chunks(
    path: Path, rows: int, read: Callable[[Path], Iterator[tuple[int, Row]]] = table_rows
) -> Iterator[TableChunk]:
    """Yield the rows of a file in chunks of `rows` rows; `read` is the function that reads (line number, row) pairs."""
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
    pairs: bool = True,
    drop_invalid: bool = False,
) -> LabeledRows:
    """Read labeled examples from a .csv, .tsv, .jsonl or .parquet file, or from a chunk of one.

    Parameters
    ----------
    columns
        Role → column, for the `text`, the `pair` (a second text) and the `label`. The columns of roles that are not given are
        inferred from column names, then from contents, and logged. Tables without a header have columns 1, 2, 3, …; a nested
        field of a .jsonl file is OUTER.INNER.
    label
        Converts a cell to a label, by default to a string; its ValueError describes what is wrong with the cell.
    roles
        Further roles to read into `extra`, with the usual names of their columns.
    pairs
        Whether to infer a column for a second text; the `pair` in `columns` is read in any case.
    drop_invalid
        Whether to leave out rows without any text and rows without a label, which otherwise raise an error. Rows whose text
        spells a missing value, such as NaN, are left out too, as are rows with such a label if it is rare
        (`missing_spellings`).

    >>> rows = read_labeled("train.csv", {"label": "sentiment"})  # doctest: +SKIP
    """
    further = dict(roles or {})
    table = LabeledTable.open(file, columns or {}, {**USUAL, **further}, errors)
    extra = table.find_columns(further)
    requested = {role: name for role, name in table.requested.items() if role in USUAL}
    taken = set(extra.values())
    found = guess_columns(table.sample, requested, labels, taken, pairs=pairs, label=label or parse_label) | extra
    table.check_columns(found, needed=("text", "label") if labels else ("text",))
    if labels and "label" not in requested:
        others = label_columns(table.sample, taken | {found["text"], found.get("pair", "")}, label or parse_label)
        table.report_others([name for name in others if name != found["label"]], "label", "be the label", found)
    if pairs and "pair" not in found and "text" not in requested:
        table.report_others(text_columns(table.sample, found.values()), "pair", "be a second text", found)
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
    if not examples.texts:
        raise PretuneError(f"{table.path}: no row has both a text and a label; add rows that have both")
    return drop_missing(examples) if drop_invalid and labels else examples


def drop_missing(examples: LabeledRows) -> LabeledRows:
    """Return the examples without rows that lack a text or a label, and log how many rows are left out.

    A row lacks a text if its text is empty or spells a missing value, such as NaN; a label is missing if it rarely
    occurs and spells a missing value (see `missing_spellings`).
    """
    doubtful = missing_spellings(examples.labels or ())
    labels = [row for row, label in enumerate(examples.labels or ()) if label in doubtful]
    for rows, problem in (
        (examples.empty(), "have no text"),
        (examples.spelled_missing(), "have a text such as NaN or None, which stands for a missing one"),
        (labels, f"have a label that stands for a missing one, {list_first(map(repr, sorted(doubtful)))}"),
    ):
        if rows:
            where = [examples.line(row) for row in rows]
            drop_or_raise(f"{examples.file}: {len(rows)} of {len(examples)} rows {problem}", where, drop=True)
    left_out = {*examples.empty(), *examples.spelled_missing(), *labels}
    if len(left_out) == len(examples):
        raise PretuneError(
            f"{examples.file}: every row lacks a text or a label, so no row is left; add rows with a text and a label"
        )
    return examples.take(row for row in range(len(examples)) if row not in left_out) if left_out else examples


def missing_spellings(labels: Sequence[Any]) -> set[str]:
    """Return the labels, such as NaN or None, that seem to stand for a missing label rather than for a class.

    These labels spell a missing value and are rare: each has fewer than half as many rows as the other classes on
    average.

    >>> missing_spellings(["a", "b", "None"] * 9), missing_spellings([*("ab" * 9), "None"])
    (set(), {'None'})
    """
    counts = Counter(label for label in labels if isinstance(label, str))
    spelled = {label for label in counts if label.casefold() in MISSING_VALUES}
    others = [count for label, count in counts.items() if label not in spelled]
    return {label for label in spelled if others and 2 * counts[label] * len(others) < sum(others)}


@dataclass
class LabeledTable:
    """A table file, or a chunk of one, whose columns have roles such as text and label.

    `requested` has the roles whose columns the user has set; `sample` are the first rows, from which the columns of the
    other roles are inferred.
    """

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
        """Open a table file and read its first rows; `columns` maps roles to the columns that the user has set.

        `roles` maps each role, such as text, to its usual column names.
        """
        requested = {role: name for role, name in columns.items() if name}
        for role in requested:
            if role not in roles:
                raise PretuneError(f"unknown column role {role!r}; {suggest(role, roles)}")
        path = file.file if isinstance(file, TableChunk) else find_table(file, errors)
        known = {name for usual in roles.values() for name in usual}
        names = None if isinstance(file, TableChunk) else _header(path, errors, known)

        def rows() -> Iterator[tuple[int, Row]]:
            numbered = file.rows if isinstance(file, TableChunk) else numbered_rows(path, errors, names)
            return ((line, _flatten(row)) for line, row in numbered)

        sample = [row for _, row in islice(rows(), SAMPLE)]
        if not sample:
            raise PretuneError(f"{path}: the file contains no rows; pass a file with data")
        first = _flatten(file.first) if isinstance(file, TableChunk) else sample[0]
        return cls(path, roles, requested, first, sample, names, rows)

    def find_columns(self, roles: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return the column of each role in `roles`, which maps roles to usual column names.

        A role has the column that the user set, else the first usual name that is a column; roles without a column are
        left out.
        """
        lower = {name.lower(): name for name in self.first}
        guesses = {role: next((lower[name] for name in usual if name in lower), None) for role, usual in roles.items()}
        found = {role: self.requested.get(role) or guess for role, guess in guesses.items()}
        return {role: name for role, name in found.items() if name}

    def check_columns(self, found: Mapping[str, str], needed: Collection[str]) -> None:
        """Raise an error if a column in `found` (role → column) does not exist or a role in `needed` has no column.

        Otherwise, log the columns that were inferred rather than set by the user.
        """
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
            unused = self.unused(found)
            more = f" and {len(unused) - UNUSED} more" if len(unused) > UNUSED else ""
            rest = f"; unused: {', '.join(map(repr, unused[:UNUSED]))}{more}" if unused else ""
            log_info(f"{self.path}: using the columns {guessed}{note}{rest}{advise_options('override', roles)}")

    def unused(self, found: Mapping[str, str]) -> list[str]:
        """Return the columns to which `found` (role → column) gives no role, apart from fields of nested objects."""
        used = {name for names in found.values() for name in self.split_names(names)}
        outer = {name.partition(".")[0] for name in used}
        nested = {f"{name}.{inner}" for name, value in self.first.items() if isinstance(value, dict) for inner in value}
        return [name for name in self.first if name not in used | nested and name not in outer]

    def report_others(self, names: Sequence[str], role: str, use: str, found: Mapping[str, str]) -> None:
        """Log which of the columns `names` are unused but could have the given `role`, and which option chooses one.

        The message says that the columns could `use`, such as "be the label"; `found` maps roles to the columns in use.
        """
        if names := [name for name in names if name in self.unused(found)]:
            chosen = f"; {found[role]!r} is used" if role in found else ""
            log_info(
                f"{self.path}: {list_first(map(repr, names))} could {use}, too{chosen}{advise_options('choose', [role])}"
            )

    def split_names(self, names: str) -> list[str]:
        """Split a comma-separated string of column names into a list, unless the whole string is a column name."""
        return [names] if names in self.first else names.split(",")

    def text(self, row: Row, name: str, line: int) -> str:
        """Return the text in the column `name` of a row; raise an error if the cell is missing, a list or an object.

        `line` is the line number of the row, for errors.
        """
        value = row.get(name)
        if value is None:
            raise PretuneError(
                f"{self.path}, line {line}: the field {name!r} is missing or null; fill it in, or remove the row"
            )
        if isinstance(value, list | dict):
            kind = type(value).__name__
            raise PretuneError(
                f"{self.path}, line {line}: expected text in {name!r}, but found a {kind}; convert the field to text"
            )
        return check_text(value if isinstance(value, str) else str(value), f"{self.path}, line {line}: {name!r}")

    def text_or_empty(self, row: Row, name: str, line: int) -> str:
        """Return the text in the column `name` of a row, "" if the cell is null; raise an error if it is missing.

        `line` is the line number of the row, for errors.
        """
        return "" if name in row and is_missing(row[name]) else self.text(row, name, line)

    def cell(self, row: Row, name: str, line: int, read: Callable[[Any], Any]) -> Any:
        """Convert the cell in the column `name` of a row with the function `read`; ValueErrors become PretuneErrors.

        `line` is the line number of the row, for errors. A `MissingLabel` is passed on to the caller.
        """
        try:
            return read(row.get(name))
        except MissingLabel:
            raise
        except ValueError as error:
            raise PretuneError(f"{self.path}, line {line}: {error} in {name!r}; correct this cell") from error


def advise_options(advice: str, roles: Iterable[str]) -> str:
    """Return `advice` followed by the command-line options that set the columns of `roles`, for a message.

    The result is "" if the running command has none of these options.

    >>> advise_options("override", ["text", "group"])
    '; override with --text, --columns.group'
    """
    pairs = ((role, role) if role in ROLES else ("columns", f"columns.{role}") for role in roles)
    options = ", ".join(filter(None, (if_option(option, f"--{name}") for option, name in pairs)))
    return f"; {advice} with {options}" if options else ""


def drop_or_raise(problem: str, bad: Sequence[str], drop: bool | None, otherwise: str = "") -> None:
    """Raise an error that describes a problem and lists the first bad rows; with `drop=True`, only log them.

    With `drop=None`, the error does not recommend leaving the rows out, because that is not possible. `otherwise` is
    further advice at the end of the error.
    """
    if not drop:
        advice = "" if drop is None else if_option("drop-invalid", ", or leave them out with --drop-invalid")
        raise PretuneError(f"{problem}: {list_first(bad)}; correct them{advice}{otherwise}")
    log_info(f"{problem}: {list_first(bad)}; these rows are left out")


def list_first(names: Iterable[str]) -> str:
    """Return the first few names as text, separated by commas, with an ellipsis if there are more.

    >>> list_first("abcde")
    'a, b, c …'
    """
    known = list(names)
    return ", ".join(known[:LISTED]) + (" …" if len(known) > LISTED else "")


def column_names(path: Path, errors: Errors = "strict") -> list[str]:
    """Return the column names of a table file."""
    return list(LabeledTable.open(path, {}, USUAL, errors).first)


def _flatten(row: Row) -> Row:
    """Return a row to which the fields of nested objects are added under dotted names, such as outer.inner."""
    nested = ((outer, inner) for outer, inner in row.items() if isinstance(inner, dict))
    inside = {f"{outer}.{name}": value for outer, inner in nested for name, value in inner.items()}
    return {**row, **inside} if inside else row


def _header(path: Path, errors: Errors, known: Collection[str] = KNOWN) -> list[str] | None:
    """Return the column names "1", "2", "3", … if the first row of a table file is data; None if it is a header.

    A first row that contains one of the names in `known` counts as a header.
    """
    if file_format(path) not in (".csv", ".tsv", TAB_SEPARATED):
        return None
    rows = (row for _, row in read_csv_rows(path, errors) if row)
    first = [cell.strip() for cell in next(rows, [])]
    data = any(len(cell.split()) > 3 or cell.replace(".", "", 1).removeprefix("-").isdigit() for cell in first)
    if any(cell.lower() in known for cell in first) or not data:
        return None
    return [str(i + 1) for i in range(len(first))]


def is_missing(value: Any) -> bool:
    """Return whether a cell is null, or NaN, which stands for a missing value in tables of numbers.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    return value is None or (isinstance(value, float) and math.isnan(value))


def parse_label(value: Any) -> str:
    """Convert a cell to a label, a string; raise a ValueError if it is empty, a list or an object.

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
        raise ValueError("expected valid text as the label, but found a lone surrogate")
    return label


def parse_labels(value: Any) -> Any:
    """Convert a cell of a multi-label column to a tuple of labels (for a list) or a string (for any other value).

    Strings may contain several labels, which `split_labels` separates once all cells are known.
    """
    if isinstance(value, list):
        return tuple(dict.fromkeys(parse_label(item) for item in value))
    return "" if is_missing(value) or value == "" else parse_label(value)


def split_labels(cells: Sequence[Any], known: Collection[str] = ()) -> list[tuple[str, ...]]:
    """Return a tuple of labels for each cell of a multi-label column.

    Strings are split at the first of the separators ; | , that occurs in any of them; a string that is in `known`, a
    collection of labels, is not split.

    >>> split_labels(["red; blue", "", "light, very light"])
    [('red', 'blue'), (), ('light, very light',)]
    """
    cells = [(cell,) if cell in known else cell for cell in cells]
    texts = [cell for cell in cells if isinstance(cell, str)]
    mark = next((mark for mark in SEPARATORS if any(mark in text for text in texts)), SEPARATORS[0])
    split = [cell.split(mark) if isinstance(cell, str) else cell for cell in cells]
    return [tuple(dict.fromkeys(label.strip() for label in labels if label.strip())) for labels in split]


def parse_number(value: Any) -> float:
    """Convert a cell to a finite number; raise a ValueError if that is not possible.

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
        raise ValueError(f"expected a number, but found {value!r}")
    return number
