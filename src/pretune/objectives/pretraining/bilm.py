"""Language modeling in both directions (Peters et al., 2018, ELMo): each token from those before it, and from those after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.patterns import Pattern, causal
from pretune.objectives.objective import Data, Loss, Objective, in_chunks
from pretune.objectives.pretraining.arrangements import spans_epoch
from pretune.objectives.pretraining.stateful_batches import LaneEpoch, lanes_epoch
from pretune.objectives.registry import register_objective
from pretune.packed import Batch, Targets
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@register_objective
@dataclass(frozen=True)
class BiLM(Objective):
    """A forward and a backward stack on one embedding, one softmax for both; the loss is the mean of both directions.

    With `stateful`, texts come in lanes, in which the forward stack goes on where the batch before ended. The backward one
    goes through the same lanes from their ends, so that its batches too go on from those before: each reads its own.
    """

    stateful: bool = False

    name: ClassVar[str] = "bilm"
    pattern: ClassVar[Pattern | None] = causal
    insists: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences, or in lanes."""
        if self.stateful:
            ways = [lanes_epoch(data, packing, draws, backward=backward, framed=True) for backward in (False, True)]
            return BothWays(*ways)
        return spans_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Targets are the next tokens (way 0), then the ones before (way 1): `at` is a token and a way."""
        if self.stateful:
            return self.apart(sequences)
        offsets, count = sequences.offsets, len(sequences.ids)
        is_first, is_last = (np.zeros(count, dtype=bool) for _ in range(2))
        is_first[offsets[:-1]] = is_last[offsets[1:] - 1] = True
        at = np.concatenate([np.flatnonzero(~is_last), np.flatnonzero(~is_first)])
        way = np.repeat([0, 1], len(at) // 2)
        sequences.targets[self.name] = (np.stack([at, way], 1), sequences.ids[at + 1 - 2 * way])
        sequences.pattern = self.pattern
        return sequences

    def apart(self, sequences: Sequences) -> Sequences:
        """The same for two stacks that read texts of their own: those of way 1 come after those of way 0."""
        assert sequences.second is not None
        sides = (sequences, sequences.second)
        found = [np.flatnonzero(side.columns["next"] >= 0) for side in sides]
        at = np.stack([np.concatenate(found), np.repeat([0, 1], [len(at) for at in found])], 1)
        wanted = np.concatenate([side.columns["next"][at] for side, at in zip(sides, found, strict=True)])
        sequences.targets[self.name] = (at, wanted)
        for side in sides:
            side.pattern = self.pattern
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """Every token but one of a sequence, both ways."""
        return {self.name: 2 * packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from the states of a stack to the vocabulary."""
        make: Any = getattr(backbone, "way_head", None)
        if make is None:
            raise PretuneError("bilm needs a model with a forward and a backward stack, such as elmo-transformer")
        head: nn.Module = make()
        return head

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of both directions, and of each."""
        targets = batch.targets[self.name]
        at, way = targets.at.unbind(1)
        carry = None
        if self.stateful:
            network: Any = backbone
            ahead, back, carry = network.apart(*batch.packed, carry=batch.carry)
            states = torch.cat([ahead, back])[at + way * ahead.shape[0]]
        else:
            last = backbone(*batch.packed).last
            states = last.view(last.shape[0], 2, -1)[at, way]
        weight = targets.weight[:, None] * F.one_hot(way, 2)  # (m, 2)
        found = in_chunks(head, states, backbone.embed.tokens, Targets(at, targets.target, weight), both_ways)
        sums, right = (torch.stack(parts).sum(0) for parts in zip(*found, strict=True))
        logs = {f"{self.name}/accuracy": right.sum()}
        for name, loss, total in zip(("forward", "backward"), sums.detach(), weight.sum(0), strict=True):
            logs |= {f"{self.name}/{name}": loss, f"{self.name}/{name}/of": total}
        return Loss(sums={self.name: sums.sum()}, logs=logs, carry=carry)


@dataclass
class BothWays:
    """Lanes, and the same from their ends: pack i of both."""

    ahead: LaneEpoch
    back: LaneEpoch

    def __len__(self) -> int:
        return len(self.ahead)

    def sizes(self) -> Array:
        """(packs,) how many lanes each has."""
        return np.asarray(self.ahead.sizes())

    def pack(self, index: int) -> Sequences:
        """A group of lanes at one time from the beginning, and at one from the end."""
        sequences = self.ahead.pack(index)
        sequences.second = self.back.pack(index)
        return sequences


def both_ways(logits: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(2,) cross-entropy, and how many are right, of each way."""
    logits = logits.float()
    losses = F.cross_entropy(logits, target, reduction="none")
    right = (logits.argmax(-1) == target).float()
    return (losses[:, None] * weight).sum(0), (right[:, None] * weight).sum(0).detach()
