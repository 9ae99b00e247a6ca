"""Learn the vocabulary of WordPiece by likelihood (Schuster and Nakajima, 2012, Japanese and Korean Voice Search).

Like BPE, training starts with characters and merges a pair of pieces at a time. BPE merges the most frequent pair. Here
it is the pair that raises the likelihood of the text most per occurrence: its count, divided by the product of the
counts of its parts. So parts that seldom occur without each other are merged first, however rare they are.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from pretune.runtime.arrays import Array

PREFIX = "##"  # of pieces that do not begin a word
MIN_FREQUENCY = 2  # of pairs that are merged
NOTE_EVERY = 1000  # merges between progress messages


def learn_wordpieces(
    words: Mapping[str, int],
    known: Collection[str],
    size: int,
    note: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Return the pieces that merges add to the vocabulary `known` until it has `size` tokens, in order of merging.

    Of pairs with equal scores, the most frequent pair is merged; of equally frequent pairs, the one that occurred
    first.

    Parameters
    ----------
    words
        How often each word occurs; words with characters outside `known` are left out.
    known
        The vocabulary so far, with all characters: c if they begin a word, ##c inside words.
    size
        The number of tokens of the final vocabulary. Training stops earlier if no pair occurs twice.
    note
        A callback for progress messages.

    >>> words = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
    >>> learn_wordpieces(words, ["h", "p", "b", "##u", "##g", "##n", "##s"], 10)
    ['##gs', 'pu', 'hu']
    """
    pairs = _Pairs(words, frozenset(known))
    learned: dict[str, None] = {}
    while len(known) + len(learned) < size and (best := pairs.best()) is not None:
        piece = pairs.merge(best)
        if piece not in known:  # two pairs may give the same piece
            learned[piece] = None
        if len(learned) % NOTE_EVERY == 0:
            note(f"{len(known) + len(learned):,} of {size:,} pieces")
    return list(learned)


class _Pairs:
    """The words of a text as sequences of pieces, with the counts of pieces and the scores of adjacent pairs.

    Pieces, words and pairs are referred to by their index.
    """

    def __init__(self, words: Mapping[str, int], known: Collection[str]) -> None:
        self.pieces: list[str] = []  # by number
        self.numbers: dict[str, int] = {}
        self.words: list[list[int]] = []
        self.frequencies: list[int] = []
        for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0])):
            split = [word[:1], *(PREFIX + character for character in word[1:])]
            if all(piece in known for piece in split):
                self.words.append([self._number(piece) for piece in split])
                self.frequencies.append(count)
        self.pairs: dict[tuple[int, int], int] = {}  # the index of a pair in the arrays
        self.parts: list[tuple[int, int]] = []
        self.with_piece: defaultdict[int, list[int]] = defaultdict(list)  # the pairs that a piece is part of
        self.places: list[set[int]] = []  # the words that a pair may be in
        self.piece_counts: Counter[int] = Counter()
        self.counts: Array = np.zeros(1024, dtype=np.int64)
        self.scores: Array = np.zeros(1024)
        changed: set[int] = set()
        for number, (pieces, count) in enumerate(zip(self.words, self.frequencies, strict=True)):
            self._add(number, pieces, count, changed)
        self._score(changed)

    def best(self) -> tuple[int, int] | None:
        """Return the pair of piece indices with the highest score, or None if no pair occurs often enough."""
        found = self.scores[: len(self.parts)]
        if not found.any():
            return None
        equal = np.flatnonzero(found == found.max())
        return self.parts[equal[self.counts[equal].argmax()]]

    def merge(self, pair: tuple[int, int]) -> str:
        """Replace a pair of pieces by a single piece in all words, and return the text of this piece."""
        left, right = pair
        merged = self.pieces[left] + self.pieces[right].removeprefix(PREFIX)
        new, changed = self._number(merged), set[int]()
        places = self.places[self.pairs[pair]]
        for number in sorted(places):
            word, count = self.words[number], self.frequencies[number]
            after = _replace(word, pair, new)
            if len(after) < len(word):  # else an earlier merge has removed the pair from this word
                self._add(number, word, -count, changed)
                self._add(number, after, count, changed)
                self.words[number] = after
        places.clear()
        # The counts of both parts have changed, and with them the scores of all their pairs.
        self._score(changed.union(self.with_piece[left], self.with_piece[right], self.with_piece[new]))
        return merged

    def _number(self, piece: str) -> int:
        if piece not in self.numbers:
            self.numbers[piece] = len(self.pieces)
            self.pieces.append(piece)
        return self.numbers[piece]

    def _add(self, number: int, word: Sequence[int], count: int, changed: set[int]) -> None:
        """Add `count` occurrences of a word to the counts of its pieces and pairs; a negative `count` removes them.

        `number` is the index of the word and `word` has the indices of its pieces. The indices of the pairs whose
        counts have changed are added to `changed`.
        """
        for piece in word:
            self.piece_counts[piece] += count
        for pair in itertools.pairwise(word):
            index = self.pairs.get(pair)
            if index is None:
                index = self.pairs[pair] = len(self.parts)
                self.parts.append(pair)
                self.places.append(set())
                for piece in {*pair}:
                    self.with_piece[piece].append(index)
                if index == len(self.counts):
                    self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)])
                    self.scores = np.concatenate([self.scores, np.zeros_like(self.scores)])
            self.counts[index] += count
            if count > 0:
                self.places[index].add(number)
            changed.add(index)

    def _score(self, changed: Collection[int]) -> None:
        """Recompute the scores of the pairs whose indices are in `changed`; pairs that occur too seldom get 0."""
        indices = np.fromiter(changed, dtype=np.int64, count=len(changed))
        lefts, rights = (
            np.array([self.piece_counts[self.parts[index][side]] for index in changed], dtype=np.float64)
            for side in (0, 1)
        )
        counts = self.counts[indices]
        often = counts >= MIN_FREQUENCY
        self.scores[indices] = np.where(often, counts / np.where(often, lefts * rights, 1.0), 0.0)


def _replace(word: Sequence[int], pair: tuple[int, int], new: int) -> list[int]:
    """Return the piece indices of a word in which the piece `new` replaces each occurrence of a pair of pieces.

    Occurrences are replaced from left to right.
    """
    after: list[int] = []
    at = 0
    while at < len(word):
        if at + 1 < len(word) and (word[at], word[at + 1]) == pair:
            after.append(new)
            at += 2
        else:
            after.append(word[at])
            at += 1
    return after
