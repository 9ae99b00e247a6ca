"""Classification of a text or a pair of texts: one label of several, or any number of them.

Sources: Devlin et al., 2019, arXiv:1810.04805; King and Zeng, 2001, *Logistic Regression in Rare Events Data* (balanced weights).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.packed_layout import rearrange, reverse
from pretune.nn.attention.patterns import Pattern
from pretune.nn.batch_norm import BatchNorm
from pretune.nn.dropout import Dropout
from pretune.nn.linear import Linear, OutputLinear
from pretune.nn.pooling import AttentivePool, pool
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.objectives.task import Answer, fitted
from pretune.packed import Batch, Packed, Targets
from pretune.runtime.errors import PretuneError, nearest
from pretune.runtime.progress import say
from pretune.runtime.randomness import Draws
from pretune.text.examples.labeled import Excerpt, Labeled, one_label, read_labeled, some_labels, split_labels
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch, with_global_starts
from pretune.text.packing.token_rows import arrange_rows
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


Pooling = Literal["start", "mean", "max", "last", "before_last", "attentive", "concat", "rising", "pair"]
WIDER = {"concat": 3, "pair": 4}  # so many vectors side by side, which no published pooler takes


class ClassifyHead(nn.Module):
    """One vector a sequence, dropout, and a logit a class, or a number."""

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        pooling: str,
        dropout: float,
        problem: str = "",
        hidden: int = 0,
        pooler: Callable[[], nn.Module] | None = None,
        output: Callable[[int], nn.Module] | None = None,
    ) -> None:
        """Build the head of a task on sequences.

        `problem` is what config.json calls it: `problem_type`, where that is not one label of several. `pooler` and `output`
        are the family's for this task, if not those of classification.
        """
        super().__init__()
        self.pooling, self.problem = pooling, problem
        self.backward = bool(getattr(backbone, "backward", False))  # the last state is that of the first token
        self.attention = AttentivePool(backbone.width) if pooling == "attentive" else None
        self.dropout = Dropout(dropout)
        wide = pooling in WIDER
        self.pooler = nn.Identity() if wide else (pooler or backbone.pooler)()
        width = WIDER.get(pooling, 1) * backbone.width
        self.hidden = Hidden(width, hidden, dropout) if hidden else None
        plain = wide or hidden  # no published output is as wide
        self.output = OutputLinear(hidden or width, classes) if plain else (output or backbone.classifier)(classes)

    def forward(self, states: Tensor, packed: Packed, real: Tensor | None = None) -> Tensor:
        """(n, width) → (sequences, classes); `real` are the sequences that are no filler, where that is known."""
        if self.backward:
            turn = reverse(packed)
            states = rearrange(states, turn)
        one = pool(states, packed, self.pooling) if self.attention is None else self.attention(states, packed)
        pooled: Tensor = self.pooler(one)
        logits: Tensor = self.output(self.dropout(pooled) if self.hidden is None else self.hidden(pooled, real))
        return logits


class Hidden(nn.Module):
    """ULMFiT's layer between what stands for a text and the classes.

    Batch norm comes first: states of a recurrent network are pooled over a long text into vectors that are nearly the same for
    all texts, and what tells them apart must be made large before anything can be learned from it.
    """

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout, self.inner = BatchNorm(width), Dropout(dropout), Linear(width, hidden)
        self.norm_inner, self.dropout_inner = BatchNorm(hidden), Dropout(min(dropout, 0.1))

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """(rows, width) → (rows, hidden)."""
        inner: Tensor = self.inner(self.dropout(self.norm(x, real))).relu()
        out: Tensor = self.dropout_inner(self.norm_inner(inner, real))
        return out


@dataclass(frozen=True)
class Classify:
    """`labels` are the classes in order; `pooling` is what stands for a sequence: its start token, the mean …

    `hidden` is the width of a layer between that and the classes (ULMFiT); 0: none.

    With `multi` a row has any number of labels, and those of at least `threshold` are the answer. With `weights=balanced`
    all classes together count as much as each other, however rare they are. `drop_bad`: rows without a label or a text are
    left out.
    """

    labels: Sequence[str] = fitted(())
    pooling: Pooling = "start"
    dropout: float = 0.1
    multi: bool = False
    threshold: float = 0.5
    hidden: int = 0
    weights: Literal["none", "balanced"] = "none"
    drop_bad: bool = False
    balance: Sequence[float] = fitted(())  # the weight of each class

    name: ClassVar[str] = "classify"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    each: ClassVar[Literal["sequence", "token"]] = "sequence"

    def __post_init__(self) -> None:
        check_pooling(self.name, self.pooling)
        if self.weights not in ("none", "balanced"):
            raise PretuneError(f"classify: weights={self.weights} is not known; there are none and balanced")

    @property
    def decides(self) -> str:
        """The metric by which models are compared."""
        return "micro_f1" if self.multi else "accuracy"

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Labeled:
        """Rows of a table: a text or two, and a label, or several of them."""
        read = some_labels if self.multi else one_label
        rows = read_labeled(file, columns, labels=answered, label=read, drop_bad=self.drop_bad)
        if self.multi and rows.labels is not None:
            rows.labels = split_labels(rows.labels, self.labels)
        return rows

    def fit(self, examples: Labeled) -> Self:
        """With the labels of some rows, and what each is worth."""
        assert examples.labels is not None
        known = [label for labels in examples.labels for label in labels] if self.multi else examples.labels
        labels = find_labels(examples.file, known, least=1 if self.multi else 2)
        balance: tuple[float, ...] = ()
        if self.weights == "balanced":
            counts = Counter(known)
            rows = len(examples)
            # One of several: rows of all classes weigh the same together. Any number: a class's rows weigh what the others do.
            balance = tuple(
                (rows - counts[label]) / counts[label] if self.multi else rows / len(labels) / counts[label]
                for label in labels
            )
        return replace(self, labels=tuple(labels), balance=balance)

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """A row to a sequence; too long ones are cut."""
        rows = need_rows(self.name, data)
        check_pooling(self.name, self.pooling, data.template)
        labels = {} if rows.labels is None else {"classify": self.encode_labels(rows)}
        return arrange_rows(data.token_rows, data.tokenizer, data.template, length, labels)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Rows in any order."""
        return plan_epoch(self.lay_out(data, packing.length), packing, draws)

    def encode_labels(self, rows: Labeled) -> Array:
        """(m,) the class of each row, or (m, classes) which it has; one that training never saw is refused."""
        assert rows.labels is not None
        number = {label: i for i, label in enumerate(self.labels)}
        several = rows.labels if self.multi else [(label,) for label in rows.labels]
        for row, labels in enumerate(several):
            for label in labels:
                if label not in number:
                    known = nearest(label, number)
                    raise PretuneError(f"{rows.place(row)}: label {label!r} was not in training; {known}")
        if not self.multi:
            return np.array([number[label] for label in rows.labels], dtype=np.int64)
        found = np.zeros((len(rows), len(self.labels)), dtype=np.float32)
        for row, labels in enumerate(several):
            found[row, [number[label] for label in labels]] = 1.0
        return found

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The label is the target of its sequence, whose first token stands for all; of several, each is what it weighs."""
        sequences = with_global_starts(sequences)
        if "classify" in sequences.labels:
            target = sequences.labels["classify"]
            balance = np.array(self.balance, dtype=np.float32)
            weights = () if self.multi or not self.balance else (balance[target],)
            if self.multi and self.balance:
                target = target * balance
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), target, *weights)
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """One target a sequence."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Pooler, dropout, classes."""
        problem = "multi_label_classification" if self.multi else ""
        return ClassifyHead(backbone, len(self.labels), self.pooling, self.dropout, problem, self.hidden)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(sequences, classes) logits."""
        real = real_rows(batch, self.name) if self.hidden else None
        out: Tensor = head(backbone(*batch.packed).last, batch.packed[-1], real)
        return out

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Labeled) -> list[Answer]:
        """The likeliest class, or all that are likely enough, and how likely each is."""
        logits = np.stack(outputs).astype(np.float64)
        if self.multi:
            return [self._several(row) for row in np.exp(-np.logaddexp(0, -logits))]
        rows = np.exp(logits - logits.max(-1, keepdims=True))
        return [class_answer(row, self.labels) for row in rows / rows.sum(-1, keepdims=True)]

    def _several(self, row: Array) -> Answer:
        probabilities = {label: float(p) for label, p in zip(self.labels, row, strict=True)}
        found = [label for label, p in probabilities.items() if p >= self.threshold]
        return {"labels": found, "probabilities": probabilities}

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """The answer of several models to one example: the mean of their probabilities."""
        means = np.mean([[answer["probabilities"][label] for label in self.labels] for answer in answers], 0)
        return self._several(means) if self.multi else class_answer(means, self.labels)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of each row; of several labels, the mean over classes."""
        targets = batch.targets[self.name]
        logits = self.outputs(head, backbone, batch)[targets.at]
        if self.multi:
            return several_loss(self.name, logits, targets)
        return classification_loss(self.name, logits, targets)


