"""A task under a name of its own, so that several of a kind stand side by side: sst: classify | rte: classify."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from pretune.objectives.objective import Loss
from pretune.objectives.task import Task, knowing
from pretune.packed import Batch
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

LANGUAGE = ("lm", "mlm")  # ways to the vocabulary, which tasks have in common


@dataclass(frozen=True)
class Named:
    """A task whose head and whose terms of the loss have its own name. Everything else is the task's."""

    task: Task
    name: str

    def __getattr__(self, name: str) -> Any:
        if name == "task":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.task, name)

    @property
    def kind(self) -> str:
        """What the task is called by others."""
        return self.task.name

    @property
    def terms(self) -> dict[str, str]:
        """The task's terms → ours."""
        own = self.task.room(Packing(tokens=1, length=1))
        return {term: self.name if term == self.kind else f"{self.name} {term}" for term in own}

    def fit(self, examples: Any) -> Self:
        """With what the task must know of some examples."""
        return replace(self, task=self.task.fit(examples))

    @property
    def head_of(self) -> str:
        """Whose head it uses: the language model's, where its task does, else its own, whatever layouts call those of its kind."""
        owner = str(getattr(self.task, "head_of", ""))
        return owner if owner in LANGUAGE else self.name

    def finish(self, head: nn.Module) -> Self:
        """With what the task kept apart while it learned in its head."""
        return replace(self, task=self.task.finish(head)) if hasattr(self.task, "finish") else self

    def begin(self, head: nn.Module) -> None:
        """The reverse."""
        if hasattr(self.task, "begin"):
            self.task.begin(head)

    def knowing(self, tokenizer: Tokenizer) -> Self:
        """With what the task must know of a tokenizer."""
        return replace(self, task=knowing(self.task, tokenizer))

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The task's, targets under our names."""
        sequences = self.task.corrupt(sequences, tokenizer, draws)
        for side in (sequences, sequences.second):
            if side is not None:
                side.targets = renamed(side.targets, self.terms)
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """The task's."""
        return renamed(self.task.room(packing), self.terms)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """The task's, under our names."""
        theirs = {ours: term for term, ours in self.terms.items()}
        own = Batch(batch.packed, renamed(batch.targets, theirs), carry=batch.carry, pooled=batch.pooled)
        loss = self.task.loss(head, backbone, own)
        logs = {"/".join([self.terms.get(term, term), *rest]): x for (term, *rest), x in _split(loss.logs).items()}
        return replace(loss, sums=renamed(loss.sums, self.terms), weights=renamed(loss.weights, self.terms), logs=logs)


def kind_of(task: Any) -> str:
    """What a task is called by others, whatever its own name."""
    return str(task.kind if isinstance(task, Named) else task.name)


def renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same under other names; what has none keeps its own.

    >>> renamed({"classify": 1, "lm": 2}, {"classify": "sst"})
    {'sst': 1, 'lm': 2}
    """
    return {names.get(name, name): value for name, value in values.items()}


def _split(logs: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    return {tuple(name.split("/")): value for name, value in logs.items()}


Task.register(Named)  # what it lacks, its task has; Python 3.12 would not look there
