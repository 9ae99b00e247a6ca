"""Tests of the page that says where each item of the lectures is: every path exists, and every item has a place and a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pretune.verbs.command_table import COMMANDS
from tests.support.paths import DOCS, ROOT

PAGE = DOCS / "lectures.md"
PATH = re.compile(r"`([\w./-]+\.(?:py|yaml|md))`")
WITHOUT_TEST = ("out: ", "not yet: ")


def rows() -> list[list[str]]:
    """Return the cells of each numbered row: number, item, lectures, place, test."""
    _, _, tables = PAGE.read_text(encoding="utf-8").partition("\n## ")  # the first table lists the lectures
    return [line.strip("| ").split(" | ") for line in tables.splitlines() if re.match(r"\| \d", line)]


def test_rows_are_numbered_and_complete() -> None:
    found = rows()
    assert len(found) > 200 and all(len(row) == 5 and all(row) for row in found)
    assert [int(row[0]) for row in found] == list(range(1, len(found) + 1))
    assert len({row[1] for row in found}) == len(found)
    for number, item, lectures, where, test in found:
        assert item and re.fullmatch(r"[1-4](, [1-4])*", lectures), number
        if where.startswith(WITHOUT_TEST):
            assert len(where) > 20 and test == "–", f"{number}: a reason and no test"
        else:
            assert PATH.search(test), f"{number} {item}: no test"


@pytest.mark.parametrize("column", ["where", "test"])
def test_every_path_exists(column: str) -> None:
    missing = []
    for number, item, _, where, test in rows():
        for path in PATH.findall(where if column == "where" else test):
            root = ROOT if path.startswith(("docs/", "tests/")) else ROOT / "src/pretune"
            if not (root / path).is_file():
                missing.append(f"{number} {item}: {path}")
    assert missing == []


def test_every_place_is_a_path_a_command_or_an_option() -> None:
    for number, item, _, where, _ in rows():
        if not where.startswith(WITHOUT_TEST):
            commands = {span.split()[0] for span in re.findall(r"`([^`]+)`", where)} & COMMANDS.keys()
            options = re.findall(r"`(?:[a-z]+\.)+[a-z_]+", where)
            assert PATH.search(where) or commands or options, f"{number} {item}: {where}"


def test_tests_named_in_the_page_are_test_modules() -> None:
    for number, _, _, _, test in rows():
        assert all(path.startswith("tests/") and Path(path).name.startswith("test_") for path in PATH.findall(test)), (
            number
        )
