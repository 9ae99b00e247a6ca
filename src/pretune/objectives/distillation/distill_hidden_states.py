"""Distillation of hidden states: a student's states, attention and embeddings are matched to a teacher's.

hidden(skip)      the normalized state of the first token in mapped layers (Sun et al., 2019, *Patient KD*); the squared
                  differences are averaged over the width, as in the authors' code, so that the loss weights of the
                  paper, 10 to 1,000, can be used
states(skip)      all states (Jiao et al., 2020, TinyBERT)
attention(skip)   the attention weights of each token, averaged over heads
embedding         the input of the first layer
cosine            the direction of the last states (Sanh et al., 2019, DistilBERT)

Layer maps: `last` pairs the student's layers with the top layers of the teacher, and `skip` with every k-th layer, both
without the last layer of either model; 1:2/2:4 lists pairs student:teacher. If the widths differ, a learned projection
leads from one to the other; it is dropped after training. Student and teacher read the same tokens and therefore share
one tokenizer. The teacher is frozen, and is part of neither the optimizer nor the head file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.nn.attention.attention_weights import attention_weights
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.linear import OutputLinear
from pretune.objectives.distillation.teachers import Teacher, cached_teacher
from pretune.objectives.objective import Data, Loss, Objective
from pretune.objectives.pretraining.arrangements import document_span_epoch
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

MATCH_KINDS = ("hidden", "states", "attention", "embedding", "cosine")
KINDS_WITH_LAYERS = ("hidden", "states", "attention")
SMALLEST = 1e-9
_TERM = re.compile(r"\s*(?:(?P<weight>[\d.]+)\s*\*)?\s*(?P<kind>\w+)\s*(?:\((?P<map>[^()]*)\))?\s*")


@dataclass(frozen=True)
class LayerMatch:
    """One term of a distillation loss: the kind of hidden states that are compared, the weight, and the layer pairs."""

    kind: str
    weight: float = 1.0
    pairs: tuple[tuple[int, int], ...] = ()  # numbers of the student's and teacher's layers, from 1

    @property
    def name(self) -> str:
        """Return the name of the loss term, such as match_hidden."""
        return f"match_{self.kind}"


def parse_matches(text: str, student: int, teacher: int) -> tuple[LayerMatch, ...]:
    """Parse a distillation loss such as `100*hidden(skip)+embedding` into its terms.

    `student` and `teacher` are the numbers of layers of both models.

    >>> parse_matches("100*hidden(skip)", 6, 12)[0].pairs
    ((1, 2), (2, 4), (3, 6), (4, 8), (5, 10))
    """
    found: list[LayerMatch] = []
    for term in text.split("+"):
        match = _TERM.fullmatch(term)
        if match is None or match["kind"] not in MATCH_KINDS:
            kind = match["kind"] if match else term.strip()
            raise PretuneError(f"--match-layers {text}: unknown term {kind!r}; {suggest(kind, MATCH_KINDS)}")
        mapped = match["kind"] in KINDS_WITH_LAYERS
        if match["map"] and not mapped:
            raise PretuneError(f"--match-layers {text}: {match['kind']} takes no layer map; remove ({match['map']})")
        pairs = map_layers(match["map"] or "skip", student, teacher) if mapped else ()
        found.append(LayerMatch(match["kind"], float(match["weight"] or 1.0), pairs))
    return tuple(found)


def map_layers(text: str, student: int, teacher: int) -> tuple[tuple[int, int], ...]:
    """Parse a layer map (`skip`, `last`, `1:2/2:4`) into layer pairs (student, teacher).

    `student` and `teacher` are the numbers of layers of both models.

    >>> map_layers("last", 3, 12)
    ((1, 10), (2, 11))
    """
    if text in ("last", "skip"):
        if student > teacher:
            raise PretuneError(
                f"layer map {text!r}: the student has {student} layers, but the teacher has only {teacher}; list pairs STUDENT:TEACHER of layers instead, as in 1:2/2:4"
            )
        count = max(1, student - 1)  # the last layer learns from the task
        if text == "last":
            return tuple((layer, teacher - 1 - count + layer) for layer in range(1, count + 1))
        return tuple((layer, layer * teacher // student) for layer in range(1, count + 1))
    pairs = []
    for pair in text.split("/"):
        numbers = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", pair)
        if numbers is None:
            raise PretuneError(
                f"layer map {text!r}: {pair!r} is not a pair of layers; choose last, skip, or pairs STUDENT:TEACHER such as 1:2/2:4"
            )
        own, theirs = int(numbers[1]), int(numbers[2])
        if not (1 <= own <= student and 1 <= theirs <= teacher):
            raise PretuneError(
                f"layer map {text!r}: there is no pair {own}:{theirs}; choose student layers 1 to {student} and teacher layers 1 to {teacher}"
            )
        pairs.append((own, theirs))
    return tuple(pairs)


@dataclass(frozen=True)
class DistillHidden(Objective):
    """A distillation objective whose loss is the distance between a student's and a teacher's hidden states."""

    teacher: Teacher = field(repr=False, compare=False)
    matches: tuple[LayerMatch, ...]

    name: ClassVar[str] = "imitate"
    reads_all_layers: ClassVar[bool] = True

    @property
    def needs_host_sync(self) -> bool:
        """Return whether the loss synchronizes GPU and CPU, as the comparison of attention weights does."""
        return any(match.kind == "attention" for match in self.matches)

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into spans of whole sentences, and shuffle the spans into packed batches."""
        return document_span_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set as targets the tokens whose states are compared: all tokens or, for some kinds, only the first ones.

        With the kind `hidden`, only the first token of each sequence is compared.
        """
        for match in self.matches:
            places = sequences.offsets[:-1] if match.kind == "hidden" else np.arange(len(sequences.ids))
            sequences.targets[match.name] = (places, np.zeros(len(places), dtype=np.int64))
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of targets per batch, by loss term: the number of tokens in a batch."""
        return {match.name: packing.tokens for match in self.matches}

    def head(self, backbone: Backbone) -> nn.Module:
        """Return linear projections from the student's hidden size to the teacher's; none if both sizes are equal."""
        widths = backbone.width, self.teacher.backbone.width
        kinds = [match.kind for match in self.matches if match.kind != "attention" and widths[0] != widths[1]]
        return nn.ModuleDict({kind: OutputLinear(*widths, bias=False) for kind in kinds})

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the distances between student and teacher, one loss term per compared kind, such as `embedding`."""
        with torch.no_grad():
            theirs = cached_teacher(backbone, self.teacher.backbone)(*batch.packed, keep="all").layers
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
        match: LayerMatch,
        head: Any,
        backbone: Any,
        batch: Batch,
        ours: list[Tensor],
        theirs: list[Tensor],
        at: Tensor,
    ) -> Tensor:
        """Return the distance between the student's states `ours` and the teacher's states `theirs` at the tokens `at`.

        Both are lists of hidden states by layer; `match` gives the kind of distance and the pairs of layers to compare.
        """

        def projected(x: Tensor) -> Tensor:
            return head[match.kind](x) if match.kind in head else x

        match match.kind:
            case "hidden" | "states":
                states = [(projected(ours[own][at]).float(), theirs[layer][at].float()) for own, layer in match.pairs]
                if match.kind == "hidden":
                    states = [(F.normalize(own, dim=-1), F.normalize(other, dim=-1)) for own, other in states]
                return torch.stack([(own - other).square().mean(-1) for own, other in states]).mean(0)
            case "attention":
                return self.attention_distance(match, backbone, batch, ours, theirs)[at]
            case "embedding":
                return (projected(ours[0][at]).float() - theirs[0][at].float()).square().mean(-1)
            case _:
                return 1 - F.cosine_similarity(projected(ours[-1][at]).float(), theirs[-1][at].float(), dim=-1)

    def attention_distance(
        self, match: LayerMatch, backbone: Any, batch: Batch, ours: list[Tensor], theirs: list[Tensor]
    ) -> Tensor:
        """Return the KL divergence of the student's attention weights from the teacher's at each token, (tokens,).

        `ours` and `theirs` are the hidden states of student and teacher by layer; `match.pairs` are the layers to
        compare.
        """
        (packed,) = batch.packed
        layout, found = self_layout(packed), []
        if not (hasattr(backbone, "stack") and hasattr(self.teacher.backbone, "stack")):
            raise PretuneError(
                "--match-layers: attention weights can be matched only between encoders or decoders, not encoder-decoders; remove attention(…)"
            )
        for own, layer in match.pairs:
            with torch.no_grad():
                wanted = attention_weights(
                    self.teacher.backbone.stack[layer - 1], theirs[layer - 1], layout, packed.pattern
                )
            said = attention_weights(backbone.stack[own - 1], ours[own - 1], layout, packed.pattern)
            logs = [x.float().clamp(min=SMALLEST).log() for x in (said, wanted)]
            found.append((wanted * (logs[1] - logs[0])).sum(-1))
        return torch.stack(found).mean(0)
