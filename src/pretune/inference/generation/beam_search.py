"""Beam search for the most likely text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Hypothesis:
    """A generated text and its score: its log-probability, divided by length ** penalty once it is finished."""

    ids: list[int]
    score: float
    ended: bool = False  # by an end token, which is not in `ids`, or a stop string


def candidate_count(width: int, ends: Collection[int]) -> int:
    """Return how many of the most likely continuations of all beams to consider in each step of a beam search.

    The number is large enough that `width` beams remain even if the end tokens (`ends`) of all beams are among them.
    """
    return (1 + max(1, len(ends))) * width


@dataclass
class BeamSearch:
    """A beam search for one prompt with `width` beams.

    It stops when `width` texts are finished and no beam scores higher than the worst of them.
    """

    width: int  # number of beams
    limit: int  # the most new tokens
    penalty: float  # length penalty; values above 0 favor longer texts
    ends: Collection[int]
    ended: Callable[[Sequence[int]], bool] | None = None  # whether generated tokens are a finished text
    beams: list[Hypothesis] = field(default_factory=lambda: [Hypothesis([], 0.0)])  # best first
    finished: list[Hypothesis] = field(default_factory=list)  # finished texts, best first

    def step(self, scores: Tensor, tokens: Tensor) -> list[int]:
        """Extend the beams by one token, and return, for each new beam, the index of the old beam that it continues.

        `scores` has the log-probabilities of the candidates for the next token of each beam, and `tokens` the ids of
        these candidates, (beams, candidates) each.
        """
        total = scores + torch.tensor([beam.score for beam in self.beams])[:, None]
        found = total.flatten().topk(min(candidate_count(self.width, self.ends), total.numel()))
        length = len(self.beams[0].ids) + 1
        origins, beams = list[int](), list[Hypothesis]()
        columns = found.values, found.indices // total.shape[1], tokens.flatten()[found.indices]
        chosen = zip(*(column.tolist() for column in columns), strict=True)
        for rank, (score, origin, token) in enumerate(chosen):
            if score == -torch.inf:
                break
            ended = token in self.ends
            ids = self.beams[origin].ids if ended else [*self.beams[origin].ids, token]
            ended = ended or (self.ended is not None and self.ended(ids))
            if ended or length == self.limit:
                if rank < self.width:
                    self.finished.append(Hypothesis(ids, score / length**self.penalty, ended))
            elif len(beams) < self.width:
                origins.append(origin)
                beams.append(Hypothesis(ids, score))
        if not beams and not self.finished:  # no token is allowed
            self.finished = self.beams
        self.finished = sorted(self.finished, key=lambda beam: -beam.score)[: self.width]
        if (
            len(self.finished) == self.width
            and beams
            and beams[0].score / length**self.penalty <= self.finished[-1].score
        ):
            origins, beams = [], []
        self.beams = beams
        return origins
