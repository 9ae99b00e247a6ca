"""Labeled files: rows with a text (or a pair of them) and a label; columns guessed, shown, and overridable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pretune.errors import PretuneError, nearest
from pretune.progress import say
from pretune.text.documents import csv_reader, read_jsonl, read_parquet, read_table
from pretune.text.files import Errors, file_format, find_files

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
LABELS = (
    "label", "labels", "class", "category", "target", "gold_label", "sentiment", "intent", "topic", "score",
    "similarity", "is_duplicate", "quality", "y",
)  # fmt: skip
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("question", "sentence"), ("question", "passage"), ("query", "passage"),
    ("query", "document"), ("#1 string", "#2 string"), ("first", "second"),
)  # fmt: skip
TEXTS = (
    "text", "sentence", "review", "content", "body", "message", "comment", "tweet", "utterance", "question",
    "document", "title",
)  # fmt: skip
SAMPLE = 1000  # rows looked at when guessing
ROLES = ("text", "pair", "label")

Row = dict[str, Any]


@dataclass
class Labeled:
    """The rows of a labeled file, in order."""

    file: Path
    columns: dict[str, str]  # role → column, e.g. {"text": "sentence", "label": "label"}
    texts: list[str] = field(default_factory=list)
    pairs: list[str] | None = None
    labels: list[str] | None = None
    lines: list[int] = field(default_factory=list)  # where each row stands in the file

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Iterable[int]) -> Labeled:
        """Some of the rows."""
        chosen = list(rows)
        pairs, labels = (None if c is None else [c[row] for row in chosen] for c in (self.pairs, self.labels))
        texts, lines = [self.texts[row] for row in chosen], [self.lines[row] for row in chosen]
        return Labeled(self.file, self.columns, texts, pairs, labels, lines)

    def asked(self, row: int) -> str:
        """What a row asks, whatever its label: two that ask the same are one."""
        whole = self.texts[row] if self.pairs is None else f"{self.texts[row]}\0{self.pairs[row]}"
        return whole.casefold().strip()

    def place(self, row: int) -> str:
        """Where a row stands, for messages."""
        return f"{self.file}, line {self.lines[row]}"


@dataclass(frozen=True)
class Excerpt:
    """Some rows of a table, and the line each stands on: a part of a large file that is read as a whole one is."""

    file: Path
    rows: list[tuple[int, Row]]
    first: Row  # of the file: it says which columns there are


def read_excerpts(file: str | Path, rows: int, errors: Errors = "strict") -> Iterator[Excerpt]:
    """A table in parts of so many rows, in order, however large it is.

    >>> for part in read_excerpts("large.csv", 1000): print(len(part.rows))  # doctest: +SKIP
    """
    (path,) = find_files(file, FORMATS)[:1]
    left = _rows(path, _header(path, errors), errors)
    part = list(islice(left, rows))
    if not part:
        raise PretuneError(f"{path}: no rows in it")
    _, first = part[0]
    while part:
        yield Excerpt(path, part, first)
        part = list(islice(left, rows))


def read_labeled(
    file: str | Path | Excerpt,
    columns: Mapping[str, str] | None = None,
    *,
    errors: Errors = "strict",
    labels: bool = True,
) -> Labeled:
    """Read a .csv, .tsv, .jsonl or .parquet file of examples, or an excerpt of one.

    `columns` says which column is the `text`, the `pair` (a second text) and the `label`; what it leaves open is guessed
    from names, then from contents, and shown. A table without a header has columns 1, 2, 3 …

    >>> rows = read_labeled("train.csv", {"label": "sentiment"})  # doctest: +SKIP
    """
    path = file.file if isinstance(file, Excerpt) else find_files(file, FORMATS)[0]
    given = {role: name for role, name in (columns or {}).items() if name}
    for role in given:
        if role not in ROLES:
            raise PretuneError(f"unknown column role {role!r}; {nearest(role, ROLES)}")
    names = None if isinstance(file, Excerpt) else _header(path, errors)

    def rows() -> Iterator[tuple[int, Row]]:
        return iter(file.rows) if isinstance(file, Excerpt) else _rows(path, names, errors)

    sample = [row for _, row in islice(rows(), SAMPLE)]
    if not sample:
        raise PretuneError(f"{path}: no rows in it")
    first = file.first if isinstance(file, Excerpt) else sample[0]
    found = guess_columns(sample, given, labels)
    known = ", ".join(map(repr, first))
    for role, name in found.items():
        if name not in first:
            raise PretuneError(f"{path}: no column {name!r} for the {role}; it has {known}; {nearest(name, first)}")
    if "text" not in found or (labels and "label" not in found):
        missing = "text" if "text" not in found else "label"
        raise PretuneError(f"{path}: cannot tell which column is the {missing} among {known}; name it with --{missing}")
    if set(found) != set(given):
        guessed = ", ".join(f"{role} = {name!r}" for role, name in found.items())
        note = " (no header: columns are numbered)" if names is not None else ""
        say(f"{path}: {guessed}{note}; override with --text, --pair, --label")
    table = Labeled(path, found, pairs=[] if "pair" in found else None, labels=[] if "label" in found else None)
    for line, row in rows():
        table.lines.append(line)
        table.texts.append(_text(row, found["text"], path, line))
        if table.pairs is not None:
            table.pairs.append(_text(row, found["pair"], path, line))
        if table.labels is not None:
            table.labels.append(_label(row, found["label"], path, line))
    return table


def column_names(path: Path, errors: Errors = "strict") -> list[str]:
    """The columns of a table."""
    row = next(_rows(path, _header(path, errors), errors), None)
    if row is None:
        raise PretuneError(f"{path}: no rows in it")
    return list(row[1])


def _rows(path: Path, names: list[str] | None, errors: Errors) -> Iterator[tuple[int, Row]]:
    match file_format(path):
        case ".jsonl":
            return read_jsonl(path, errors)
        case ".parquet":
            return read_parquet(path)
        case _:
            return read_table(path, errors, names=names)


def _header(path: Path, errors: Errors) -> list[str] | None:
    """Numbers as names where a table has no header, else None: its first row is data when it reads like data."""
    if file_format(path) not in (".csv", ".tsv"):
        return None
    first = [cell.strip() for cell in next(filter(None, csv_reader(path, errors)), [])]
    known = {*LABELS, *TEXTS, *(name for pair in PAIRS for name in pair)}
    if any(cell.lower() in known for cell in first) or not any(map(_reads_like_data, first)):
        return None
    return [str(i + 1) for i in range(len(first))]


def _reads_like_data(cell: str) -> bool:
    return len(cell.split()) > 3 or cell.replace(".", "", 1).removeprefix("-").isdigit()


def guess_columns(sample: list[Row], given: Mapping[str, str], labels: bool = True) -> dict[str, str]:
    """Roles to columns: what is given, then by the usual names, then by contents."""
    found = dict(given)
    lower = {name.lower(): name for name in sample[0] if isinstance(name, str)}

    def free(name: str) -> bool:
        return name in lower and lower[name] not in found.values()

    if labels and "label" not in found:
        named = next((lower[name] for name in LABELS if free(name)), None)
        named = named or _label_by_content(sample, set(found.values()))
        if named:
            found["label"] = named
    if "text" not in found and "pair" not in found:
        for first, second in PAIRS:
            if free(first) and free(second):
                found |= {"text": lower[first], "pair": lower[second]}
                break
    if "text" not in found:
        named = next((lower[name] for name in TEXTS if free(name)), None)
        named = named or _text_by_content(sample, set(found.values()))
        if named:
            found["text"] = named
    return {role: found[role] for role in ROLES if role in found and (labels or role != "label" or role in given)}


def _label_by_content(sample: list[Row], taken: set[str]) -> str | None:
    """The column with the fewest different values, if they repeat."""
    best: tuple[int, str] | None = None
    for name in sample[0]:
        values = [str(row.get(name, "")) for row in sample]
        kinds = len(set(values))
        repeats = 2 <= kinds <= max(2, len(values) // 2) and kinds < len(values)
        if name not in taken and all(values) and repeats and (best is None or kinds < best[0]):
            best = (kinds, name)
    return best[1] if best else None


def _text_by_content(sample: list[Row], taken: set[str]) -> str | None:
    """The column with the longest values."""
    sizes = {
        name: sum(len(row[name]) for row in sample if isinstance(row.get(name), str))
        for name in sample[0]
        if name not in taken
    }
    best = max(sizes, key=lambda name: sizes[name], default=None)
    return best if best is not None and sizes[best] else None


def _text(row: Row, name: str, path: Path, line: int) -> str:
    value = row.get(name)
    if value is None:
        raise PretuneError(f"{path}, line {line}: no {name!r}")
    text = value if isinstance(value, str) else str(value)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):  # which JSON escapes can spell
        raise PretuneError(f"{path}, line {line}: {name!r} holds half of a surrogate pair, which is no text; mend it")
    return text


def _label(row: Row, name: str, path: Path, line: int) -> str:
    value = row.get(name)
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == "":
        raise PretuneError(f"{path}, line {line}: no label in {name!r}")
    if isinstance(value, list | dict):
        raise PretuneError(f"{path}, line {line}: {name!r} holds {type(value).__name__}, not a single label")
    return str(value).strip()
