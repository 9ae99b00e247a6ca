"""What a task is: an objective that learns from examples of its own kind, and answers for new ones.

    read(file, columns)            → examples      rows of a file, with the right answers or without
    fit(examples)                  → task          with what it must know of them: its labels
    lay_out(data, length)          → arrangement   a sequence an example, or several; what is known of each
    outputs(head, backbone, batch) → tensor        a row a sequence, or a row a token
    answers(outputs, laid, examples) → answers     one for each example, in order

To add one, write these beside the four of an objective, and its scores in pretune/metrics. What `fit` finds are fields made
by `fitted`, which are no options. A task that keeps something apart from the parameters while it learns has `finish(head)`,
which puts it into them when training ends and returns the task without it, and `begin(head)`, which undoes that for a head
that was trained before. With `combine(answers, examples, row)`, which makes one answer of what several models say of an example, it is also
for ensembles. A task whose files are no tables has `rows(file)`, which makes rows of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np
from torch import Tensor, nn

from pretune.objectives.objective import Data, Objective
from pretune.packed import Batch
from pretune.text.examples.labeled import Excerpt
from pretune.text.packing.sequences import Arrangement

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone
    from pretune.text.tokenizers.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]
Answer = dict[str, Any]


def fitted(default: Any) -> Any:
    """A field of a task that `fit` fills."""
    return field(default=default, metadata={"fitted": True})


@runtime_checkable
class KnowsWords(Protocol):
    """A task that must know the tokens of some words."""

    def knowing(self, tokenizer: Tokenizer) -> Self: ...


def knowing(task: Any, tokenizer: Tokenizer) -> Any:
    """A task with what it must know of a model's tokenizer, if anything."""
    return task.knowing(tokenizer) if isinstance(task, KnowsWords) else task


class Examples(Protocol):
    """The examples of a file, in order."""

    file: Path

    def __len__(self) -> int: ...

    def take(self, rows: Iterable[int]) -> Self: ...

    def asked(self, row: int) -> str:
        """What an example asks, whatever the answer: two that ask the same are one."""

    def place(self, row: int) -> str:
        """Where an example stands, for messages."""

    def show(self, row: int) -> dict[str, Any]:
        """What of an example stands beside its answer."""


@runtime_checkable
class Task(Objective, Protocol):
    """An objective with examples and answers."""

    each: ClassVar[Literal["sequence", "token", "text"]]  # what has a row of the outputs; a text is written instead

    @property
    def decides(self) -> str:
        """The metric by which models are compared."""

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Any:
        """Examples of a file, or of some of its rows; those to be answered need not have the right answers."""

    def fit(self, examples: Any) -> Self: ...

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """Sequences of at most `length` tokens. `labels["example"]` says whose each is; without it, a sequence an example.

        Those of one `labels["group"]` are seen in the same batch.
        """

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor: ...

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Any) -> list[Answer]:
        """An answer an example, from what came out for each sequence of the arrangement, in order."""
