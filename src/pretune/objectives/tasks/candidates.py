"""What tasks share that weigh candidates against each other: a sequence a candidate, a softmax over those of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pretune.objectives.objective import Data, Loss
from pretune.objectives.task import Answer
from pretune.packed import Targets
from pretune.runtime.errors import PretuneError
from pretune.text.examples.multiple_choice import Candidates, Grouped
from pretune.text.packing.sequences import Arrangement
from pretune.text.packing.token_rows import arrange_rows

Array = np.ndarray[Any, np.dtype[Any]]


def arrange_candidates(name: str, data: Data, length: int) -> Arrangement:
    """A candidate to a sequence; those of an example are a group, and `right` is the share of each in the right answer."""
    examples = data.rows
    if not isinstance(examples, Grouped):
        raise PretuneError(f"{name} takes rows with candidates; give it a file of them")
    labels = {"example": examples.owner, "group": examples.owner}
    labels |= {"right": examples.right} if examples.answered else {}
    return arrange_rows(data.token_rows, data.tokenizer, data.template, length, labels)


def group_targets(groups: Array, shares: Array, most: int) -> tuple[Array, Array]:
    """One target a group: (g, most) its sequences, -1 where it has fewer, and the share of each in what is right.

    Groups in which nothing is right have none.

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
    """Cross-entropy of a softmax over the candidates of each group, (sequences,) scores given; and how often the best is right."""
    there = targets.at >= 0
    logits = scores.float()[targets.at.clamp(min=0)].masked_fill(~there, -float("inf"))
    losses = -(targets.target * logits.log_softmax(-1).masked_fill(~there, 0.0)).sum(-1)
    right = targets.target.gather(-1, logits.argmax(-1, keepdim=True))[:, 0] >= targets.target.amax(-1)
    logs = {f"{name}/accuracy": (right.float() * targets.weight).sum().detach()}
    return Loss(sums={name: (losses * targets.weight).sum()}, logs=logs)


def split_groups(outputs: Sequence[Array], examples: Grouped) -> list[Array]:
    """How likely each candidate of each example is, from the scores of all."""
    scores = np.array(outputs, dtype=np.float64)
    return [softmax(part) for part in np.split(scores, np.cumsum(examples.sizes)[:-1])]


def list_candidates(group: Candidates, shares: Array) -> list[Answer]:
    """All candidates of an example, in their order, and how likely each is."""
    return [{"answer": name, "probability": float(share)} for name, share in zip(group.names, shares, strict=True)]


def combine_candidates(answers: Sequence[Answer]) -> tuple[int, Answer]:
    """The likeliest candidate by the mean of several models: which it is, and the answer."""
    shares = np.mean([[candidate["probability"] for candidate in answer["candidates"]] for answer in answers], 0)
    best = int(shares.argmax())
    listed = [
        {**candidate, "probability": float(share)}
        for candidate, share in zip(answers[0]["candidates"], shares, strict=True)
    ]
    return best, {**listed[best], "candidates": listed}


def softmax(scores: Array) -> Array:
    """Shares of (k,) scores."""
    shares = np.exp(scores - scores.max())
    return np.asarray(shares / shares.sum())
