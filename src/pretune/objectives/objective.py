"""What an objective is: a task with its own parameters. Self-supervised and supervised ones are the same kind of thing.

    arrange(data, packing, draws) → epoch        which texts make up which sequences, in which packs
    corrupt(sequences, draws)     → sequences    masks, noise, permutations, targets; a pure function
    head(backbone)                → module       its parameters
    loss(head, backbone, batch)   → Loss         named sums

One file an objective. To add one, write these four as methods of a frozen dataclass whose fields are its options, and name
it in pretune/objectives/__init__.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretune.nn.attention.patterns import Pattern
from pretune.packed import Batch, Packed, Targets
from pretune.runtime.randomness import Draws
from pretune.text.corpus.files import Errors
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.packing.token_rows import TokenRows
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone
    from pretune.text.corpus.dialogues import Dialogues
    from pretune.text.examples.labeled import Labeled
    from pretune.text.store.store import Store

Array = np.ndarray[Any, np.dtype[Any]]
MOST_LOGITS = 1 << 30  # at once
# Looks at logits (m, vocabulary), targets (m,) and weights (m,).
Look = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


@dataclass
class Data:
    """What an objective arranges: documents of a store, or labeled rows; with tokenizer and template of the model."""

    tokenizer: Tokenizer
    template: Template
    store: Store | None = None
    documents: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # of the store, those to use
    rows: Any = None  # labeled rows, dialogues, or the examples of a task
    languages: Mapping[str, int] = field(default_factory=dict)  # by name, of the texts' languages; {}: all in one
    exponent: float = 0.7  # languages are drawn by their share of the text to this power
    kept: dict[Hashable, Any] = field(default_factory=dict)  # what was made of it once

    @cached_property
    def token_rows(self) -> TokenRows:
        """The labeled rows, tokenized once."""
        assert self.rows is not None
        return TokenRows.make(self.rows, self.tokenizer)

    @cached_property
    def tokens(self) -> Any:
        """The examples of a task that have a way of their own to be tokenized, once."""
        return self.rows.tokenize(self.tokenizer)

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gives, made at the first call."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]


@dataclass
class Loss:
    """Named terms, each a sum over targets; the loop divides by the totals of all packs of a step."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    # Further sums, named TERM/WHAT and divided by TERM's total, or by what is named TERM/WHAT/of.
    logs: dict[str, Tensor] = field(default_factory=dict)
    carry: Any = None
    # What the model read, where that is not the batch's: the other objectives of a joint read it too.
    packed: tuple[Packed, ...] | None = None

    def over(self, totals: Mapping[str, float | Tensor]) -> Tensor:
        """Return Σ weight · sum / total; a term without targets is 0."""
        parts = [self.weights.get(term, 1.0) * total / _or_one(totals[term]) for term, total in self.sums.items()]
        return torch.stack([part.float() for part in parts]).sum()


def _or_one(total: float | Tensor) -> float | Tensor:
    """Return a total, or 1 where it is 0: the sum over no targets is 0 too."""
    return torch.where(total == 0, 1.0, total) if isinstance(total, Tensor) else total or 1.0


