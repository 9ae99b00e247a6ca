"""What verbs make of the inputs they share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.errors import PretuneError

if TYPE_CHECKING:
    from pretune.text.store import Store


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


def store_and_paths(
    data: Store | Sequence[str | Path] | str | Path | None,
) -> tuple[Store | None, Sequence[str | Path]]:
    """The store, where one is given, and the paths that a recipe names."""
    from pretune.text.store import Store

    if isinstance(data, Store):
        return data, [data.folder]
    return None, [data] if isinstance(data, str | Path) else list(data or [])
