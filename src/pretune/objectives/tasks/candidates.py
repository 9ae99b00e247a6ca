"""The base of tasks that compare candidates: one sequence per candidate, and a softmax over the candidates of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor, nn

from pretune.objectives.objective import Data, Loss
from pretune.objectives.task import Answer, Task
from pretune.objectives.tasks.classify import ClassifyHead, Pooling, check_pooling
from pretune.packed import Batch, Targets
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.multiple_choice import ChoiceExample, ChoiceExamples
from pretune.text.packing.sequences import Arrangement, Sequences, add_global_starts
from pretune.text.packing.token_rows import arrange_rows
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


class CandidateTask(Task):
    """Base class of tasks that score each candidate of a group and learn which are right."""

    pooling: Pooling  # how the states of a sequence become one vector
    dropout: float
    most: int  # candidates of a group

    combinable: ClassVar[bool] = True
    demonstration_sequences: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_pooling(self.name, self.pooling)

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence per candidate; the longer text of a sequence that is too long is truncated."""
        check_pooling(self.name, self.pooling, data.template)
        return arrange_candidates(self.name, data, length)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set one target per group: its right candidates."""
        sequences = add_global_starts(sequences)
        return self.set_targets(sequences, "right")

    def set_targets(self, sequences: Sequences, label: str) -> Sequences:
        """Set one target per group from a label of each sequence, if it is there."""
        labels = sequences.labels
        if label in labels:
            sequences.targets[self.name] = group_targets(labels["group"], labels[label], self.most)
        return sequences

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a pooler, dropout, and one score."""
        return ClassifyHead(backbone, 1, self.pooling, self.dropout)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the score of each sequence, (sequences,)."""
        scores: Tensor = head(backbone(*batch.packed).last, batch.packed[-1])[:, 0]
        return scores

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Any) -> list[Answer]:
        """Return the most probable candidate of each example, and the probabilities of all."""
        return [
            {
                "answer": group.names[int(shares.argmax())],
                "probability": float(shares.max()),
                "candidates": list_candidates(group, shares),
            }
            for group, shares in zip(examples.groups, candidate_probabilities(outputs, examples), strict=True)
        ]

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """Return the answer with the highest mean probability over several models."""
        return combine_candidates(answers)[1]

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy over the candidates of each group."""
        return group_loss(self.name, self.outputs(head, backbone, batch), batch.targets[self.name])

    def describe_target(self, at: Array, target: Array, spell: Callable[[int, int], str]) -> str | None:
        """Return the target probability of each candidate."""
        return ", ".join(" / ".join(f"{share:g}" for share in row) for row in target)


def arrange_candidates(name: str, data: Data, length: int) -> Arrangement:
    """Return one sequence per candidate.

    The candidates of an example are a group, and label `right` is each one's share in the right answer.
    """
    examples = data.rows
    if not isinstance(examples, ChoiceExamples):
        raise PretuneError(f"{name} needs rows with candidates; give it a .jsonl or .parquet file that has them")
    labels = {"example": examples.owner, "group": examples.owner}
    labels |= {"right": examples.target_probabilities} if examples.answered else {}
    return arrange_rows(data.token_rows, data.tokenizer, data.template, length, labels)


def group_targets(groups: Array, shares: Array, most: int) -> tuple[Array, Array]:
    """Return the sequences of each group, (g, most), -1 where it has fewer, and the target probability of each.

    Groups without a right candidate are left out.

    >>> at, share = group_targets(np.array([7, 3, 7]), np.array([0.0, 1.0, 1.0]), most=2)
    >>> at.tolist(), share.tolist()
    ([[1, -1], [0, 2]], [[1.0, 0.0], [0.0, 1.0]])
    """
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    width = max(most, int(sizes.max(initial=0)))
    at, share = np.full((len(sizes), width), -1), np.zeros((len(sizes), width), dtype=np.float32)
    at[group[order], place], share[group[order], place] = order, shares[order]
    something = share.sum(1) > 0
    return at[something], share[something] / share[something].sum(1, keepdims=True)


def group_loss(name: str, scores: Tensor, targets: Targets) -> Loss:
    """Return the cross-entropy of a softmax over each group, given the scores (sequences,), and log the accuracy."""
    there = targets.at >= 0
    logits = scores.float()[targets.at.clamp(min=0)].masked_fill(~there, -float("inf"))
    losses = -(targets.target * logits.log_softmax(-1).masked_fill(~there, 0.0)).sum(-1)
    right = targets.target.gather(-1, logits.argmax(-1, keepdim=True))[:, 0] >= targets.target.amax(-1)
    logs = {f"{name}/accuracy": (right.float() * targets.weight).sum().detach()}
    return Loss(sums={name: (losses * targets.weight).sum()}, logs=logs)


def candidate_probabilities(outputs: Sequence[Array], examples: ChoiceExamples) -> list[Array]:
    """Return the probabilities of the candidates of each example, given the scores of all sequences."""
    scores = np.array(outputs, dtype=np.float64)
    return [softmax(part) for part in np.split(scores, np.cumsum(examples.sizes)[:-1])]


def list_candidates(group: ChoiceExample, shares: Array) -> list[Answer]:
    """Return all candidates of an example in order, each with its probability."""
    return [{"answer": name, "probability": float(share)} for name, share in zip(group.names, shares, strict=True)]


def combine_candidates(answers: Sequence[Answer]) -> tuple[int, Answer]:
    """Return the index of the most probable candidate by the mean of several models, and the answer."""
    shares = np.mean([[candidate["probability"] for candidate in answer["candidates"]] for answer in answers], 0)
    best = int(shares.argmax())
    listed = [
        {**candidate, "probability": float(share)}
        for candidate, share in zip(answers[0]["candidates"], shares, strict=True)
    ]
    return best, {**listed[best], "candidates": listed}


def softmax(scores: Array) -> Array:
    """Return the softmax of (k,) scores."""
    shares = np.exp(scores - scores.max())
    return np.asarray(shares / shares.sum())
