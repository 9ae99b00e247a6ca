"""Tasks under a name of their own, so that one model can learn several of the same kind: sst: classify | rte: classify."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from pretune.objectives.objective import Loss
from pretune.objectives.task import Task
from pretune.objectives.wrappers import WrappedTask
from pretune.packed import Batch
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


@dataclass(frozen=True)
class Named(WrappedTask):
    """A task whose head and loss terms go by another name. Everything else is the task's own."""

    task: Task
    own_name: str

    @property
    def name(self) -> str:  # type: ignore[override]
        """Return the task's name in this mixture."""
        return self.own_name

    @property
    def terms(self) -> dict[str, str]:
        """Return the names of the loss terms: those of the task → those under its new name."""
        own = self.task.room(Packing(tokens=1, length=1))
        return {term: self.name if term == self.kind else f"{self.name} {term}" for term in own}

    @property
    def head_of(self) -> str:
        """Return whose head it uses: a language model's if the task does, else its own."""
        return self.task.head_of if self.task.on_language_head else self.name

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Return the sequences of the task, with targets under the new names."""
        sequences = self.task.corrupt(sequences, tokenizer, draws)
        for side in (sequences, sequences.second):
            if side is not None:
                side.targets = renamed(side.targets, self.terms)
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """Return the largest number of targets that a pack can have, under the new names."""
        return renamed(self.task.room(packing), self.terms)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the loss of the task, with its terms under the new names."""
        originals = {ours: term for term, ours in self.terms.items()}
        own = Batch(batch.packed, renamed(batch.targets, originals), carry=batch.carry)
        loss = self.task.loss(head, backbone, own)
        logs = {"/".join([self.terms.get(term, term), *rest]): x for (term, *rest), x in _split(loss.logs).items()}
        return replace(loss, sums=renamed(loss.sums, self.terms), weights=renamed(loss.weights, self.terms), logs=logs)


def renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return values by their new names; a value without a new name keeps its own.

    >>> renamed({"classify": 1, "lm": 2}, {"classify": "sst"})
    {'sst': 1, 'lm': 2}
    """
    return {names.get(name, name): value for name, value in values.items()}


def _split(logs: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    return {tuple(name.split("/")): value for name, value in logs.items()}
