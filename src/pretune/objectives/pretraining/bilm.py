"""Bidirectional language modeling (Peters et al., 2018, ELMo): predict each token from its left and right context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.nn.attention.patterns import Pattern, causal
from pretune.objectives.objective import Data, Loss, Objective, map_logits_in_chunks
from pretune.objectives.pretraining.arrangements import document_span_epoch
from pretune.objectives.pretraining.stateful_batches import StreamEpoch, stream_epoch
from pretune.objectives.registry import register_objective
from pretune.packed import Batch, Targets
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class BiLM(Objective):
    """Bidirectional language modeling: a forward and a backward stack share one embedding and one softmax.

    The loss is the mean over both directions. With `stateful`, each batch continues the documents of the previous one;
    the backward stack then reads them from their end.
    """

    stateful: bool = False

    name: ClassVar[str] = "bilm"
    pattern: ClassVar[Pattern | None] = causal

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into spans of whole sentences or, for stateful batches, into contiguous streams."""
        if self.stateful:
            epochs = [stream_epoch(data, packing, draws, backward=backward, framed=True) for backward in (False, True)]
            return BidirectionalEpoch(*epochs)
        return document_span_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set as the targets of each token the next token (direction 0) and the previous token (direction 1)."""
        if self.stateful:
            return self.apart(sequences)
        offsets, count = sequences.offsets, len(sequences.ids)
        is_first, is_last = (np.zeros(count, dtype=bool) for _ in range(2))
        is_first[offsets[:-1]] = is_last[offsets[1:] - 1] = True
        at = np.concatenate([np.flatnonzero(~is_last), np.flatnonzero(~is_first)])
        direction = np.repeat([0, 1], len(at) // 2)
        sequences.targets[self.name] = (np.stack([at, direction], 1), sequences.ids[at + 1 - 2 * direction])
        sequences.pattern = self.pattern
        return sequences

    def apart(self, sequences: Sequences) -> Sequences:
        """Set the targets of both directions for stateful batches, where each direction has its own sequences.

        The backward stack reads `sequences.second`. The target at each token is the token that is read after it.
        """
        assert sequences.second is not None
        sides = (sequences, sequences.second)
        found = [np.flatnonzero(side.columns["next"] >= 0) for side in sides]
        at = np.stack([np.concatenate(found), np.repeat([0, 1], [len(at) for at in found])], 1)
        wanted = np.concatenate([side.columns["next"][at] for side, at in zip(sides, found, strict=True)])
        sequences.targets[self.name] = (at, wanted)
        for side in sides:
            side.pattern = self.pattern
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch: two per token, one for each direction."""
        return {self.name: 2 * packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a new output layer over the vocabulary, which both reading directions share."""
        make: Any = getattr(backbone, "direction_head", None)
        if make is None:
            raise PretuneError(
                "the objective 'bilm' needs a model with a forward and a backward stack; choose a model such as elmo-transformer"
            )
        head: nn.Module = make()
        return head

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of both reading directions together, and log the cross-entropy of each direction."""
        targets = batch.targets[self.name]
        at, direction = targets.at.unbind(1)
        after = None
        if self.stateful:
            network: Any = backbone
            forward, backward, after = network.both_directions(*batch.packed, state=batch.state)
            states = torch.cat([forward, backward])[at + direction * forward.shape[0]]
        else:
            last = backbone(*batch.packed).last
            states = last.view(last.shape[0], 2, -1)[at, direction]
        weight = targets.weight[:, None] * F.one_hot(direction, 2)  # (m, 2)
        found = map_logits_in_chunks(
            head, states, backbone.embed.tokens, Targets(at, targets.target, weight), direction_losses
        )
        sums, right = (torch.stack(parts).sum(0) for parts in zip(*found, strict=True))
        logs = {f"{self.name}/accuracy": right.sum()}
        for name, loss, total in zip(("forward", "backward"), sums.detach(), weight.sum(0), strict=True):
            logs |= {f"{self.name}/{name}": loss, f"{self.name}/{name}/of": total}
        return Loss(sums={self.name: sums.sum()}, logs=logs, state=after)

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return the target tokens as text: those of the forward direction, then those of the backward direction."""
        forward, backward = (spell(target[at[:, 1] == direction]) for direction in (0, 1))
        return f"{forward}; and from the end: {backward}"


@dataclass
class BidirectionalEpoch:
    """An epoch of stateful batches, in which a forward and a backward language model read the same text streams.

    `ahead` has the batches to read forward, and `back` those to read backward.
    """

    ahead: StreamEpoch
    back: StreamEpoch

    def __len__(self) -> int:
        return len(self.ahead)

    def sizes(self) -> Array:
        """Return the number of sequences in each batch of the epoch, (batches,)."""
        return np.asarray(self.ahead.sizes())

    def pack(self, index: int) -> Sequences:
        """Return batch `index`: the sequences to read forward and, as `second`, the sequences to read backward."""
        sequences = self.ahead.pack(index)
        sequences.second = self.back.pack(index)
        return sequences


def direction_losses(logits: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy and the number of correct predictions, summed for each direction, (2,) each.

    `logits` (m, vocabulary) and `target` (m,) belong to predictions of both directions; `weight` (m, 2) is the weight
    of each prediction in its own direction, and 0 in the other one.
    """
    logits = logits.float()
    losses = F.cross_entropy(logits, target, reduction="none")
    right = (logits.argmax(-1) == target).float()
    return (losses[:, None] * weight).sum(0), (right[:, None] * weight).sum(0).detach()
