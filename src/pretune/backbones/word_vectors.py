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
    """A backbone that consists of an embedding alone, with no layers."""

    def __init__(self, embed: Embeddings) -> None:
        super().__init__()
        self.embed, self.depth = embed, 0
        self.max_positions: int | None = None
        self.set_task_parts(embed.width)
        self.vocabulary_head: Callable[[], nn.Module] = _refuse_vocabulary_head

    @property
    def width(self) -> int:
        """The width of the vectors."""
        return self.embed.width

    def forward(self, packed: Packed, state: Any = None, keep: LayerSelection = "last") -> BackboneOutput:
        """Return the vectors of the tokens, (n, width), as the only layer."""
        return BackboneOutput([self.embed(packed)])

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return the embedding as the only layer group, a (name, modules) pair."""
        return [("embed", [self.embed])]


def _refuse_vocabulary_head() -> nn.Module:
    """Raise an error: static vectors have no context to predict tokens from."""
    raise PretuneError(
        "word vectors cannot predict tokens; fine-tune them on a task, or use them as the embedding of another model"
    )
