"""Convert between tagging schemes that mark spans of words: BIO, IOB1 and BIOES.

words    Alex is going to Los Angeles County
BIO      B-PER O O O B-LOC I-LOC I-LOC       B begins a span, I continues it
IOB1     I-PER O O O I-LOC I-LOC I-LOC       B only directly after another span of the same type
BIOES    S-PER O O O B-LOC I-LOC E-LOC       E ends a span, S is a span of one word
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Scheme = Literal["plain", "BIO", "IOB1", "BIOES"]  # plain tags mark single words, not spans
PREFIXES = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES"}
OUTSIDE = "O"
_TAG = re.compile(r"O|[BIES](-.+)?", re.DOTALL)


class TaggedSpan(NamedTuple):
    """A span of words with a type (`kind`), from the word with the index `first` to the word `last` (inclusive)."""

    kind: str
    first: int
    last: int


def parse_tags(tags: Sequence[str]) -> list[TaggedSpan]:
    """Return the spans that the tags of a sentence mark, in any scheme; invalid tags are interpreted as by conlleval.

    A span begins at a B or S tag, where the type changes, and after an O, E or S tag. It ends at an E or S tag, and
    where the next span begins.

    >>> parse_tags(["O", "I-PER", "I-PER", "B-PER", "I-LOC"])
    [TaggedSpan(kind='PER', first=1, last=2), TaggedSpan(kind='PER', first=3, last=3), TaggedSpan(kind='LOC', first=4, last=4)]
    """
    spans: list[TaggedSpan] = []
    if all(tag == OUTSIDE for tag in tags):
        return spans
    first: int | None = None  # first word of the current span
    before, kind_before = OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        begins = prefix != OUTSIDE and (prefix in "BS" or before in "OES" or kind != kind_before)
        if first is not None and (begins or prefix == OUTSIDE):
            spans.append(TaggedSpan(kind_before, first, place - 1))
            first = None
        if begins:
            first = place
        before, kind_before = prefix, kind
    return spans


def write_tags(spans: Iterable[TaggedSpan], words: int, scheme: str) -> list[str]:
    """Return one tag per word of a sentence of `words` words, in a scheme such as BIO.

    The spans must be sorted and must not overlap.

    >>> write_tags([TaggedSpan("LOC", 1, 3), TaggedSpan("PER", 4, 4)], 6, "BIOES")
    ['O', 'B-LOC', 'I-LOC', 'E-LOC', 'S-PER', 'O']
    """
    tags = [OUTSIDE] * words
    before = TaggedSpan("", -1, -2)
    for span in spans:
        prefixes = ["I"] * (span.last - span.first + 1)
        if scheme != "IOB1" or (before.kind == span.kind and before.last + 1 == span.first):
            prefixes[0] = "B"
        if scheme == "BIOES":
            prefixes[-1] = "E" if len(prefixes) > 1 else "S"
        suffix = f"-{span.kind}" if span.kind else ""
        tags[span.first : span.last + 1] = [prefix + suffix for prefix in prefixes]
        before = span
    return tags


def convert_tags(tags: Sequence[str], scheme: str) -> list[str]:
    """Return tags converted to a scheme; the scheme "plain" leaves them unchanged.

    The result is valid, even if the tags already had this scheme but were invalid.

    >>> convert_tags(["O", "I-PER", "I-PER"], "BIO")
    ['O', 'B-PER', 'I-PER']
    """
    return list(tags) if scheme == "plain" else write_tags(parse_tags(tags), len(tags), scheme)


def detect_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """Return the tagging scheme of tagged sentences; if they violate all schemes, the least violated one.

    >>> detect_scheme([["I-PER", "O"]]), detect_scheme([["B-PER", "O"]]), detect_scheme([["NOUN"]])
    ('IOB1', 'BIO', 'plain')
    """
    has_ends, first = False, {"B": 0, "I": 0}  # prefixes of spans that do not follow one of the same type
    for tags in sentences:
        for before, tag in pairwise([OUTSIDE, *tags]):
            if _TAG.fullmatch(tag) is None:
                return "plain"
            if tag[0] in "ES":
                has_ends = True
            elif tag != OUTSIDE and (before == OUTSIDE or before[1:] != tag[1:]):
                first[tag[0]] += 1
    return "BIOES" if has_ends else "BIO" if first["B"] and first["B"] >= first["I"] else "IOB1"


def all_tags(kinds: Iterable[str], scheme: str) -> list[str]:
    """Return every tag of a scheme for the given span types.

    >>> all_tags(["LOC"], "BIO")
    ['O', 'B-LOC', 'I-LOC']
    """
    return [OUTSIDE, *(f"{prefix}-{kind}" if kind else prefix for kind in kinds for prefix in PREFIXES[scheme])]
