"""Classification of a text or a pair of texts, with one label or with any number of labels.

Sources: Devlin et al., 2019, arXiv:1810.04805; King and Zeng, 2001, *Logistic Regression in Rare Events Data*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone, BackboneOutput
from pretune.metrics.classification import class_metrics, most_frequent
from pretune.metrics.per_example import ScoredAnswer, score_classes
from pretune.nn.attention.query_key_layout import permute_rows, reverse_index
from pretune.nn.batch_norm import BatchNorm
from pretune.nn.dropout import Dropout
from pretune.nn.linear import Linear, OutputLinear
from pretune.nn.pooling import AttentionPooling, chosen_tokens, pool
from pretune.objectives.in_context_prompt import InContextPrompt, Row
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, Task, fitted
from pretune.objectives.word_baselines import classify_multi_label
from pretune.packed import Batch, Packed, Targets
from pretune.runtime.arrays import Array, softmax
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom
from pretune.runtime.value_ranges import FRACTION, POSITIVE, check_number
from pretune.text.examples.labeled import (
    LabeledRows,
    TableChunk,
    advise_options,
    parse_label,
    parse_labels,
    read_labeled,
    split_labels,
)
from pretune.text.packing.sequences import Arrangement, Sequences, add_global_starts
from pretune.text.packing.token_rows import PAIR, arrange_both_orders, arrange_rows, arrange_separately
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

Pooling = Literal[
    "cls", "mean", "max", "last", "second_to_last", "attention", "concat", "increasing_mean", "pair", "separate",
    "extract", "extract_both",
]  # fmt: skip
# The output width of poolings that concatenate several vectors, which no published pooler takes.
POOLED_WIDTHS: dict[str, Callable[[int], int]] = {
    "concat": lambda width: 3 * width,
    "pair": lambda width: 4 * width,
    "separate": lambda width: 2 * width + 1,
}
# GPT's input transformations (Radford et al., 2018): the head reads a token after the text, whose embedding is learned.
EXTRACT_TEMPLATE = Template(single=("start", "A"), pair=("separator", "B"), segments=False, last=("extract",))
EXTRACTING = ("extract", "extract_both")
MAX_BASELINE_LABELS = 200  # for which a multi-label bag of words is fitted; it must stay cheap


class ClassifyHead(nn.Module):
    """A head that pools each sequence into one vector and maps it to `classes` logits, or to a number.

    `problem` is the `problem_type` in config.json, "" for single-label classification. `hidden` is the width of a
    hidden layer (0: none). `pooler` and `output` build the pooler and the output layer, in place of those of the model
    family.
    """

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
        super().__init__()
        self.pooling, self.problem = pooling, problem
        self.backward = bool(getattr(backbone, "backward", False))  # its last state is that of the first token
        self.attention = AttentionPooling(backbone.width) if pooling == "attention" else None
        self.dropout = Dropout(dropout)
        wide = pooling in POOLED_WIDTHS
        self.pooler = nn.Identity() if wide else (pooler or backbone.pooler)()
        width = POOLED_WIDTHS[pooling](backbone.width) if wide else backbone.width
        self.hidden = HiddenLayer(width, hidden, dropout) if hidden else None
        plain = wide or hidden  # published output layers have another input width
        self.output = OutputLinear(hidden or width, classes) if plain else (output or backbone.classifier)(classes)

    def forward(self, states: Tensor, packed: Packed, real: Tensor | None = None) -> Tensor:
        """Return logits (sequences, classes) for hidden states (tokens, width) of packed sequences.

        `real` (sequences,) is False for sequences that are padding; None if there are no such sequences.
        """
        return self.classify(self.pooled(states, packed), real)

    def read(self, output: BackboneOutput, packed: Packed, real: Tensor | None = None) -> Tensor:
        """Return the logits of packed sequences like `forward`, and read only the hidden states that the pooling needs."""
        at = chosen_tokens(packed, self.pooling)
        if at is None or self.backward or not len(packed):
            return self(output.last, packed, real)  # type: ignore[no-any-return]
        empty = packed.offsets[:-1] == packed.offsets[1:]
        pooled = output.last_at(at).masked_fill(empty[:, None], 0.0)
        return self.classify(self.pooler(pooled), real)

    def classify(self, pooled: Tensor, real: Tensor | None) -> Tensor:
        """Return logits (sequences, classes) for pooled vectors (sequences, width)."""
        logits: Tensor = self.output(self.dropout(pooled) if self.hidden is None else self.hidden(pooled, real))
        return logits

    def pooled(self, states: Tensor, packed: Packed) -> Tensor:
        """Return one vector per sequence, before dropout and the output layer, for hidden states (tokens, width)."""
        if self.backward:
            turn = reverse_index(packed)
            states = permute_rows(states, turn)
        one = pool(states, packed, self.pooling) if self.attention is None else self.attention(states, packed)
        pooled: Tensor = self.pooler(one)
        return pooled


class HiddenLayer(nn.Module):
    """ULMFiT's hidden layer between the pooled text and the classes, which starts with batch norm.

    Pooled over long texts, the states of recurrent networks are nearly equal; batch norm amplifies their differences.
    """

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout, self.inner = BatchNorm(width), Dropout(dropout), Linear(width, hidden)
        self.norm_inner, self.dropout_inner = BatchNorm(hidden), Dropout(min(dropout, 0.1))

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Return hidden vectors (rows, hidden) for pooled vectors `x` (rows, width).

        `real` (rows,) is False for rows of padding, which batch norm leaves out.
        """
        inner: Tensor = self.inner(self.dropout(self.norm(x, real))).relu()
        out: Tensor = self.dropout_inner(self.norm_inner(inner, real))
        return out


