"""Tasks under another name, so that one model can learn two of the same kind, as in sst: classify|rte: classify."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.objectives.objective import Loss
from pretune.objectives.task import Task
from pretune.objectives.wrappers import WrappedTask
from pretune.packed import Batch
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class RenamedTask(WrappedTask):
    """A wrapper that gives the name `task_name` to a task, its head, and its loss terms."""

    task: Task
    task_name: str

    @property
    def name(self) -> str:  # type: ignore[override]
        """Return the name that the wrapper gives the wrapped task."""
        return self.task_name

    @property
    def terms(self) -> dict[str, str]:
        """Return a mapping from the names of the wrapped task's loss terms to their new names."""
        own = self.task.max_targets(Packing(tokens=1, length=1))
        return {term: self.name if term == self.kind else f"{self.name} {term}" for term in own}

    @property
    def shared_head(self) -> str:
        """Return the name of the task's head: a shared language-model head if it uses one, else its new name."""
        return self.task.shared_head if self.task.uses_language_model_head else self.name

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Let the wrapped task corrupt the sequences and set targets, and return them with renamed loss terms."""
        sequences = self.task.corrupt(sequences, tokenizer, draws)
        for side in (sequences, sequences.second):
            if side is not None:
                side.targets = rename_keys(side.targets, self.terms)
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return an upper bound on the number of targets per batch for each renamed loss term."""
        return rename_keys(self.task.max_targets(packing), self.terms)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the loss of the wrapped task on a batch, with renamed loss terms."""
        originals = {ours: term for term, ours in self.terms.items()}
        own = Batch(batch.packed, rename_keys(batch.targets, originals), state=batch.state)
        loss = self.task.loss(head, backbone, own)
        logs = {"/".join([self.terms.get(term, term), *rest]): x for (term, *rest), x in _split(loss.logs).items()}
        return replace(
            loss, sums=rename_keys(loss.sums, self.terms), weights=rename_keys(loss.weights, self.terms), logs=logs
        )


def rename_keys(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return `values` with its keys renamed; `names` maps old keys to new ones, and other keys stay the same.

    >>> rename_keys({"classify": 1, "lm": 2}, {"classify": "sst"})
    {'sst': 1, 'lm': 2}
    """
    return {names.get(name, name): value for name, value in values.items()}


def _split(logs: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    return {tuple(name.split("/")): value for name, value in logs.items()}
