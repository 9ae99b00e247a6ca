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
class Candidates:
    """Continuations of the beams of several searches by one token, (searches, candidates) each, best first."""

    scores: Tensor
    origins: Tensor  # the beams that they continue
    tokens: Tensor

    def at(self, places: Tensor) -> Candidates:
        """Return the candidates at the given places, (searches, n), of each search."""
        return Candidates(*(part.gather(1, places) for part in (self.scores, self.origins, self.tokens)))

    def stacked(self) -> Tensor:
        """Return scores, origins and tokens in one tensor, (3, searches, candidates), in which all are exact."""
        return torch.stack([self.scores.double(), self.origins.double(), self.tokens.double()])


def next_beams(log_probabilities: Tensor, scores: Tensor, ends: Tensor) -> tuple[Candidates, Candidates]:
    """Return the candidates of a step of several beam searches, and the next beams, which are among them.

    `log_probabilities` of the next token are (searches · beams, vocabulary), the `scores` of the beams are (searches,
    beams), and `ends` has the ids of the end tokens. No value is read on the host.
    """
    searches, width = scores.shape
    count = min(candidate_count(width, range(len(ends))), log_probabilities.shape[1])
    best, tokens = log_probabilities.topk(count)
    total = (best.view(searches, width, count) + scores[:, :, None]).flatten(1)
    found = total.topk(min(candidate_count(width, range(len(ends))), total.shape[1]))
    candidates = Candidates(found.values, found.indices // count, tokens.view(searches, -1).gather(1, found.indices))
    is_end = (candidates.tokens[:, :, None] == ends).any(-1)
    order = is_end.long().sort(stable=True).indices  # those that go on first
    return candidates, candidates.at(order[:, :width])


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
        columns = found.values, found.indices // total.shape[1], tokens.flatten()[found.indices]
        return self.choose(*(column.tolist() for column in columns))

    def choose(self, scores: Sequence[float], origins: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Extend the beams by one token, and return, for each new beam, the index of the old beam that it continues.

        The candidates are continuations of all beams, the most likely first: their scores, the beams that they
        continue, and their last tokens.
        """
        length = len(self.beams[0].ids) + 1
        candidates = list(zip(scores, origins, tokens, strict=True))
        origins, beams = list[int](), list[Hypothesis]()
        for rank, (score, origin, token) in enumerate(candidates):
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
