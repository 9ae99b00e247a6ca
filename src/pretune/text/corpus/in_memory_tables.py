"""Write tables in memory to files: pandas DataFrames, lists and iterators of dicts, `datasets` objects, and arrays of texts.

Functions that read files accept such tables, too: `tables_to_files` replaces each table in an argument by the path of a
.jsonl file. The name of the file depends on its content alone, so the same table has the same path in every process: a
run can be resumed, and a recipe shows that the data came from memory. All processes of a user share one temporary
folder for these files; the last process that uses the folder removes it at exit.
"""

from __future__ import annotations

import atexit
import datetime
import fcntl
import hashlib
import json
import math
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias, runtime_checkable

from pretune.runtime.errors import PretuneError, quote
from pretune.text.corpus.files import IN_MEMORY

FOLDER = f"pretune-tables-{os.getuid()}"
LOCK = ".lock"
TEXT = "text"  # column of an array of texts
Row = Mapping[str, Any]

_folder: Path | None = None
_opening = threading.Lock()


@runtime_checkable
class DataFrame(Protocol):
    """A protocol with the attributes and methods of pandas.DataFrame that pretune uses."""

    @property
    def columns(self) -> Any:
        """The column names of a DataFrame."""

    def notna(self) -> Any:
        """Return a DataFrame of booleans that are True for cells with a value and False for missing ones."""

    def astype(self, dtype: Any) -> Any:
        """Return a copy of a DataFrame with cells of the type `dtype`."""

    def itertuples(self, index: bool = True, name: str | None = "Pandas") -> Any:
        """Return an iterator over the rows of a DataFrame, as named tuples called `name`, with or without the index."""


@runtime_checkable
class Dataset(Protocol):
    """A protocol with the attributes and methods of datasets.Dataset and datasets.IterableDataset that pretune uses."""

    @property
    def features(self) -> Any:
        """A mapping from the column names of a dataset to the types of the columns; None if they are unknown."""

    def with_format(self, type: str | None = None) -> Any:
        """Return the dataset with values in the format `type`, such as "numpy", or None for Python objects."""

    def __iter__(self) -> Iterator[Any]: ...


@runtime_checkable
class SplitDatasets(Protocol):
    """A protocol for datasets.DatasetDict, a dictionary of splits; a plain dict does not satisfy it."""

    @property
    def column_names(self) -> Any:
        """A mapping from each split of a dataset, such as train, to its column names."""

    def keys(self) -> Iterable[Any]:
        """Return the names of the splits of a dataset."""


@runtime_checkable
class TextArray(Protocol):
    """A protocol for arrays of texts: a pandas.Series or a NumPy array."""

    @property
    def ndim(self) -> int:
        """The number of dimensions of an array."""

    def tolist(self) -> list[Any]:
        """Return the values of an array as a list."""


@runtime_checkable
class ClassLabel(Protocol):
    """A protocol for datasets.ClassLabel: the type of a column of class numbers, with the names of the classes."""

    names: list[str]

    def int2str(self, values: int) -> str:
        """Return the class name of a class number."""


@runtime_checkable
class ListFeature(Protocol):
    """A protocol for datasets.List and datasets.Sequence: the type of a column of lists."""

    feature: Any  # the type of the elements


Table: TypeAlias = DataFrame | Dataset | TextArray | Iterable[Row]


class UnsupportedValue(Exception):  # noqa: N818
    """An exception for a value that JSON cannot represent; its message describes the value."""


def tables_to_files(value: Any, option: str) -> Any:
    """Replace the tables in an argument with paths of files that contain their rows; return other arguments unchanged.

    The argument is a table, a path, a list of tables or paths, or a dictionary of them. `option` is the name of the
    argument, for error messages.

    >>> tables_to_files(["a.csv", "b.csv"], "train")
    ['a.csv', 'b.csv']
    >>> path = tables_to_files([{"text": "good", "label": 1}, {"text": "bad", "label": 0}], "train")
    >>> path.read_text()
    '{"text": "good", "label": 1}\\n{"text": "bad", "label": 0}\\n'
    """
    if value is None or isinstance(value, str | os.PathLike):
        return value
    if isinstance(value, Mapping):
        if isinstance(value, SplitDatasets):
            splits = list(value.keys())
            raise PretuneError(
                f"{option}: the data has several splits, {', '.join(map(str, splits))}; give one of them, as in "
                f"data[{splits[0]!r}]"
            )
        return {name: tables_to_files(part, f"{option} {quote(name)}") for name, part in value.items()}
    if is_table(value):
        return save_table(value, option)
    if isinstance(value, list | tuple | Iterator):
        items = iter(value)
        first = list(islice(items, 1))
        rest = chain(first, items)
        if not first:
            raise PretuneError(f"{option}: the data has no rows; give at least one")
        if isinstance(first[0], str | os.PathLike) or is_table(first[0]):
            return [
                tables_to_files(item, f"{option}, item {number}") if is_table(item) else item
                for number, item in enumerate(rest, 1)
            ]
        return save_table(rest, option)
    return value


