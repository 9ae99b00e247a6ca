"""Load objects that installed packages add to pretune through entry points."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from pretune.runtime.errors import PretuneError


def entry_point_objects(group: str) -> dict[str, object]:
    """Load every entry point of `group` and return the objects by entry-point name.

    A package adds an object with a table in its pyproject.toml, for example for the group `pretune.families`:

        [project.entry-points."pretune.families"]
        my-model = "my_package.my_model:MyModel"

    The result is cached until `sys.path` changes. A plugin that cannot be imported, or two packages that claim one
    name, raise a `PretuneError` that names the packages.
    """
    return dict(_load(group, tuple(sys.path)))


def entry_point_files(group: str) -> dict[str, Path]:
    """Return the YAML files that installed packages add, by file name without the suffix.

    An entry point of `group` names a package with YAML files, or the path of a folder with them:

        [project.entry-points."pretune.presets"]
        my-package = "my_package.presets"
    """
    files: dict[str, Path] = {}
    for name, place in entry_point_objects(group).items():
        is_package = isinstance(place, ModuleType) and hasattr(place, "__path__")
        folder = next(iter(place.__path__), "") if is_package else place  # type: ignore[attr-defined]
        if not isinstance(folder, str | Path) or not Path(folder).is_dir():
            raise PretuneError(
                f"the entry point {name!r} of the group {group} must be a package with YAML files or the path of a folder; "
                "repair or uninstall the package that registers it"
            )
        files |= yaml_files(Path(folder))
    return files


def yaml_files(folder: Path) -> dict[str, Path]:
    """Return the YAML files of a folder by their names without the suffix, sorted."""
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


@cache
def _load(group: str, path: tuple[str, ...]) -> dict[str, object]:
    found: dict[str, EntryPoint] = {}
    for entry_point in entry_points(group=group):
        other = found.setdefault(entry_point.name, entry_point)
        if other != entry_point:
            raise PretuneError(
                f"{_package(other)} and {_package(entry_point)} both register {entry_point.name!r} in the entry-point "
                f"group {group}; uninstall one of the two packages"
            )
    return {name: _import(entry_point) for name, entry_point in found.items()}


def _import(entry_point: EntryPoint) -> object:
    try:
        return entry_point.load()
    except Exception as error:  # a plugin is foreign code, so anything can go wrong while it is imported
        raise PretuneError(
            f"{_package(entry_point)} registers {entry_point.name!r} in the entry-point group {entry_point.group}, but "
            f"{entry_point.value} cannot be imported ({type(error).__name__}: {error}); repair or uninstall it"
        ) from error


def _package(entry_point: EntryPoint) -> str:
    return f"the package {entry_point.dist.name}" if entry_point.dist else "a package without metadata"
