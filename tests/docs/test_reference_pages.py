"""Tests that the generated pages of docs/reference are current, and that they list everything."""

from __future__ import annotations

import runpy
from functools import cache
from typing import Any

import pytest

import pretune
from pretune.cli import VERBS
from pretune.runtime.recipe import section_keys
from pretune.training.recipe_sections import SECTIONS
from tests.support.paths import DOCS, ROOT


@cache
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "script" / "reference_pages.py"))


def page(name: str) -> str:
    return (DOCS / "reference" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["command-line.md", "recipe-keys.md", "python.md"])
def test_page_is_current(name: str) -> None:
    assert page(name) == script()["PAGES"][name](), "run script/reference_pages.py"


def test_every_command_key_and_public_name_is_listed() -> None:
    assert [name for name in VERBS if f"### pretune {name}\n" not in page("command-line.md")] == []
    keys = [f"`{name}.{key}`" for name, section in SECTIONS.items() for key in section_keys(section)]
    assert [key for key in keys if key not in page("recipe-keys.md")] == []
    names = [name for name in pretune.__all__ if not name.startswith("__")]
    assert [name for name in names if f"| `pt.{name}` |" not in page("python.md")] == []


def test_text_in_tables_is_not_html() -> None:
    escape = script()["escape"]
    assert escape("<extra_id_0> or `<mask>`") == "&lt;extra_id_0> or `<mask>`"
