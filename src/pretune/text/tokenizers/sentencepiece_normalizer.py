"""Reproduce SentencePiece's normalization with the normalizers of the `tokenizers` library.

A .model file contains its rules as a compiled map from character sequences to replacements; the longest match is
applied. `normalizers.Precompiled` reads that map but applies it to grapheme clusters of up to five bytes: it leaves
Hangul Jamo and kana with combining marks decomposed, and loses the mark in "Ａ" + U+0301. So a separator is inserted
before every character that would extend a grapheme cluster, so that `Precompiled` sees one character at a time, and
canonical composition (NFC) replaces the rules for several characters. Where SentencePiece does not compose (after
precomposed characters, after ligatures, and where marks are not in canonical order), a second separator stays until NFC
is done.
"""

from __future__ import annotations

import struct
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache

import numpy as np
from tokenizers import Regex, normalizers

from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.backend import check_compiled_rules

# Private-use separators: NFC may compose across the first, not across the second.
OPEN, CLOSED = "\ue0f3", "\ue0f4"
EXTENDING = r"\p{M}\u200c\u200d\uff9e\uff9f\U000e0020-\U000e007f"  # characters that extend a grapheme cluster
FINALS = r"\u11a8-\u11c2"  # the last consonants of Hangul syllables
LONGEST_KEY, MOST_KEYS = 256, 1 << 16  # maximum bytes of a rule's source, and maximum number of sources of one length
# SentencePiece's built-in rules; their multi-character sequences are those that NFC composes.
COMPOSING = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")


def build_normalizers(name: str, charsmap: bytes) -> list[normalizers.Normalizer]:
    """Return normalizers that apply the compiled normalization rules of a SentencePiece model (`charsmap`).

    `name` is the name of the rules in the model, such as "nmt_nfkc".
    """
    if not charsmap:
        return []
    check_compiled_rules(charsmap)
    # Testing for non-ASCII characters first is much faster: the full character class is slow to test.
    before = rf"(?=[^\x00-\x7f])(?=[{EXTENDING}{FINALS}])(?<!\A)(?<!{OPEN})"
    apart = [normalizers.Replace("\r\n", f"\r{CLOSED}\n"), normalizers.Replace(Regex(before), CLOSED)]
    rules, together = normalizers.Precompiled(charsmap), normalizers.Replace(CLOSED, "")
    if name not in COMPOSING and not _composes(charsmap):
        return [*apart, rules, together]
    composable = normalizers.Replace(Regex(_composable()), OPEN)
    return [composable, *apart, rules, normalizers.Replace(OPEN, ""), normalizers.NFC(), together]


def _composes(charsmap: bytes) -> bool:
    """Return whether compiled normalization rules compose characters with combining marks, as NFC does.

    Raise an error if the results of these rules would differ from those of NFC.
    """
    try:
        rules = read_compiled_rules(charsmap)
    except (IndexError, ValueError, struct.error) as error:
        raise PretuneError("the normalization rules are damaged; download the file again") from error
    several = {source: target for source, target in rules.items() if len(source) > 1}
    for source, target in several.items():
        mapped = "".join(rules.get(character, character) for character in source)
        known = all(unicodedata.category(character) != "Cn" for character in source)
        if known and unicodedata.normalize("NFC", mapped) != target:
            rule = f"{source!r} → {target!r}"
            advice = f"train the sentencepiece model with one of the rules {', '.join(COMPOSING)} or identity"
            raise PretuneError(f"custom rules for several characters, such as {rule}, are not supported; {advice}")
    return bool(several)


def read_compiled_rules(charsmap: bytes) -> dict[str, str]:
    """Return SentencePiece's compiled normalization rules as a dictionary from character sequences to replacements.

    `charsmap` consists of the size of a double-array trie (Darts), the trie itself, whose values are offsets, and the
    table of null-terminated replacements into which the offsets point.
    """
    (size,) = struct.unpack("<I", charsmap[:4])
    units, table = np.frombuffer(charsmap[4 : 4 + size], "<u4"), charsmap[4 + size :]
    labels = np.arange(1, 256, dtype=np.uint32)
    rules: dict[str, str] = {}
    places, keys = np.array([0], dtype=np.uint32), [b""]
    while len(places):  # all prefixes of one length per iteration
        if len(keys[0]) > LONGEST_KEY or len(keys) > MOST_KEYS:
            raise ValueError("the trie of the normalization rules contains a cycle; download the file again")
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
    """Return a regular expression that matches before a combining mark that is joined with the preceding character."""
    # A fixed version of the Unicode data, so that a .model file gives the same tokenizer on every version of Python.
    characters = unicodedata.ucd_3_2_0
    whole, marks = set[str](), set[str]()  # characters that are not composed further; marks that are composed
    signs = set[str]()  # vowel signs: marks that other marks are composed with
    for character in map(chr, range(0x80, sys.maxunicode + 1)):
        parts = characters.normalize("NFD", character)
        if max(len(parts), len(characters.normalize("NFKC", character))) > 1:
            whole.add(character)
        if parts != character == characters.normalize("NFC", character) and not "\uac00" <= character <= "\ud7a3":
            marks.update(parts[1:])
            signs.update(part for part in parts[:1] if characters.category(part)[0] == "M")
    # Compatibility forms of these marks, such as halfwidth ones.
    marks |= {chr(code) for code in range(0x80, 0x10000) if characters.normalize("NFKC", chr(code)) in marks}
    whole -= marks
    # These come last in canonical order.
    late = {mark for mark in marks if characters.combining(characters.normalize("NFKC", mark)) >= 230}
    closed, last, first = (_character_class(c) for c in (whole, late, marks - late))
    base = rf"[^\p{{M}}\p{{C}}]|[{_character_class(signs)}]"
    return (
        rf"(?=[^\x00-\x7f])(?:(?=[{last}{FINALS}])(?<={base}|[{last}{first}])|(?=[{first}])(?<={base}|[{first}]))"
        rf"(?<![{closed}])"
    )


def _character_class(characters: Iterable[str]) -> str:
    """Return the inside of a character class, as between [ and ] in a regular expression, for given characters.

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