def real_rows(batch: Batch, name: str) -> Tensor | None:
    """(sequences,) those that a term has targets for; None where it has none."""
    targets, offsets = batch.targets.get(name), batch.packed[-1].offsets
    if targets is None:
        return None
    counts = torch.zeros(offsets.shape[0] - 1, device=targets.weight.device)
    return counts.index_add(0, targets.at, targets.weight) > 0


def several_loss(name: str, logits: Tensor, targets: Targets) -> Loss:
    """Binary cross-entropy, the mean over classes; a target is what a label that is there weighs, and 0 where it is not."""
    logits, there = logits.float(), targets.target
    losses = there * F.softplus(-logits) + (there == 0) * F.softplus(logits)
    right = ((logits > 0) == (there > 0)).float().mean(-1)
    logs = {f"{name}/accuracy": (right * targets.weight).sum().detach()}
    return Loss(sums={name: (losses.mean(-1) * targets.weight).sum()}, logs=logs)


def check_pooling(name: str, pooling: str, template: Template | None = None) -> None:
    """Refuse a pooling that does not exist, or one that needs segments where a model's template has none."""
    if pooling not in get_args(Pooling):
        raise PretuneError(f"{name}: unknown pooling {pooling!r}; {nearest(str(pooling), get_args(Pooling))}")
    if pooling == "pair" and template is not None and not template.segments:
        raise PretuneError(f"{name}: pooling=pair tells two texts apart by segments, which this model does not have")


