"""Regression: predict a number for a text or a pair of texts, such as the similarity of two sentences.

Source: Cer et al., 2017, arXiv:1708.00055 (STS-B), trained as in Devlin et al., 2019, arXiv:1810.04805.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.metrics.per_example import ScoredAnswer, score_numbers
from pretune.metrics.regression import regression_metrics
from pretune.objectives.in_context_prompt import InContextPrompt, Row
from pretune.objectives.objective import Data, Loss
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, Task, fitted
from pretune.objectives.tasks.classify import (
    ClassifyHead,
    Pooling,
    arrange_labeled,
    check_pooling,
    one_per_example,
    require_labeled,
)
from pretune.objectives.word_baselines import regress_words
from pretune.packed import Batch
from pretune.runtime.arrays import Array, softmax
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows, TableChunk, parse_number, read_labeled
from pretune.text.packing.sequences import Arrangement, Sequences, add_global_starts
from pretune.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class NumberPrompt(InContextPrompt):
    """An in-context prompt whose candidates are words for numbers.

    The answer is the expected value of the numbers under the likelihoods of their words. `words` has the word of each
    number, and `key` is the field of an answer that has the number.
    """

    key: str = "value"  # under which the number stands in an answer
    words: Mapping[float, str] = field(default_factory=dict)  # the word of each number

    @classmethod
    def make(cls, key: str, rows: Sequence[Row], settings: Mapping[str, Any]) -> Self:
        """Return a prompt whose candidates are the words in `settings["verbalizer"]`.

        By default, they are the integers in the range of the labels of `rows`. `key` is the field of an answer that has
        the number.
        """
        words = settings.get("verbalizer")
        if not words:
            values = [float(row["label"]) for row in rows]
            words = {value: value for value in range(int(np.floor(min(values))), int(np.ceil(max(values))) + 1)}
        return cls(key=key, words={float(value): str(word) for value, word in words.items()})

    def candidates(self, row: Row) -> Sequence[str]:
        """Return the candidate answers of the prompt: the word of each number."""
        return list(self.words.values())

    def gold(self, row: Row) -> str:
        """Return the word of the number that is nearest to the gold value of an example."""
        return self.words[min(self.words, key=lambda value: abs(value - float(row["label"])))]

    def answer(self, row: Row, output: Array) -> Answer:
        """Return the expected number as the answer to an example.

        `output` has the log-likelihood of the word of each number.
        """
        return {self.key: float(softmax(output) @ list(self.words))}


@register_task
@dataclass(frozen=True)
class Regress(Task):
    """Regression: predict a number for a text or a pair of texts.

    The head learns standardized numbers; after training, their mean and deviation are folded into its last layer.
    """

    pooling: Pooling = "cls"  # how the states of a sequence become one vector
    dropout: float = 0.1
    drop_invalid: bool = False  # whether to leave out rows without a number or a text
    mean: float = fitted(0.0)
    deviation: float = fitted(1.0)

    name: ClassVar[str] = "regress"
    shared_head: ClassVar[str] = "classify"
    combinable: ClassVar[bool] = True
    primary_metric: ClassVar[str] = "spearman"
    purpose: ClassVar[tuple[str, str]] = ("It predicts a number for a text", "text-classification")
    distillable: ClassVar[bool] = True
    in_context_template: ClassVar[str] = "{text}\nScore: [MASK]"

    def __post_init__(self) -> None:
        check_pooling(self.name, self.pooling)

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> LabeledRows:
        """Read one or two texts and, if `answered`, a number per row; `columns` maps roles such as text to columns."""
        return read_labeled(file, columns, labels=answered, label=parse_number, drop_invalid=self.drop_invalid)

    def fit(self, examples: LabeledRows) -> Self:
        """Return a copy of the task with the mean and the standard deviation of the training numbers."""
        assert examples.labels is not None
        deviation = float(np.std(examples.labels))
        if deviation == 0:
            raise PretuneError(
                f"{examples.file}: every row has the number {examples.labels[0]:g}, so there is nothing to learn; check the labels"
            )
        return replace(self, mean=float(np.mean(examples.labels)), deviation=deviation)

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence of at most `length` tokens per row; longer texts are truncated."""
        rows = require_labeled(self.name, data)
        check_pooling(self.name, self.pooling, data.template)
        labels = {} if rows.labels is None else {self.name: np.array(rows.labels, dtype=np.float32)}
        return arrange_labeled(self.name, self.pooling, data, length, labels)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the number of each sequence as its target. The tokens stay unchanged."""
        sequences = add_global_starts(sequences)
        if self.name in sequences.labels:
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), sequences.labels[self.name])
        return sequences

    def head(self, backbone: Backbone) -> nn.Module:
        """Build a head that pools each sequence into one vector and computes one number from it."""
        return ClassifyHead(backbone, 1, self.pooling, self.dropout, "regression")

    def outputs(self, head: Any, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the predicted number of each sequence in a batch, on the original scale, (sequences,)."""
        found: Tensor = head.read(backbone(*batch.packed), batch.packed[-1])[:, 0]
        return found.float() * self.deviation + self._shift(head)

    def _shift(self, head: Any) -> float:
        """Return the mean of the training numbers, or 0 if the head's last layer has no bias to absorb it (GPT)."""
        return self.mean if head.output.bias is not None else 0.0

    @torch.no_grad()
    def finish(self, head: Any) -> Self:
        """Fold the training numbers' mean and deviation into a head's last layer; return the task without them."""
        head.output.weight.mul_(self.deviation)
        if head.output.bias is not None:
            head.output.bias.mul_(self.deviation).add_(self.mean)
        return replace(self, mean=0.0, deviation=1.0)

    @torch.no_grad()
    def begin(self, head: Any) -> None:
        """Undo `finish` before training continues: take the mean and deviation out of the head's last layer again."""
        if head.output.bias is not None:
            head.output.bias.sub_(self.mean).div_(self.deviation)
        head.output.weight.div_(self.deviation)

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: LabeledRows) -> list[Answer]:
        """Return the predicted number of each row, given the head's `outputs`."""
        return [{"value": float(value)} for value in one_per_example(outputs, arrangement)]

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """Return an ensemble's answer for row number `row`: the mean of the numbers that its models predict."""
        return {"value": float(np.mean([answer["value"] for answer in answers]))}

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the squared error of a batch, divided by the variance of the training numbers."""
        targets = batch.targets[self.name]
        errors = (self.outputs(head, backbone, batch)[targets.at] - targets.target) / self.deviation
        return Loss(sums={self.name: (errors.square() * targets.weight).sum()})

    def metrics(self, answers: Sequence[Answer], examples: Any) -> dict[str, float]:
        """Return Pearson and Spearman correlation and the mean squared error of the predicted numbers."""
        return regression_metrics(answers, examples, self)

    def gold_and_predicted(self, answers: Sequence[Answer], examples: Any) -> tuple[list[Any], list[Any]]:
        """Return two lists with one entry per example: the gold numbers and the predicted numbers."""
        return list(examples.labels), [answer["value"] for answer in answers]

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Score each predicted number: 1 minus its error, measured in standard deviations of the gold numbers."""
        return score_numbers(answers, examples, self)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]]:
        """Return a description of the mean of the training numbers, and this mean as the answer to each row.

        `learned` are the training rows, and `judged` the rows to answer.
        """
        mean = float(np.mean(learned.labels))
        return f"{mean:.4g}", [{"value": mean}] * len(judged)

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return the answers of a baseline to the rows `judged`: a linear regression that is fitted to `learned`.

        The regression reads the words of a text and, for pairs of texts, also their overlap.
        """
        name = "a bag of words" if learned.pairs is None else "word overlap and a bag of words"
        return {name: [{"value": value} for value in regress_words(learned, judged)]}

    def in_context_prompt(self, rows: Sequence[Row], settings: Mapping[str, Any]) -> NumberPrompt:
        """Return an in-context prompt that asks for a number; the words for numbers are ranked by likelihood."""
        return NumberPrompt.make("value", rows, settings)

    def demonstration(self) -> LabeledRows:
        """Return examples of the task: two pairs of sentences with their similarity."""
        first, second = ["a plane takes off", "a man sings"], ["an air plane is taking off", "a dog barks"]
        return LabeledRows(Path("example"), {}, first, second, [5.0, 0.4])

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return the target numbers as text, separated by commas, for `pretune show objectives`."""
        return ", ".join(f"{value:g}" for value in target)