@dataclass(frozen=True)
class LabelPrompt(InContextPrompt):
    """An in-context prompt whose candidate answers are one word per label; `words` maps labels to words."""

    words: Mapping[str, str] = field(default_factory=dict)  # the word of each label
    per_class: ClassVar[bool] = True

    def slots(self, row: Row) -> dict[str, str]:
        """Return the marked spans of an example, if any, as values of the prompt's placeholders {word1} and {word2}."""
        texts = {1: row.get("text", ""), 2: row.get("pair", row.get("text", ""))}
        marked = [number for number in texts if f"start{number}" in row]
        return {f"word{n}": str(texts[n])[int(row[f"start{n}"]) : int(row[f"end{n}"])] for n in marked}

    def candidates(self, row: Row) -> Sequence[str]:
        """Return the candidate answers of the prompt: the word of each label."""
        return list(self.words.values())

    def gold(self, row: Row) -> str:
        """Return the word that stands for the gold label of an example."""
        if (label := str(row["label"])) not in self.words:
            raise PretuneError(
                f"the prompt has no word for label {label!r}, only for {', '.join(self.words)}; add a word for this label to `verbalizer`"
            )
        return self.words[label]

    def answer(self, row: Row, output: Array) -> Answer:
        """Return the most likely label of an example, and the probabilities of all labels.

        `output` has the log-likelihood of the word of each label.
        """
        return class_answer(softmax(output), list(self.words))


