"""Classification of a text or a pair of texts, with one label or with any number of labels.

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

from pretune.metrics.classification import class_metrics, most_frequent
from pretune.metrics.per_example import ScoredAnswer, score_classes
from pretune.nn.attention.query_key_layout import permute_rows, reverse_index
from pretune.nn.batch_norm import BatchNorm
from pretune.nn.dropout import Dropout
from pretune.nn.linear import Linear, OutputLinear
from pretune.nn.pooling import AttentionPooling, pool
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, Task, fitted
from pretune.packed import Batch, Packed, Targets
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows, TableChunk, parse_label, parse_labels, read_labeled, split_labels
from pretune.text.packing.sequences import Arrangement, Sequences, add_global_starts
from pretune.text.packing.token_rows import arrange_rows
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


Pooling = Literal["start", "mean", "max", "last", "before_last", "attentive", "concat", "rising", "pair"]
POOLED_VECTORS = {"concat": 3, "pair": 4}  # poolings that concatenate several vectors, which no published pooler takes


class ClassifyHead(nn.Module):
    """A head that pools a sequence into one vector and maps it to one logit per class, or to a number."""

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

        `problem` is the `problem_type` of config.json, "" for single-label classification. `pooler` and `output` are the
        family's parts for this task, if they differ from those of classification.
        """
        super().__init__()
        self.pooling, self.problem = pooling, problem
        self.backward = bool(getattr(backbone, "backward", False))  # its last state is that of the first token
        self.attention = AttentionPooling(backbone.width) if pooling == "attentive" else None
        self.dropout = Dropout(dropout)
        wide = pooling in POOLED_VECTORS
        self.pooler = nn.Identity() if wide else (pooler or backbone.pooler)()
        width = POOLED_VECTORS.get(pooling, 1) * backbone.width
        self.hidden = HiddenLayer(width, hidden, dropout) if hidden else None
        plain = wide or hidden  # published output layers have another input width
        self.output = OutputLinear(hidden or width, classes) if plain else (output or backbone.classifier)(classes)

    def forward(self, states: Tensor, packed: Packed, real: Tensor | None = None) -> Tensor:
        """Return logits (sequences, classes) for states (n, width); `real` marks the sequences that are not filler, if known."""
        if self.backward:
            turn = reverse_index(packed)
            states = permute_rows(states, turn)
        one = pool(states, packed, self.pooling) if self.attention is None else self.attention(states, packed)
        pooled: Tensor = self.pooler(one)
        logits: Tensor = self.output(self.dropout(pooled) if self.hidden is None else self.hidden(pooled, real))
        return logits


class HiddenLayer(nn.Module):
    """ULMFiT's hidden layer between the pooled text and the classes.

    Batch norm comes first: the states of a recurrent network, pooled over a long text, are nearly the same for all texts, and
    their differences must be amplified before anything can be learned from them.
    """

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout, self.inner = BatchNorm(width), Dropout(dropout), Linear(width, hidden)
        self.norm_inner, self.dropout_inner = BatchNorm(hidden), Dropout(min(dropout, 0.1))

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Return hidden vectors (rows, hidden) for pooled vectors (rows, width)."""
        inner: Tensor = self.inner(self.dropout(self.norm(x, real))).relu()
        out: Tensor = self.dropout_inner(self.norm_inner(inner, real))
        return out


class LabelTask(Task):
    """Base class of tasks that assign labels to an example: their answers, metrics and trivial baseline."""

    combinable: ClassVar[bool] = True

    @property
    def primary_metric(self) -> str:
        """Return the metric by which models are compared."""
        return "accuracy"

    @property
    def single_label(self) -> bool:
        """Return whether an example has exactly one label."""
        return not self.multi

    def encode_labels(self, rows: LabeledRows) -> Array:
        """Return the class of each row, (m,); a label that the task was not trained on is refused."""
        assert rows.labels is not None
        number = self._check([(label,) for label in rows.labels], rows)
        return np.array([number[label] for label in rows.labels], dtype=np.int64)

    def _check(self, labels: Sequence[Sequence[str]], rows: LabeledRows) -> dict[str, int]:
        """Return the number of each label; refuse a row with another one."""
        number = {label: i for i, label in enumerate(self.labels)}
        for row, some in enumerate(labels):
            for label in some:
                if label not in number:
                    known = suggest(label, number)
                    raise PretuneError(f"{rows.location(row)}: label {label!r} was not in training; {known}")
        return number

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: LabeledRows) -> list[Answer]:
        """Return the most probable label of each example, and the probabilities of all."""
        logits = np.stack(outputs).astype(np.float64)
        rows = np.exp(logits - logits.max(-1, keepdims=True))
        return [self.answer_from(row) for row in rows / rows.sum(-1, keepdims=True)]

    def answer_from(self, probabilities: Array) -> Answer:
        """Return the answer that follows from the probabilities of all labels."""
        return class_answer(probabilities, self.labels)

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """Return the answer by the mean probabilities of several models."""
        means = np.mean([[answer["probabilities"][label] for label in self.labels] for answer in answers], 0)
        return self.answer_from(means)

    def metrics(self, answers: Sequence[Answer], examples: Any) -> dict[str, float]:
        """Return accuracy, Matthews correlation and F1."""
        return class_metrics(answers, examples, self)

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Return whether each label is right; with several labels, their F1."""
        return score_classes(answers, examples, self)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]]:
        """Return the most frequent label."""
        usual = most_frequent(learned.labels)
        return repr(usual), [{"label": usual}] * len(judged)

    def demonstration(self) -> LabeledRows:
        """Return two movie reviews with a sentiment."""
        labels = ["positive", "negative"]
        return LabeledRows(Path("example"), {}, ["a delightful film", "two hours I want back"], None, labels)


