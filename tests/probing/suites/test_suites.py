"""The registry of suites: names, files in place of names, and limits."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from pretune import PretuneError
from pretune.probing.suites import SUITES, load_suite, suite_of_file
from tests.support.treebanks import write_treebank


@pytest.mark.parametrize("name", [name for name in SUITES if name != "table"])
def test_every_suite_can_be_loaded(name: str) -> None:
    module = import_module(f"pretune.probing.suites.{SUITES[name].module}")
    assert callable(vars(module)[SUITES[name].function])
    with pytest.raises(PretuneError, match=f"the suite '{name}' reads data files, but none were given"):
        load_suite(name, None)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PretuneError, match=r"there is no suite 'sentevil'; choose senteval, .* did you mean 'senteval'"
    ):
        load_suite("sentevil", tmp_path)


def test_a_file_is_read_by_the_suite_for_its_contents(tmp_path: Path) -> None:
    write_treebank(tmp_path, 200, splits=False)
    assert "bigram_shift" in [task.name for task in load_suite(str(tmp_path / "xx-all.conllu"), None)]
    row = {"text": "a cat", "targets": [{"span1": [0, 1], "label": "x"}]}
    for name, content, suite in (
        ("a.jsonl", json.dumps(row), "edges"),
        ("b.jsonl", '{"text": "a", "label": "x"}', "table"),
        ("c.csv", "text,label\n", "table"),
        ("d.txt", "(S (NN a))", "treebank"),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert suite_of_file(tmp_path / name) == suite


def test_examples_are_limited(tmp_path: Path) -> None:
    folder = write_treebank(tmp_path, 300)
    assert {len(task.examples) for task in load_suite("edges", folder, 50)} == {50}
    with pytest.raises(
        PretuneError, match="the training examples of the task 'pos' have fewer than two labels; choose a larger"
    ):
        load_suite("edges", folder, 1)
    with pytest.raises(PretuneError, match="give a number of at least 1"):
        load_suite("edges", folder, 0)
