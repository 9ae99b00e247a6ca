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

PAIR = "pair"  # the label of a sequence that is one text, or one order, of a pair of texts: the number of the pair


class TextRows(Protocol):
    """A protocol for lists of rows with one or two texts each: labeled examples, candidates, or turns of dialogues."""

    @property
    def texts(self) -> list[str]:
        """Return the text of each row."""

    @property
    def pairs(self) -> list[str] | None:
        """Return the second text of each row; None if rows have a single text."""


@dataclass
class TokenRows:
    """The token ids of all texts of a list of rows, concatenated.

    `words` is the mask of the tokens that begin a word; `starts` and `lengths` (rows, 1 or 2) have the first token and
    the number of tokens of each text. `unknown` has the positions of out-of-vocabulary words, and `spellings` their
    character ids.
    """

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
        """Store the positions and the character ids of out-of-vocabulary words, which ELMo needs.

        `starts` has the index of the first token of each text.
        """
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
        """Return a mask of the tokens that begin a word, for the concatenated spans with given starts and lengths."""
        return self.words[span_indices(starts, lengths)]

    def unknown_words(self, starts: Array, lengths: Array) -> tuple[Array, Array]:
        """Return the out-of-vocabulary words in the concatenated spans with given starts and lengths.

        The first array has their positions, counted in the concatenation of the spans, the second one their character
        ids (for ELMo), with one row per word.
        """
        tokens = span_indices(starts, lengths)
        at = np.flatnonzero(np.isin(tokens, self.unknown))
        return at, self.spellings[np.searchsorted(self.unknown, tokens[at])]


def arrange_rows(
    rows: TokenRows, tokenizer: Tokenizer, template: Template, length: int, labels: Mapping[str, Array]
) -> Arrangement:
    """Arrange tokenized rows as one sequence each, with the special tokens of `template`, at most `length` tokens long.

    `labels` has arrays with one value per row. Pairs of texts are truncated as `transformers` does ("longest_first"),
    so that an exported model sees the same tokens there.
    """
    pair = rows.lengths.shape[1] == 2
    room = length - template.num_special_tokens(pair)
    if room < 1 + pair:
        raise PretuneError(
            f"a maximum length of {length} tokens leaves no room for text; choose a larger maximum length (batch.max_length)"
        )
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


def arrange_separately(
    rows: TokenRows, tokenizer: Tokenizer, template: Template, length: int, labels: Mapping[str, Array]
) -> Arrangement:
    """Arrange the two texts of each row as two separate, adjacent sequences, at most `length` tokens long each.

    `labels` has arrays with one value per row, which is repeated for both sequences.
    """
    room = length - template.num_special_tokens(pair=False)
    if room < 1:
        raise PretuneError(
            f"a maximum length of {length} tokens leaves no room for text; choose a larger maximum length (batch.max_length)"
        )
    lengths, both = rows.lengths.reshape(-1, 1), _twice(len(rows.lengths), labels)
    spans, cut = np.minimum(lengths, room), int((lengths > room).sum())
    return Arrangement(rows, tokenizer, template, rows.starts.reshape(-1, 1), spans, both, truncated=cut)


def arrange_both_orders(
    rows: TokenRows, tokenizer: Tokenizer, template: Template, length: int, labels: Mapping[str, Array]
) -> Arrangement:
    """Arrange each row as two adjacent sequences: its two texts in their order, and in the opposite order.

    `labels` has arrays with one value per row, which is repeated for both sequences.
    """
    once = arrange_rows(rows, tokenizer, template, length, {})
    starts, spans = (np.stack([x, x[:, ::-1]], 1).reshape(-1, 2) for x in (once.starts, once.spans))
    both = _twice(len(once), labels)
    return Arrangement(rows, tokenizer, template, starts, spans, both, truncated=once.truncated)


def _twice(rows: int, labels: Mapping[str, Array]) -> dict[str, Array]:
    """Return labels for two adjacent sequences per row: each value is repeated, and arrays of row indices are added.

    `labels` has arrays with one value per row, and `rows` is the number of rows. The arrays of row indices keep the two
    sequences of a row together.
    """
    pair = np.repeat(np.arange(rows), 2)
    return {name: np.repeat(label, 2, 0) for name, label in labels.items()} | {
        "example": pair,
        "group": pair,
        PAIR: pair,
    }
