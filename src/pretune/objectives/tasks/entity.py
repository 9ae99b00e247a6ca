"""Filling a gap with an entity: which of those that a passage names belongs into a query.

Sources: Zhang et al., 2018, arXiv:1810.12885 (ReCoRD); Fenogenova et al., 2020, arXiv:2010.15925 (RuCoS, in Russian SuperGLUE).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from torch import Tensor, nn

from pretune.nn.attention.patterns import Pattern
from pretune.objectives.objective import Data, Loss
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.candidates import (
    arrange_candidates,
    combine_candidates,
    group_loss,
    group_targets,
    list_candidates,
    split_groups,
)
from pretune.objectives.tasks.classify import ClassifyHead, Pooling, check_pooling
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import say
from pretune.runtime.randomness import Draws
from pretune.text.examples.cloze_entities import read_entities
from pretune.text.examples.labeled import Excerpt
from pretune.text.examples.multiple_choice import Grouped
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch, with_global_starts
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Entity:
    """`pooling` is what stands for a sequence: the passage, and the query with an entity in its gap."""

    pooling: Pooling = "start"
    dropout: float = 0.1
    most: int = fitted(0)  # entities of a passage

    name: ClassVar[str] = "entity"
    head_of: ClassVar[str] = "choose"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    each: ClassVar[Literal["sequence", "token"]] = "sequence"
    decides: ClassVar[str] = "f1"

    def __post_init__(self) -> None:
        check_pooling(self.name, self.pooling)

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Grouped:
        """Passages, queries with a gap, and entities."""
        return read_entities(file, columns, labels=answered)

    def fit(self, examples: Grouped) -> Self:
        """With room for all entities."""
        lost = sum(not group.right for group in examples.groups)
        if lost == len(examples):
            raise PretuneError(
                f"{examples.file}: no answer is among the entities of its passage; there is nothing to learn"
            )
        if lost:
            say(f"{examples.file}: the answers to {lost} of {len(examples)} queries are no entities, and teach nothing")
        return replace(self, most=int(examples.sizes.max()))

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """An entity to a sequence; of too long ones the passage is cut first."""
        check_pooling(self.name, self.pooling, data.template)
        return arrange_candidates(self.name, data, length)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Queries in any order, their entities together."""
        return plan_epoch(self.lay_out(data, packing.length), packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The right entities are the target of a query."""
        sequences = with_global_starts(sequences)
        if "right" in sequences.labels:
            labels = sequences.labels
            sequences.targets[self.name] = group_targets(labels["group"], labels["right"], self.most)
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """One target a query, which has a sequence at least."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Pooler, dropout, one score."""
        return ClassifyHead(backbone, 1, self.pooling, self.dropout)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(sequences,) scores."""
        scores: Tensor = head(backbone(*batch.packed).last, batch.packed[-1])[:, 0]
        return scores

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Grouped) -> list[Answer]:
        """The likeliest entity, and how likely each is."""
        return [
            {
                "answer": group.names[int(shares.argmax())],
                "probability": float(shares.max()),
                "candidates": list_candidates(group, shares),
            }
            for group, shares in zip(examples.groups, split_groups(outputs, examples), strict=True)
        ]

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """The answer of several models to one query: the mean of their probabilities."""
        return combine_candidates(answers)[1]

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy over the entities of each query."""
        return group_loss(self.name, self.outputs(head, backbone, batch), batch.targets[self.name])