@register_task
@dataclass(frozen=True)
class Classify(LabelTask):
    """Classification into `labels`; `pooling` turns the states of a sequence into one vector: its start token, the mean …

    `hidden` is the width of a layer between that vector and the classes (ULMFiT); 0: none.

    With `multi` a row has any number of labels, and the answer are those with a probability of at least `threshold`. With
    `weights=balanced` all classes have the same total weight in the loss, however rare they are. `drop_bad` leaves out rows
    without a label or a text.
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

    def __post_init__(self) -> None:
        check_pooling(self.name, self.pooling)
        if self.weights not in ("none", "balanced"):
            raise PretuneError(f"classify: unknown weights={self.weights}; choose none or balanced")

    @property
    def primary_metric(self) -> str:
        """Return the metric by which models are compared."""
        return "micro_f1" if self.multi else "accuracy"

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> LabeledRows:
        """Return the rows of a table: one or two texts, and one or more labels."""
        read = parse_labels if self.multi else parse_label
        rows = read_labeled(file, columns, labels=answered, label=read, drop_bad=self.drop_bad)
        if self.multi and rows.labels is not None:
            rows.labels = split_labels(rows.labels, self.labels)
        return rows

    def check_labels(self, examples: LabeledRows) -> None:
        """Refuse rows with labels that the task was not trained on."""
        self.encode_labels(examples)

    def fit(self, examples: LabeledRows) -> Self:
        """Return the task with the labels of the rows, and the weight of each."""
        assert examples.labels is not None
        known = [label for labels in examples.labels for label in labels] if self.multi else examples.labels
        labels = sorted_labels(examples.file, known, least=1 if self.multi else 2)
        balance: tuple[float, ...] = ()
        if self.weights == "balanced":
            counts = Counter(known)
            rows = len(examples)
            # Single label: the rows of each class have the same total weight. Multi-label: as much as the rows without it.
            balance = tuple(
                (rows - counts[label]) / counts[label] if self.multi else rows / len(labels) / counts[label]
                for label in labels
            )
        return replace(self, labels=tuple(labels), balance=balance)

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence per row; long ones are truncated."""
        rows = require_labeled(self.name, data)
        check_pooling(self.name, self.pooling, data.template)
        labels = {} if rows.labels is None else {"classify": self.encode_labels(rows)}
        return arrange_rows(data.token_rows, data.tokenizer, data.template, length, labels)

    def encode_labels(self, rows: LabeledRows) -> Array:
        """Return the class of each row, (m,), or with `multi` which classes it has, (m, classes)."""
        if not self.multi:
            return super().encode_labels(rows)
        assert rows.labels is not None
        number = self._check(rows.labels, rows)
        found = np.zeros((len(rows), len(self.labels)), dtype=np.float32)
        for row, labels in enumerate(rows.labels):
            found[row, [number[label] for label in labels]] = 1.0
        return found

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the label as the target of each sequence; with `multi`, the weight of each label that it has."""
        sequences = add_global_starts(sequences)
        if "classify" in sequences.labels:
            target = sequences.labels["classify"]
            balance = np.array(self.balance, dtype=np.float32)
            weights = () if self.multi or not self.balance else (balance[target],)
            if self.multi and self.balance:
                target = target * balance
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), target, *weights)
        return sequences

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a pooler, dropout, and one logit per class."""
        problem = "multi_label_classification" if self.multi else ""
        return ClassifyHead(backbone, len(self.labels), self.pooling, self.dropout, problem, self.hidden)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """Return logits, (sequences, classes)."""
        real = sequences_with_targets(batch, self.name) if self.hidden else None
        out: Tensor = head(backbone(*batch.packed).last, batch.packed[-1], real)
        return out

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: LabeledRows) -> list[Answer]:
        """Return the most probable label, or all that reach the threshold, and the probabilities of all."""
        if not self.multi:
            return super().answers(outputs, laid, examples)
        logits = np.stack(outputs).astype(np.float64)
        return [self.answer_from(row) for row in np.exp(-np.logaddexp(0, -logits))]

    def answer_from(self, probabilities: Array) -> Answer:
        """Return the answer that follows from the probabilities of all labels."""
        if not self.multi:
            return super().answer_from(probabilities)
        shares = {label: float(p) for label, p in zip(self.labels, probabilities, strict=True)}
        return {"labels": [label for label, p in shares.items() if p >= self.threshold], "probabilities": shares}

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of each row; with `multi`, the mean of the binary ones over classes."""
        targets = batch.targets[self.name]
        logits = self.outputs(head, backbone, batch)[targets.at]
        if self.multi:
            return multi_label_loss(self.name, logits, targets)
        return classification_loss(self.name, logits, targets)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]]:
        """Return the most frequent label, or the most frequent set of labels."""
        if not self.multi:
            return super().majority_answers(learned, judged)
        several = most_frequent(tuple(sorted(labels)) for labels in learned.labels)
        return repr(", ".join(several)), [{"labels": list(several)}] * len(judged)

    def demonstration(self) -> LabeledRows:
        """Return two movie reviews with a sentiment."""
        rows = super().demonstration()
        if self.multi:
            rows.labels = [(label,) for label in rows.labels or ()]
        return rows


def sequences_with_targets(batch: Batch, name: str) -> Tensor | None:
    """Return which sequences have targets of a loss term, (sequences,); None if the batch has no such targets."""
    targets, offsets = batch.targets.get(name), batch.packed[-1].offsets
    if targets is None:
        return None
    counts = torch.zeros(offsets.shape[0] - 1, device=targets.weight.device)
    return counts.index_add(0, targets.at, targets.weight) > 0


def multi_label_loss(name: str, logits: Tensor, targets: Targets) -> Loss:
    """Return the binary cross-entropy, averaged over classes; a target is the weight of a label, 0 if it is absent."""
    logits, there = logits.float(), targets.target
    losses = there * F.softplus(-logits) + (there == 0) * F.softplus(logits)
    right = ((logits > 0) == (there > 0)).float().mean(-1)
    logs = {f"{name}/accuracy": (right * targets.weight).sum().detach()}
    return Loss(sums={name: (losses.mean(-1) * targets.weight).sum()}, logs=logs)


def check_pooling(name: str, pooling: str, template: Template | None = None) -> None:
    """Refuse an unknown pooling, or one that needs segments if the model's template has none."""
    if pooling not in get_args(Pooling):
        raise PretuneError(f"{name}: unknown pooling {pooling!r}; {suggest(str(pooling), get_args(Pooling))}")
    if pooling == "pair" and template is not None and not template.segments:
        raise PretuneError(
            f"{name}: pooling=pair tells two texts apart by segments, which this model does not have; choose another pooling"
        )


