"""The base class of tasks that choose among candidates: one sequence per candidate, one softmax per example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.objectives.objective import Data, Loss
from pretune.objectives.task import Answer, Task
from pretune.objectives.tasks.classify import ClassifyHead, Pooling, check_pooling, input_template
from pretune.packed import Batch, Targets
from pretune.runtime.arrays import Array, softmax
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.multiple_choice import ChoiceExamples
from pretune.text.packing.sequences import Arrangement, Sequences, add_global_starts
from pretune.text.packing.token_rows import arrange_rows
from pretune.text.tokenizers.tokenizer import Tokenizer


class CandidateTask(Task):
    """Base class of tasks that choose among the candidates of an example, such as answers to a question."""

    pooling: Pooling  # how the states of a sequence become one vector
    dropout: float
    max_candidates: int  # candidates of a group

    combinable: ClassVar[bool] = True
    demonstration_sequences: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_pooling(self.name, self.pooling)
        if self.pooling == "extract_both":
            raise PretuneError(
                f"{self.name}: pooling=extract_both applies only to pairs of texts, not to candidates; use pooling=extract"
            )

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence of at most `length` tokens per candidate.

        The labels of a sequence are the number of its example and, in training, its target probability.
        """
        check_pooling(self.name, self.pooling, data.template)
        examples = data.rows
        if not isinstance(examples, ChoiceExamples):
            raise PretuneError(
                f"the task {self.name!r} needs rows with candidates; give a .jsonl or .parquet file in which each row lists its candidates"
            )
        labels = {"example": examples.owner, "group": examples.owner}
        labels |= {"right": examples.target_probabilities} if examples.answered else {}
        template = input_template(self.name, self.pooling, data.template)
        return arrange_rows(data.token_rows, data.tokenizer, template, length, labels)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set one target per example: the probability of each candidate. The tokens stay unchanged."""
        sequences = add_global_starts(sequences)
        return self.set_targets(sequences, "right")

    def set_targets(self, sequences: Sequences, label: str) -> Sequences:
        """Set one target per example: the probabilities of its candidates, which are `sequences.labels[label]`.

        Without labels of that name, as in prediction, no targets are set.
        """
        labels = sequences.labels
        if label in labels:
            sequences.targets[self.name] = group_targets(labels["group"], labels[label], self.max_candidates)
        return sequences

    def head(self, backbone: Backbone) -> nn.Module:
        """Build a head that pools each sequence into one vector and computes one score from it."""
        return ClassifyHead(backbone, 1, self.pooling, self.dropout)

    def outputs(self, head: Any, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the head's score of each sequence in a batch, (sequences,)."""
        scores: Tensor = head.read(backbone(*batch.packed), batch.packed[-1])[:, 0]
        return scores

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: Any) -> list[Answer]:
        """Return the most probable candidate of each example and the probabilities of all its candidates.

        `outputs` are the scores of the sequences.
        """
        found = []
        scores = np.split(np.array(outputs, dtype=np.float64), np.cumsum(examples.sizes)[:-1])
        for group, shares in zip(examples.groups, map(softmax, scores), strict=True):
            pairs = zip(group.names, shares.tolist(), strict=True)
            listed = [{"answer": name, "probability": share} for name, share in pairs]
            found.append({**listed[int(shares.argmax())], "candidates": listed})
        return found

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """Return an ensemble's answer to example `row`: the candidate with the highest mean probability over models.

        `answers` are the answers of the models.
        """
        return combine_candidates(answers)[1]

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of a softmax over the candidates of each example in a batch."""
        return group_loss(self.name, self.outputs(head, backbone, batch), batch.targets[self.name])

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return the target probabilities of candidates as text, such as "0 / 1", for `pretune show objectives`."""
        return ", ".join(" / ".join(f"{share:g}" for share in row) for row in target)


def group_targets(groups: Array, shares: Array, most: int) -> tuple[Array, Array]:
    """Return the indices of the sequences in each group, padded with -1, and their target probabilities.

    Both have the shape (groups, most). `groups` has the group of each sequence, and `shares` its weight; in each group,
    the weights are normalized to a sum of 1. Groups whose weights are all 0 are left out.

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
    something = share.sum(1) > 0  # groups without a right candidate are left out
    return at[something], share[something] / share[something].sum(1, keepdims=True)


def group_loss(name: str, scores: Tensor, targets: Targets) -> Loss:
    """Return the cross-entropy of a softmax over the `scores` (sequences,) of each group, as loss term `name`."""
    there = targets.at >= 0
    logits = scores.float()[targets.at.clamp(min=0)].masked_fill(~there, -float("inf"))
    losses = -(targets.target * logits.log_softmax(-1).masked_fill(~there, 0.0)).sum(-1)
    right = targets.target.gather(-1, logits.argmax(-1, keepdim=True))[:, 0] >= targets.target.amax(-1)
    logs = {f"{name}/accuracy": (right.float() * targets.weight).sum().detach()}
    return Loss(sums={name: (losses * targets.weight).sum()}, logs=logs)


def combine_candidates(answers: Sequence[Answer]) -> tuple[int, Answer]:
    """Return the index of the candidate with the highest mean probability over models, and the ensemble's answer."""
    shares = np.mean([[candidate["probability"] for candidate in answer["candidates"]] for answer in answers], 0)
    best = int(shares.argmax())
    listed = [
        {**candidate, "probability": float(share)}
        for candidate, share in zip(answers[0]["candidates"], shares, strict=True)
    ]
    return best, {**listed[best], "candidates": listed}
