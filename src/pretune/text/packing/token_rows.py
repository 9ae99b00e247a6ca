"""Tokenize the texts of rows, and hold the tokens in memory as a source of token spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.text.packing.sequences import Arrangement
from pretune.text.spans import span_indices
from pretune.text.tokenizers.character_ids import encode_characters
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer


class TextRows(Protocol):
    """A protocol for rows with one or two texts each: labeled examples, candidates, or turns of dialogues."""

    @property
    def texts(self) -> list[str]:
        """Return the text of each row."""

    @property
    def pairs(self) -> list[str] | None:
        """Return the second text of each row; None if rows have a single text."""


@dataclass
class TokenRows:
    """The token ids of the texts of rows, concatenated."""

    ids: Array
    words: Array  # mask of the tokens that start a word
    starts: Array  # (rows, 1 or 2) first token of each text
    lengths: Array  # (rows, 1 or 2)
    unknown: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # (k,) positions of unknown words
    spellings: Array = field(default_factory=lambda: np.empty((0, 0), dtype=np.int16))  # (k, characters) of these words

    @classmethod
    def make(cls, rows: TextRows, tokenizer: Tokenizer) -> TokenRows:
        """Tokenize the texts of rows, and their second texts if there are any."""
        texts = [rows.texts] if rows.pairs is None else [rows.texts, rows.pairs]
        tokenizers = (tokenizer, tokenizer.target)
        encoded = [side.encode_many(column) for side, column in zip(tokenizers, texts, strict=False)]
        ids, lengths = (np.concatenate(parts) for parts in zip(*encoded, strict=True))
        starts = np.cumsum(lengths) - lengths
        words = np.concatenate([side.word_starts(e[0]) for side, e in zip(tokenizers, encoded, strict=False)])
        words[starts[lengths > 0]] = True
        shape = (len(texts), len(rows.texts))
        made = cls(ids, words, starts.reshape(shape).T, lengths.reshape(shape).T)
        made.keep_unknown_characters([text for column in texts for text in column], starts, tokenizer)
        return made

    def keep_unknown_characters(self, texts: Sequence[str], starts: Array, tokenizer: Tokenizer) -> None:
        """Store the character ids of out-of-vocabulary words (for ELMo); `starts` are the first tokens of the texts."""
        if not tokenizer.characters:
            return
        self.unknown = np.flatnonzero(self.ids == tokenizer.role("unknown"))
        words: list[str] = []
        owner = np.searchsorted(starts, self.unknown, side="right") - 1  # an empty text has the start of the next one
        for text in np.unique(owner):
            offsets = tokenizer.part_offsets([texts[text]])
            words += [texts[text][slice(*offsets[number])] for number in self.unknown[owner == text] - starts[text]]
        self.spellings = encode_characters(words, tokenizer.characters)

    def gather(self, starts: Array, lengths: Array) -> Array:
        """Return the token ids of spans, concatenated, given the first token and the length of each span."""
        return self.ids[span_indices(starts, lengths)]

    def gather_words(self, starts: Array, lengths: Array) -> Array:
        """Return masks of the tokens that begin a word, concatenated over spans with the given starts and lengths."""
        return self.words[span_indices(starts, lengths)]

    def unknown_words(self, starts: Array, lengths: Array) -> tuple[Array, Array]:
        """Return the positions of out-of-vocabulary words among the tokens of spans, and their character ids."""
        tokens = span_indices(starts, lengths)
        at = np.flatnonzero(np.isin(tokens, self.unknown))
        return at, self.spellings[np.searchsorted(self.unknown, tokens[at])]


def arrange_rows(
    rows: TokenRows, tokenizer: Tokenizer, template: Template, length: int, labels: Mapping[str, Array]
) -> Arrangement:
    """Arrange tokenized rows as one sequence each, with the special tokens of `template`, at most `length` tokens long.

    Pairs are truncated as in `transformers` ("longest_first"), so that an exported model gets the same tokens there.
    """
    pair = rows.lengths.shape[1] == 2
    room = length - template.num_special_tokens(pair)
    if room < 1 + pair:
        raise PretuneError(f"a maximum length of {length} tokens leaves no room for text; choose a larger one")
    spans = rows.lengths.copy()
    over = np.maximum(0, spans.sum(1) - room)
    if pair:
        # The longer text is truncated to the length of the other, then both evenly; if `room` is odd, the longer text (the
        # second if they are equal) keeps one token more.
        half = np.where(spans[:, 0] > spans[:, 1], room - room // 2, room // 2)
        first = np.clip(spans[:, 0], None, np.maximum(room - spans[:, 1], half))
        spans[:, 0] = np.where(over > 0, first, spans[:, 0])
        spans[:, 1] = np.where(over > 0, np.minimum(spans[:, 1], room - first), spans[:, 1])
    else:
        spans[:, 0] -= over
    return Arrangement(rows, tokenizer, template, rows.starts, spans, dict(labels), truncated=int((over > 0).sum()))
