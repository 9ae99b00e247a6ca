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
from pretune.backbones.second_decoder import select_sequences
from pretune.nn.compiler_exclusions import exclude_from_compile
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
    """An output layer over the vocabulary, with the parameters that distinguish the two neighbors of a sentence.

    With two decoders, these are the layers of the second one, which generates the next sentence. With one decoder, they
    are two learned vectors, which tell it whether to generate the previous or the next sentence.
    """

    def __init__(self, backbone: Backbone, separate_decoders: bool) -> None:
        super().__init__()
        network: Any = backbone
        self.vocabulary = backbone.vocabulary_head()
        self.next_decoder = network.copy_decoder() if separate_decoders else None
        width = network.encoder.width
        self.neighbor = None if separate_decoders else nn.Parameter(torch.empty(2, width).normal_(std=0.02))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the vectors from which both neighbors of each sentence are decoded, given sentence vectors (s, width).

        The result is (2s, width): row 2i is for the sentence before sentence i, and row 2i + 1 for the sentence after
        it.
        """
        if self.neighbor is None:
            return vectors.repeat_interleave(2, 0)
        return (vectors[:, None] + self.neighbor.to(vectors.dtype)).flatten(0, 1)


@register_objective
@dataclass(frozen=True)
class SkipThought(Seq2Seq):
    """Skip-thought: generate both neighbors of a sentence from its vector, with one decoder or two.

    `pooling` turns the hidden states of the sentence into one vector. With `separate_decoders`, as in the paper, one
    decoder generates the sentence before and another the sentence after; else a learned vector for "previous" or "next"
    is added to the vector of the sentence.
    """

    pooling: Literal["cls", "mean", "max", "last"] = "mean"
    separate_decoders: bool = False

    name: ClassVar[str] = "skip_thought"

    @property
    def needs_host_sync(self) -> bool:
        """Return whether the loss synchronizes GPU and CPU, which happens only with two decoders."""
        return self.separate_decoders

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
                "the objective 'skip_thought' needs documents of three sentences or more, and this corpus has none; give it longer documents"
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
        """Return a new output layer over the vocabulary, with the parameters for previous and for next sentences."""
        return SkipThoughtHead(backbone, self.separate_decoders)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of the tokens of both neighboring sentences."""
        source, target = batch.packed
        network: Any = backbone  # an encoder-decoder; its decoder gets the sentence vectors as its source
        read = network.encoder(source).last
        # Mean pooling returns fp32; the decoder needs the dtype of the states.
        vectors = head(pool(read, source, self.pooling).to(read.dtype))
        head_: Any = head
        if self.separate_decoders:
            states = decode_separately(network, head_.next_decoder, target, vectors)
        else:
            states = network.decode(target, one_state_per_sequence(target), vectors).last
        targets = batch.targets[self.name]
        return vocabulary_loss(self.name, head_.vocabulary, states[targets.at], backbone.embed.tokens, targets)


def inner_sentences(store: Store, documents: Array) -> Array:
    """Return the indices of all sentences of `documents` that are neither the first nor the last of their document."""
    first, count = store.document_offsets[documents], np.diff(store.document_offsets)[documents]
    return span_indices(first + 1, np.maximum(0, count - 2))


@exclude_from_compile  # the number of tokens of each decoder differs from batch to batch
def decode_separately(network: Any, next_decoder: nn.ModuleDict, target: Packed, vectors: Tensor) -> Tensor:
    """Decode previous sentences with the decoder of `network`, and next sentences with the layers `next_decoder`.

    In `target`, previous and next sentences alternate; `vectors` (2s, width) has the vector from which each of them is
    decoded. Return the decoder's hidden states of all target tokens, in the order of `target`.
    """
    states, rows = [], []
    for number, decoder in enumerate((network, network.with_decoder(next_decoder))):
        part, own = select_sequences(target, np.arange(number, len(target.offsets) - 1, 2))
        states.append(decoder.decode(part, one_state_per_sequence(part), vectors[number::2]).last)
        rows.append(own)
    return torch.cat(states)[torch.cat(rows).argsort()]


def one_state_per_sequence(target: Packed) -> Packed:
    """Return what the decoder attends to: one single-token sequence for each sequence of `target`.

    The token is a placeholder: the vector of a sentence stands in for its hidden state.
    """
    count = target.offsets.shape[0] - 1
    zeros = torch.zeros(count, dtype=torch.long, device=target.ids.device)
    offsets = torch.arange(count + 1, dtype=torch.int32, device=target.ids.device)
    host = None if target.host_offsets is None else np.arange(count + 1)
    return Packed(ids=zeros, offsets=offsets, positions=zeros, max_length=1, host_offsets=host)
