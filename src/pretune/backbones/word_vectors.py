"""Vectors of words and nothing else: what a text is without context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from pretune.backbones.backbone import Keep, States, TaskParts
from pretune.nn.embeddings import Embeddings
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError


class Static(TaskParts, nn.Module):
    """An embedding as a backbone of no layers."""

    def __init__(self, embed: Embeddings) -> None:
        super().__init__()
        self.embed, self.depth = embed, 0
        self.longest: int | None = None
        self.set_parts(embed.width)
        self.vocabulary_head: Callable[[], nn.Module] = nothing_to_predict

    @property
    def width(self) -> int:
        """Width of the vectors."""
        return self.embed.width

    def forward(self, packed: Packed, carry: Any = None, keep: Keep = "last") -> States:
        """The vectors of the tokens, as the only layer."""
        return States([self.embed(packed)])

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """One."""
        return [("embed", [self.embed])]


def nothing_to_predict() -> nn.Module:
    """Nothing is known of order."""
    raise PretuneError("word vectors predict nothing; use them for a task, or as the input of another model")
