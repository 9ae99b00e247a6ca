"""Distillation inside: a student's states, attention and embeddings become like a teacher's, beside what else it learns.

hidden(skip)      the state of the first token, of length 1, in mapped layers (Sun et al., 2019, *Patient KD*); squares are averaged
                  over columns, as in its authors' code, so that their weights, 10 to 1,000, fit
states(skip)      all states (Jiao et al., 2020, TinyBERT)
attention(skip)   how each token's look is spread, the mean of all heads
embedding         what goes into the first layer
cosine            the direction of the last states (Sanh et al., 2019, DistilBERT)

Maps: `last` pairs the student's layers with the uppermost of the teacher's, `skip` with every so many of them, both up to the
one before the last; 1:2/2:4 names pairs, student:teacher. Where widths differ, a projection that is thrown away leads from one to
the other. The teacher reads what the student reads, so that both have one tokenizer; it is frozen, and nobody's parameter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.attention_weights import looks
from pretune.nn.attention.packed_layout import self_layout
from pretune.nn.attention.patterns import Pattern
from pretune.nn.linear import OutputLinear
from pretune.objectives.distillation.teachers import beside
from pretune.objectives.objective import Data, Loss
from pretune.objectives.pretraining.arrangements import spans_epoch
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError, nearest
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone
    from pretune.models.model import Root

KINDS = ("hidden", "states", "attention", "embedding", "cosine")
MAPPED = ("hidden", "states", "attention")
SMALLEST = 1e-9
_TERM = re.compile(r"\s*(?:(?P<weight>[\d.]+)\s*\*)?\s*(?P<kind>\w+)\s*(?:\((?P<map>[^()]*)\))?\s*")


@dataclass(frozen=True)
class Match:
    """One thing that is to become alike."""

    kind: str
    weight: float = 1.0
    pairs: tuple[tuple[int, int], ...] = ()  # layers of student and teacher, counted from 1

    @property
    def name(self) -> str:
        """The loss term."""
        return f"match_{self.kind}"


def parse_matches(text: str, student: int, teacher: int) -> tuple[Match, ...]:
    """Read `100*hidden(skip)+embedding`, for networks of so many layers.

    >>> parse_matches("100*hidden(skip)", 6, 12)[0].pairs
    ((1, 2), (2, 4), (3, 6), (4, 8), (5, 10))
    """
    found: list[Match] = []
    for term in text.split("+"):
        match = _TERM.fullmatch(term)
        if match is None or match["kind"] not in KINDS:
            kind = match["kind"] if match else term.strip()
            raise PretuneError(f"--match {text}: unknown part {kind!r}; {nearest(kind, KINDS)}")
        mapped = match["kind"] in MAPPED
        if match["map"] and not mapped:
            raise PretuneError(f"--match {text}: {match['kind']} has no layers to map; leave out ({match['map']})")
        pairs = map_layers(match["map"] or "skip", student, teacher) if mapped else ()
        found.append(Match(match["kind"], float(match["weight"] or 1.0), pairs))
    return tuple(found)


def map_layers(text: str, student: int, teacher: int) -> tuple[tuple[int, int], ...]:
    """The pairs of layers that a map names.

    >>> map_layers("last", 3, 12)
    ((1, 10), (2, 11))
    """
    if text in ("last", "skip"):
        if student > teacher:
            raise PretuneError(f"layer map {text!r}: the student has {student} layers, the teacher only {teacher}")
        count = max(1, student - 1)  # the last one is learned from the answers
        if text == "last":
            return tuple((layer, teacher - 1 - count + layer) for layer in range(1, count + 1))
        return tuple((layer, layer * teacher // student) for layer in range(1, count + 1))
    pairs = []
    for pair in text.split("/"):
        numbers = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", pair)
        if numbers is None:
            raise PretuneError(f"layer map {text!r}: there are last, skip, and pairs STUDENT:TEACHER such as 1:2/2:4")
        own, theirs = int(numbers[1]), int(numbers[2])
        if not (1 <= own <= student and 1 <= theirs <= teacher):
            raise PretuneError(
                f"layer map {text!r}: no pair {own}:{theirs}; the student has layers 1 to {student}, the teacher 1 to {teacher}"
            )
        pairs.append((own, theirs))
    return tuple(pairs)


@dataclass(frozen=True)
class Imitate:
    """Beside other objectives, in the same forward."""

    teacher: Root = field(repr=False, compare=False)
    matches: tuple[Match, ...]

    name: ClassVar[str] = "imitate"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
    looks_inside: ClassVar[bool] = True

    @property
    def asks_the_host(self) -> bool:
        """Looks are compared row by row, and how long rows are the host knows."""
        return any(match.kind == "attention" for match in self.matches)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Text alone, if nobody else has a way of their own."""
        return spans_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Which tokens are compared: the first of each sequence, or all."""
        for match in self.matches:
            places = sequences.offsets[:-1] if match.kind == "hidden" else np.arange(len(sequences.ids))
            sequences.targets[match.name] = (places, np.zeros(len(places), dtype=np.int64))
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """At most all tokens."""
        return {match.name: packing.tokens for match in self.matches}

    def head(self, backbone: Backbone) -> nn.Module:
        """Projections, where widths differ."""
        widths = backbone.width, self.teacher.backbone.width
        kinds = [match.kind for match in self.matches if match.kind != "attention" and widths[0] != widths[1]]
        return nn.ModuleDict({kind: OutputLinear(*widths, bias=False) for kind in kinds})

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """What is still unlike, by kind."""
        with torch.no_grad():
            theirs = beside(backbone, self.teacher.backbone)(*batch.packed, keep="all").layers
        ours = backbone(*batch.packed, keep="all").layers
        loss = Loss()
        for match in self.matches:
            targets = batch.targets[match.name]
            each = self.distance(match, head, backbone, batch, ours, theirs, targets.at)
            loss.sums[match.name] = (each.float() * targets.weight).sum()
            loss.weights[match.name] = match.weight
        return loss

    def distance(
        self,
        match: Match,
        head: Any,
        backbone: Any,
        batch: Batch,
        ours: list[Tensor],
        theirs: list[Tensor],
        at: Tensor,
    ) -> Tensor:
        """(m,) at some tokens; of several pairs of layers, the mean."""

        def led(x: Tensor) -> Tensor:
            return head[match.kind](x) if match.kind in head else x

        match match.kind:
            case "hidden":
                parts = [
                    F.normalize(led(ours[own][at]).float(), dim=-1) - F.normalize(theirs[layer][at].float(), dim=-1)
                    for own, layer in match.pairs
                ]
                return torch.stack([part.square().mean(-1) for part in parts]).mean(0)
            case "states":
                found = [led(ours[own][at]).float() - theirs[layer][at].float() for own, layer in match.pairs]
                return torch.stack([part.square().mean(-1) for part in found]).mean(0)
            case "attention":
                return self.attention_distance(match, backbone, batch, ours, theirs)[at]
            case "embedding":
                return (led(ours[0][at]).float() - theirs[0][at].float()).square().mean(-1)
            case _:
                return 1 - F.cosine_similarity(led(ours[-1][at]).float(), theirs[-1][at].float(), dim=-1)

    def attention_distance(
        self, match: Match, backbone: Any, batch: Batch, ours: list[Tensor], theirs: list[Tensor]
    ) -> Tensor:
        """(n,) the divergence of the student's looks from the teacher's."""
        (packed,) = batch.packed
        layout, found = self_layout(packed), []
        if not (hasattr(backbone, "stack") and hasattr(self.teacher.backbone, "stack")):
            raise PretuneError("attention can be matched between single stacks of layers alone; leave `attention` out")
        for own, layer in match.pairs:
            with torch.no_grad():
                wanted = looks(self.teacher.backbone.stack[layer - 1], theirs[layer - 1], layout, packed.pattern)
            said = looks(backbone.stack[own - 1], ours[own - 1], layout, packed.pattern)
            logs = [x.float().clamp(min=SMALLEST).log() for x in (said, wanted)]
            found.append((wanted * (logs[1] - logs[0])).sum(-1))
        return torch.stack(found).mean(0)
