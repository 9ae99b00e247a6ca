"""A bidirectional language model: a forward and a backward stack over one embedding (ELMo)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone, BackboneOutput, LayerSelection, TaskHeadParts
from pretune.nn.attention.query_key_layout import permute_rows, reverse_index
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError


@dataclass
class BidirectionalState:
    """The states of the forward and the backward stack at the end of a batch, from which the next batch continues."""

    ahead: Any
    back: Any

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the forward and the backward state by name, to save in a checkpoint."""
        both = {"ahead": self.ahead, "back": self.back}
        return {f"{side}.{name}": tensor for side, state in both.items() for name, tensor in state.tensors().items()}


class BidirectionalBackbone(TaskHeadParts, nn.Module):
    """A forward and a backward stack over one embedding; their outputs are concatenated: (tokens, 2 · stack width)."""

    def __init__(self, ahead: Backbone, back: Backbone, *, pooler: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        assert ahead.embed is back.embed and isinstance(ahead, nn.Module) and isinstance(back, nn.Module)
        assert ahead.width == back.width and ahead.depth == back.depth
        self.embed = ahead.embed
        self.ahead: Any = ahead
        self.back: Any = back
        self.direction_head = ahead.vocabulary_head  # from the hidden states of one stack to the vocabulary
        self.vocabulary_head: Callable[[], nn.Module] = _refuse_vocabulary_head
        self.set_task_parts(self.width, pooler=pooler)

    @property
    def stacks(self) -> tuple[Any, Any]:
        """The forward and the backward stack of a bidirectional backbone."""
        return self.ahead, self.back

    @property
    def width(self) -> int:
        """The width of the hidden states: those of the forward and the backward stack, concatenated."""
        return 2 * int(self.ahead.width)

    @property
    def depth(self) -> int:
        """The number of layers of each stack after the embeddings."""
        return int(self.ahead.depth)

    @property
    def max_positions(self) -> int | None:
        """The maximum sequence length, or None if sequences may have any length."""
        return self.ahead.max_positions

    def forward(self, packed: Packed, state: None = None, keep: LayerSelection = "last") -> BackboneOutput:
        """Return the hidden states (tokens, width) of the layers that `keep` selects, both directions concatenated.

        `state` must be None, since the backward stack can only start from the end of a text.
        """
        turn = reverse_index(packed)
        ahead = self.ahead(packed, keep=keep)
        back = self.back(reversed_packed(packed, turn), keep=keep)
        return BackboneOutput(
            [torch.cat([x, permute_rows(y, turn)], 1) for x, y in zip(ahead.layers, back.layers, strict=True)]
        )

    def both_directions(
        self, ahead: Packed, back: Packed, state: BidirectionalState | None = None
    ) -> tuple[Tensor, Tensor, BidirectionalState]:
        """Run the forward stack on `ahead` and the backward stack on `back`, two batches that may differ.

        Return the top hidden states of each stack, (tokens, stack width), in the order of its batch, and the state from
        which the next batch continues.
        """
        turn = reverse_index(back)
        first = self.ahead(ahead, state=None if state is None else state.ahead)
        second = self.back(reversed_packed(back, turn), state=None if state is None else state.back)
        return first.last, permute_rows(second.last, turn), BidirectionalState(first.state, second.state)

    def restore_state(self, tensors: dict[str, Tensor]) -> BidirectionalState:
        """Rebuild the states of the forward and the backward stack from the tensors of a checkpoint."""
        sides: dict[str, dict[str, Tensor]] = {"ahead": {}, "back": {}}
        for name, tensor in tensors.items():
            side, _, rest = name.partition(".")
            sides[side][rest] = tensor
        return BidirectionalState(self.ahead.restore_state(sides["ahead"]), self.back.restore_state(sides["back"]))

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return the layers from bottom to top as (name, modules) pairs, each with the modules of both stacks."""
        pairs = zip(self.ahead.groups(), self.back.groups(), strict=True)
        return [(name, list(dict.fromkeys([*modules, *others]))) for (name, modules), (_, others) in pairs]


def _refuse_vocabulary_head() -> nn.Module:
    """Raise an error instead of creating a language-model head.

    The hidden states of both directions together already contain every token that such a head would predict.
    """
    raise PretuneError(
        "a model with separate forward and backward stacks can only be pretrained with the objective 'bilm'; "
        "use this objective, or choose another model"
    )


def reversed_packed(packed: Packed, turn: Tensor) -> Packed:
    """Return a packed batch with the tokens of each sequence in reverse order.

    `turn` is the result of `reverse_index(packed)`: token i of the new batch is token `turn[i]` of the old one.
    """
    columns = {name: column[turn] for name, column in packed.columns.items()}
    return replace(packed, ids=packed.ids[turn], columns=columns)
