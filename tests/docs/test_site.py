"""Tests that the documentation builds as a site, without warnings and without anything from other servers."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.paths import DOCS, ROOT


def nav_pages(part: object) -> list[str]:
    """Return the pages of a part of the navigation."""
    if isinstance(part, str):
        return [part]
    items = part.values() if isinstance(part, dict) else part
    return [page for item in items for page in nav_pages(item)]  # type: ignore[attr-defined]


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = yaml.safe_load(re.sub(r"!!python/\S+", "", text))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} | {"contributing.md", "changelog.md"}
    listed = nav_pages(settings["nav"])
    assert sorted(listed) == sorted(pages)
    assert settings["theme"]["font"] is False


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)
def test_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")):
        pytest.skip("the extra `docs` is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    loaded = r'<(?:script|img|iframe)[^>]*\ssrc="?(?:https?:)?//|<link[^>]*rel="?(?:stylesheet|preconnect)[^>]*href="?(?:https?:)?//'
    assert [path.name for path in pages if re.search(loaded, path.read_text(encoding="utf-8"))] == []
    reference = (tmp_path / "site" / "reference" / "python.html").read_text(encoding="utf-8")
    assert "pt.finetune" in reference and "Random seed" in reference  # help on options that commands share
