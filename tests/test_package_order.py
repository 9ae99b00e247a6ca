"""Tests that imports between packages follow the order in CONTRIBUTING.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.package_order import stated_order
from tests.support.paths import ROOT

SOURCE = ROOT / "src" / "pretune"


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of each module of pretune that a file imports, inside functions and for type checkers too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pretune":
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def package(name: str, known: set[str]) -> str | None:
    """Return the longest known package that contains a dotted name.

    >>> package("pretune.text.store.store.Store", {"text", "text.store"})
    'text.store'
    """
    parts = name.split(".")[1:]
    return next((".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in known), None)


def violations(order: list[set[str]]) -> list[str]:
    """Return the imports that go against an order of packages."""
    rank = {name: number for number, group in enumerate(order) for name in group}
    known, found = set(rank), []
    for path in sorted(SOURCE.rglob("*.py")):
        own = package(".".join(("pretune", *path.relative_to(SOURCE).with_suffix("").parts)), known)
        for line, name in imports(path):
            other = package(name, known)
            if own is None or other is None or own == other:
                continue
            if rank[other] >= rank[own]:
                found.append(f"{path.relative_to(ROOT)}, line {line}: {own} imports {other}")
    return found


@pytest.mark.not_fast
def test_packages_import_in_the_stated_order() -> None:
    assert violations(stated_order()) == []


def test_every_package_is_in_the_order() -> None:
    known = {name for group in stated_order() for name in group}
    packages = {
        path.stem if path.is_file() else path.name
        for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert packages - {"__init__", "__main__", "sample_data"} == {name for name in known if "." not in name}


@pytest.mark.parametrize(
    "folder", [path for path in [SOURCE, *SOURCE.rglob("*/")] if (path / "__init__.py").is_file()], ids=str
)
def test_folders_are_small_and_documented(folder: Path) -> None:
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert len([*folder.glob("*.py")]) <= 31
