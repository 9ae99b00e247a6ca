"""Beam search: the likeliest text, as far as a few beginnings at a time can find it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Beam:
    """A beginning, or a whole text, and its score: the logarithm of its probability, over length to the penalty if whole."""

    ids: list[int]
    score: float
    ended: bool = False  # by an end token, which `ids` leave out


def candidates(width: int, ends: Collection[int]) -> int:
    """Enough tokens that as many as the width are left even if all others end."""
    return (1 + max(1, len(ends))) * width


@dataclass
class Search:
    """The search for one prompt. It ends when no beam, as it is now, is better than the worst of enough whole texts."""

    width: int  # beams
    limit: int  # new tokens at most
    penalty: float  # above 0: the longer, the better
    ends: Collection[int]
    ended: Callable[[Sequence[int]], bool] | None = None  # whether a text is over, by what was written
    beams: list[Beam] = field(default_factory=lambda: [Beam([], 0.0)])  # the best first
    whole: list[Beam] = field(default_factory=list)  # the best first

    def step(self, scores: Tensor, tokens: Tensor) -> list[int]:
        """Take (beams, candidates) logarithms of probabilities, and whose they are; returns which old beam each of the new
        ones continues."""
        total = scores + torch.tensor([beam.score for beam in self.beams])[:, None]
        found = total.flatten().topk(min(candidates(self.width, self.ends), total.numel()))
        length = len(self.beams[0].ids) + 1
        origins: list[int] = []
        beams: list[Beam] = []
        origins_of = (found.indices // total.shape[1]).tolist()
        chosen = zip(found.values.tolist(), origins_of, tokens.flatten()[found.indices].tolist(), strict=True)
        for rank, (score, origin, token) in enumerate(chosen):
            if score == -torch.inf:
                break
            ended = token in self.ends
            ids = self.beams[origin].ids if ended else [*self.beams[origin].ids, token]
            ended = ended or (self.ended is not None and self.ended(ids))
            if ended or length == self.limit:
                if rank < self.width:
                    self.whole.append(Beam(ids, score / length**self.penalty, ended))
            elif len(beams) < self.width:
                origins.append(origin)
                beams.append(Beam(ids, score))
        if not beams and not self.whole:  # everything is forbidden
            self.whole = self.beams
        self.whole = sorted(self.whole, key=lambda beam: -beam.score)[: self.width]
        if len(self.whole) == self.width and beams and beams[0].score / length**self.penalty <= self.whole[-1].score:
            origins, beams = [], []
        self.beams = beams
        return origins
