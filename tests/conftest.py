"""Fixtures and settings of all tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.texts import KOREAN, RUSSIAN, english_documents

settings.register_profile("pretune", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("pretune")
os.environ.setdefault("PRETUNE_PROGRESS", "none")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in several processes, and the models are tiny

# A file runs in one process. Files that take minutes come first, so that no process waits long for another at the end.
LONG = ("test_verbs.py", "test_readme.py", "test_distributed.py", "test_same_numbers.py", "test_tasks_end_to_end.py")


def pytest_configure(config: pytest.Config) -> None:
    """Create temporary folders of tests in one folder that is deleted at the end; those of pytest stay where they are."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    own = tempfile.TemporaryDirectory(prefix="pretune-tests-", ignore_cleanup_errors=True)
    tempfile.tempdir = own.name
    config.add_cleanup(own.cleanup)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="run the quick tests, each with the first of its parameters")


@pytest.hookimpl(trylast=True)  # after the selection by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        first: dict[str, pytest.Item] = {}
        for item in items:
            if not item.get_closest_marker("not_fast"):
                first.setdefault(item.nodeid.partition("[")[0], item)
        config.hook.pytest_deselected(items=list(set(items) - set(first.values())))
        items[:] = first.values()
    for item in items:
        if item.get_closest_marker("end_to_end") and not item.get_closest_marker("timeout"):
            item.add_marker(
                pytest.mark.timeout(1800)
            )  # a limit for hanging tests that slow and busy machines do not reach
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(scope="session")
def english() -> list[str]:
    return english_documents()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    """Return a folder with a .txt file of English paragraphs, one document per line, without blank lines."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = [" ".join(paragraph.split()) for text in english for paragraph in text.split("\n\n")]
    (folder / "english.txt").write_text("\n".join(line for line in lines if line), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def mixed_texts(english: list[str]) -> list[str]:
    return [*english[:40], *RUSSIAN, *KOREAN]


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the cost of compressed models in one short round."""
    from pretune.compression import benchmark

    monkeypatch.setattr(benchmark, "ROUNDS", 1)
    monkeypatch.setattr(benchmark, "NUM_TEXTS", 8)
