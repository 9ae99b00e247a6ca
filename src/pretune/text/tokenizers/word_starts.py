"""Find word starts in token ids, for whole-word masking with any kind of tokenizer.

Tokenizers mark words in three ways: a prefix on continuations (WordPiece's ##), a suffix on the last piece (</w>), or a
space kept in the first piece (Ġ of byte-level BPE, ▁ of SentencePiece) or in the last one (SentencePiece trained with
`treat_whitespace_as_suffix`). With kept spaces, adjacent runs of punctuation, digits and letters are separate words, as
in BERT's pre-tokenizer, and so is every Chinese character or kana.
"""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from typing import Any

import numpy as np
import tokenizers

# ANY: a lone space marker, which the next piece continues; SPACE: a space after a word, which nothing continues
LETTER, DIGIT, OTHER, ANY, SPACE = 0, 1, 2, 3, 4
Ids = np.ndarray[tuple[int], np.dtype[Any]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


class WordStarts:
    """A function of token ids that returns a mask of the tokens that start a word."""

    def __init__(
        self, backend: tokenizers.Tokenizer, vocabulary: list[str], specials: Mask, unknown: int | None
    ) -> None:
        size = len(vocabulary)
        content = json.loads(backend.to_str())
        prefix = content["model"].get("continuing_subword_prefix")
        suffix = content["model"].get("end_of_word_suffix")
        self.always = specials.copy()  # starts a word regardless of the previous token
        self.first = np.full(size, ANY, dtype=np.int8)  # class of the first character
        self.last = np.full(size, ANY, dtype=np.int8)  # class of the last one; a word starts where the two differ
        if content["model"]["type"] == "WordLevel":
            self.always[:] = True
        elif prefix:
            self.always |= ~np.array([token.startswith(prefix) for token in vocabulary])
        elif suffix:
            self.first[:] = LETTER
            self.last[:] = [OTHER if token.endswith(suffix) else LETTER for token in vocabulary]
            self.last[specials] = OTHER
        else:
            byte_level = "'ByteLevel'" in str([content["pre_tokenizer"], content["decoder"]])
            marks = [(token.startswith("▁"), token.endswith("▁")) for token in vocabulary if token != "▁"]
            spaces_end = sum(end for _, end in marks) > sum(start for start, _ in marks)
            for identity, token in enumerate(vocabulary):
                text = token_text(token, byte_level)
                core = text.strip(" ") if spaces_end else text.lstrip()
                self.always[identity] |= (text[:1].isspace() and not spaces_end) or _stands_alone(core[:1])
                if core:
                    self.first[identity] = _character_class(core[0])
                    self.last[identity] = _character_class(core[-1])
                if spaces_end and text.endswith(" "):
                    self.last[identity] = SPACE
            self.first[specials] = self.last[specials] = OTHER
            if unknown is not None:  # an unknown character, which usually is inside a word
                self.always[unknown] = False
                self.first[unknown] = LETTER
                self.last[unknown] = ANY

    def __call__(self, ids: Ids) -> Mask:
        """Return a mask, (n,), of the tokens that start a word, given n token ids; the first token always does."""
        starts = self.always[ids]
        last = self.last[ids[:-1]]
        first = self.first[ids[1:]]
        starts[1:] |= (first != last) & (last != ANY) & (first != ANY)
        starts[:1] = True
        return starts


def _character_class(character: str) -> int:
    """Return the class of a character: LETTER (also for combining marks), DIGIT, or OTHER."""
    if character.isalpha() or unicodedata.category(character)[0] == "M" or character == "�":
        return LETTER
    return DIGIT if character.isnumeric() else OTHER


def _stands_alone(character: str) -> bool:
    """Return whether a character is a word by itself, as Chinese characters and kana are, but Hangul is not."""
    return bool(character) and ("㐀" <= character <= "鿿" or "぀" <= character <= "ヿ" or character >= "\U00020000")


def token_text(token: str, byte_level: bool) -> str:
    """Return the text of a token; bytes that are not a whole character become the replacement character.

    `byte_level` says whether tokens represent bytes, as in byte-level BPE.
    """
    if byte_level:
        table = _byte_table()
        if all(character in table for character in token):
            return bytes(table[character] for character in token).decode("utf-8", errors="replace")
    return token.replace("▁", " ")


@cache
def _byte_table() -> dict[str, int]:
    """Return GPT-2's table from characters to the bytes that they stand for.

    Printable bytes are represented by themselves, and the others by characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