def class_answer(probabilities: Array, labels: Sequence[str]) -> Answer:
    """Return the most probable label, and the probabilities of all."""
    best = int(probabilities.argmax())
    return {
        "label": labels[best],
        "probability": float(probabilities[best]),
        "probabilities": {label: float(p) for label, p in zip(labels, probabilities, strict=True)},
    }


def require_labeled(name: str, data: Data) -> LabeledRows:
    """Return the rows of a task on texts or pairs of texts; other data is refused."""
    if not isinstance(data.rows, LabeledRows):
        raise PretuneError(f"{name} learns from labeled rows; give it a .csv, .tsv, .jsonl or .parquet file")
    return data.rows


def sorted_labels(file: Path, labels: Iterable[str], least: int = 2) -> list[str]:
    """Return the classes, sorted, numbers by value; fewer than `least` are refused."""
    found = Counter(labels)
    if not found:
        raise PretuneError(f"{file}: no row has a label; label some rows, or choose another column")
    if len(found) < least:
        raise PretuneError(
            f"{file}: every row has the label {next(iter(found))!r}; classification needs two classes or more"
        )
    folded: dict[str, str] = {}
    for label in found:
        twin = folded.setdefault(label.casefold().strip(), label)
        if twin != label:
            log_info(
                f"{file}: labels {twin!r} and {label!r} differ only in case or spaces; are they meant to be the same?"
            )
    try:
        return sorted(found, key=float)
    except ValueError:
        return sorted(found)
