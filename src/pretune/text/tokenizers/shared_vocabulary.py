"""Which tokens two vocabularies share, whatever marks each of them puts on words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.word_starts import surface

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]
Marks = tuple[str | None, str | None, bool]  # of continuations, of word ends, and whether tokens are bytes


def match_tokens(old: Tokenizer, new: Tokenizer) -> Ids:
    """(size of the new vocabulary,) the id that each token has in the old one, -1 where it has none.

    Tokens that play a role match by that role, [MASK] and <mask>; the others if they are the same text at the same place in a
    word: Ġthe, ▁the and the of a WordPiece that continues words with ##. Where punctuation stands does not matter.
    """
    before, after = (_marks(tokenizer) for tokenizer in (old, new))
    same = before == after
    known: dict[Any, int] = {}
    for number, token in enumerate(old.vocabulary):
        if token:
            known.setdefault(_key(old, number, token, None if same else before), number)
    where = np.full(new.size, -1, dtype=np.int64)
    for number, token in enumerate(new.vocabulary):
        where[number] = known.get(_key(new, number, token, None if same else after), -1) if token else -1
    for role, number in new.roles.items():
        where[number] = old.roles.get(role, where[number])
    return where


def _marks(tokenizer: Tokenizer) -> Marks:
    content = json.loads(tokenizer.backend.to_str())
    model = content["model"]
    byte_level = "'ByteLevel'" in str([content["pre_tokenizer"], content["decoder"]])
    return model.get("continuing_subword_prefix") or None, model.get("end_of_word_suffix") or None, byte_level


def _key(tokenizer: Tokenizer, number: int, token: str, marks: Marks | None) -> Any:
    """What a token must share with another: without marks, its spelling; else its text, and whether that starts a word."""
    if marks is None or tokenizer.specials[number]:
        return token
    prefix, suffix, byte_level = marks
    if suffix:  # whether it starts a word cannot be told
        return token
    if prefix:
        starts, text = not token.startswith(prefix), token.removeprefix(prefix)
    else:
        read = surface(token, byte_level)
        starts, text = read[:1].isspace(), read.lstrip()
        if "\ufffd" in text:  # part of a character
            return token
    return (starts and any(letter.isalnum() for letter in text), text)
