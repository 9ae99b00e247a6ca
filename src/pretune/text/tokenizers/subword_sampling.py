"""Sample segmentations of words into subwords: BPE-dropout, and sampling from a unigram language model.

Provilkov et al., 2020 (arXiv:1910.13267); Kudo, 2018 (arXiv:1804.10959). The functions take a generator of random
numbers, so that a seed determines the result; the `dropout` of the `tokenizers` library cannot be seeded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate, pairwise
from random import Random
from typing import Any, Protocol

from pretune.runtime.errors import PretuneError

Pieces = list[tuple[int, int, int]]  # token id, start and end character in the word, of each piece


@dataclass(frozen=True)
class SubwordSampling:
    """The settings of subword regularization: one of BPE-dropout and unigram sampling, or neither.

    `bpe_dropout` is the probability that a merge is skipped. With `unigram_alpha`, segmentations are sampled in
    proportion to their probability to the power `unigram_alpha`, from the `nbest_size` most probable ones (default:
    all).

    >>> SubwordSampling(bpe_dropout=0.1).active
    True
    """

    bpe_dropout: float | None = None
    unigram_alpha: float | None = None
    nbest_size: int | None = None

    @property
    def active(self) -> bool:
        """Return whether segmentations are sampled at all."""
        return bool(self.bpe_dropout) or self.unigram_alpha is not None

    def build(self, model: Mapping[str, Any]) -> SegmentationSampler:
        """Return the sampler for a tokenizer, given the part `model` of the content of its tokenizer.json."""
        options = {"BPE": ("bpe_dropout", self.bpe_dropout), "Unigram": ("unigram_alpha", self.unigram_alpha)}
        for kind, (name, value) in options.items():
            if value is not None and kind != model["type"]:
                raise PretuneError(
                    f"batch.{name} applies to {kind} tokenizers, but this model's tokenizer is {model['type']}; "
                    "remove the key, or choose another tokenizer"
                )
        if self.bpe_dropout:
            return BPEDropout(model, self.bpe_dropout)
        return UnigramSampler(model, self.unigram_alpha or 0.0, self.nbest_size)


class SegmentationSampler(Protocol):
    """A protocol for samplers of segmentations of words into subwords."""

    def sample(self, word: str, random: Random) -> Pieces | None:
        """Return a sampled segmentation of a word, or None if some of its characters are not in the vocabulary."""

    def units(self, word: str) -> list[str]:
        """Split a pre-tokenized word into the parts that can be segmented independently of each other."""


class BPEDropout:
    """A sampler of BPE segmentations (BPE-dropout): each merge is skipped with a given probability at each step."""

    def __init__(self, model: Mapping[str, Any], dropout: float) -> None:
        """Read vocabulary and merges from the part `model` of a tokenizer.json.

        `dropout` is the probability that a merge is skipped.
        """
        self.dropout = dropout
        self.vocabulary: dict[str, int] = model["vocab"]
        self.prefix, self.suffix = model["continuing_subword_prefix"] or "", model["end_of_word_suffix"] or ""
        self.merges: dict[tuple[int, int], tuple[int, int]] = {}  # a pair of token ids → its rank, and the merged token
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        for rank, (left, right) in enumerate(pairs):
            merged = self.vocabulary[left + right.removeprefix(self.prefix)]
            self.merges[self.vocabulary[left], self.vocabulary[right]] = rank, merged
        # SentencePiece models have no pre-tokenizer, but their pieces do not continue after a space.
        self.spaces_begin_pieces = not any("▁" in left.lstrip("▁") + right and left.strip("▁") for left, right in pairs)

    def units(self, word: str) -> list[str]:
        """Split a pre-tokenized word before each space marker ▁ inside it, unless a piece can span a marker."""
        if not self.spaces_begin_pieces or "▁" not in word[1:] or self.prefix or self.suffix:
            return [word]
        starts = [0, *(i for i in range(1, len(word)) if word[i] == "▁" != word[i - 1]), len(word)]
        return [word[start:end] for start, end in pairwise(starts)]

    def sample(self, word: str, random: Random) -> Pieces | None:
        """Return a sampled segmentation of a word, or None if some of its characters are not in the vocabulary."""
        last = len(word) - 1
        spelled = [
            (self.prefix if i else "") + character + (self.suffix if i == last else "")
            for i, character in enumerate(word)
        ]
        if not all(symbol in self.vocabulary for symbol in spelled):
            return None
        ids, bounds = [self.vocabulary[symbol] for symbol in spelled], list(range(len(spelled) + 1))
        while True:
            found = [
                (*self.merges[pair], at)
                for at, pair in enumerate(pairwise(ids))
                if pair in self.merges and (not self.dropout or random.random() >= self.dropout)
            ]
            if not found:
                return [(token, start, end) for token, (start, end) in zip(ids, pairwise(bounds), strict=True)]
            _, merged, at = min(found, key=lambda merge: (merge[0], merge[2]))
            ids[at : at + 2] = [merged]
            del bounds[at + 1]


class UnigramSampler:
    """A sampler of segmentations in proportion to a power of their probability under a unigram language model."""

    def __init__(self, model: Mapping[str, Any], alpha: float, nbest_size: int | None = None) -> None:
        """Read pieces and their log probabilities from the part `model` of a tokenizer.json.

        Segmentations are sampled in proportion to their probability to the power `alpha`, from the `nbest_size` most
        probable ones (default: all).
        """
        self.alpha, self.nbest_size = alpha, nbest_size
        self.pieces = {piece: (number, float(score)) for number, (piece, score) in enumerate(model["vocab"])}
        self.longest = max(map(len, self.pieces))

    def units(self, word: str) -> list[str]:
        """Return the pre-tokenized word as the only part, since a piece may begin at any character."""
        return [word]

    def sample(self, word: str, random: Random) -> Pieces | None:
        """Return a sampled segmentation of a word, or None if some of its characters are not in the vocabulary."""
        if not all(character in self.pieces for character in word):
            return None
        # For each end: the start, token id and log probability of the pieces that end there.
        lattice: list[list[tuple[int, int, float]]] = [
            [
                (start, *self.pieces[word[start:end]])
                for start in range(max(0, end - self.longest), end)
                if word[start:end] in self.pieces
            ]
            for end in range(len(word) + 1)
        ]
        return self._sample_nbest(lattice, random) if self.nbest_size else self._sample_all(lattice, random)

    def _sample_all(self, lattice: list[list[tuple[int, int, float]]], random: Random) -> Pieces:
        """Return a segmentation by forward filtering and backward sampling over the lattice of pieces."""
        forward = [0.0]  # for each end: the logarithm of the sum over all segmentations up to there
        for pieces in lattice[1:]:
            forward.append(_log_sum([forward[start] + self.alpha * score for start, _, score in pieces]))
        end, found = len(lattice) - 1, []
        while end:
            weights = [forward[start] + self.alpha * score for start, _, score in lattice[end]]
            start, token, _ = lattice[end][_choose(weights, random)]
            found.append((token, start, end))
            end = start
        return found[::-1]

    def _sample_nbest(self, lattice: list[list[tuple[int, int, float]]], random: Random) -> Pieces:
        """Return a segmentation, sampled from the most probable ones."""
        best: list[list[tuple[float, Pieces]]] = [[(0.0, [])]]
        for end, pieces in enumerate(lattice[1:], 1):
            longer = (
                (before + score, [*parts, (token, start, end)])
                for start, token, score in pieces
                for before, parts in best[start]
            )
            best.append(nlargest(self.nbest_size or 1, longer, key=lambda scored: scored[0]))
        return best[-1][_choose([self.alpha * score for score, _ in best[-1]], random)][1]


def _log_sum(logs: list[float]) -> float:
    """Return log Σ exp(x) over `logs`."""
    most = max(logs)
    return most + math.log(sum(math.exp(value - most) for value in logs))


def _choose(logs: list[float], random: Random) -> int:
    """Return a random index, sampled in proportion to exp(x) for each x of `logs`."""
    most = max(logs)
    bounds = list(accumulate(math.exp(value - most) for value in logs))
    point = random.random() * bounds[-1]
    return next(index for index, bound in enumerate(bounds) if point < bound)