@dataclass(frozen=True)
class Export:
    """A model that a head has inside, and that is written beside the one it belongs to."""

    inside: str  # the prefix of its parameters, which have a model's own names after that
    sizes: dict[str, int]  # keys of config.json in which it differs
    heads: frozenset[str]

    def tensors(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its parameters, among all of the model's; the embedding is the backbone's, but for what leads to its width."""
        shared = {
            name: x for name, x in state.items() if name.startswith("backbone.embed.") and ".project." not in name
        }
        return shared | {name.removeprefix(self.inside): x for name, x in state.items() if name.startswith(self.inside)}


def means(sums: Mapping[str, float], totals: Mapping[str, float]) -> dict[str, float]:
    """Sums of losses and logs, each over its total.

    >>> means({"a": 6.0, "a/found": 1.0, "a/found/of": 2.0}, {"a": 3.0})
    {'a': 2.0, 'a/found': 0.5}
    """
    over = {name: sums.get(f"{name}/of", totals.get(name.split("/")[0], 0.0)) for name in sums}
    return {name: value / max(1.0, over[name]) for name, value in sums.items() if not name.endswith("/of")}


class Objective(Protocol):
    """The four methods, and what joints need to know."""

    name: ClassVar[str]
    pattern: ClassVar[Pattern | None]  # the pattern it needs; None: any
    insists: ClassVar[bool]  # whether only its own arrangement will do
    stateful: bool  # whether batches continue one another

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch: ...

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences: ...

    def room(self, packing: Packing) -> dict[str, int]:
        """How many targets a pack can have at most, by term; for fixed shapes."""

    def head(self, backbone: Backbone) -> nn.Module: ...

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss: ...


@runtime_checkable
class TwoSided(Protocol):
    """An objective that reads one text and writes another, with an encoder-decoder. It shares its batches with none."""

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """What the two sides of a pack can be at most; for fixed shapes. They have room for equally many sequences."""


@runtime_checkable
class Grows(Protocol):
    """An objective that adds tokens of its own to the text. It shares its batches with none."""

    def grown(self, packing: Packing) -> Packing:
        """What a pack can be at most with them; for fixed shapes."""


@runtime_checkable
class LearnsFromRows(Protocol):
    """An objective that learns from rows of its own kind instead of running text."""

    def read_rows(self, files: Sequence[str | Path], errors: Errors = "strict") -> Labeled | Dialogues: ...


def token_loss(name: str, head: nn.Module, backbone: Backbone, batch: Batch, smoothing: float = 0.0) -> Loss:
    """Cross-entropy over the vocabulary at the targets of a term, from one forward, which may go on from the batch before."""
    targets = batch.targets[name]
    states = backbone(*batch.packed, carry=batch.carry)
    loss = vocabulary_loss(name, head, states.last[targets.at], backbone.embed.tokens, targets, smoothing)
    loss.carry = states.carry
    return loss


def vocabulary_loss(
    name: str, head: nn.Module, states: Tensor, tokens: Tensor, targets: Targets, smoothing: float = 0.0
) -> Loss:
    """Cross-entropy over the vocabulary at some tokens, given their states (m, width) and the token embedding."""
    keys: list[str] = []

    def look(logits: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        loss = classification_loss(name, logits, Targets(target, target, weight), smoothing)
        keys[:] = [name, *loss.logs]
        return loss.sums[name], *loss.logs.values()

    found = in_chunks(head, states, tokens, targets, look)
    sums = dict(zip(keys, (torch.stack(values).sum() for values in zip(*found, strict=True)), strict=True))
    return Loss(sums={name: sums.pop(name)}, logs=sums)


def in_chunks(
    head: nn.Module, states: Tensor, tokens: Tensor, targets: Targets, look: Look
) -> list[tuple[Tensor, ...]]:
    """What `look(logits, target, weight)` finds at some tokens.

    Where the logits would fill memory they are made in chunks, and once more in the backward.
    """

    def part(states: Tensor, tokens: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return look(head(states, tokens), target, weight)

    chunks = -(-states.shape[0] * int(getattr(head, "vocabulary", tokens.shape[0])) // MOST_LOGITS)
    if chunks <= 1:
        return [part(states, tokens, targets.target, targets.weight)]
    pieces = zip(*(x.chunk(chunks) for x in (states, targets.target, targets.weight)), strict=True)
    return [checkpoint(part, x, tokens, y, w, use_reentrant=False, preserve_rng_state=False) for x, y, w in pieces]


def classification_loss(name: str, logits: Tensor, targets: Targets, smoothing: float = 0.0) -> Loss:
    """Cross-entropy summed over targets, and how many were right.

    With `smoothing`, that share of what is wanted is spread over all classes (Szegedy et al., 2016), and the cross-entropy
    without it is logged beside.
    """
    logits = logits.float()
    losses = F.cross_entropy(logits, targets.target, reduction="none")
    right = (logits.argmax(-1) == targets.target).float()
    logs = {f"{name}/accuracy": (right * targets.weight).sum().detach()}
    if smoothing:
        logs[f"{name}/plain"] = (losses * targets.weight).sum().detach()
        # -mean(log p) over all classes: the normalizer, which the loss has in it, less the mean logit
        wanted = logits.gather(-1, targets.target[:, None])[:, 0]
        losses = losses + smoothing * (wanted - logits.mean(-1))
    return Loss(sums={name: (losses * targets.weight).sum()}, logs=logs)
