"""The order of packages that CONTRIBUTING.md states."""

from __future__ import annotations

import re

from tests.support.paths import ROOT


def stated_order() -> list[set[str]]:
    """Return the packages in the order of CONTRIBUTING.md, lowest first; those between two arrows are independent."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    line = re.search(r"^Imports go .*?:\n((?:`.*\n)+)", text, re.MULTILINE)
    assert line is not None, "CONTRIBUTING.md does not state the order of imports"
    return [set(re.findall(r"`([\w.]+)`", part)) for part in line[1].split("→")]