class LabelTask(Task):
    """Base class of tasks that assign labels to examples, with their loss, answers, metrics, prompt and baseline."""

    combinable: ClassVar[bool] = True

    @property
    def primary_metric(self) -> str:
        """Return the name of the metric by which models are compared."""
        return "accuracy"

    @property
    def single_label(self) -> bool:
        """Return whether each example has exactly one label."""
        return not self.multi_label

    def encode_labels(self, rows: LabeledRows) -> Array:
        """Return the class index of each row, (rows,); raise an error for a label that was not in training."""
        assert rows.labels is not None
        number = self._check([(label,) for label in rows.labels], rows)
        return np.array([number[label] for label in rows.labels], dtype=np.int64)

    def _check(self, labels: Sequence[Sequence[str]], rows: LabeledRows) -> dict[str, int]:
        """Return a mapping from the task's labels to class indices; raise an error if a row has another label.

        `labels` has the labels of each row.
        """
        number = {label: i for i, label in enumerate(self.labels)}
        for row, some in enumerate(labels):
            for label in some:
                if label not in number:
                    known = suggest(label, number)
                    raise PretuneError(f"{rows.location(row)}: label {label!r} was not in training; {known}")
        return number

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of the label of each sequence in a batch."""
        targets = batch.targets[self.name]
        return classification_loss(self.name, self.outputs(head, backbone, batch)[targets.at], targets)

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: LabeledRows) -> list[Answer]:
        """Return the most probable label of each example and the probabilities of all labels, from logits `outputs`."""
        logits = one_per_example(outputs, arrangement).astype(np.float64)
        return [self.answer_from(row) for row in softmax(logits)]

    def answer_from(self, probabilities: Array) -> Answer:
        """Return the answer to an example, with its most probable label, given the probabilities of all labels."""
        return class_answer(probabilities, self.labels)

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """Return an ensemble's answer to example `row`: the label with the highest mean probability over models.

        `answers` are the answers of the models.
        """
        means = np.mean([[answer["probabilities"][label] for label in self.labels] for answer in answers], 0)
        return self.answer_from(means)

    def metrics(self, answers: Sequence[Answer], examples: Any) -> dict[str, float]:
        """Return classification metrics of the predicted labels, such as accuracy and F1, by name."""
        return class_metrics(answers, examples, self)

    def gold_and_predicted(self, answers: Sequence[Answer], examples: Any) -> tuple[list[Any], list[Any]]:
        """Return two lists with one entry per example: the gold labels and the predicted labels.

        If an example can have several labels, an entry is a sequence of labels.
        """
        return list(examples.labels), [answer["labels" if self.multi_label else "label"] for answer in answers]

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Score each predicted label 1 if it is correct, else 0; with several labels per example, by their F1."""
        return score_classes(answers, examples, self)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]]:
        """Return a description of the most frequent training label, and an answer with this label for each example.

        `learned` are the training examples, and `judged` the examples to answer.
        """
        usual = most_frequent(learned.labels)
        return repr(usual), [{"label": usual}] * len(judged)

    def in_context_prompt(self, rows: Sequence[Row], settings: Mapping[str, Any]) -> LabelPrompt:
        """Return an in-context prompt whose candidate answers are the labels of `rows`.

        If settings["verbalizer"] has words for the labels, the words are the candidate answers.
        """
        words = settings.get("verbalizer") or {label: label for label in sorted({str(row["label"]) for row in rows})}
        return LabelPrompt(words={str(label): str(word) for label, word in words.items()})

    def demonstration(self) -> LabeledRows:
        """Return examples of the task: two movie reviews with their sentiment."""
        labels = ["positive", "negative"]
        return LabeledRows(Path("example"), {}, ["a delightful film", "two hours I want back"], None, labels)


