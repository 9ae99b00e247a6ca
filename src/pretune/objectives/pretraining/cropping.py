"""Independent cropping (Izacard et al., 2022, Contriever, arXiv:2112.09118): text embeddings from raw text.

Two random crops of the same passage have similar vectors, and crops of other passages in the batch have other vectors. So an encoder learns
text embeddings without any labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.nn.attention.patterns import Pattern, full
from pretune.nn.sentence_embedding import TextEmbedding, TextEmbeddingHead
from pretune.objectives.in_batch_contrast import in_batch_contrastive_loss
from pretune.objectives.objective import Data, Loss, Objective
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.document_spans import cut_documents
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class Cropping(Objective):
    """Contrastive learning of text embeddings from two random crops of each passage.

    A passage consists of whole sentences with at most `window` tokens. A crop is a contiguous part of it, with a random
    number of tokens between `min_crop` and `max_crop` times `window` (or the longest passage); crops may overlap. Passages
    that are shorter are left out, so that the length of a crop does not depend on its passage. A share `delete_rate` of the tokens is deleted. The loss
    is the cross-entropy of finding the other crop of a passage in the batch, in both directions, with the cosines of
    mean-pooled vectors divided by `temperature`.
    """

    window: int = 64
    min_crop: float = 0.2
    max_crop: float = 0.5
    delete_rate: float = 0.1
    temperature: float = 0.05

    name: ClassVar[str] = "cropping"
    purpose: ClassVar[tuple[str, str]] = (
        "It maps texts to vectors, so that similar texts get similar vectors",
        "sentence-similarity",
    )
    pattern: ClassVar[Pattern | None] = full
    owns_arrangement: ClassVar[bool] = True
    corrupts: ClassVar[bool] = True
    demonstration_sequences: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0 < self.min_crop <= self.max_crop <= 1:
            raise PretuneError(
                f"cropping(min_crop={self.min_crop:g},max_crop={self.max_crop:g}): these shares of a passage must be above 0, at most 1, "
                "and min_crop at most max_crop"
            )
        if not 0 <= self.delete_rate < 1:
            raise PretuneError(
                f"cropping(delete_rate={self.delete_rate:g}): this share of the tokens must be at least 0 and below 1"
            )

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into passages of whole sentences; two crops of each passage are sequences of the same batch."""
        store, template = data.require_store(self.name), data.template.document_template
        window = min(self.window, packing.length - template.num_special_tokens(pair=False))
        starts, lengths, _ = cut_documents(store, data.documents, max(1, window), draws)
        if not len(starts):
            raise PretuneError("the objective 'cropping' found no text in the corpus; give it documents")
        window = min(window, int(lengths.max()))  # of a corpus of short texts
        shortest, longest = (max(1, round(share * window)) for share in (self.min_crop, self.max_crop))
        starts, lengths = (np.repeat(values[lengths >= longest], 2) for values in (starts, lengths))
        crop = np.arange(len(starts)) % 2
        spans = shortest + draws.integers(longest - shortest + 1, "crop length", starts, crop)
        starts = starts + draws.integers(lengths - spans + 1, "crop start", starts, crop)
        labels = {"group": np.arange(len(starts)) // 2}
        return plan_epoch(
            Arrangement(store, data.tokenizer, template, starts[:, None], spans[:, None], labels), packing, draws
        )

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Delete tokens, and set one target per passage: the indices of its two crops. Special tokens stay."""
        owner = sequences.owner
        kept = draws.uniform("delete", sequences.index[owner], sequences.index_in_sequence) >= self.delete_rate
        kept |= sequences.columns["special"] | (sequences.index_in_sequence == sequences.lengths[owner] // 2)
        noisy = sequences.choose_tokens(kept)
        group = sequences.labels["group"]
        first = np.flatnonzero(group[:-1] == group[1:])
        noisy.targets[self.name] = (np.stack([first, first + 1], 1), np.stack([group[first], group[first]], 1))
        return noisy

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch: half the number of sequences, which form pairs."""
        return {self.name: min(packing.sequences, packing.tokens) // 2}

    def head(self, backbone: Backbone) -> nn.Module:
        """Return the head, which averages the hidden states of a text and has no parameters."""
        return TextEmbeddingHead(TextEmbedding(), backbone.width)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of finding the other crop of each passage among all crops of the batch."""
        targets = batch.targets[self.name]
        vectors = F.normalize(head(backbone(*batch.packed).last, batch.packed[0]).float(), dim=-1)
        first, second = vectors[targets.at[:, 0]], vectors[targets.at[:, 1]]
        return in_batch_contrastive_loss(self.name, first @ second.T / self.temperature, targets)

    def describe_target(self, at: Array, target: Array, ids: Array, spell: object) -> str | None:
        """Return text that says which sequences are crops of the same passage, such as "1 with 2"."""
        return ", ".join(f"{first + 1} with {second + 1}" for first, second in at.tolist())
