"""Name the sets of cleaning rules that `pretune prepare --clean` accepts."""

from __future__ import annotations

from collections.abc import Sequence

from pretune.runtime.errors import PretuneError, suggest
from pretune.text.corpus.cleaning.c4_rules import C4_RULES
from pretune.text.corpus.cleaning.quality_rules import QUALITY_RULES
from pretune.text.corpus.cleaning.repetition_rules import REPETITION_RULES
from pretune.text.corpus.cleaning.rules import Rule

DUPLICATE_SPANS = "c4-duplicates"  # spans of three sentences that occur before; see duplicate_spans
RULES: dict[str, Rule] = {rule.name: rule for rule in (*C4_RULES, *QUALITY_RULES, *REPETITION_RULES)}
# `prose` keeps books, dialogue, poems and short texts: it removes no single lines, and does not require a length.
# Long articles, and answers in a fixed form, repeat too many 5-grams to pass gopher-repetition/duplicate-ngrams.
RULE_SETS: dict[str, tuple[str, ...]] = {
    "c4": tuple(rule.name for rule in C4_RULES),
    "gopher-quality": tuple(rule.name for rule in QUALITY_RULES),
    "gopher-repetition": tuple(rule.name for rule in REPETITION_RULES),
    "prose": (
        "c4/lorem-ipsum",
        "gopher-quality/mean-word-length",
        "gopher-quality/symbols",
        "gopher-quality/letters",
        "gopher-repetition/duplicate-lines",
        "gopher-repetition/duplicate-paragraphs",
        "gopher-repetition/top-ngram",
    ),
    DUPLICATE_SPANS: (DUPLICATE_SPANS,),
}


def expand_rule_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of single cleaning rules, given names of rules (SET/RULE) and of sets of rules.

    The name of a set is replaced by the names of its rules; the other names are kept.

    >>> expand_rule_names(["c4/javascript", "c4-duplicates"])
    ('c4/javascript', 'c4-duplicates')
    """
    chosen = set[str]()
    for name in names:
        if name not in RULE_SETS and name not in RULES:
            hint = suggest(name, [*RULE_SETS, *RULES], f"the sets are {', '.join(RULE_SETS)}")
            raise PretuneError(f"there is no cleaning rule or set of rules named {name!r}; {hint}")
        chosen.update(RULE_SETS.get(name, (name,)))
    return tuple(name for name in (*RULES, DUPLICATE_SPANS) if name in chosen)
