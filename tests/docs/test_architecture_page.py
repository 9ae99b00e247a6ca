"""Tests that the picture of docs/architecture.md shows the packages in the order in which they import each other."""

from __future__ import annotations

import re

from tests.support.package_order import stated_order
from tests.support.paths import DOCS


def test_picture_has_the_stated_order() -> None:
    picture = (DOCS / "architecture.svg").read_text(encoding="utf-8")
    found = re.findall(r'y="(\d+)"[^>]*><tspan font-weight="600">([\w.]+)<', picture)
    heights = {name: int(height) for height, name in found}
    order = [group & heights.keys() for group in stated_order()]
    rows = [{heights[name] for name in group} for group in order if group]
    assert set().union(*order) == heights.keys() and len(heights) == 14
    assert all(len(row) == 1 for row in rows)
    assert rows == sorted(rows, key=min, reverse=True)
