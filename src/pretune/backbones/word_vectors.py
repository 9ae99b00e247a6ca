"""Static word vectors as a backbone: an embedding table without any context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from pretune.backbones.backbone import BackboneOutput, LayerSelection, TaskHeadParts
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError


class WordVectorBackbone(TaskHeadParts, nn.Module):
    """A backbone without layers: an embedding of static word vectors."""

    def __init__(self, embed: Embeddings) -> None:
        super().__init__()
        self.embed, self.depth = embed, 0
        self.max_positions: int | None = None
        self.set_task_parts(embed.width)
        self.vocabulary_head: Callable[[], nn.Module] = _refuse_vocabulary_head

    @property
    def width(self) -> int:
        """The width of the word vectors."""
        return self.embed.width

    def forward(self, packed: Packed, state: Any = None, keep: LayerSelection = "last") -> BackboneOutput:
        """Return the word vectors of the tokens, (tokens, width); `state` and `keep` have no effect."""
        return BackboneOutput([self.embed(packed)])

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return the embedding as the only (name, modules) pair, since this backbone has no layers."""
        return [("embed", [self.embed])]


def _refuse_vocabulary_head() -> nn.Module:
    raise PretuneError(
        "word vectors cannot predict tokens; fine-tune them on a task, or use them as the embedding of another model"
    )