def is_table(value: Any) -> bool:
    """Return whether a value is a DataFrame, a dataset, or an array; lists and iterators do not count as tables."""
    return not isinstance(value, str | os.PathLike) and isinstance(value, DataFrame | Dataset | TextArray)


def save_table(data: Table, option: str) -> Path:
    """Write a table to a file that is named by its content and removed at exit, and return the path of the file.

    `option` is the name of the argument that contains the table, for error messages.

    >>> save_table([{"text": "a"}], "train") == save_table(iter([{"text": "a"}]), "train")
    True
    """
    folder = shared_folder()
    handle, name = tempfile.mkstemp(dir=folder, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            count, digest = write_table(data, file, option)
        path = folder / f"{IN_MEMORY}{count}-rows-{digest[:16]}.jsonl"
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path


def write_table(data: Table, file: IO[bytes], option: str) -> tuple[int, str]:
    """Write the rows of a table as JSON Lines; return the number of rows and the SHA-256 digest of the bytes written.

    `option` is the name of the argument that contains the table, for error messages.
    """
    names: list[str] = []
    digest, number = hashlib.sha256(), 0
    for number, row in enumerate(read_rows(data, option), 1):
        if not isinstance(row, Mapping):
            raise PretuneError(
                f"{option}: row {number} is a {type(row).__name__}, not a dict; give each row as a dict of column names to values"
            )
        cells = {column_name(name, option): value for name, value in row.items()}
        names = names or list(cells)
        check_columns(names, cells, number, option)
        line = encode_row({name: cells[name] for name in names}, number, option)
        digest.update(line)
        file.write(line)
    if not number:
        raise PretuneError(f"{option}: the data has no rows; give at least one")
    return number, digest.hexdigest()


def read_rows(data: Table, option: str) -> Iterator[Any]:
    """Return an iterator over the rows of a table; in a dataset, class names replace class numbers.

    `option` is the name of the argument that contains the table, for error messages.
    """
    if isinstance(data, DataFrame):
        return _data_frame_rows(data, option)
    if isinstance(data, Dataset):
        features = data.features or {}
        return (decode_labels(features, row) for row in data.with_format(None))
    if isinstance(data, TextArray):
        return _text_rows(data, option)
    return iter(data)


def _data_frame_rows(data: DataFrame, option: str) -> Iterator[dict[str, Any]]:
    names = [column_name(name, option) for name in data.columns]
    for name in names:
        if names.count(name) > 1:
            raise PretuneError(f"{option}: several columns are named {name!r}; rename all but one")
    cells = data.astype(object).where(data.notna(), None)
    return (dict(zip(names, row, strict=True)) for row in cells.itertuples(index=False, name=None))


def _text_rows(data: TextArray, option: str) -> Iterator[dict[str, Any]]:
    if data.ndim != 1:
        raise PretuneError(
            f"{option}: an array of texts has one dimension, not {data.ndim}; give a table with named columns"
        )
    for number, value in enumerate(data.tolist(), 1):
        if not isinstance(value, str) and not is_missing(value):
            raise PretuneError(
                f"{option}: value {number} is a {type(value).__name__}, not a text; give an array of texts, or a table"
            )
        yield {TEXT: value}


def decode_labels(feature: Any, value: Any) -> Any:
    """Return a value of a dataset with class names in place of class numbers; a missing label (-1) becomes None.

    `feature` is the type of the value, as `datasets` describes it. Values inside lists and dictionaries are converted,
    too.
    """
    if value is None:
        return None
    if isinstance(feature, ClassLabel):
        return None if value < 0 else feature.names[value]
    if isinstance(feature, Mapping) and isinstance(value, Mapping):
        return {name: decode_labels(feature.get(name), part) for name, part in value.items()}
    if isinstance(feature, ListFeature):
        inner = feature.feature
        if isinstance(value, Mapping):  # a list of objects may be stored as an object of lists
            return {name: [decode_labels(inner[name], part) for part in parts] for name, parts in value.items()}
        return [decode_labels(inner, part) for part in value]
    return value


def column_name(name: Any, option: str) -> str:
    """Return a column name as a string; raise an error if it is neither a string nor an integer.

    `option` is the name of the argument with the table, for the error.
    """
    if isinstance(name, str):
        return name
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)
    raise PretuneError(f"{option}: the column name {quote(name)} is a {type(name).__name__}; rename it to a string")


