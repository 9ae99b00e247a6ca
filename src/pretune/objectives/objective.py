"""The contract of an objective, its data and its loss.

An objective defines what a model learns from; self-supervised and supervised objectives have the same contract:

    arrange(data, packing, draws) → epoch        which texts make up which sequences, in which packs
    corrupt(sequences, draws)     → sequences    masks, noise, permutations, targets; a pure function
    head(backbone)                → module       its parameters
    loss(head, backbone, batch)   → Loss         named sums

To add an objective, write a frozen dataclass that derives from `Objective` and implements these methods and `max_targets`. Its
fields are its options. Register it with `@register_objective`, or from another package with an entry point of the group
`pretune.objectives` (see pretune.objectives.registry).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretune.backbones.backbone import Backbone
from pretune.nn.attention.patterns import Pattern
from pretune.packed import Batch, Packed, Targets
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.dialogues import Dialogues
from pretune.text.corpus.files import Errors
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.packing.token_rows import TokenRows
from pretune.text.store.store import Store
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

MAX_LOGITS = 1 << 30  # computed at once
# Takes logits (m, vocabulary), targets (m,) and weights (m,).
LogitsFunction = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


@dataclass
class Data:
    """The training data of an objective: documents of a token store or labeled rows, with tokenizer and template.

    `documents` has the indices of the documents to use, and `languages` the number of each language. Languages are
    sampled by their share of the text to the power `language_alpha`.
    """

    tokenizer: Tokenizer
    template: Template
    store: Store | None = None
    documents: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # indices of the documents to use
    rows: Any = None  # labeled rows, dialogues, or the examples of a task
    languages: Mapping[str, int] = field(default_factory=dict)  # language name → number; {}: one language
    language_alpha: float = 0.7  # languages are sampled by their share of the text to this power
    cache: dict[Hashable, Any] = field(default_factory=dict)  # the results of `cached`

    @cached_property
    def token_rows(self) -> TokenRows:
        """Return the token ids of the labeled rows, which are tokenized at the first access."""
        assert self.rows is not None
        return TokenRows.make(self.rows, self.tokenizer)

    @cached_property
    def tokens(self) -> Any:
        """Return the tokenized examples of a task in the task's own data structure, computed at the first access."""
        return self.rows.tokenize(self.tokenizer)

    def require_store(self, name: str) -> Store:
        """Return the token store of the corpus; raise an error that names the objective `name` if there is none."""
        if self.store is None:
            raise PretuneError(
                f"{name} reads raw text, but the data are labeled rows; give a text corpus or a token store"
            )
        return self.store

    def cached(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Return the cached value for `name`, which `make()` computes at the first request."""
        if name not in self.cache:
            self.cache[name] = make()
        return self.cache[name]


@dataclass
class Loss:
    """The loss terms of a batch by name, as sums over targets; `over` divides each by its number of targets.

    `weights` are the weights of the terms in the total loss (default 1), `logs` further sums to log, `state` the
    recurrent state after the batch, and `packed` the tokens that were read, if they differ from the batch's.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    # Further sums, named TERM/WHAT, that are divided by the total of TERM, or by the sum named TERM/WHAT/of.
    logs: dict[str, Tensor] = field(default_factory=dict)
    state: Any = None  # the recurrent state or memory after the batch, from which the next batch continues
    # The tokens that the model read, if they differ from the batch's: the other objectives of a joint read them, too.
    packed: tuple[Packed, ...] | None = None

    def over(self, totals: Mapping[str, float | Tensor]) -> Tensor:
        """Return the scalar loss: the weighted sum of all terms, each divided by its number of targets in `totals`."""
        parts = [self.weights.get(term, 1.0) * total / _or_one(totals[term]) for term, total in self.sums.items()]
        return torch.stack([part.float() for part in parts]).sum()


def _or_one(total: float | Tensor) -> float | Tensor:
    return torch.where(total == 0, 1.0, total) if isinstance(total, Tensor) else total or 1.0


@dataclass(frozen=True)
class Export:
    """A part of a head that can be saved as a separate model, such as ELECTRA's generator.

    `inside` is the prefix of its parameter names, `sizes` has the keys of config.json in which it differs from the
    whole model, and `heads` are the names of its heads.
    """

    inside: str  # the prefix of its parameters, which carry a model's usual names after the prefix
    sizes: dict[str, int]  # keys of config.json in which it differs
    heads: frozenset[str]

    def tensors(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state dict of the exported part, taken from the state dict of the whole model."""
        shared = {
            name: x for name, x in state.items() if name.startswith("backbone.embed.") and ".project." not in name
        }
        return shared | {name.removeprefix(self.inside): x for name, x in state.items() if name.startswith(self.inside)}


def divide_by_totals(sums: Mapping[str, float], totals: Mapping[str, float]) -> dict[str, float]:
    """Divide each sum by the number of targets of its loss term; `totals` has these numbers by loss term.

    If there is a sum `NAME/of`, the sum NAME is divided by it instead. The result leaves out the sums `NAME/of`.

    >>> divide_by_totals({"a": 6.0, "a/found": 1.0, "a/found/of": 2.0}, {"a": 3.0})
    {'a': 2.0, 'a/found': 0.5}
    """
    over = {name: sums.get(f"{name}/of", totals.get(name.split("/")[0], 0.0)) for name in sums}
    return {name: value / max(1.0, over[name]) for name, value in sums.items() if not name.endswith("/of")}


class Objective:
    """Base class of training objectives, which define how data is arranged and corrupted, a head, and a loss.

    A subclass sets `name` and implements `arrange`, `corrupt`, `max_targets`, `head` and `loss`. The other class
    attributes have defaults: `pattern` is the attention pattern that the objective needs (None: any),
    `owns_arrangement` says whether it needs its own arrangement of the text, and `corrupts` whether it changes the
    tokens that the model reads.
    """

    name: ClassVar[str]
    pattern: ClassVar[Pattern | None] = None  # the attention pattern it needs; None: any
    owns_arrangement: ClassVar[bool] = False  # whether it needs its own arrangement of the text
    corrupts: ClassVar[bool] = False  # whether it changes the tokens that are read; in a joint, at most one may
    # Whether it corrupts after the others of a joint: it changes tokens or regions that none of them predicts.
    corrupts_last: ClassVar[bool] = False
    companion: ClassVar[str | None] = None  # the objective that it needs in the same joint; None: it can stand alone
    reads_all_layers: ClassVar[bool] = False  # whether its loss reads all layers of the backbone
    two_sided: ClassVar[bool] = False  # see TwoSided
    adds_tokens: ClassVar[bool] = False  # see AddsTokens
    learns_from_rows: ClassVar[bool] = False  # see LearnsFromRows
    demonstration_sequences: ClassVar[int] = 1  # sequences of the demonstration that belong together
    # What a trained model does, as a sentence and as `pipeline_tag` of the Hugging Face Hub, for model cards; None: not said.
    purpose: ClassVar[tuple[str, str] | None] = None

    @property
    def kind(self) -> str:
        """Return the name under which the objective class is registered, even if the user has renamed the objective."""
        return self.name

    @property
    def shared_head(self) -> str:
        """Return the name of the objective whose head parameters this objective uses; by default its own name."""
        return self.name

    @property
    def arrangement(self) -> str:
        """Return the name of its own arrangement of the data; in a joint, all objectives with one must have the same."""
        return self.name

    @property
    def stateful(self) -> bool:
        """Return whether each batch continues the sequences of the previous batch (truncated BPTT)."""
        return False

    @property
    def static_masks(self) -> int:
        """Return the number of epochs after which the same random masks are used again; 0 if never."""
        return 0

    @property
    def needs_host_sync(self) -> bool:
        """Return whether computing the loss synchronizes GPU and CPU, so that CUDA graphs cannot record it."""
        return False

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Divide an epoch's data into sequences and batches within the size limits `packing`, in random order.

        `draws` has the random numbers of the epoch.
        """
        raise NotImplementedError

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Return the sequences of a batch after masking, noise or permutation, with their prediction targets."""
        raise NotImplementedError

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch, by loss term, for fixed tensor shapes."""
        raise NotImplementedError

    def head(self, backbone: Backbone) -> nn.Module:
        """Build and return a new head: the parameters that the objective adds to the backbone."""
        raise NotImplementedError

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the loss of a batch, given the head and the backbone of the model."""
        raise NotImplementedError

    def for_evaluation(self) -> Self:
        """Return the objective with the options of evaluations, which are the same whatever training uses."""
        return self

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return targets as readable text for `pretune show objectives`; None if they are tokens to predict.

        `at` and `target` are the positions and the values of the objective's targets, as `corrupt` sets them; `ids`
        (n,) are the token ids that the model reads, and `spell` decodes token ids.
        """
        return None

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """Return the batch limits of the encoder's and the decoder's sequences; only for encoder-decoders."""
        raise NotImplementedError

    def max_packing(self, packing: Packing) -> Packing:
        """Return the batch limits `packing`, raised by the tokens that the objective inserts."""
        raise NotImplementedError

    def read_rows(self, files: Sequence[str | Path], errors: Errors = "strict") -> LabeledRows | Dialogues:
        """Read the table rows or dialogues to train on; `errors` selects the handling of invalid UTF-8."""
        raise NotImplementedError


class TwoSided(Objective):
    """Base class of objectives for encoder-decoders, with source and target sequences; subclasses implement `sides`."""

    two_sided: ClassVar[bool] = True


class AddsTokens(Objective):
    """Base class of objectives that insert tokens, such as a copy of each text; subclasses implement `max_packing`."""

    adds_tokens: ClassVar[bool] = True


class LearnsFromRows(Objective):
    """Base class of objectives that learn from table rows or dialogues, not text; subclasses implement `read_rows`."""

    learns_from_rows: ClassVar[bool] = True


def token_loss(name: str, head: nn.Module, backbone: Backbone, batch: Batch, smoothing: float = 0.0) -> Loss:
    """Run the backbone on a batch; return the cross-entropy over the vocabulary at the targets of loss term `name`.

    `smoothing` is the amount of label smoothing.
    """
    targets = batch.targets[name]
    states = backbone(*batch.packed, state=batch.state)
    loss = vocabulary_loss(name, head, states.last[targets.at], backbone.embed.tokens, targets, smoothing)
    loss.state = states.state
    return loss


def vocabulary_loss(
    name: str, head: nn.Module, states: Tensor, tokens: Tensor, targets: Targets, smoothing: float = 0.0
) -> Loss:
    """Return the cross-entropy over the vocabulary at targets, as loss term `name`.

    `states` (m, width) are the hidden states at the m targets, `tokens` (vocabulary, width) the token embeddings, and
    `smoothing` is the amount of label smoothing.
    """
    keys: list[str] = []

    def look(logits: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        loss = classification_loss(name, logits, Targets(target, target, weight), smoothing)
        keys[:] = [name, *loss.logs]
        return loss.sums[name], *loss.logs.values()

    found = map_logits_in_chunks(head, states, tokens, targets, look)
    sums = dict(zip(keys, (torch.stack(values).sum() for values in zip(*found, strict=True)), strict=True))
    return Loss(sums={name: sums.pop(name)}, logs=sums)


def map_logits_in_chunks(
    head: nn.Module, states: Tensor, tokens: Tensor, targets: Targets, look: LogitsFunction
) -> list[tuple[Tensor, ...]]:
    """Call `look(logits, target, weight)` on chunks of the targets, to save memory, and return the results in order.

    The logits come from `head(states, tokens)`, with hidden states (m, width) and token embeddings (vocabulary, width).
    If there are several chunks, the backward pass computes their logits again.
    """

    def part(states: Tensor, tokens: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return look(head(states, tokens), target, weight)

    # A head with an adaptive softmax has its own number of logits.
    chunks = -(-states.shape[0] * int(getattr(head, "vocabulary", tokens.shape[0])) // MAX_LOGITS)
    if chunks <= 1:
        return [part(states, tokens, targets.target, targets.weight)]
    pieces = zip(*(x.chunk(chunks) for x in (states, targets.target, targets.weight)), strict=True)
    return [checkpoint(part, x, tokens, y, w, use_reentrant=False, preserve_rng_state=False) for x, y, w in pieces]


def classification_loss(name: str, logits: Tensor, targets: Targets, smoothing: float = 0.0) -> Loss:
    """Return the cross-entropy summed over targets as loss term `name`, and log the number of correct predictions.

    With label smoothing (Szegedy et al., 2016), the share `smoothing` of each target is spread over all classes, and
    the cross-entropy without smoothing is logged as `plain`.
    """
    logits = logits.float()
    losses = F.cross_entropy(logits, targets.target, reduction="none")
    right = (logits.argmax(-1) == targets.target).float()
    logs = {f"{name}/accuracy": (right * targets.weight).sum().detach()}
    if smoothing:
        logs[f"{name}/plain"] = (losses * targets.weight).sum().detach()
        # The mean of -log p over all classes is the normalizer, which the loss contains already, minus the mean logit.
        wanted = logits.gather(-1, targets.target[:, None])[:, 0]
        losses = losses + smoothing * (wanted - logits.mean(-1))
    return Loss(sums={name: (losses * targets.weight).sum()}, logs=logs)
