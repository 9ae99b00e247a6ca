"""Labeled rows as a token source in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.dialogues import Dialogues
from pretune.text.examples.labeled import Labeled
from pretune.text.packing.sequences import Arrangement, Template
from pretune.text.store.store import spans_to_indices
from pretune.text.tokenizers.character_ids import spell
from pretune.text.tokenizers.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class TokenRows:
    """The ids of all texts of some rows end to end."""

    ids: Array
    words: Array
    starts: Array  # (rows, 1 or 2)
    lengths: Array  # (rows, 1 or 2)
    odd: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # (k,) ids of words outside the vocabulary
    spelled: Array = field(default_factory=lambda: np.empty((0, 0), dtype=np.int16))  # (k, symbols) and their spellings

    @classmethod
    def make(cls, rows: Labeled | Dialogues, tokenizer: Tokenizer) -> TokenRows:
        """Tokenize a file's texts, and its second texts where it has them; of dialogues every turn is a row."""
        texts = [rows.texts] if rows.pairs is None else [rows.texts, rows.pairs]
        sides = [side.encode_many(column) for side, column in zip((tokenizer, tokenizer.target), texts, strict=False)]
        ids, lengths = (np.concatenate(parts) for parts in zip(*sides, strict=True))
        starts = np.cumsum(lengths) - lengths
        words = np.concatenate(
            [tokenizer.word_starts(sides[0][0]), *(tokenizer.target.word_starts(s[0]) for s in sides[1:])]
        )
        words[starts[lengths > 0]] = True
        shape = (len(texts), len(rows.texts))
        made = cls(ids, words, starts.reshape(shape).T, lengths.reshape(shape).T)
        made.spell_unknown([text for column in texts for text in column], starts, tokenizer)
        return made

    def spell_unknown(self, texts: Sequence[str], starts: Array, tokenizer: Tokenizer) -> None:
        """Keep how unknown words are spelled, for a tokenizer that spells; `starts` is where the ids of each text begin."""
        if not tokenizer.characters:
            return
        self.odd = np.flatnonzero(self.ids == tokenizer.role("unknown"))
        words: list[str] = []
        owner = np.searchsorted(starts, self.odd, side="right") - 1  # empty texts share a start with the one after them
        for text in np.unique(owner):
            places = tokenizer.places([texts[text]])
            words += [texts[text][slice(*places[number])] for number in self.odd[owner == text] - starts[text]]
        self.spelled = spell(words, tokenizer.characters)

    def gather(self, starts: Array, lengths: Array) -> Array:
        """Ids of some spans end to end."""
        return self.ids[spans_to_indices(starts, lengths)]

    def gather_words(self, starts: Array, lengths: Array) -> Array:
        """Word starts of some spans end to end."""
        return self.words[spans_to_indices(starts, lengths)]

    def odd_words(self, starts: Array, lengths: Array) -> tuple[Array, Array]:
        """Words outside the vocabulary: which of the tokens of some spans, and their spellings."""
        places = spans_to_indices(starts, lengths)
        at = np.flatnonzero(np.isin(places, self.odd))
        return at, self.spelled[np.searchsorted(self.odd, places[at])]


def arrange_rows(
    rows: TokenRows, tokenizer: Tokenizer, template: Template, length: int, labels: Mapping[str, Array]
) -> Arrangement:
    """Return one sequence per row, truncated to `length` tokens.

    Pairs are truncated as in `transformers` ("longest_first"), so that an exported model sees the same tokens there.
    """
    pair = rows.lengths.shape[1] == 2
    room = length - template.overhead(pair)
    if room < 1 + pair:
        raise PretuneError(f"sequences of {length} tokens leave no room for text; ask for longer ones")
    spans = rows.lengths.copy()
    over = np.maximum(0, spans.sum(1) - room)
    if pair:
        # The longer text is truncated to the other's length first, then both evenly; if the room is odd, the longer one keeps
        # one token more, or the second one if they are equal.
        half = np.where(spans[:, 0] > spans[:, 1], room - room // 2, room // 2)
        first = np.clip(spans[:, 0], None, np.maximum(room - spans[:, 1], half))
        spans[:, 0] = np.where(over > 0, first, spans[:, 0])
        spans[:, 1] = np.where(over > 0, np.minimum(spans[:, 1], room - first), spans[:, 1])
    else:
        spans[:, 0] -= over
    return Arrangement(rows, tokenizer, template, rows.starts, spans, dict(labels), truncated=int((over > 0).sum()))
