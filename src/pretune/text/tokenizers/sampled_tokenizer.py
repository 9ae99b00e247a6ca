"""Tokenize texts for one epoch of training with sampled segmentations (subword regularization).

The pieces of a text are a function of the seed, the epoch and the text, so that every process, in any order and after
an interruption, gets the same ones. For speed, each distinct word has at most `VARIANTS` samples per epoch, among which
each of its occurrences chooses at random.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate, chain
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import tokenizers

from pretune.runtime.arrays import Array
from pretune.runtime.randomness import EpochRandom
from pretune.text.tokenizers.backend import library_errors
from pretune.text.tokenizers.subword_sampling import Pieces, SegmentationSampler, SubwordSampling
from pretune.text.tokenizers.tokenizer import FAILED, PRIVATE, Tokenizer, replace_private

if TYPE_CHECKING:
    from pretune.text.tokenizers.tokenizer import Ids

VARIANTS = 64  # samples per distinct word and epoch
LONGEST = 512  # characters of a word; longer ones are not sampled


class SampledTokenizer(Tokenizer):
    """A tokenizer that samples the segmentation of each word of a text, in `encode_many` and `encode_with_offsets`.

    All other methods are those of the tokenizer that it was made from; `encode` never samples.

    >>> sampled = SubwordRegularization(tokenizer, SubwordSampling(bpe_dropout=0.1)).epoch(draws)  # doctest: +SKIP
    >>> sampled.tokens(sampled.encode_many(["hello"])[0])  # doctest: +SKIP
    ['he', 'llo']
    """

    def __init__(self, tokenizer: Tokenizer, sampler: SegmentationSampler, draws: EpochRandom) -> None:
        """Sample segmentations of words with `sampler` and the random numbers of the epoch, `draws`."""
        vars(self).update(vars(tokenizer))  # shares what is already computed, such as the vocabulary
        self.sampler, self.draws = sampler, draws
        named = self.plain.get_added_tokens_decoder().values()
        self._added = [token.content for token in named if not token.content.startswith(PRIVATE)]
        self._variants: dict[tuple[str, int], Pieces] = {}

    def encode_many(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """Return sampled token ids of all texts, concatenated, and the number of ids of each text, (texts,)."""
        ids = [self._ids(text) for text in texts]
        flat = np.fromiter(chain.from_iterable(ids), dtype=self.dtype)
        return flat, np.array([len(own) for own in ids], dtype=np.int64)

    def encode_with_offsets(self, texts: Sequence[str]) -> tuple[Ids, Ids, Ids]:
        """Return sampled token ids of texts, their number per text, and the character offsets of each token."""
        encodings = [self._encoding(replace_private(text)) for text in texts]
        ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), dtype=np.int64)
        pairs = [pair for encoding in encodings for pair in encoding.offsets]
        offsets: Array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        lengths: Array = np.array([len(encoding.ids) for encoding in encodings], dtype=np.int64)
        return ids.astype(self.dtype), lengths, offsets

    def _ids(self, text: str) -> list[int]:
        """Return the token ids of a text under a randomly sampled segmentation."""
        text = replace_private(text)
        with library_errors(*FAILED):
            words = self._pre_tokenize(text)
            if words is None:
                return self.plain.encode(text, add_special_tokens=False).ids
            units = [unit for word, _, _ in words.get_splits() for unit in self.sampler.units(word)]
            return [token for pieces in self._sample(text, units) for token, _, _ in pieces]

    def _encoding(self, text: str) -> tokenizers.Encoding:
        """Return the sampled tokens of a text with their offsets, as an `Encoding` of the `tokenizers` library."""
        with library_errors(*FAILED):
            words = self._pre_tokenize(text)
            if words is None:
                return self.plain.encode(text, add_special_tokens=False)
            split = [self.sampler.units(word) for word, _, _ in words.get_splits()]
            sampled = self._sample(text, list(chain.from_iterable(split)))
            units_of_words = iter(split)

            def tokenize(word: str) -> list[tokenizers.Token]:
                at = [0, *accumulate(len(character.encode()) for character in word)]  # byte of each character
                tokens, first = [], 0
                for unit in next(units_of_words):
                    pieces = next(sampled)
                    tokens += [
                        tokenizers.Token(token, "", (at[first + start], at[first + end]))
                        for token, start, end in pieces
                    ]
                    first += len(unit)
                return tokens

            words.tokenize(tokenize)
            return words.to_encoding()

    def _pre_tokenize(self, text: str) -> tokenizers.PreTokenizedString | None:
        """Normalize a text and split it into words; return None for a text that contains added tokens.

        A text with added tokens is not sampled, because only the library's whole pipeline recognizes them.
        """
        words = tokenizers.PreTokenizedString(text)
        if self.plain.normalizer is not None:
            words.normalize(self.plain.normalizer.normalize)
        if self._added:
            normal = "".join(word for word, _, _ in words.get_splits())
            if any(token in text or token in normal for token in self._added):
                return None
        if self.plain.pre_tokenizer is not None:
            self.plain.pre_tokenizer.pre_tokenize(words)
        return words

    def _sample(self, text: str, units: Sequence[str]) -> Iterator[Pieces]:
        """Yield the sampled pieces of each unit (word) of a text."""
        chosen = self.draws.integers(VARIANTS, "segmentation", _number(text), np.arange(len(units))).tolist()
        for unit, variant in zip(units, chosen, strict=True):
            pieces = self._variants.get((unit, variant))
            if pieces is None:
                pieces = self._variants[unit, variant] = self._variant(unit, variant)
            yield pieces

    def _variant(self, unit: str, variant: int) -> Pieces:
        """Return one of the segmentations of a unit (word) that are sampled in this epoch, the one numbered `variant`.

        The unit is not sampled if it is very long, or if some of its characters are not in the vocabulary.
        """
        if len(unit) <= LONGEST:
            bits: Array = self.draws.random_bits("subwords", _number(unit), variant)
            pieces = self.sampler.sample(unit, Random(int(bits)))
            if pieces is not None:
                return pieces
        ends = np.cumsum([len(character.encode()) for character in unit])  # in bytes, as the offsets of the library
        tokens = self.plain.model.tokenize(unit)
        starts = np.searchsorted(ends, [token.offsets[0] for token in tokens], side="right").tolist()
        stops = np.searchsorted(ends, [token.offsets[1] for token in tokens], side="left").tolist()
        return [(token.id, start, stop + 1) for token, start, stop in zip(tokens, starts, stops, strict=True)]


class SubwordRegularization:
    """Makes, for each epoch of training, a tokenizer that samples segmentations of words (see `SubwordSampling`)."""

    def __init__(self, tokenizer: Tokenizer, settings: SubwordSampling) -> None:
        """Prepare the sampling; raise an error if the settings do not apply to the kind of the tokenizer."""
        self.tokenizer = tokenizer
        sides = [tokenizer] if tokenizer.target is tokenizer else [tokenizer, tokenizer.target]
        self.samplers = [settings.build(json.loads(side.plain.to_str())["model"]) for side in sides]

    def epoch(self, draws: EpochRandom) -> SampledTokenizer:
        """Return the tokenizer that samples segmentations with the random numbers of an epoch."""
        sampled = SampledTokenizer(self.tokenizer, self.samplers[0], draws)
        if len(self.samplers) > 1:
            sampled.set_target(SampledTokenizer(self.tokenizer.target, self.samplers[1], draws))
        return sampled


def _number(text: str) -> int:
    """Return a 63-bit hash of a text."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") >> 1
