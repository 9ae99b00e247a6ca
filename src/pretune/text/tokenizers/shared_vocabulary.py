"""Match the tokens of two vocabularies, independently of how each marks word boundaries."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.word_starts import token_text

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]
# Continuation prefix, end-of-word suffix, and whether tokens are byte-level.
Marks = tuple[str | None, str | None, bool]


def match_tokens(old: Tokenizer, new: Tokenizer) -> Ids:
    """Return, for each token of the new vocabulary, its id in the old one, (new size,); -1 if it is not in there.

    Special tokens match by role ([MASK] and <mask>). Other tokens match if they are the same text at the same position
    in a word: Ġthe, ▁the, and "the" of a WordPiece vocabulary that marks continuations with ##. For tokens without
    letters or digits, such as punctuation, the position does not matter.
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
    """Return a key of the token with the id `number`, by which `match_tokens` compares the tokens of two vocabularies.

    The key is (whether the token starts a word, text). It is the token string itself for special tokens, and if
    `marks`, the way in which the vocabulary marks word starts, is None.
    """
    if marks is None or tokenizer.specials[number]:
        return token
    prefix, suffix, byte_level = marks
    if suffix:  # such a vocabulary does not mark word starts
        return token
    if prefix:
        starts, text = not token.startswith(prefix), token.removeprefix(prefix)
    else:
        read = token_text(token, byte_level)
        starts, text = read[:1].isspace(), read.lstrip()
        if "\ufffd" in text:  # part of a character
            return token
    return (starts and any(letter.isalnum() for letter in text), text)
