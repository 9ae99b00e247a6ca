"""Tests that the examples in the docstrings of the package give the output that they show.

Examples that need files, downloads or other machines are marked in their docstring by `# doctest: +SKIP`. All others run here, in
an empty folder.
"""

from __future__ import annotations

import doctest
import io
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from pretune.metrics import custom
from tests.support.paths import ROOT

SOURCES = ROOT / "src"
PROMPT = ">>> "
# Docstrings whose examples train or read many files, for the second step of CI.
LONG = {
    "pretune.estimators.PretuneClassifier.fit",
    "pretune.estimators.PretuneRegressor.fit",
    "pretune.verbs.evaluation.probe.probe",
    "pretune.verbs.show.show",
}
NEEDS_TRITON = "pretune.nn.kernels."  # modules with kernels for GPUs


def modules_with_examples() -> list[str]:
    """Return the names of all modules of the package with examples in docstrings."""
    files = (file for file in sorted(SOURCES.rglob("*.py")) if PROMPT in file.read_text(encoding="utf-8"))
    names = (".".join(file.relative_to(SOURCES).with_suffix("").parts) for file in files)
    return [name.removesuffix(".__init__") for name in names]


def examples(name: str) -> Iterator[doctest.DocTest]:
    """Yield the docstrings of a module that have examples."""
    if name.startswith(NEEDS_TRITON):
        pytest.importorskip("triton")
    module: ModuleType = import_module(name)
    yield from (test for test in doctest.DocTestFinder().find(module, name) if test.examples)


def check(test: doctest.DocTest) -> None:
    """Run the examples of a docstring, and fail with the report of those that give another output."""
    report = io.StringIO()
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=report.write)
    assert not failed, report.getvalue()


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run examples in an empty folder, and forget the metrics that they register."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(custom, "_registered", dict(custom._registered))


@pytest.mark.not_fast
@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_give_the_output_that_they_show(name: str) -> None:
    for test in examples(name):
        if test.name not in LONG:
            check(test)


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", sorted(LONG))
def test_long_examples_give_the_output_that_they_show(name: str) -> None:
    module = max((one for one in modules_with_examples() if name.startswith(f"{one}.")), key=len)
    check(next(test for test in examples(module) if test.name == name))


def test_a_wrong_example_is_noticed() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    with pytest.raises(AssertionError, match=r"Expected:\s+3\s+Got:\s+2"):
        check(wrong)
    assert len(modules_with_examples()) > 200