@register_task
@dataclass(frozen=True)
class Classify(LabelTask):
    """Classification of a text or a pair of texts into one of `labels` or, with `multi_label`, into any number of them.

    `pooling` turns the hidden states of a sequence into one vector; `hidden_size` is the width of a layer after it
    (ULMFiT; 0: none). With `multi_label`, labels with a probability of at least `threshold` are predicted; of two classes,
    the second is predicted if it has this probability. `class_weight=balanced` gives all classes the same total weight in the
    loss; `class_weight={spam: 5}` gives some classes another weight than 1.
    """

    labels: Sequence[str] = fitted(())
    pooling: Pooling = "cls"
    dropout: float = 0.1
    multi_label: bool = False
    threshold: float = 0.5
    hidden_size: int = 0
    class_weight: str | dict[str, float] = "none"  # or "balanced"
    drop_invalid: bool = False  # whether to leave out rows without a label or a text
    label_weights: Sequence[float] = fitted(())  # the weight of each class

    name: ClassVar[str] = "classify"
    purpose: ClassVar[tuple[str, str]] = ("It classifies texts", "text-classification")
    distillable: ClassVar[bool] = True
    in_context_template: ClassVar[str] = "{text}\nLabel: [MASK]"

    def __post_init__(self) -> None:
        check_pooling(self.name, self.pooling)
        check_number("classify: threshold", self.threshold, FRACTION)
        if isinstance(self.class_weight, Mapping):
            for label, weight in self.class_weight.items():
                check_number(f"classify: class_weight of {label!r}", weight, POSITIVE)
        elif self.class_weight not in ("none", "balanced"):
            raise PretuneError(
                f"classify(class_weight={self.class_weight}): unknown value; {suggest(self.class_weight, ('none', 'balanced'))}"
            )

    @property
    def primary_metric(self) -> str:
        """Return the name of the metric by which models are compared."""
        return "micro_f1" if self.multi_label else "accuracy"

    @property
    def classifies_texts(self) -> bool:
        """Return whether each text or pair of texts has exactly one label."""
        return not self.multi_label

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> LabeledRows:
        """Read one or two texts and, if `answered`, labels per row; `columns` maps roles such as text to columns."""
        read = parse_labels if self.multi_label else parse_label
        rows = read_labeled(file, columns, labels=answered, label=read, drop_invalid=self.drop_invalid)
        if self.multi_label and rows.labels is not None:
            rows.labels = split_labels(rows.labels, self.labels)
        return rows

    def check_labels(self, examples: LabeledRows) -> None:
        """Raise an error if an example has a label that the task was not trained on."""
        self.encode_labels(examples)

    def fit(self, examples: LabeledRows) -> Self:
        """Return a copy of the task with the training labels and the class weights that `class_weight` sets."""
        assert examples.labels is not None
        known = [label for labels in examples.labels for label in labels] if self.multi_label else examples.labels
        labels = sorted_labels(examples.file, known, least=1 if self.multi_label else 2)
        if not self.multi_label and len(labels) != 2 and self.threshold != 0.5:
            raise PretuneError(
                f"{examples.file}: a threshold needs two classes or classify(multi_label=true), but the labels are "
                f"{', '.join(labels)}; remove the threshold"
            )
        balance: tuple[float, ...] = ()
        if isinstance(self.class_weight, Mapping):
            for label in self.class_weight.keys() - set(labels):
                raise PretuneError(
                    f"{examples.file}: class_weight has a label {label!r} that is not in the file; {suggest(label, labels)}"
                )
            balance = tuple(float(self.class_weight.get(label, 1.0)) for label in labels)
        elif self.class_weight == "balanced":
            counts = Counter(known)
            rows = len(examples)
            # Single label: the rows of each class have the same total weight. Multi-label: as much as the rows without it.
            balance = tuple(
                (rows - counts[label]) / counts[label] if self.multi_label else rows / len(labels) / counts[label]
                for label in labels
            )
        return replace(self, labels=tuple(labels), label_weights=balance)

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence of at most `length` tokens per row; longer texts are truncated."""
        rows = require_labeled(self.name, data)
        check_pooling(self.name, self.pooling, data.template)
        labels = {} if rows.labels is None else {"classify": self.encode_labels(rows)}
        return arrange_labeled(self.name, self.pooling, data, length, labels)

    def encode_labels(self, rows: LabeledRows) -> Array:
        """Return the class index of each row, (rows,); with `multi_label`, a 0/1 matrix of labels, (rows, classes)."""
        if not self.multi_label:
            return super().encode_labels(rows)
        assert rows.labels is not None
        number = self._check(rows.labels, rows)
        found = np.zeros((len(rows), len(self.labels)), dtype=np.float32)
        for row, labels in enumerate(rows.labels):
            found[row, [number[label] for label in labels]] = 1.0
        return found

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the label of each sequence as its target.

        With `multi_label`, the target has one number per class: its loss weight if the sequence has the label, else 0.
        """
        sequences = add_global_starts(sequences)
        if "classify" in sequences.labels:
            target = sequences.labels["classify"]
            balance = np.array(self.label_weights, dtype=np.float32)
            weights = () if self.multi_label or not self.label_weights else (balance[target],)
            if self.multi_label and self.label_weights:
                target = target * balance
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), target, *weights)
        return sequences

    def head(self, backbone: Backbone) -> nn.Module:
        """Build a head that pools each sequence into one vector, from which it computes one logit per class."""
        problem = "multi_label_classification" if self.multi_label else ""
        return ClassifyHead(backbone, len(self.labels), self.pooling, self.dropout, problem, self.hidden_size)

    def outputs(self, head: Any, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the logits of each sequence in a batch, (sequences, classes)."""
        real = sequences_with_targets(batch, self.name) if self.hidden_size else None
        out: Tensor = head.read(backbone(*batch.packed), batch.packed[-1], real)
        return out

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: LabeledRows) -> list[Answer]:
        """Return the predicted label or labels of each example and the probabilities of all labels.

        `outputs` are the logits of the sequences.
        """
        if not self.multi_label:
            return super().answers(outputs, arrangement, examples)
        logits = one_per_example(outputs, arrangement).astype(np.float64)
        return [self.answer_from(row) for row in np.exp(-np.logaddexp(0, -logits))]

    def answer_from(self, probabilities: Array) -> Answer:
        """Return an example's answer from its probabilities: the best label or, if `multi_label`, every likely label.

        A label is likely if its probability is at least the task's threshold.
        """
        if not self.multi_label:
            answer = super().answer_from(probabilities)
            if len(self.labels) == 2 and self.threshold != 0.5:
                best = int(probabilities[1] >= self.threshold)
                answer |= {"label": self.labels[best], "probability": float(probabilities[best])}
            return answer
        shares = {label: float(p) for label, p in zip(self.labels, probabilities, strict=True)}
        return {"labels": [label for label, p in shares.items() if p >= self.threshold], "probabilities": shares}

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of a batch; with `multi_label`, the binary cross-entropy averaged over classes."""
        if not self.multi_label:
            return super().loss(head, backbone, batch)
        targets = batch.targets[self.name]
        return multi_label_loss(self.name, self.outputs(head, backbone, batch)[targets.at], targets)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]]:
        """Return a description of the most frequent label in training, and an answer with this label for each example.

        With `multi_label`, it is the most frequent set of labels. `learned` are the training examples, and `judged` the
        examples to answer.
        """
        if not self.multi_label:
            return super().majority_answers(learned, judged)
        several = most_frequent(tuple(sorted(labels)) for labels in learned.labels)
        return repr(", ".join(several)), [{"labels": list(several)}] * len(judged)

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return a baseline's answers to multi-label rows: one logistic regression on the TF-IDF of words per label.

        `learned` are the training rows and `judged` the rows to answer; tasks with one label per row have no such
        baseline.
        """
        if not self.multi_label or len(self.labels) > MAX_BASELINE_LABELS:
            return {}
        found = classify_multi_label(learned, judged, self.labels)
        return {"a bag of words": [{"labels": labels} for labels in found]}

    def demonstration(self) -> LabeledRows:
        """Return examples of the task: two movie reviews with their sentiment."""
        rows = super().demonstration()
        if self.multi_label:
            rows.labels = [(label,) for label in rows.labels or ()]
        return rows


def arrange_labeled(name: str, pooling: str, data: Data, length: int, labels: Mapping[str, Array]) -> Arrangement:
    """Return one sequence of at most `length` tokens per row.

    With pooling=separate, there is one sequence for each text of a pair; with extract_both, one for each order of the
    two texts. `name` is the name of the task, for error messages; `labels` has arrays with one value per row.
    """
    template = input_template(name, pooling, data.template)
    if pooling not in ("separate", "extract_both"):
        return arrange_rows(data.token_rows, data.tokenizer, template, length, labels)
    require_pairs(f"{name}(pooling={pooling})", require_labeled(name, data))
    arrange = arrange_separately if pooling == "separate" else arrange_both_orders
    return arrange(data.token_rows, data.tokenizer, template, length, labels)


def input_template(name: str, pooling: str, template: Template) -> Template:
    """Return the input template of a task: GPT's template if `pooling` reads its extract token, else `template`."""
    if pooling not in EXTRACTING:
        return template
    if template.target:
        raise PretuneError(
            f"{name}: pooling={pooling} needs a decoder or an encoder, not an encoder-decoder; choose another pooling"
        )
    return EXTRACT_TEMPLATE


