"""Test modules share code through tests/support only: none imports another test module or a conftest."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TESTS = ROOT / "tests"


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the absolute dotted name of every import of a file, inside functions too."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join([*base, *filter(None, [node.module])])
            yield from ((node.lineno, f"{name}.{alias.name}") for alias in node.names)


def imports_of_test_modules(path: Path) -> list[str]:
    """Return the imports of a file that name a test module or a conftest, with their lines."""
    return [
        f"{path.name}, line {line}: {name}"
        for line, name in imported_modules(path)
        if name.startswith("tests.")
        and any(part == "conftest" or part.startswith("test_") for part in name.split(".")[1:])
    ]


@pytest.mark.not_fast
def test_no_module_imports_a_test_module() -> None:
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 200
    assert [found for path in files for found in imports_of_test_modules(path)] == []


@pytest.mark.parametrize(
    "line",
    [
        "from tests.models.test_loading import small",
        "from tests.models import test_loading",
        "from tests import conftest",
        "import tests.models.test_loading",
        "def function():\n    from tests.models.test_loading import small",
        "from . import test_loading",
        "from .test_loading import small",
        "from ..conftest import corpus",
    ],
)
def test_every_way_to_import_a_test_module_is_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "tests" / "models" / "test_other.py"
    file.parent.mkdir(parents=True)
    file.write_text("from tests.support.paths import ROOT\nfrom pretune import test_support\n")
    assert imports_of_test_modules(file) == []
    file.write_text(line)
    assert len(imports_of_test_modules(file)) == 1
