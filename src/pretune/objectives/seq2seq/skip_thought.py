"""Skip-thought (Kiros et al., 2015): a sentence becomes one vector, from which the sentences around it are written.

The decoder sees nothing of the sentence but that vector, so that everything that helps has to be in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from pretune.nn.attention.patterns import Pattern
from pretune.nn.pooling import pool
from pretune.objectives.objective import Data, Loss, TwoSided, vocabulary_loss
from pretune.objectives.registry import register_objective
from pretune.objectives.seq2seq.source_target import PairEpoch, shapes, shift, writing_template
from pretune.packed import Batch, Packed
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, Template, plan_lengths
from pretune.text.store.store import Store, spans_to_indices
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


class SkipThoughtHead(nn.Module):
    """The family's way to the vocabulary, and what tells the decoder which neighbor to write."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.vocabulary = backbone.vocabulary_head()
        width = getattr(backbone, "encoder", backbone).width
        self.neighbor = nn.Parameter(torch.empty(2, width).normal_(std=0.02))  # previous, next

    def forward(self, vectors: Tensor) -> Tensor:
        """(s, width) → (2s, width): two for each sentence."""
        return (vectors[:, None] + self.neighbor.to(vectors.dtype)).flatten(0, 1)


@register_objective
@dataclass(frozen=True)
class SkipThought(TwoSided):
    """`pooling` makes a vector of a sentence's states. One decoder writes both neighbors; a vector of its own for each,
    added to the sentence's, says which (the paper has two decoders)."""

    pooling: Literal["start", "mean", "max", "last"] = "mean"

    name: ClassVar[str] = "skip_thought"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Every sentence that has two neighbors in its document; sentences that are too long lose their end."""
        if data.store is None:
            raise PretuneError("skip_thought reads raw text; give it a corpus or a store, not labeled rows")
        template = writing_template(data.template)
        read, written = Template(template.single, ()), Template(template.target, ())
        around = read.overhead(pair=False), written.overhead(pair=False) - 1
        room = packing.length - around[0], min(packing.length, packing.tokens // 2) - around[1]
        if min(room) < 1:
            raise PretuneError(f"sequences of {packing.length} tokens leave no room for text; ask for longer ones")
        center = inner_sentences(data.store, data.documents)
        offsets = data.store.sentence_offsets
        triple = center[:, None] + np.array([0, -1, 1])
        starts, whole = offsets[triple], offsets[triple + 1] - offsets[triple]
        full = (whole > 0).all(1)
        starts, whole = starts[full], whole[full]
        if not len(starts):
            raise PretuneError("skip_thought needs documents of three sentences or more; this corpus has none")
        spans = np.minimum(whole, [room[0], room[1], room[1]])
        source = Arrangement(
            data.store, data.tokenizer, read, starts[:, :1], spans[:, :1], truncated=int((spans < whole)[:, 0].sum())
        )
        target = Arrangement(
            data.store, data.tokenizer, written, starts[:, 1:].reshape(-1, 1), spans[:, 1:].reshape(-1, 1)
        )
        lengths = np.maximum(spans[:, 0] + around[0], spans[:, 1:].sum(1) + 2 * around[1])
        return PairEpoch(source, target, plan_lengths(lengths, packing, draws), per=2)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Nothing to hide."""
        return shift(self.name, sequences)

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """Packs are planned by the larger side: a sentence, or its two neighbors."""
        longest = min(packing.length, max(1, packing.tokens // 2))
        return shapes(packing, (packing.tokens, packing.length), (packing.tokens, longest), per=2)

    def room(self, packing: Packing) -> dict[str, int]:
        """Everything that is written."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """The way to the vocabulary, and two vectors."""
        return SkipThoughtHead(backbone)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of both neighbors."""
        source, target = batch.packed
        network: Any = backbone  # an encoder-decoder, of which the decoder gets another source
        read = network.encoder(source).last
        # A mean comes in fp32; a decoder reads states.
        vectors = head(pool(read, source, self.pooling).to(read.dtype))
        states = network.decode(target, single_states(target), vectors).last
        targets = batch.targets[self.name]
        head_: Any = head
        return vocabulary_loss(self.name, head_.vocabulary, states[targets.at], backbone.embed.tokens, targets)


def inner_sentences(store: Store, documents: Array) -> Array:
    """The sentences of some documents that are neither the first nor the last of theirs."""
    first, count = store.document_offsets[documents], np.diff(store.document_offsets)[documents]
    return spans_to_indices(first + 1, np.maximum(0, count - 2))


def single_states(target: Packed) -> Packed:
    """A source of one state for each sequence of a target."""
    count = target.offsets.shape[0] - 1
    zeros = torch.zeros(count, dtype=torch.long, device=target.ids.device)
    offsets = torch.arange(count + 1, dtype=torch.int32, device=target.ids.device)
    host = None if target.host_offsets is None else np.arange(count + 1)
    return Packed(ids=zeros, offsets=offsets, positions=zeros, longest=1, host_offsets=host)
