"""What verbs make of the inputs they share."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.runtime.errors import PretuneError

if TYPE_CHECKING:
    from pretune.text.store.store import Store

OTHERS = (".conll", ".conllu", ".json")  # endings of files that some tasks read


def name_files(files: str | Path | Sequence[str] | Mapping[str, str]) -> str | dict[str, str]:
    """A file; or those of several tasks by their names, which are given as NAME=FILE.

    >>> name_files(["sst=a.csv", "rte=b.csv"])
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
            raise PretuneError(f"{file}: of several files each has the name of its task, as in sst={file}")
    found = {match[1]: match[2] for match in named if match is not None}
    if len(found) < len(given):
        raise PretuneError(f"{', '.join(given)}: two files for one task; put their rows into one")
    return found


def one_or_more(given: Any) -> list[str]:
    """References, of which there may be one alone.

    >>> one_or_more("runs/a")
    ['runs/a']
    """
    return [os.fspath(item) for item in ([given] if isinstance(given, str | os.PathLike) else given)]


def store_and_paths(
    data: Store | Sequence[str | Path] | str | Path | None,
) -> tuple[Store | None, Sequence[str | Path]]:
    """The store, where one is given, and the paths that a recipe names."""
    from pretune.text.store.store import Store

    if isinstance(data, Store):
        return data, [data.folder]
    return None, [data] if isinstance(data, str | Path) else list(data or [])


def name_columns(further: Mapping[str, str] | None, **given: str | None) -> dict[str, str]:
    """Role → column, of options of their own and of all others.

    >>> name_columns({"group": "qid"}, text="query", pair=None)
    {'group': 'qid', 'text': 'query'}
    """
    return {**(further or {}), **{role: name for role, name in given.items() if name}}


def split_runs(model: Any, inputs: Sequence[str | Path] | str | Path) -> tuple[list[str], list[str | Path]]:
    """The models: one or several, and those that the inputs begin with; then what is left of these."""
    from pretune.models.bundled import boxed_names

    one = isinstance(model, str | os.PathLike)
    runs = [os.fspath(reference) for reference in ([model] if one else model)]
    rest = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    while rest and (os.path.isfile(os.path.join(rest[0], "config.json")) or rest[0] in boxed_names()):
        runs.append(os.fspath(rest.pop(0)))
    return runs, rest


def split_files(inputs: Sequence[str | Path] | str | Path) -> tuple[list[Path], list[str]]:
    """Files of rows, or texts.

    A file is what exists, or ends like one and has no space in it (so that a mistyped name is found out); all else is text.

    >>> split_files(["It is in a.csv", "no file"])
    ([], ['It is in a.csv', 'no file'])
    """
    from pretune.runtime.errors import PretuneError
    from pretune.text.corpus.files import ending, find_files
    from pretune.text.examples.labeled import FORMATS

    files: list[Path] = []
    texts: list[str] = []
    for given in [inputs] if isinstance(inputs, str | os.PathLike) else inputs:
        spaced = any(letter.isspace() for letter in str(given))
        ends = ending(Path(given)) in (*FORMATS, *OTHERS)
        if os.path.isfile(given):
            files.append(Path(given))
        elif isinstance(given, os.PathLike) or (ends and not spaced):
            files += find_files(given, FORMATS)
        else:
            texts.append(given)
    if files and texts:
        raise PretuneError(f"{texts[0]!r} is neither a model nor a file, and texts and files do not mix; give one kind")
    if len(set(files)) < len(files):
        raise PretuneError(f"{max(files, key=files.count)}: the same file twice; give each once")
    return files, texts
