"""Define the kinds of tokenizers, in a module that `pretune --help` can import without the `tokenizers` library."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "wordpiece",
    "bpe",
    "byte-level-bpe",
    "unigram",
    "sentencepiece-bpe",
    "sentencepiece-unigram",
    "items",
    "words",
    "characters",
]
WHOLE_WORDS = ("items", "words", "characters")  # kinds without subwords
PairScore = Literal["frequency", "likelihood"]  # what WordPiece training merges first
