"""Conversions of arguments that several verbs take: models, files, columns, and the options of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.runtime.errors import PretuneError, quote

if TYPE_CHECKING:
    from pretune.models.engines import Engine
    from pretune.models.open_model import OpenModel
    from pretune.text.examples.text_files import NumberedText
    from pretune.text.store.store import Store

TASK_FORMATS = (".conll", ".conllu", ".json")  # extensions that only some tasks read


def job_options(job: type[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of a command (its `locals()`) that are fields of the dataclass `job`, paths as text."""
    names = {key.name for key in fields(job)} & arguments.keys()
    given = {name: arguments[name] for name in names}
    return {name: model_reference(x) if isinstance(x, os.PathLike) else x for name, x in given.items()}


def model_reference(model: str | os.PathLike[str]) -> str:
    """Return the path of a model, or any other path, as text; for a loaded bundled model, return its name.

    This is for jobs that train or write models, which read the model from its files, even if it is open already.

    >>> model_reference(Path("runs/mine"))
    'runs/mine'
    """
    if isinstance(model, str | Path):
        return os.fspath(model)
    from pretune.models.open_model import ModelHandle

    return model.reference if isinstance(model, ModelHandle) else os.fspath(model)


def open_reference(model: str | os.PathLike[str]) -> str | OpenModel:
    """Return the open model, with weights in memory, for a run or a loaded model; return a path as text.

    This is for inference, which need not read the weights of an open model again.

    >>> open_reference("runs/mine")
    'runs/mine'
    """
    if isinstance(model, str | Path):
        return os.fspath(model)
    from pretune.models.open_model import ModelHandle

    return model.open_model if isinstance(model, ModelHandle) else os.fspath(model)


def with_engine(
    reference: str | OpenModel, engine: Engine, measure: bool, ignore_mismatched: bool = False
) -> str | OpenModel:
    """Return a model that computes with an engine: a separate open model, or the reference itself for torch.

    With the engine `auto`, an open model stays as it is, and the engines are compared only if `measure` is true.
    """
    if engine == "torch" or (engine == "auto" and (not isinstance(reference, str) or not measure)):
        return reference
    from pretune.models.engines import open_with_engine
    from pretune.models.open_model import OpenModel

    opened = OpenModel(str(reference), ignore_mismatched=ignore_mismatched)
    open_with_engine(opened, engine)
    return opened


def compression_options(job: type[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a compression command as the fields of its job, such as `QuantizationJob`.

    `out` is converted to a Path, and the options that name columns are joined into one mapping from role to column.
    """
    columns = {role: arguments[role] for role in ("text", "pair", "label")}
    out = {"out": Path(arguments["out"]), "columns": columns_by_role(arguments["columns"], **columns)}
    return job_options(job, arguments) | out


def parse_task_files(files: Any) -> str | dict[str, str]:
    """Return the path of a single file, or a dictionary from task names to paths if files are given as NAME=FILE.

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
        raise PretuneError(f"{', '.join(given)}: one task has two files; merge them into one file")
    return found


def parse_class_weight(given: Any) -> str | dict[str, float] | None:
    """Return the value of --class-weight: balanced or none, or the weights of labels if they are given as LABEL=WEIGHT.

    >>> parse_class_weight(["balanced"]), parse_class_weight(["spam=5", "a=b=2"])
    ('balanced', {'spam': 5.0, 'a=b': 2.0})
    """
    if given is None or isinstance(given, Mapping):
        return None if given is None else {str(label): float(weight) for label, weight in given.items()}
    given = [given] if isinstance(given, str) else list(given)
    if len(given) == 1 and given[0] in ("balanced", "none"):
        return str(given[0])
    weights = {}
    for text in given:
        label, _, weight = text.rpartition("=")
        try:
            weights[label] = float(weight)
        except ValueError:
            label = ""
        if not label:
            raise PretuneError(
                f"--class-weight {quote(text)}: give balanced, none, or LABEL=WEIGHT for some labels, as in spam=5"
            )
    return weights or None


def as_path_list(given: Any) -> list[str]:
    """Return a list of path strings, given one path or several.

    >>> as_path_list("runs/a")
    ['runs/a']
    """
    return [model_reference(item) for item in ([given] if isinstance(given, str | os.PathLike) else given)]


def as_path(given: Any) -> str:
    """Return a path as text, for an option that accepts a path or a table in memory.

    The `verb` decorator has already saved tables to files, so that the value is a path.
    """
    path: str = os.fspath(given)
    return path


def store_and_paths(data: Any) -> tuple[Store | None, Sequence[str | Path]]:
    """Return an open store (or None) and the paths of the data for the recipe, given the value of --data.

    The store is `data` itself, if it is an open store. Data given as a mapping by language become LANGUAGE=PATH.

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
    """Return the column of each role, such as text, from --columns (`further`) and from options such as --text.

    >>> columns_by_role({"group": "qid"}, text="query", pair=None)
    {'group': 'qid', 'text': 'query'}
    """
    return {**(further or {}), **{role: name for role, name in given.items() if name}}


def split_models(model: Any, inputs: Any) -> tuple[list[str | OpenModel], list[str | Path]]:
    """Return the models of a command, and its inputs, given its arguments `model` and `inputs`.

    Further models of an ensemble are listed on the command line before the inputs, and are moved from the inputs to the
    models.
    """
    from pretune.models.bundled import bundled_names

    runs = [open_reference(item) for item in ([model] if isinstance(model, str | os.PathLike) else model)]
    rest: list[Any] = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    while rest and (os.path.isfile(os.path.join(rest[0], "config.json")) or rest[0] in bundled_names()):
        runs.append(os.fspath(rest.pop(0)))
    return runs, rest


def split_files(
    inputs: Any, formats: Sequence[str] | None = None, folders: bool = False
) -> tuple[list[Path], list[str]]:
    """Split inputs into files and texts, and return both lists, one of which is empty.

    An input is a file if it exists, or if it has a known extension and no space, so that a mistyped file name is an
    error. `formats` are the file extensions to look for in glob patterns and folders, by default those of tables. With
    `folders`, an existing folder is replaced by the files in it; otherwise its name is a text.

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
    """Split inputs into files and texts, as `split_files` does, and return both lists, one of which is empty.

    Folders, and glob patterns, stand for the .txt files and tables in them.

    >>> split_text_files("a text")
    ([], ['a text'])
    """
    from pretune.text.examples.text_files import FORMATS

    return split_files(inputs, FORMATS, folders=True)


def read_texts(inputs: Any, column: str | None) -> list[NumberedText]:
    """Return all texts of a command's inputs (texts, files, or folders) with their line numbers and files.

    `column` is the text column of tables, or None to infer it.

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
