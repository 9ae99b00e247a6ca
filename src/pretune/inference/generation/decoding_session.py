"""Decoding sessions: models with a key-value cache that read sequences step by step and return next-token logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.inference.nan_check import check_not_nan
from pretune.models.model import Model
from pretune.nn.attention.kv_cache import KVCache
from pretune.nn.attention.patterns import causal
from pretune.packed import Packed, pack
from pretune.runtime.arrays import Array


class DecodingSteps(ABC):
    """The interface with which the decoding loops continue sequences token by token after the prompts have been read."""

    steps_per_sync = 1  # number of decoding steps after which the loop copies the chosen tokens to the host

    @abstractmethod
    def advance(self, tokens: Tensor) -> Tensor:
        """Read the next token of every sequence, (sequences,), and return logits, (sequences, vocabulary)."""

    @abstractmethod
    def keep(self, rows: Sequence[int]) -> Sequence[int]:
        """Drop all sequences but those with the indices `rows`; return the indices of those that are still there.

        A session with fixed shapes drops none.
        """

    def to_host(self, steps: Sequence[Tensor]) -> list[Any]:
        """Return tensors of the same shape, one per decoding step, as nested lists on the host."""
        return torch.stack(list(steps)).tolist()  # type: ignore[no-any-return]

    def close(self) -> None:  # noqa: B027
        """Release the memory of the session, so that another session can use it."""


class Reader(DecodingSteps):
    """The interface of decoding sessions that read tokens of any number, and whose sequences can be reordered."""

    @abstractmethod
    def read(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Read further tokens of every sequence, and return the logits of the next token, (sequences, vocabulary).

        `ids` has one or more token ids for each sequence.
        """

    @abstractmethod
    def select(self, rows: Sequence[int]) -> None:
        """Reorder the cache, so that the new sequence i continues the old sequence `rows[i]`."""

    def advance(self, tokens: Tensor) -> Tensor:
        """Read the next token of every sequence, (sequences,), and return logits, (sequences, vocabulary)."""
        return self.read(tokens[:, None].tolist())

    def keep(self, rows: Sequence[int]) -> Sequence[int]:
        """Drop all sequences but those with the indices `rows`; return these indices."""
        self.select(rows)
        return rows


class DecodingSession(Reader):
    """A model with a key-value cache that reads sequences step by step and returns next-token logits."""

    def __init__(
        self, model: Model, sequences: int, slots: int, source: Sequence[Packed] = (), head: str = "lm"
    ) -> None:
        """Create a key-value cache for `sequences` sequences of up to `slots` tokens.

        `source` is the input of the encoder, for encoder-decoders; `head` is the name of the language-model head.
        """
        self.backbone, self.head, self.source = model.backbone, model.root.heads[head], source
        self.vocabulary = model.require_tokenizer().target.size  # further rows only pad the vocabulary
        self.slots, self.device = slots, self.backbone.embed.tokens.device
        self.cache: Any = getattr(self.backbone, "cache", KVCache)(sequences, slots)

    def read(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Read further tokens of every sequence, and return the logits of the next token, (sequences, vocabulary).

        `ids` has one or more token ids for each sequence.
        """
        lengths = np.array([len(chunk) for chunk in ids])
        first = np.cumsum(lengths) - lengths
        positions = np.arange(lengths.sum()) + np.repeat(self.cache.used - first, lengths)
        states = self._states(np.concatenate([np.asarray(x) for x in ids]), lengths, positions)
        last = states[torch.from_numpy(first + lengths - 1).to(states.device)]
        return check_not_nan(self.logits(last))

    def advance_many(self, tokens: Tensor) -> Tensor:
        """Read the next w tokens of every sequence, (sequences, w); return logits, (sequences, w, vocabulary).

        Tokens beyond the last position of the model get its last position; they are proposals that cannot be used.
        """
        sequences, width = tokens.shape
        positions = self.cache.used[:, None] + np.arange(width)
        longest = self.backbone.max_positions or 1 << 30
        ids, lengths = tokens.cpu().numpy().flatten(), np.full(sequences, width)
        states = self._states(ids, lengths, np.minimum(positions, longest - 1).flatten())
        return check_not_nan(self.logits(states)).view(sequences, width, -1)

    def _states(self, ids: Array, lengths: Array, positions: Array) -> Tensor:
        """Return the hidden states, (n, width), of n further tokens, of which sequence i has `lengths[i]`."""
        packed = pack(ids, lengths, positions=positions, pattern=causal)
        return self.backbone(*self.source, packed.to(self.device), state=self.cache).last  # type: ignore[no-any-return]

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of the next token, (n, vocabulary), given hidden states, (n, width)."""
        return self.head(states, self.backbone.embed.tokens)[:, : self.vocabulary].float()  # type: ignore[no-any-return]

    def truncate(self, used: Array) -> None:
        """Forget all but the first `used[i]` tokens of each sequence i."""
        self.cache.truncate(used)

    def select(self, rows: Sequence[int]) -> None:
        """Reorder the cache, so that the new sequence i continues the old sequence `rows[i]`."""
        if list(rows) != list(range(len(self.cache.used))):
            self.cache.select(np.array(rows, dtype=np.int64))
