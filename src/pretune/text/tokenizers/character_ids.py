"""Words as rows of bytes, in the 262 symbols of ELMo (Peters et al., 2018).

0 fills rows of tokens that are no words (masked); 1 to 256 are the bytes of UTF-8; then come the symbols for the beginning
and the end of a text, for the beginning and the end of a word, and what fills up a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
SYMBOLS = 262
TEXT_BEGINS, TEXT_ENDS, WORD_BEGINS, WORD_ENDS, FILLER = range(257, 262)
LONGEST = 50  # symbols a word, its beginning and end among them


def spell(words: Iterable[str], longest: int = LONGEST) -> Array:
    """(words, longest) symbols; bytes that are too many are left out.

    >>> spell(["hé"], longest=6).tolist()
    [[259, 105, 196, 170, 260, 261]]
    """
    rows = [_row([byte + 1 for byte in word.encode("utf-8", "replace")], longest) for word in words]
    return np.array(rows, dtype=np.int16).reshape(len(rows), longest)


def unspell(row: Array) -> str:
    """The word that some symbols spell.

    >>> unspell(spell(["hé"])[0])
    'hé'
    """
    return bytes(int(symbol) - 1 for symbol in row if 0 < symbol <= 256).decode("utf-8", "replace")


def spell_vocabulary(vocabulary: Iterable[str], roles: Mapping[str, int], longest: int = LONGEST) -> Array:
    """(size, longest) the spelling of every token; those that start, end and fill have symbols of their own."""
    table = spell(vocabulary, longest)
    own = {"start": TEXT_BEGINS, "end": TEXT_ENDS}
    for role, symbol in own.items():
        if role in roles:
            table[roles[role]] = _row([symbol], longest)
    if "padding" in roles:
        table[roles["padding"]] = 0
    return table


def _row(symbols: list[int], longest: int) -> list[int]:
    word = [WORD_BEGINS, *symbols[: longest - 2], WORD_ENDS]
    return word + [FILLER] * (longest - len(word))
