"""Tags that mark stretches of words, and what they mark: BIO, IOB1, BIOES, each of which says the same.

words    Alex is going to Los Angeles County
BIO      B-PER O O O B-LOC I-LOC I-LOC       B begins a stretch, I goes on with it
IOB1     I-PER O O O I-LOC I-LOC I-LOC       B only where it follows another of its kind
BIOES    S-PER O O O B-LOC I-LOC E-LOC       E ends it, S is a word alone
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Scheme = Literal["plain", "BIO", "IOB1", "BIOES"]  # plain tags mark words, and no stretches of them
PREFIXES = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES"}
OUTSIDE = "O"
_TAG = re.compile(r"O|[BIES](-.+)?", re.DOTALL)


class Entity(NamedTuple):
    """A stretch of words of some kind, the last one included."""

    kind: str
    first: int
    last: int


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """The stretches that tags of any scheme mark; where they break its rules, those that conlleval sees.

    A stretch begins with B or S, wherever the kind changes, and after O, E or S; it ends with E or S, and where the next
    begins.

    >>> find_entities(["O", "I-PER", "I-PER", "B-PER", "I-LOC"])
    [Entity(kind='PER', first=1, last=2), Entity(kind='PER', first=3, last=3), Entity(kind='LOC', first=4, last=4)]
    """
    found: list[Entity] = []
    if not any(tag != OUTSIDE for tag in tags):
        return found
    first: int | None = None  # of the stretch that is under way
    before, kind_before = OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        begins = prefix != OUTSIDE and (prefix in "BS" or before in "OES" or kind != kind_before)
        if first is not None and (begins or prefix == OUTSIDE):
            found.append(Entity(kind_before, first, place - 1))
            first = None
        if begins:
            first = place
        before, kind_before = prefix, kind
    return found


def write_tags(entities: Iterable[Entity], words: int, scheme: str) -> list[str]:
    """Tags for so many words that mark stretches, which do not overlap and come in order.

    >>> write_tags([Entity("LOC", 1, 3), Entity("PER", 4, 4)], 6, "BIOES")
    ['O', 'B-LOC', 'I-LOC', 'E-LOC', 'S-PER', 'O']
    """
    tags = [OUTSIDE] * words
    before = Entity("", -1, -2)
    for entity in entities:
        prefixes = ["I"] * (entity.last - entity.first + 1)
        if scheme != "IOB1" or (before.kind == entity.kind and before.last + 1 == entity.first):
            prefixes[0] = "B"
        if scheme == "BIOES":
            prefixes[-1] = "E" if len(prefixes) > 1 else "S"
        suffix = f"-{entity.kind}" if entity.kind else ""
        tags[entity.first : entity.last + 1] = [prefix + suffix for prefix in prefixes]
        before = entity
    return tags


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """The same stretches in another scheme, or in the same with nothing broken; plain tags stay.

    >>> convert(["O", "I-PER", "I-PER"], "BIO")
    ['O', 'B-PER', 'I-PER']
    """
    return list(tags) if scheme == "plain" else write_tags(find_entities(tags), len(tags), scheme)


def find_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of some tags; where they break its rules, the one they break less often.

    >>> find_scheme([["I-PER", "O"]]), find_scheme([["B-PER", "O"]]), find_scheme([["NOUN"]])
    ('IOB1', 'BIO', 'plain')
    """
    singles, first = False, {"B": 0, "I": 0}  # what stretches begin with that follow none of their kind
    for tags in sentences:
        for before, tag in pairwise([OUTSIDE, *tags]):
            if _TAG.fullmatch(tag) is None:
                return "plain"
            if tag[0] in "ES":
                singles = True
            elif tag != OUTSIDE and (before == OUTSIDE or before[1:] != tag[1:]):
                first[tag[0]] += 1
    return "BIOES" if singles else "BIO" if first["B"] and first["B"] >= first["I"] else "IOB1"


def all_tags(kinds: Iterable[str], scheme: str) -> list[str]:
    """Every tag that can come up for some kinds.

    >>> all_tags(["LOC"], "BIO")
    ['O', 'B-LOC', 'I-LOC']
    """
    return [OUTSIDE, *(f"{prefix}-{kind}" if kind else prefix for kind in kinds for prefix in PREFIXES[scheme])]
