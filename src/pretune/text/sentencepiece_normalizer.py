"""Normalization as the sentencepiece library does it, composed of the normalizers of the `tokenizers` library.

A .model file holds its rules as a compiled map from sequences of characters to their replacements, of which the longest that
matches is applied. `normalizers.Precompiled` reads that map but applies it to grapheme clusters of up to five bytes: it leaves
Hangul Jamo and kana with combining marks decomposed, and loses the mark in "Ａ" + U+0301. So it is given one character at a
time here, and canonical composition (NFC) does what the rules for several characters do. A separator keeps both in their
bounds: before `Precompiled` it stands before every character that would extend a grapheme cluster; after it, the separator
stays where the library does not compose, which is after composed characters and where marks are not in canonical order.
"""

from __future__ import annotations

import struct
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache

import numpy as np
from tokenizers import Regex, normalizers

from pretune.errors import PretuneError

SEPARATOR = "\ue0f3"  # a private character that no text has
EXTENDING = r"\p{M}\u200c\u200d\uff9e\uff9f\U000e0020-\U000e007f"  # characters that extend a grapheme cluster
FINALS = r"\u11a8-\u11c2"  # the last consonants of Hangul syllables
# Rules of the library's own whose sequences of characters are those that NFC composes.
COMPOSING = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")


def normalization(name: str, charsmap: bytes) -> list[normalizers.Normalizer]:
    """Return the normalizers that apply a compiled map of rules; `name` is that of the rules ("nmt_nfkc")."""
    if not charsmap:
        return []
    apart = normalizers.Replace(Regex(rf"(?<!\A)(?=[{EXTENDING}{FINALS}]|(?<=\r)\n)"), SEPARATOR)
    steps = [apart, normalizers.Precompiled(charsmap)]
    if name in COMPOSING or _composes(charsmap):
        steps += [normalizers.Replace(Regex(_composable()), ""), normalizers.NFC()]
    return [*steps, normalizers.Replace(SEPARATOR, "")]


def _composes(charsmap: bytes) -> bool:
    """Return whether custom rules replace sequences of characters; any that NFC does not explain are refused."""
    rules = read_rules(charsmap)
    several = {source: target for source, target in rules.items() if len(source) > 1}
    for source, target in several.items():
        mapped = "".join(rules.get(character, character) for character in source)
        known = all(unicodedata.category(character) != "Cn" for character in source)
        if known and unicodedata.normalize("NFC", mapped) != target:
            raise PretuneError(
                f"this sentencepiece model has a normalization rule of its own for several characters, {source!r} → "
                f"{target!r}, which is not supported; train it with one of the rules {', '.join(COMPOSING)} or identity"
            )
    return bool(several)


def read_rules(charsmap: bytes) -> dict[str, str]:
    """Return the rules of a compiled map: sequences of characters and their replacements.

    The map is the size of a double-array trie (Darts), the trie, whose values are places in a table, and the table of
    replacements, each ended by a zero byte.
    """
    (size,) = struct.unpack("<I", charsmap[:4])
    units, table = np.frombuffer(charsmap[4 : 4 + size], "<u4"), charsmap[4 + size :]
    labels = np.arange(1, 256, dtype=np.uint32)
    rules: dict[str, str] = {}
    places, keys = np.array([0], dtype=np.uint32), [b""]
    while len(places):  # all prefixes of one length at a time
        here = units[places]
        base = places ^ ((here >> 10) << ((here & 512) >> 6))
        for number in ((here >> 8) & 1).nonzero()[0]:  # prefixes that are keys
            value = int(units[base[number]] & 0x7FFFFFFF)
            rules[keys[number].decode()] = table[value : table.index(b"\0", value)].decode()
        children = base[:, None] ^ labels  # (prefixes, 255)
        inside = children < len(units)
        found = np.where(inside, units[np.where(inside, children, 0)] & np.uint32(0x800000FF), 0)
        rows, columns = ((found == labels) & inside).nonzero()
        keys = [keys[row] + bytes([column + 1]) for row, column in zip(rows, columns, strict=True)]
        places = children[rows, columns]
    return rules


@cache
def _composable() -> str:
    """Return a pattern of separators after which NFC composes just what the library's rules compose."""
    composed, marks = set[str](), set[str]()
    for character in map(chr, range(0x80, sys.maxunicode + 1)):
        parts = unicodedata.normalize("NFD", character)
        if parts != character:
            composed.add(character)
            if unicodedata.normalize("NFC", character) == character and not "\uac00" <= character <= "\ud7a3":
                marks.update(parts[1:])
    above = {mark for mark in marks if unicodedata.combining(mark) >= 230}  # these come last in canonical order
    whole, first, second = (_character_class(c) for c in (composed, above, marks - above))
    starter = r"\P{M}"
    return "|".join(
        [
            rf"(?<![{whole}])(?<=[{starter}{first}{second}]){SEPARATOR}(?=[{first}{FINALS}])",
            rf"(?<![{whole}])(?<=[{starter}{second}]){SEPARATOR}(?=[{second}])",
        ]
    )


def _character_class(characters: Iterable[str]) -> str:
    """Return the inside of a character class, neighbors as ranges.

    >>> _character_class("abcx")
    'a-cx'
    """
    ranges: list[list[int]] = []
    for code in sorted(map(ord, characters)):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(chr(a) if a == b else f"{chr(a)}-{chr(b)}" for a, b in ranges)