def check_columns(names: list[str], row: Row, number: int, option: str) -> None:
    """Raise an error if a row does not have exactly the columns `names`, which are those of the first row.

    `number` is the number of the row, and `option` the name of the argument with the table, for error messages.
    """
    if not names:
        raise PretuneError(f"{option}: row {number} has no columns; give each row a value for at least one column")
    advice = "give every row the same columns, with None for a missing value"
    for name in names:
        if name not in row:
            problem = f"row {number} has no column {quote(name)}, which row 1 has"
            raise PretuneError(f"{option}: column names differ between rows: {problem}; {advice}")
    for name in row.keys() - set(names):
        problem = f"row {number} has a column {quote(name)}, which row 1 does not have"
        raise PretuneError(f"{option}: column names differ between rows: {problem}; {advice}")


def encode_row(row: Row, number: int, option: str) -> bytes:
    """Return a row, a mapping from column names to values, as a line of JSON in bytes.

    `number` is the number of the row, and `option` the name of the argument with the table, for error messages.
    """
    cells = {}
    for name, value in row.items():
        try:
            cells[name] = json_value(value)
            json.dumps(cells[name])  # reports numbers and nesting beyond Python's limits
        except (UnsupportedValue, ValueError, RecursionError) as error:
            problem = str(error) if isinstance(error, UnsupportedValue) else f"a value is too large ({error})"
            raise PretuneError(
                f"{option}: row {number}, column {quote(name)}: {problem}; convert the column to text or numbers, "
                "or leave it out"
            ) from error
    return json.dumps(cells).encode() + b"\n"  # escapes everything but ASCII, lone surrogates too


def json_value(value: Any) -> Any:
    """Convert a value to JSON's types: missing values to None, arrays and tuples to lists, dates and times to ISO text.

    >>> json_value((1.5, float("nan"), datetime.date(2024, 2, 29)))
    [1.5, None, '2024-02-29']
    """
    import numpy as np

    if value is None or isinstance(value, str | bool | int):
        return value
    if is_missing(value):
        return None
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, float):
        if value.dtype.kind == "M":  # nanoseconds would become integers
            value = value.astype("datetime64[us]")
        return json_value(value.tolist()) if value.dtype.kind != "V" else _unsupported(value)
    if isinstance(value, float):
        if math.isinf(value):
            raise UnsupportedValue("infinite numbers are not supported")
        return float(value)
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise UnsupportedValue(f"an object has the key {quote(name)}, but keys must be texts")
        return {name: json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return _unsupported(value)


def _unsupported(value: Any) -> Any:
    raise UnsupportedValue(f"values of type {type(value).__name__} are not supported")


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NaN, or the values NaT and NA of pandas.

    >>> is_missing(float("nan")), is_missing("")
    (True, False)
    """
    if value is None:
        return True
    if isinstance(value, float | Decimal | datetime.datetime):
        return bool(value != value)
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is pandas.NA or value is pandas.NaT)


def shared_folder() -> Path:
    """Return the temporary folder for files of in-memory tables, which the processes of this user share.

    The last process that uses the folder removes it at exit.
    """
    global _folder
    with _opening:
        if _folder is None:
            folder = Path(tempfile.gettempdir()) / FOLDER
            _folder, lock = folder, _open_folder(folder)
            atexit.register(_close_folder, folder, lock, os.getpid())
        return _folder


def _open_folder(folder: Path) -> int:
    """Create a folder that only this user can read, and return the descriptor of a shared lock on it."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PretuneError(
                f"{folder}: tables in memory are written to this folder, but others have access to it; remove the folder, or set TMPDIR to "
                "another folder"
            )
        with suppress(FileNotFoundError):  # the last process has just removed the folder
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with suppress(OSError):  # a file system without locks: files stay until all are done
                fcntl.flock(lock, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(lock), os.stat(folder / LOCK, follow_symlinks=False)):
                return lock
            os.close(lock)


def _close_folder(folder: Path, lock: int, process: int) -> None:
    """Remove a temporary folder, unless other processes also hold its `lock`; registered to run at exit.

    `process` is the id of the process that opened the folder: a fork of that process leaves the folder alone.
    """
    if os.getpid() != process:  # a fork of it
        return
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
