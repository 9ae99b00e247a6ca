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


def encode_characters(words: Iterable[str], length: int = MAX_CHARACTERS) -> Array:
    """Return the character ids of each word, (words, length); words that do not fit into `length` are truncated.

    A word takes one id per UTF-8 byte and two ids for its begin and end.

    >>> encode_characters(["hé"], length=6).tolist()
    [[259, 105, 196, 170, 260, 261]]
    """
    rows = [_pad_word([byte + 1 for byte in word.encode("utf-8", "replace")], length) for word in words]
    return np.array(rows, dtype=np.int16).reshape(len(rows), length)


def decode_characters(row: Array) -> str:
    """Return the word that a row of character ids encodes.

    >>> decode_characters(encode_characters(["hé"])[0])
    'hé'
    """
    return bytes(int(symbol) - 1 for symbol in row if 0 < symbol <= 256).decode("utf-8", "replace")


def encode_vocabulary_characters(
    vocabulary: Iterable[str], roles: Mapping[str, int], length: int = MAX_CHARACTERS
) -> Array:
    """Return the character ids of every token of a vocabulary, (vocabulary size, length).

    `roles` maps roles to token ids: the start and end tokens get reserved symbols, and the padding token gets zeros.
    """
    table = encode_characters(vocabulary, length)
    for role, symbol in (("start", TEXT_BEGINS), ("end", TEXT_ENDS)):
        if role in roles:
            table[roles[role]] = _pad_word([symbol], length)
    if "padding" in roles:
        table[roles["padding"]] = 0
    return table


def _pad_word(symbols: list[int], length: int) -> list[int]:
    word = [WORD_BEGINS, *symbols[: length - 2], WORD_ENDS]
    return word + [FILLER] * (length - len(word))
