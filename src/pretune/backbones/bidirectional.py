"""Two stacks over one embedding, one that reads forward and one that reads backward: ELMo's biLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone, Keep, States, TaskParts
from pretune.nn.attention.packed_layout import rearrange, reverse
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError


@dataclass
class TwoCarries:
    """What each of the two stacks hands on."""

    ahead: Any
    back: Any

    def tensors(self) -> dict[str, Tensor]:
        """By name, for checkpoints."""
        both = {"ahead": self.ahead, "back": self.back}
        return {f"{way}.{name}": tensor for way, carry in both.items() for name, tensor in carry.tensors().items()}


class TwoWays(TaskParts, nn.Module):
    """Any two backbones that look back only (causal attention, recurrent), of one width and depth, on one embedding.

    States are those of the forward stack beside those of the backward one, layer by layer: (n, 2 · width of a stack). The
    backward stack reads every sequence from its end, positions counted from there.
    """

    def __init__(self, ahead: Backbone, back: Backbone, *, pooler: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        assert ahead.embed is back.embed and isinstance(ahead, nn.Module) and isinstance(back, nn.Module)
        assert ahead.width == back.width and ahead.depth == back.depth
        self.embed = ahead.embed
        self.ahead: Any = ahead
        self.back: Any = back
        self.way_head = ahead.vocabulary_head  # from the states of either stack to the vocabulary
        self.vocabulary_head: Callable[[], nn.Module] = nothing_to_predict
        self.set_parts(self.width, pooler=pooler)

    @property
    def stacks(self) -> tuple[Any, Any]:
        """The forward and the backward one."""
        return self.ahead, self.back

    @property
    def width(self) -> int:
        """Width of the states of both stacks together."""
        return 2 * int(self.ahead.width)

    @property
    def depth(self) -> int:
        """How many layers of either stack follow on the embeddings."""
        return int(self.ahead.depth)

    @property
    def longest(self) -> int | None:
        """Positions the model has; None: any."""
        longest: int | None = self.ahead.longest
        return longest

    def forward(self, packed: Packed, carry: None = None, keep: Keep = "last") -> States:
        """States of the kept layers, (n, width) each; layer 0 is the embedding, twice."""
        turn = reverse(packed)
        ahead = self.ahead(packed, keep=keep)
        back = self.back(reversed_packed(packed, turn), keep=keep)
        return States([torch.cat([x, rearrange(y, turn)], 1) for x, y in zip(ahead.layers, back.layers, strict=True)])

    def apart(self, ahead: Packed, back: Packed, carry: TwoCarries | None = None) -> tuple[Tensor, Tensor, TwoCarries]:
        """Each stack on a text of its own: their last states, in the order of the texts, and what both hand on.

        What goes on after a forward stack's text is the text after it, and after a backward stack's, the one before it.
        """
        turn = reverse(back)
        first = self.ahead(ahead, carry=None if carry is None else carry.ahead)
        second = self.back(reversed_packed(back, turn), carry=None if carry is None else carry.back)
        return first.last, rearrange(second.last, turn), TwoCarries(first.carry, second.carry)

    def restore_carry(self, tensors: dict[str, Tensor]) -> TwoCarries:
        """What both hand on, from a checkpoint."""
        ways: dict[str, dict[str, Tensor]] = {"ahead": {}, "back": {}}
        for name, tensor in tensors.items():
            way, _, rest = name.partition(".")
            ways[way][rest] = tensor
        return TwoCarries(self.ahead.restore_carry(ways["ahead"]), self.back.restore_carry(ways["back"]))

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """From the embedding to the top; layers of the same depth are one group."""
        pairs = zip(self.ahead.groups(), self.back.groups(), strict=True)
        return [(name, list(dict.fromkeys([*modules, *others]))) for (name, modules), (_, others) in pairs]


def nothing_to_predict() -> nn.Module:
    """Both stacks together have seen every token."""
    raise PretuneError("a model that reads forward and backward apart learns by bilm alone; choose another for this")


def reversed_packed(packed: Packed, turn: Tensor) -> Packed:
    """Every sequence from its end; positions count from there."""
    columns = {name: column[turn] for name, column in packed.columns.items()}
    return replace(packed, ids=packed.ids[turn], columns=columns)
