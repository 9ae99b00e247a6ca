"""Tests that links between pages lead to files and headings that exist, and that every page can be reached."""

from __future__ import annotations

import pytest

from tests.support.pages import all_pages, anchors, links
from tests.support.paths import DOCS, ROOT


@pytest.mark.parametrize("page", all_pages())
def test_links_lead_to_existing_files_and_headings(page: str) -> None:
    source = ROOT / page
    missing = []
    for link in links(source):
        name, _, anchor = link.partition("#")
        target = (source.parent / name).resolve() if name else source
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert missing == []


def test_every_page_and_picture_is_linked() -> None:
    """The start page leads to every page, in one step or more, and the pages show every picture."""
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        if page.suffix == ".md":
            targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page) if link[0] != "#"}
            waiting += [target for target in targets - reached if target.is_file()]
    pages = {path for path in DOCS.rglob("*") if path.suffix in {".md", ".svg"}}
    assert sorted(str(path.relative_to(ROOT)) for path in pages - reached) == []
