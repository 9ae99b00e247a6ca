"""Tests of docs/reference/cleaning.md: it lists every rule with what the code says about it."""

from __future__ import annotations

import re

from pretune.text.corpus.cleaning.quality_rules import STOP_WORDS
from pretune.text.corpus.cleaning.rule_sets import RULE_SETS, RULES
from pretune.text.corpus.cleaning.rules import LineRule
from tests.support.paths import DOCS

PAGE = (DOCS / "reference" / "cleaning.md").read_text(encoding="utf-8")


def test_page_lists_every_rule() -> None:
    """To update the page, replace its table of rules with the one that this test expects."""
    rows = [
        f"| `{rule.name}` | {rule.about} | {'yes' if rule.name in RULE_SETS['prose'] else ''} |"
        for rule in sorted(RULES.values(), key=lambda rule: not isinstance(rule, LineRule))
    ]
    assert "\n".join(["| rule | removes | in `prose` |", "| --- | --- | --- |", *rows]) in PAGE


def test_page_names_the_sets_and_the_languages_with_stop_words() -> None:
    assert re.findall(r"^\| `([a-z][a-z0-9-]*)` \|", PAGE, re.MULTILINE) == [
        "c4",
        "c4-duplicates",
        "gopher-quality",
        "gopher-repetition",
        "prose",
    ]
    assert set(RULE_SETS) == {"c4", "c4-duplicates", "gopher-quality", "gopher-repetition", "prose"}
    known = re.search(r"`--language` ([a-z, ]+ and [a-z]+);", PAGE)
    assert known is not None
    assert set(re.findall(r"\b[a-z]{2}\b", known[1])) == set(STOP_WORDS)
