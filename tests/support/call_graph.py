"""A call graph of the package, by rapid type analysis (Bacon and Sweeney, 1996).

A function reaches everything that it names, in calls or as values. A method is reachable if its class is reachable and reachable code
contains an attribute or a string of its name. The result is an over-approximation: nothing that can run is missing.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

import pretune

ROOT = Path(pretune.__file__).parent
Unit = tuple[str, ...]  # module and name of a function, class or variable, and the name of a method
Names = tuple[set[Unit], set[str]]  # units that code names, and attributes


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module."""
    files = {".".join(("pretune", *file.relative_to(ROOT).with_suffix("").parts)): file for file in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): ast.parse(file.read_text("utf-8")) for name, file in files.items()}


@cache
def units() -> dict[Unit, list[ast.AST]]:
    """Return the code of each function, method, class (without its methods) and variable."""
    found: dict[Unit, list[ast.AST]] = {}
    for module, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                found[module, node.name] = [node]
            elif isinstance(node, ast.ClassDef):
                methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
                found |= {(module, node.name, method.name): [method] for method in methods}
                rest = [part for part in node.body if part not in methods]
                found[module, node.name] = [*rest, *node.bases, *node.decorator_list]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
                found |= {(module, name): [node] for name in names}
    return found


@cache
def methods() -> dict[Unit, list[Unit]]:
    """Return the methods of each class."""
    found: dict[Unit, list[Unit]] = {unit: [] for unit in units()}
    for unit in units():
        if len(unit) == 3:
            found[unit[:2]].append(unit)
    return found


@cache
def imported(module: str) -> dict[str, Unit]:
    """Return the units or modules behind the names that a module imports from the package, inside functions too."""
    found: dict[str, Unit] = {}
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pretune"):
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                found[name.asname or name.name] = (whole,) if whole in trees() else (node.module or "", name.name)
        elif isinstance(node, ast.Import):
            found |= {name.asname or "pretune": (name.name,) for name in node.names if name.name.startswith("pretune")}
    return found


def resolve(unit: Unit) -> Unit | None:
    """Return the unit behind a name that modules may re-export, or None if it is not of the package."""
    while unit not in units():
        module, *name = unit
        if not name or module not in trees() or name[0] not in imported(module) or imported(module)[name[0]] == unit:
            return None
        unit = imported(module)[name[0]]
    return unit


@cache
def names_in(unit: Unit) -> Names:
    """Return the units and attributes that the code of a unit names."""
    module, known = unit[0], imported(unit[0])
    named: set[Unit] = set()
    attributes: set[str] = set()
    for node in (part for code in units()[unit] for part in ast.walk(code)):
        if isinstance(node, ast.Name):
            named.add((module, node.id) if (module, node.id) in units() else known.get(node.id, ("",)))
        elif isinstance(node, ast.Attribute):
            attributes.add(node.attr)
            if isinstance(node.value, ast.Name) and len(source := known.get(node.value.id, ())) == 1:
                named.add((*source, node.attr))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            attributes.add(node.value)  # for getattr
    return {found for one in named if (found := resolve(one)) is not None}, attributes


def reached(start: Unit, without: Collection[str] = ()) -> set[Unit]:
    """Return all units that a function can reach, including itself, except those of the modules `without`."""
    done: set[Unit] = set()
    attributes: set[str] = set()
    todo: Iterable[Unit] = [start]
    while waiting := set(todo) - done:
        done |= waiting
        for unit in waiting:
            attributes |= names_in(unit)[1]
        after = {unit for one in waiting for unit in names_in(one)[0]}
        by_name = {
            method
            for unit in done
            for method in methods()[unit]
            if method[2] in attributes or (method[2].startswith("__") and method[2].endswith("__"))
        }
        todo = {unit for unit in after | by_name if unit[0] not in without}
    return done


def messages(unit: Unit, guard: str) -> Iterator[tuple[int, str, str | None]]:
    """Return the strings in a unit except docstrings: line, text with {} for replacement fields, and its guard or None.

    The guard of a string is the first argument, also a string, of the call of the function `guard` that contains it.
    """
    code = units()[unit]
    docstrings = {id(node.value) for part in code for node in ast.walk(part) if isinstance(node, ast.Expr)}

    def visit(node: ast.AST, guarded: str | None) -> Iterator[tuple[int, str, str | None]]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == guard:
            first = node.args[0]
            guarded = str(first.value) if isinstance(first, ast.Constant) else "{}"
        if isinstance(node, ast.JoinedStr):
            pieces = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(map(str, pieces)), guarded
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    yield from visit(part.value, guarded)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in docstrings:
                yield node.lineno, node.value, guarded
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child, guarded)

    for part in code:
        yield from visit(part, None)
