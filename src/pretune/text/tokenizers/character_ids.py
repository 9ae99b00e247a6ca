"""Encode words as rows of character ids, with ELMo's 262 symbols (Peters et al., 2018).

0 is padding, for rows of masked tokens; 1 to 256 are the bytes of UTF-8; then come the symbols for begin of text, end
of text, begin of word, end of word, and padding within a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from pretune.runtime.arrays import Array

SYMBOLS = 262
TEXT_BEGINS, TEXT_ENDS, WORD_BEGINS, WORD_ENDS, FILLER = range(257, 262)
MAX_CHARACTERS = 50  # symbols per word, including begin and end


def encode_characters(words: Iterable[str], longest: int = MAX_CHARACTERS) -> Array:
    """Return the character ids of each word, (words, longest); bytes beyond that length are dropped.

    >>> encode_characters(["hé"], longest=6).tolist()
    [[259, 105, 196, 170, 260, 261]]
    """
    rows = [_pad_word([byte + 1 for byte in word.encode("utf-8", "replace")], longest) for word in words]
    return np.array(rows, dtype=np.int16).reshape(len(rows), longest)


def decode_characters(row: Array) -> str:
    """Return the word that a row of character ids encodes.

    >>> decode_characters(encode_characters(["hé"])[0])
    'hé'
    """
    return bytes(int(symbol) - 1 for symbol in row if 0 < symbol <= 256).decode("utf-8", "replace")


def encode_vocabulary_characters(
    vocabulary: Iterable[str], roles: Mapping[str, int], longest: int = MAX_CHARACTERS
) -> Array:
    """Return the character ids of every token, (size, longest); start, end and padding tokens have dedicated symbols."""
    table = encode_characters(vocabulary, longest)
    dedicated = {"start": TEXT_BEGINS, "end": TEXT_ENDS}
    for role, symbol in dedicated.items():
        if role in roles:
            table[roles[role]] = _pad_word([symbol], longest)
    if "padding" in roles:
        table[roles["padding"]] = 0
    return table


def _pad_word(symbols: list[int], longest: int) -> list[int]:
    word = [WORD_BEGINS, *symbols[: longest - 2], WORD_ENDS]
    return word + [FILLER] * (longest - len(word))
