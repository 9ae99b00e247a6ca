"""Classification of a text or a pair of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
from torch import Tensor, nn

from pretune.errors import PretuneError, nearest
from pretune.nn.dropout import Dropout
from pretune.nn.layout import reverse
from pretune.nn.linear import LayerNorm, Linear
from pretune.nn.patterns import Pattern
from pretune.nn.pooling import AttentivePool, pool
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.objectives.task import Answer
from pretune.packed import Batch, Packed
from pretune.progress import say
from pretune.randomness import Draws
from pretune.text.labeled import Excerpt, Labeled, read_labeled
from pretune.text.rows import arrange_rows
from pretune.text.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch, with_global_starts
from pretune.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.states import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


Pooling = Literal["start", "mean", "max", "last", "attentive", "concat", "rising"]


class ClassifyHead(nn.Module):
    """One vector a sequence, dropout, and a logit a class."""

    def __init__(self, backbone: Backbone, classes: int, pooling: str, dropout: float, hidden: int = 0) -> None:
        super().__init__()
        self.pooling = pooling
        self.backward = bool(getattr(backbone, "backward", False))  # the last state is that of the first token
        self.attention = AttentivePool(backbone.width) if pooling == "attentive" else None
        self.dropout = Dropout(dropout)
        wide = pooling == "concat"  # three vectors side by side, which no published pooler takes
        self.pooler = nn.Identity() if wide else backbone.pooler()
        width = 3 * backbone.width if wide else backbone.width
        if hidden:
            inner = (Dropout(dropout), Linear(width, hidden), LayerNorm(hidden), nn.ReLU())
            self.pooler, width = nn.Sequential(self.pooler, *inner), hidden
        self.output = Linear(width, classes) if wide or hidden else backbone.classifier(classes)

    def forward(self, states: Tensor, packed: Packed) -> Tensor:
        """(n, width) → (sequences, classes)."""
        if self.backward:
            states = states[reverse(packed)]
        one = pool(states, packed, self.pooling) if self.attention is None else self.attention(states, packed)
        pooled: Tensor = self.pooler(one)
        logits: Tensor = self.output(self.dropout(pooled))
        return logits


@dataclass(frozen=True)
class Classify:
    """`labels` are the classes in order; `pooling` is what stands for a sequence: its start token, the mean …

    `hidden` is the width of a layer between that and the classes (ULMFiT); 0: none.
    """

    labels: Sequence[str] = field(default_factory=tuple)
    pooling: Pooling = "start"
    dropout: float = 0.1
    hidden: int = 0

    def __post_init__(self) -> None:
        if self.pooling not in get_args(Pooling):
            raise PretuneError(
                f"{self.name}: unknown pooling {self.pooling!r}; {nearest(str(self.pooling), get_args(Pooling))}"
            )

    name: ClassVar[str] = "classify"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    each: ClassVar[Literal["sequence", "token"]] = "sequence"
    decides: ClassVar[str] = "accuracy"

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Labeled:
        """Rows of a table: a text or two, and a label."""
        return read_labeled(file, columns, labels=answered)

    def fit(self, examples: Labeled) -> Self:
        """With the labels of some rows."""
        return replace(self, labels=tuple(find_labels(examples)))

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """A row to a sequence; too long ones are cut."""
        if not isinstance(data.rows, Labeled):
            raise PretuneError("classify learns from labeled rows; give it a .csv, .tsv, .jsonl or .parquet file")
        labels = {} if data.rows.labels is None else {"classify": self.encode_labels(data.rows)}
        return arrange_rows(data.token_rows, data.tokenizer, data.template, length, labels)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Rows in any order."""
        return plan_epoch(self.lay_out(data, packing.length), packing, draws)

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
        return ClassifyHead(backbone, len(self.labels), self.pooling, self.dropout, self.hidden)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(sequences, classes) logits."""
        out: Tensor = head(backbone(*batch.packed).last, batch.packed[-1])
        return out

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Labeled) -> list[Answer]:
        """The likeliest class, and how likely each is."""
        logits = np.stack(outputs).astype(np.float64)
        rows = np.exp(logits - logits.max(-1, keepdims=True))
        rows /= rows.sum(-1, keepdims=True)
        return [
            {
                "label": self.labels[int(row.argmax())],
                "probability": float(row.max()),
                "probabilities": {label: float(p) for label, p in zip(self.labels, row, strict=True)},
            }
            for row in rows
        ]

    def combine(self, answers: Sequence[Answer]) -> Answer:
        """The answer of several models to one example: the mean of their probabilities."""
        means = {label: float(np.mean([answer["probabilities"][label] for answer in answers])) for label in self.labels}
        best = max(means, key=lambda label: means[label])
        return {"label": best, "probability": means[best], "probabilities": means}

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of each row."""
        targets = batch.targets[self.name]
        return classification_loss(self.name, self.outputs(head, backbone, batch)[targets.at], targets)


def find_labels(rows: Labeled) -> list[str]:
    """The classes, sorted; numbers by value. One class is no task."""
    assert rows.labels is not None
    found = Counter(rows.labels)
    if len(found) < 2:
        raise PretuneError(
            f"{rows.file}: every row has the label {next(iter(found))!r}; classifying needs two classes or more"
        )
    folded: dict[str, str] = {}
    for label in found:
        twin = folded.setdefault(label.casefold().strip(), label)
        if twin != label:
            say(f"{rows.file}: labels {twin!r} and {label!r} differ in case or spaces alone; are they meant to be one?")
    try:
        return sorted(found, key=float)
    except ValueError:
        return sorted(found)
