"""Conversions of arguments that several verbs take: models, files, columns, and the options of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.runtime.errors import PretuneError

if TYPE_CHECKING:
    from pretune.models.open_model import OpenModel
    from pretune.text.examples.text_files import NumberedText
    from pretune.text.store.store import Store

TASK_FORMATS = (".conll", ".conllu", ".json")  # extensions that only some tasks read


def job_options(job: type[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command (its `locals()`) that are fields of a job's dataclass; paths become text."""
    names = {key.name for key in fields(job)} & arguments.keys()
    given = {name: arguments[name] for name in names}
    return {name: model_reference(x) if isinstance(x, os.PathLike) else x for name, x in given.items()}


def model_reference(model: str | os.PathLike[str]) -> str:
    """Return the path of a model (or any other path) as text; for a loaded bundled model, its name.

    Jobs that train or write models get this reference, and read the files themselves.

    >>> model_reference(Path("runs/mine"))
    'runs/mine'
    """
    if isinstance(model, str | Path):
        return os.fspath(model)
    from pretune.models.open_model import ModelHandle

    return model.reference if isinstance(model, ModelHandle) else os.fspath(model)


def open_reference(model: str | os.PathLike[str]) -> str | OpenModel:
    """Return the open model of a run or a loaded model, so that its weights are not read again, or a path as text.

    >>> open_reference("runs/mine")
    'runs/mine'
    """
    if isinstance(model, str | Path):
        return os.fspath(model)
    from pretune.models.open_model import ModelHandle

    return model.open_model if isinstance(model, ModelHandle) else os.fspath(model)


def compression_options(job: type[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a compression command's arguments as fields of its job, with the path `out` and columns by role."""
    columns = {role: arguments[role] for role in ("text", "pair", "label")}
    out = {"out": Path(arguments["out"]), "columns": columns_by_role(arguments["columns"], **columns)}
    return job_options(job, arguments) | out


def parse_task_files(files: Any) -> str | dict[str, str]:
    """Return the path of a single file, or a dictionary of task name to path if files are given as NAME=FILE.

    >>> parse_task_files(["sst=a.csv", "rte=b.csv"])
    {'sst': 'a.csv', 'rte': 'b.csv'}
    """
    if isinstance(files, Mapping):
        return {name: str(file) for name, file in files.items()}
    given = [str(files)] if isinstance(files, str | Path) else list(map(str, files))
    named = [re.fullmatch(r"([A-Za-z_]\w*)=(.+)", file) for file in given]
    if len(given) == 1 and (named[0] is None or Path(given[0]).exists()):
        return given[0]
    for file, match in zip(given, named, strict=True):
        if match is None:
            raise PretuneError(
                f"{file}: several files need the names of their tasks; write NAME=FILE, as in sst={file}"
            )
    found = {match[1]: match[2] for match in named if match is not None}
    if len(found) < len(given):
        raise PretuneError(f"{', '.join(given)}: one task has two files; merge the files")
    return found


def as_path_list(given: Any) -> list[str]:
    """Return a list of path strings, given one path or several.

    >>> as_path_list("runs/a")
    ['runs/a']
    """
    return [model_reference(item) for item in ([given] if isinstance(given, str | os.PathLike) else given)]


def as_path(given: Any) -> str:
    """Return a path as text, for an option whose type includes tables; the `verb` decorator has saved those to files."""
    path: str = os.fspath(given)
    return path


def store_and_paths(data: Any) -> tuple[Store | None, Sequence[str | Path]]:
    """Return `data` if it is an open store, else None, and the paths to record in the recipe.

    >>> store_and_paths({"en": "english.txt"})
    (None, ['en=english.txt'])
    """
    from pretune.text.store.store import Store

    if isinstance(data, Store):
        return data, [data.folder]
    if isinstance(data, Mapping):  # by language
        return None, [f"{language}={os.fspath(path)}" for language, path in data.items()]
    return None, [data] if isinstance(data, str | Path) else list(data or [])


def columns_by_role(further: Mapping[str, str] | None, **given: str | None) -> dict[str, str]:
    """Return the column of each role, such as text, from --columns (`further`) and the options for single columns.

    >>> columns_by_role({"group": "qid"}, text="query", pair=None)
    {'group': 'qid', 'text': 'query'}
    """
    return {**(further or {}), **{role: name for role, name in given.items() if name}}


def split_models(model: Any, inputs: Any) -> tuple[list[str | OpenModel], list[str | Path]]:
    """Return all models, including those that come first in the inputs, and the remaining inputs."""
    from pretune.models.bundled import bundled_names

    runs = [open_reference(item) for item in ([model] if isinstance(model, str | os.PathLike) else model)]
    rest: list[Any] = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    while rest and (os.path.isfile(os.path.join(rest[0], "config.json")) or rest[0] in bundled_names()):
        runs.append(os.fspath(rest.pop(0)))
    return runs, rest


def split_files(
    inputs: Any, formats: Sequence[str] | None = None, folders: bool = False
) -> tuple[list[Path], list[str]]:
    """Return the inputs as a list of files and a list of texts, one of which is empty.

    An input is a file if it exists, or if it has a known extension and no space, so that a mistyped file name is an error.
    `formats` are the formats to look for in glob patterns and folders, by default those of tables. With `folders`, an
    existing folder stands for the files in it.

    >>> split_files(["It is in a.csv", "no file"])
    ([], ['It is in a.csv', 'no file'])
    """
    from pretune.text.corpus.files import file_suffix, find_files
    from pretune.text.examples.labeled import FORMATS

    formats = formats or FORMATS
    files: list[Path] = []
    texts: list[str] = []
    several: Iterable[Any] = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    for given in several:
        spaced = any(letter.isspace() for letter in str(given))
        has_extension = file_suffix(Path(given)) in (".txt", *FORMATS, *TASK_FORMATS)
        if os.path.isfile(given):
            files.append(Path(given))
        elif isinstance(given, os.PathLike) or (has_extension and not spaced) or (folders and os.path.isdir(given)):
            files += find_files(given, formats)
        else:
            texts.append(given)
    if files and texts:
        raise PretuneError(
            f"{texts[0]!r} is neither a model nor a file, and texts cannot be mixed with files; give either texts or files"
        )
    if len(set(files)) < len(files):
        raise PretuneError(f"{max(files, key=files.count)}: this file is given twice; give it once")
    return files, texts


def split_text_files(inputs: Any) -> tuple[list[Path], list[str]]:
    """Return inputs that are texts, or files or folders of texts, as a list of files and a list of texts.

    >>> split_text_files("a text")
    ([], ['a text'])
    """
    from pretune.text.examples.text_files import FORMATS

    return split_files(inputs, FORMATS, folders=True)


def read_texts(inputs: Any, column: str | None) -> list[NumberedText]:
    """Return the texts of inputs that are texts, or files or folders of texts; `column` names the column of tables.

    >>> read_texts(["one", "two"], None)[1]
    NumberedText(text='two', line=2, file=None)
    """
    from pretune.text.examples.text_files import NumberedText, read_text_file

    files, texts = split_text_files(inputs)
    found = [NumberedText(text, place) for place, text in enumerate(texts, 1)]
    found += (text for file in files for text in read_text_file(file, column))
    if not found:
        raise PretuneError("no inputs were given; give texts or files")
    return found
