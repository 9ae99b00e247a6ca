"""Tests that the README's commands and Python code run, with small budgets, and that it stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import fenced_blocks, run_page
from tests.support.paths import ROOT

README = ROOT / "README.md"
INSTALL = re.compile(r"^pip install pretune\b.*$", re.MULTILINE)
SHORTER = {'out="runs/messages")': 'out="runs/messages", effort="quick")', "--seconds 60": "--seconds 2"}


@pytest.mark.end_to_end
@pytest.mark.usefixtures("briefly")
def test_code_and_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = INSTALL.sub("true", README.read_text(encoding="utf-8"))
    for long, short in SHORTER.items():
        assert long in text
        text = text.replace(long, short)
    page = tmp_path / "README.md"
    page.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    printed = run_page(page)
    assert "coffee" in printed and "compression ratio" in printed
    assert (tmp_path / "runs/task/report.html").stat().st_size > 10_000
    assert (tmp_path / "runs/messages-int8/model.safetensors").is_file()


def test_it_is_short_and_its_code_has_about_ten_lines() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120
    code = next(block for language, block in fenced_blocks(README) if language == "python")
    statements = [line for line in code.splitlines() if line and not line.startswith(("import", "from"))]
    assert "pretune-small-en" in code and len(statements) <= 12


def test_both_scripts_run_in_ci() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "script/test" in ci and "script/quickstart" in ci
    assert "pretune quickstart" in (ROOT / "script" / "quickstart").read_text(encoding="utf-8")
