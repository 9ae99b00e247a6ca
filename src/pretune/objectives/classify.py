"""Classification of a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from pretune.errors import PretuneError, nearest
from pretune.nn.dropout import Dropout
from pretune.nn.patterns import Pattern
from pretune.nn.pooling import pool
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.packed import Batch, Packed
from pretune.randomness import Draws
from pretune.text.labeled import Labeled
from pretune.text.rows import arrange_rows
from pretune.text.sequences import Epoch, Packing, Sequences, plan_epoch, with_global_starts
from pretune.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.states import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


class ClassifyHead(nn.Module):
    """One vector a sequence, dropout, and a logit a class."""

    def __init__(self, backbone: Backbone, classes: int, pooling: str, dropout: float) -> None:
        super().__init__()
        self.pooling = pooling
        self.pooler = backbone.pooler()
        self.dropout = Dropout(dropout)
        self.output = backbone.classifier(classes)

    def forward(self, states: Tensor, packed: Packed) -> Tensor:
        """(n, width) → (sequences, classes)."""
        pooled: Tensor = self.pooler(pool(states, packed, self.pooling))
        logits: Tensor = self.output(self.dropout(pooled))
        return logits


@dataclass(frozen=True)
class Classify:
    """`labels` are the classes in order; `pooling` is what stands for a sequence: its start token, the mean …"""

    labels: Sequence[str] = field(default_factory=tuple)
    pooling: Literal["start", "mean", "max", "last"] = "start"
    dropout: float = 0.1

    name: ClassVar[str] = "classify"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """A row to a sequence; too long ones are cut."""
        if not isinstance(data.rows, Labeled):
            raise PretuneError("classify learns from labeled rows; give it a .csv, .tsv, .jsonl or .parquet file")
        labels = {} if data.rows.labels is None else {"classify": self.encode_labels(data.rows)}
        arrangement = arrange_rows(data.token_rows, data.tokenizer, data.template, packing.length, labels)
        return plan_epoch(arrangement, packing, draws)

    def encode_labels(self, rows: Labeled) -> Array:
        """(m,) the class of each row; one that training never saw is refused."""
        assert rows.labels is not None
        number = {label: i for i, label in enumerate(self.labels)}
        for row, label in enumerate(rows.labels):
            if label not in number:
                raise PretuneError(f"{rows.place(row)}: label {label!r} was not in training; {nearest(label, number)}")
        return np.array([number[label] for label in rows.labels], dtype=np.int64)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The label is the target of its sequence, whose first token stands for all."""
        sequences = with_global_starts(sequences)
        if "classify" in sequences.labels:
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), sequences.labels["classify"])
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """One target a sequence."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Pooler, dropout, classes."""
        return ClassifyHead(backbone, len(self.labels), self.pooling, self.dropout)

    def logits(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(sequences, classes)."""
        out: Tensor = head(backbone(*batch.packed).last, batch.packed[-1])
        return out

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of each row."""
        targets = batch.targets[self.name]
        return classification_loss(self.name, self.logits(head, backbone, batch)[targets.at], targets)