def class_answer(probabilities: Array, labels: Sequence[str]) -> Answer:
    """The likeliest of some labels, and all."""
    best = int(probabilities.argmax())
    return {
        "label": labels[best],
        "probability": float(probabilities[best]),
        "probabilities": {label: float(p) for label, p in zip(labels, probabilities, strict=True)},
    }


def need_rows(name: str, data: Data) -> Labeled:
    """The rows of a task that learns from texts or pairs of them."""
    if not isinstance(data.rows, Labeled):
        raise PretuneError(f"{name} learns from labeled rows; give it a .csv, .tsv, .jsonl or .parquet file")
    return data.rows


def find_labels(file: Path, labels: Iterable[str], least: int = 2) -> list[str]:
    """The classes, sorted; numbers by value. One class is no task, unless rows can do without."""
    found = Counter(labels)
    if not found:
        raise PretuneError(f"{file}: no row has a label")
    if len(found) < least:
        raise PretuneError(
            f"{file}: every row has the label {next(iter(found))!r}; classifying needs two classes or more"
        )
    folded: dict[str, str] = {}
    for label in found:
        twin = folded.setdefault(label.casefold().strip(), label)
        if twin != label:
            say(f"{file}: labels {twin!r} and {label!r} differ in case or spaces alone; are they meant to be one?")
    try:
        return sorted(found, key=float)
    except ValueError:
        return sorted(found)
