"""docs/models.md says of every family and every preset what is so, and its commands run."""

from __future__ import annotations

import re
import runpy
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.families import FAMILIES
from tests.docs.test_objectives_page import run
from tests.support.paths import ROOT
from tests.verbs.test_export import save

PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


@cache
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "script" / "models_page.py"))


def test_every_family_has_its_row_and_the_tests_that_it_names() -> None:
    rows = script()["families"]()
    assert rows.keys() == FAMILIES.keys()
    for row in rows.values():
        assert row in PAGE, "run script/models_page.py"
        files = re.findall(r"tests/[\w/]+\.py", row)
        assert files and all((ROOT / file).is_file() for file in files)


def test_every_head_that_goes_both_ways_is_named_among_those_that_are_exported() -> None:
    kinds = {script()["HEADS"][head] for family in FAMILIES.values() for names in family.classes for head in names}
    own = {
        "next sentence",
        "sentence order",
        "replaced tokens",
        "permuted prediction",
    }  # of pretraining, in the table alone
    (told,) = re.findall(r"^`export` names in `config.json` .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert [kind for kind in kinds - own if kind not in told] == []
    assert "not there yet" not in told


def test_every_size_has_its_row_with_the_right_number_of_parameters() -> None:
    rows = script()["sizes"]()
    assert {"bert-base", "gpt2-xl", "t5-11b"} <= rows.keys()
    for row in rows.values():
        assert row in PAGE, "run script/models_page.py"


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, english: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("FOLDER"), "bert", "mlm")
    Path("notes.txt").write_text("\n".join(english[:5]), encoding="utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            run(shlex.split(line)[1:])
    assert pt.load("longer").backbone.max_positions == 4096
    assert pt.load("matched").config.vocab_size == 1000
    assert not pt.load("bare").root.heads