def one_per_example(outputs: Sequence[Array], arrangement: Arrangement) -> Array:
    """Return the head's outputs for an arrangement, (examples, …), one per example.

    If the two texts of a pair were separate sequences, their common output is taken once.
    """
    return np.stack(outputs)[:: 2 if PAIR in arrangement.labels else 1]


def sequences_with_targets(batch: Batch, name: str) -> Tensor | None:
    """Return a mask (sequences,) of the sequences with a target of loss term `name`; None if the batch has none."""
    targets, offsets = batch.targets.get(name), batch.packed[-1].offsets
    if targets is None:
        return None
    counts = torch.zeros(offsets.shape[0] - 1, device=targets.weight.device)
    return counts.index_add(0, targets.at, targets.weight) > 0


def multi_label_loss(name: str, logits: Tensor, targets: Targets) -> Loss:
    """Return the binary cross-entropy averaged over classes as loss term `name`.

    The target of a class is its loss weight if the sequence has the label, else 0.
    """
    logits, there = logits.float(), targets.target
    losses = there * F.softplus(-logits) + (there == 0) * F.softplus(logits)
    right = ((logits > 0) == (there > 0)).float().mean(-1)
    logs = {f"{name}/accuracy": (right * targets.weight).sum().detach()}
    return Loss(sums={name: (losses.mean(-1) * targets.weight).sum()}, logs=logs)


