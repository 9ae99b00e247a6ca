"""The registry of objectives and tasks by name.

A class is registered by a decorator:

    @register_task
    @dataclass(frozen=True)
    class Summarize(Task):
        name: ClassVar[str] = "summarize"

Modules of this package are imported automatically: that of one objective if it has the name of the objective, or else all.
Another package declares its classes as entry points of the groups
`pretune.objectives` and `pretune.tasks`; it then needs no decorator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from torch import nn

from pretune.objectives.objective import Objective
from pretune.objectives.task import Task
from pretune.runtime.errors import PretuneError
from pretune.runtime.plugins import entry_point_objects

PACKAGES = ("pretune.objectives.pretraining", "pretune.objectives.seq2seq", "pretune.objectives.tasks")
GROUPS: dict[str, type[Objective]] = {"pretune.objectives": Objective, "pretune.tasks": Task}  # of entry points

O = TypeVar("O", bound=type[Objective])  # noqa: E741
T = TypeVar("T", bound=type[Task])

_registered: dict[str, type[Objective]] = {}


def register_objective(kind: O) -> O:
    """Register an objective class under its `name`; used as a class decorator."""
    check_objective_name(kind.name, kind.__module__)
    known = _registered.setdefault(kind.name, kind)
    # A module that is loaded again defines the same class anew.
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise PretuneError(
            f"{known.__module__} and {kind.__module__} both register an objective {kind.name!r}; rename one of them"
        )
    _registered[kind.name] = kind
    return kind


def check_objective_name(name: str, where: str) -> None:
    """Raise an error that begins with `where` if `name` cannot be the name of an objective.

    A name must be usable in objective expressions and as a key of `torch.nn.ModuleDict`, which holds the heads.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise PretuneError(
            f"{where}: {name!r} cannot be the name of an objective; use letters, digits and underscores, and a letter or an underscore first"
        )
    if hasattr(nn.ModuleDict(), name):
        raise PretuneError(
            f"{where}: {name!r} cannot be the name of an objective, because torch.nn.ModuleDict, which holds the heads of a "
            "model, has an attribute of that name; choose another name"
        )


def register_task(kind: T) -> T:
    """Register a task class under its `name`; used as a class decorator."""
    return register_objective(kind)


class Registry(Mapping[str, type[Any]]):
    """A mapping from names to objective classes: built-in, registered with a decorator, or from entry points."""

    def classes(self) -> dict[str, type[Objective]]:
        """Return all registered objective classes by name."""
        _import_built_in()
        return _registered | _from_entry_points()

    def __getitem__(self, name: str) -> type[Any]:
        if name not in _registered:
            _import_named(name)
        found = _registered | _from_entry_points()
        return found[name] if name in found else self.classes()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.classes())

    def __len__(self) -> int:
        return len(self.classes())


OBJECTIVES = Registry()


def task_names() -> list[str]:
    """Return the names of all registered objectives that are supervised tasks."""
    return [name for name, kind in OBJECTIVES.classes().items() if issubclass(kind, Task)]


@cache
def _modules() -> dict[str, str]:
    """Return the full names of the modules of the built-in objectives, by their last part."""
    return {
        module.name: f"{package}.{module.name}"
        for package in PACKAGES
        for module in iter_modules(import_module(package).__path__)
    }


def _import_named(name: str) -> None:
    """Import the module that has the name of a built-in objective, if there is one; its decorator registers the class."""
    if module := _modules().get(name):
        import_module(module)


@cache
def _import_built_in() -> None:
    """Import the modules of the built-in objectives, whose decorators register them."""
    for module in _modules().values():
        import_module(module)


def _from_entry_points() -> dict[str, type[Objective]]:
    """Return the objective classes that installed packages declare as entry points, by name."""
    found: dict[str, type[Objective]] = {}
    for group, base in GROUPS.items():
        for entry, kind in entry_point_objects(group).items():
            if not (isinstance(kind, type) and issubclass(kind, base)):
                raise PretuneError(
                    f"the entry point {entry!r} of the group {group} is not a class derived from "
                    f"pretune.{base.__name__}; update or uninstall the package that declares it"
                )
            check_objective_name(kind.name, f"the entry point {entry!r} of the group {group}")
            if _registered.get(kind.name, kind) is not kind:
                raise PretuneError(
                    f"the entry point {entry!r} of the group {group} registers {kind.name!r}, which is already the name "
                    "of another objective; rename the class or uninstall the package"
                )
            found[kind.name] = kind
    return found
