"""Skip-thought (Kiros et al., 2015): encode a sentence as one vector, and predict its two neighboring sentences from it.

The decoder sees the sentence only through that vector, which must therefore hold everything that helps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.nn.pooling import pool
from pretune.objectives.objective import Data, Loss, vocabulary_loss
from pretune.objectives.registry import register_objective
from pretune.objectives.seq2seq.source_target import (
    Seq2Seq,
    SourceTargetEpoch,
    shift_targets,
    side_packings,
    with_target_side,
)
from pretune.packed import Batch, Packed
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_lengths
from pretune.text.spans import span_indices
from pretune.text.store.store import Store
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer


class SkipThoughtHead(nn.Module):
    """An output layer over the vocabulary, and two learned vectors that tell the decoder which neighbor to generate."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.vocabulary = backbone.vocabulary_head()
        width = getattr(backbone, "encoder", backbone).width
        self.neighbor = nn.Parameter(torch.empty(2, width).normal_(std=0.02))  # previous, next

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the vectors from which both neighbors of each sentence are decoded, given sentence vectors (s, width).

        The result is (2s, width): row 2i is for the sentence before sentence i, and row 2i + 1 for the sentence after
        it.
        """
        return (vectors[:, None] + self.neighbor.to(vectors.dtype)).flatten(0, 1)


@register_objective
@dataclass(frozen=True)
class SkipThought(Seq2Seq):
    """Skip-thought: generate both neighbors of a sentence from its vector, with one decoder (the paper has two).

    `pooling` turns the hidden states of the sentence into one vector, to which a learned vector for "previous" or
    "next" is added.
    """

    pooling: Literal["cls", "mean", "max", "last"] = "mean"

    name: ClassVar[str] = "skip_thought"

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Return each sentence that has two neighbors in its document as a source, and the neighbors as its targets."""
        store = data.require_store(self.name)
        template = with_target_side(data.template)
        read, written = Template(template.single, ()), Template(template.target, ())
        around = read.num_special_tokens(pair=False), written.num_special_tokens(pair=False) - 1
        most = packing.length - around[0], min(packing.length, packing.tokens // 2) - around[1]
        if min(most) < 1:
            raise PretuneError(
                f"sequences of {packing.length} tokens leave no room for text; increase batch.max_length"
            )
        center = inner_sentences(store, data.documents)
        offsets = store.sentence_offsets
        triple = center[:, None] + np.array([0, -1, 1])
        starts, whole = offsets[triple], offsets[triple + 1] - offsets[triple]
        full = (whole > 0).all(1)
        starts, whole = starts[full], whole[full]
        if not len(starts):
            raise PretuneError(
                "the objective skip_thought needs documents of three sentences or more, and this corpus has none; give it longer documents"
            )
        spans = np.minimum(whole, [most[0], most[1], most[1]])
        source = Arrangement(
            store, data.tokenizer, read, starts[:, :1], spans[:, :1], truncated=int((spans < whole)[:, 0].sum())
        )
        target = Arrangement(store, data.tokenizer, written, starts[:, 1:].reshape(-1, 1), spans[:, 1:].reshape(-1, 1))
        lengths = np.maximum(spans[:, 0] + around[0], spans[:, 1:].sum(1) + 2 * around[1])
        return SourceTargetEpoch(source, plan_lengths(lengths, packing, draws), target, per=2)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set up teacher forcing: shift each neighboring sentence by one token into decoder input and targets."""
        return shift_targets(self.name, sequences)

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """Return the batch limits of source and target, with two target sequences per source sequence."""
        longest = min(packing.length, max(1, packing.tokens // 2))
        return side_packings(packing, (packing.tokens, packing.length), (packing.tokens, longest), per=2)

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a new output layer over the vocabulary, with learned vectors for previous and next sentences."""
        return SkipThoughtHead(backbone)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of the tokens of both neighboring sentences."""
        source, target = batch.packed
        network: Any = backbone  # an encoder-decoder; its decoder gets the sentence vectors as its source
        read = network.encoder(source).last
        # Mean pooling returns fp32; the decoder needs the dtype of the states.
        vectors = head(pool(read, source, self.pooling).to(read.dtype))
        states = network.decode(target, one_state_per_sequence(target), vectors).last
        targets = batch.targets[self.name]
        head_: Any = head
        return vocabulary_loss(self.name, head_.vocabulary, states[targets.at], backbone.embed.tokens, targets)


def inner_sentences(store: Store, documents: Array) -> Array:
    """Return the indices of all sentences of `documents` that are neither the first nor the last of their document."""
    first, count = store.document_offsets[documents], np.diff(store.document_offsets)[documents]
    return span_indices(first + 1, np.maximum(0, count - 2))


def one_state_per_sequence(target: Packed) -> Packed:
    """Return what the decoder attends to: one single-token sequence for each sequence of `target`.

    The token is a placeholder: the vector of a sentence stands in for its hidden state.
    """
    count = target.offsets.shape[0] - 1
    zeros = torch.zeros(count, dtype=torch.long, device=target.ids.device)
    offsets = torch.arange(count + 1, dtype=torch.int32, device=target.ids.device)
    host = None if target.host_offsets is None else np.arange(count + 1)
    return Packed(ids=zeros, offsets=offsets, positions=zeros, max_length=1, host_offsets=host)