def check_pooling(name: str, pooling: str, template: Template | None = None) -> None:
    """Raise an error if `pooling` is unknown, or needs segments that the model's `template` lacks.

    `name` is the name of the task, for the error message.
    """
    if pooling not in get_args(Pooling):
        raise PretuneError(f"{name}: unknown pooling {pooling!r}; {suggest(str(pooling), get_args(Pooling))}")
    if pooling == "pair" and template is not None and not template.segments:
        raise PretuneError(
            f"{name}: pooling=pair needs segments to tell two texts apart, and this model has none; choose another pooling"
        )


def class_answer(probabilities: Array, labels: Sequence[str]) -> Answer:
    """Return the answer of a classifier: the most probable label, its probability, and those of all labels."""
    best = int(probabilities.argmax())
    return {
        "label": labels[best],
        "probability": float(probabilities[best]),
        "probabilities": {label: float(p) for label, p in zip(labels, probabilities, strict=True)},
    }


def require_labeled(name: str, data: Data) -> LabeledRows:
    """Return the labeled rows of `data`; raise an error that names the task `name` if the data is of another kind."""
    if not isinstance(data.rows, LabeledRows):
        raise PretuneError(f"the task {name!r} learns from labeled rows; give it a .csv, .tsv, .jsonl or .parquet file")
    return data.rows


def require_pairs(name: str, rows: LabeledRows) -> None:
    """Raise an error that names the task `name` if the rows have single texts instead of pairs."""
    if rows.pairs is None:
        raise PretuneError(
            f"{rows.file}: the task {name!r} needs pairs of texts{advise_options('name the columns', ('text', 'pair'))}"
        )


def sorted_labels(file: Path, labels: Iterable[str], least: int = 2) -> list[str]:
    """Return the distinct labels of a file, sorted (numbers by value); raise an error if fewer than `least` exist."""
    found = Counter(labels)
    if not found:
        raise PretuneError(f"{file}: no row has a label; label some rows, or choose another column of labels")
    if len(found) < least:
        raise PretuneError(
            f"{file}: every row has the label {next(iter(found))!r}; add rows with another label, or choose another column of labels"
        )
    folded: dict[str, str] = {}
    for label in found:
        twin = folded.setdefault(label.casefold().strip(), label)
        if twin != label:
            log_info(
                f"{file}: labels {twin!r} and {label!r} differ only in case or spaces; if they mean the same, spell them alike"
            )
    try:
        return sorted(found, key=float)
    except ValueError:
        return sorted(found)
