"""Regression: a number for a text or a pair of texts, such as how alike two sentences are.

Source: Cer et al., 2017, arXiv:1708.00055 (STS-B), learned as Devlin et al., 2019, arXiv:1810.04805, learn it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from pretune.nn.attention.patterns import Pattern
from pretune.objectives.objective import Data, Loss
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.classify import ClassifyHead, Pooling, check_pooling, need_rows
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.examples.labeled import Excerpt, Labeled, number, read_labeled
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch, with_global_starts
from pretune.text.packing.token_rows import arrange_rows
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Regress:
    """`pooling` is what stands for a sequence. `drop_bad`: rows without a number or a text are left out.

    The head learns numbers of mean 0 and deviation 1, whatever those of the rows are; when training ends, mean and deviation
    go into its last matrix, so that everybody reads the rows' own numbers off it.
    """

    pooling: Pooling = "start"
    dropout: float = 0.1
    drop_bad: bool = False
    mean: float = fitted(0.0)
    deviation: float = fitted(1.0)

    name: ClassVar[str] = "regress"
    head_of: ClassVar[str] = "classify"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    each: ClassVar[Literal["sequence", "token"]] = "sequence"
    decides: ClassVar[str] = "spearman"

    def __post_init__(self) -> None:
        check_pooling(self.name, self.pooling)

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Labeled:
        """Rows of a table: a text or two, and a number."""
        return read_labeled(file, columns, labels=answered, label=number, drop_bad=self.drop_bad)

    def fit(self, examples: Labeled) -> Self:
        """With mean and deviation of the numbers of some rows."""
        assert examples.labels is not None
        deviation = float(np.std(examples.labels))
        if deviation == 0:
            raise PretuneError(
                f"{examples.file}: every row has the number {examples.labels[0]:g}; there is nothing to learn"
            )
        return replace(self, mean=float(np.mean(examples.labels)), deviation=deviation)

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """A row to a sequence; too long ones are cut."""
        rows = need_rows(self.name, data)
        check_pooling(self.name, self.pooling, data.template)
        labels = {} if rows.labels is None else {self.name: np.array(rows.labels, dtype=np.float32)}
        return arrange_rows(data.token_rows, data.tokenizer, data.template, length, labels)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Rows in any order."""
        return plan_epoch(self.lay_out(data, packing.length), packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The number is the target of its sequence."""
        sequences = with_global_starts(sequences)
        if self.name in sequences.labels:
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), sequences.labels[self.name])
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """One target a sequence."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Pooler, dropout, one number."""
        return ClassifyHead(backbone, 1, self.pooling, self.dropout, "regression")

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(sequences,) the rows' own numbers."""
        found: Tensor = head(backbone(*batch.packed).last, batch.packed[-1])[:, 0]
        return found.float() * self.deviation + self._shift(head)

    def _shift(self, head: Any) -> float:
        """The mean, where the head has a bias for it to go into: GPT's have none."""
        return self.mean if head.output.bias is not None else 0.0

    @torch.no_grad()
    def finish(self, head: Any) -> Self:
        """Mean and deviation go into the head."""
        head.output.weight.mul_(self.deviation)
        if head.output.bias is not None:
            head.output.bias.mul_(self.deviation).add_(self.mean)
        return replace(self, mean=0.0, deviation=1.0)

    @torch.no_grad()
    def begin(self, head: Any) -> None:
        """The reverse: a head that gives rows' own numbers goes on where it was."""
        if head.output.bias is not None:
            head.output.bias.sub_(self.mean).div_(self.deviation)
        head.output.weight.div_(self.deviation)

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Labeled) -> list[Answer]:
        """A number each."""
        return [{"value": float(value)} for value in outputs]

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """The answer of several models to one row: the mean."""
        return {"value": float(np.mean([answer["value"] for answer in answers]))}

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """The squared error, in units of the variance: 1 is what the mean alone would cost."""
        targets = batch.targets[self.name]
        errors = (self.outputs(head, backbone, batch)[targets.at] - targets.target) / self.deviation
        return Loss(sums={self.name: (errors.square() * targets.weight).sum()})
