"""Two marked spans: whether a word has the same sense in two sentences, or two phrases speak of the same thing.

Sources: Pilehvar and Camacho-Collados, 2019, arXiv:1808.09121 (WiC); Levesque et al., 2012, *The Winograd Schema Challenge* (WSC);
learned as Wang et al., 2019, arXiv:1905.00537, learn them in SuperGLUE: from the start token's state and the spans' means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from pretune.nn.attention.packed_layout import side_of
from pretune.nn.attention.patterns import Pattern
from pretune.nn.dropout import Dropout
from pretune.nn.linear import OutputLinear
from pretune.nn.pooling import pool
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.classify import Classify, find_labels
from pretune.packed import Batch, Packed
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.examples.labeled import Excerpt, Labeled
from pretune.text.examples.span_pairs import keep_spans, read_marked
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch, with_global_starts
from pretune.text.packing.token_rows import arrange_rows
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


class MatchHead(nn.Module):
    """A logit a class from three vectors: that of the sequence, and the mean of each span."""

    def __init__(self, backbone: Backbone, classes: int, pooling: str, dropout: float) -> None:
        super().__init__()
        self.pooling = pooling
        self.dropout = Dropout(dropout)
        self.output = OutputLinear(3 * backbone.width, classes)

    def forward(self, states: Tensor, packed: Packed) -> Tensor:
        """(n, width) → (sequences, classes)."""
        span, owner = packed.columns["span"], side_of(packed).sequence.long()
        whole = pool(states, packed, self.pooling)
        vectors = [whole]
        for bit in (1, 2):
            inside = ((span & bit) > 0).to(states.dtype)[:, None]
            total = torch.zeros_like(whole).index_add(0, owner, states * inside)
            count = whole.new_zeros(len(whole), 1).index_add(0, owner, inside)
            vectors.append(total / count.clamp(min=1))
        logits: Tensor = self.output(self.dropout(torch.cat(vectors, -1)))
        return logits


@dataclass(frozen=True)
class Match:
    """`labels` are the classes in order; `pooling` is what stands for the whole beside the two spans.

    `drop_bad`: rows without a label, or whose spans are not in their texts, are left out, not refused.
    """

    labels: Sequence[str] = fitted(())
    pooling: Literal["start", "mean", "max", "last"] = "start"
    dropout: float = 0.1
    drop_bad: bool = False

    name: ClassVar[str] = "match"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    each: ClassVar[Literal["sequence", "token"]] = "sequence"
    decides: ClassVar[str] = "accuracy"

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Labeled:
        """Rows with two spans and a label."""
        return read_marked(file, columns, labels=answered, drop_bad=self.drop_bad)

    def fit(self, examples: Labeled) -> Self:
        """With the labels of some rows."""
        return replace(self, labels=tuple(find_labels(examples.file, examples.labels or ())))

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """A row to a sequence; of too long texts, what stands around their spans is kept."""
        if not isinstance(data.rows, Labeled) or "spans" not in data.rows.more:
            raise PretuneError("match takes rows with two marked spans; give it a file of them")
        if data.template.target:
            raise PretuneError("match marks tokens of what is read; take an encoder, not a model that writes as well")
        labels = {} if data.rows.labels is None else {self.name: Classify(self.labels).encode_labels(data.rows)}
        laid = arrange_rows(data.token_rows, data.tokenizer, data.template, length, labels)
        return keep_spans(laid, data.rows, length)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Rows in any order."""
        return plan_epoch(self.lay_out(data, packing.length), packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The label is the target of its sequence."""
        sequences = with_global_starts(sequences)
        sequences.columns["span"] = sequences.columns["span"].clip(min=0)
        if self.name in sequences.labels:
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), sequences.labels[self.name])
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """One target a sequence."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Three vectors, dropout, classes."""
        return MatchHead(backbone, len(self.labels), self.pooling, self.dropout)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(sequences, classes) logits."""
        logits: Tensor = head(backbone(*batch.packed).last, batch.packed[-1])
        return logits

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Labeled) -> list[Answer]:
        """The likeliest class, and how likely each is."""
        return Classify(self.labels).answers(outputs, laid, examples)

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """The answer of several models to one row: the mean of their probabilities."""
        return Classify(self.labels).combine(answers, examples, row)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of each row."""
        targets = batch.targets[self.name]
        return classification_loss(self.name, self.outputs(head, backbone, batch)[targets.at], targets)
