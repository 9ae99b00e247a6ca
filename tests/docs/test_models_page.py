"""Tests that docs/reference/models.md is right for every family and preset, and that its commands run."""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pretune.families import FAMILIES
from pretune.models.loading import load
from tests.support.cli import run_line
from tests.support.paths import DOCS, ROOT
from tests.support.tiny_models import save_random_model as save

PAGE = (DOCS / "reference" / "models.md").read_text(encoding="utf-8")


@cache
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "script" / "models_page.py"))


def test_every_family_has_a_row_with_existing_tests() -> None:
    rows, tests = script()["families"](), script()["tests"]()
    assert rows.keys() == tests.keys() == FAMILIES.keys()
    for row in (*rows.values(), *tests.values()):
        assert row in PAGE, "run script/models_page.py"
    for row in tests.values():
        files = re.findall(r"tests/[\w/]+\.py", row)
        assert files and all((ROOT / file).is_file() for file in files)


def test_every_exported_head_is_listed() -> None:
    exported = [family for family in FAMILIES.values() if family.in_transformers]
    kinds = {script()["HEADS"][head] for family in exported for names in family.classes for head in names}
    own = {
        "next sentence",
        "sentence order",
        "replaced tokens",
        "permuted prediction",
    }  # of pretraining, listed only in the table
    (section,) = re.findall(r"^`export` names in `config.json` .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert [kind for kind in kinds - own if kind not in section] == []
    assert "not there yet" not in section


@pytest.mark.not_fast
def test_every_size_has_a_row_with_its_number_of_parameters() -> None:
    rows = script()["sizes"]()
    assert {"bert-base", "gpt2-xl", "t5-11b"} <= rows.keys()
    for row in rows.values():
        assert row in PAGE, "run script/models_page.py"


@pytest.mark.end_to_end
def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, english: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("FOLDER"), "bert", "mlm")
    Path("notes.txt").write_text("\n".join(english[:5]), encoding="utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            run_line(line)
    assert load("longer").backbone.max_positions == 4096
    assert load("matched").config.vocab_size == 1000
    assert not load("bare").root.heads
