"""Regression: predict a number for a text or a pair of texts, such as the similarity of two sentences.

Source: Cer et al., 2017, arXiv:1708.00055 (STS-B), trained as in Devlin et al., 2019, arXiv:1810.04805.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from pretune.metrics.per_example import ScoredAnswer, score_numbers
from pretune.metrics.regression import regression_metrics
from pretune.objectives.objective import Data, Loss
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, Task, fitted
from pretune.objectives.tasks.classify import ClassifyHead, Pooling, check_pooling, require_labeled
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows, TableChunk, parse_number, read_labeled
from pretune.text.packing.sequences import Arrangement, Sequences, add_global_starts
from pretune.text.packing.token_rows import arrange_rows
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


@register_task
@dataclass(frozen=True)
class Regress(Task):
    """Regression; `pooling` turns the states of a sequence into one vector. `drop_bad` leaves out rows without a number or text.

    The head learns standardized numbers, of mean 0 and deviation 1. After training, mean and deviation are folded into its
    last layer, which then predicts numbers on the original scale.
    """

    pooling: Pooling = "start"
    dropout: float = 0.1
    drop_bad: bool = False
    mean: float = fitted(0.0)
    deviation: float = fitted(1.0)

    name: ClassVar[str] = "regress"
    shared_head: ClassVar[str] = "classify"
    combinable: ClassVar[bool] = True
    primary_metric: ClassVar[str] = "spearman"

    def __post_init__(self) -> None:
        check_pooling(self.name, self.pooling)

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> LabeledRows:
        """Return the rows of a table: one or two texts, and a number."""
        return read_labeled(file, columns, labels=answered, label=parse_number, drop_bad=self.drop_bad)

    def fit(self, examples: LabeledRows) -> Self:
        """Return the task with the mean and the deviation of the numbers."""
        assert examples.labels is not None
        deviation = float(np.std(examples.labels))
        if deviation == 0:
            raise PretuneError(
                f"{examples.file}: every row has the number {examples.labels[0]:g}, so there is nothing to learn; check the labels"
            )
        return replace(self, mean=float(np.mean(examples.labels)), deviation=deviation)

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence per row; long ones are truncated."""
        rows = require_labeled(self.name, data)
        check_pooling(self.name, self.pooling, data.template)
        labels = {} if rows.labels is None else {self.name: np.array(rows.labels, dtype=np.float32)}
        return arrange_rows(data.token_rows, data.tokenizer, data.template, length, labels)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the number as the target of each sequence."""
        sequences = add_global_starts(sequences)
        if self.name in sequences.labels:
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), sequences.labels[self.name])
        return sequences

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a pooler, dropout, and one output."""
        return ClassifyHead(backbone, 1, self.pooling, self.dropout, "regression")

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the predicted numbers on the original scale, (sequences,)."""
        found: Tensor = head(backbone(*batch.packed).last, batch.packed[-1])[:, 0]
        return found.float() * self.deviation + self._shift(head)

    def _shift(self, head: Any) -> float:
        """Return the mean, or 0 if the head has no bias that could absorb it, as in GPT."""
        return self.mean if head.output.bias is not None else 0.0

    @torch.no_grad()
    def finish(self, head: Any) -> Self:
        """Fold mean and deviation into the head, and return the task without them."""
        head.output.weight.mul_(self.deviation)
        if head.output.bias is not None:
            head.output.bias.mul_(self.deviation).add_(self.mean)
        return replace(self, mean=0.0, deviation=1.0)

    @torch.no_grad()
    def begin(self, head: Any) -> None:
        """Take mean and deviation out of a trained head, so that training continues where it ended."""
        if head.output.bias is not None:
            head.output.bias.sub_(self.mean).div_(self.deviation)
        head.output.weight.div_(self.deviation)

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: LabeledRows) -> list[Answer]:
        """Return the number of each row."""
        return [{"value": float(value)} for value in outputs]

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """Return the mean of the numbers of several models."""
        return {"value": float(np.mean([answer["value"] for answer in answers]))}

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the squared error in units of the variance, so that predicting the mean costs 1."""
        targets = batch.targets[self.name]
        errors = (self.outputs(head, backbone, batch)[targets.at] - targets.target) / self.deviation
        return Loss(sums={self.name: (errors.square() * targets.weight).sum()})

    def metrics(self, answers: Sequence[Answer], examples: Any) -> dict[str, float]:
        """Return Pearson and Spearman correlation and the mean squared error."""
        return regression_metrics(answers, examples, self)

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Return the error of each number in deviations of the right numbers."""
        return score_numbers(answers, examples, self)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]]:
        """Return the mean."""
        mean = float(np.mean(learned.labels))
        return f"{mean:.4g}", [{"value": mean}] * len(judged)

    def demonstration(self) -> LabeledRows:
        """Return two pairs of sentences with their similarity."""
        first, second = ["a plane takes off", "a man sings"], ["an air plane is taking off", "a dog barks"]
        return LabeledRows(Path("example"), {}, first, second, [5.0, 0.4])

    def describe_target(self, at: Array, target: Array, spell: Callable[[int, int], str]) -> str | None:
        """Return the numbers."""
        return ", ".join(f"{value:g}" for value in target)
