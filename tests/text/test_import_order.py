"""Tests that the packages of pretune.text import in one direction only, as its docstring states."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pretune.text

ROOT = Path(pretune.text.__file__).parent
IMPORTS = "pretune.text."


def imported_modules(path: Path) -> set[str]:
    """Return the modules of pretune.text that a file imports, at the top or inside functions and type checks."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    modules = {name.removeprefix(IMPORTS) for name in found if name.startswith(IMPORTS)}
    return {name for name in modules if (ROOT / name.replace(".", "/")).with_suffix(".py").is_file()}


def modules() -> dict[str, set[str]]:
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
    return {name: imported_modules(path) for name, path in files.items() if not name.endswith("__init__")}


@pytest.mark.not_fast
def test_packages_import_only_earlier_ones() -> None:
    stated = re.search(r"\w+(?: → \w+)+", pretune.text.__doc__ or "")
    assert stated is not None
    order = ["spans", *stated[0].split(" → ")]
    assert {name.partition(".")[0] for name in modules()} == set(order)
    rank = {package: number for number, package in enumerate(order)}
    against = [
        (name, other)
        for name, imported in modules().items()
        for other in imported
        if rank[other.partition(".")[0]] > rank[name.partition(".")[0]]
    ]
    assert against == []


@pytest.mark.not_fast
def test_modules_have_no_import_cycles() -> None:
    assert len(list(TopologicalSorter(modules()).static_order())) == len(modules())
