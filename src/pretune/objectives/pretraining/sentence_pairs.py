"""The classifier and the choice of text pairs for objectives that predict how two texts, or turns, are related.

The label must follow from the content of the texts alone. Negatives are therefore made by exchanging texts between two
sequences of the same source, and both texts are truncated to the same length, exchanged or not: neither the lengths, nor
where a text begins and ends, nor the source reveals the label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.nn.linear import OutputLinear
from pretune.objectives.objective import Data, Loss, Objective, classification_loss
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.document_spans import cut_documents, split_at_sentence
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.store.store import Store
from pretune.text.tokenizers.tokenizer import Tokenizer

UNLABELED = -1  # the label of a sequence that is read but has no target
PATIENCE = 4  # rounds of matching without a match before the remaining items are given up


class SequenceClassificationHead(nn.Module):
    """A classifier of sequences: the model family's pooler on the first token, then a linear layer."""

    def __init__(self, backbone: Backbone, classes: int = 2) -> None:
        super().__init__()
        self.pooler = backbone.pooler()
        self.output = OutputLinear(backbone.width, classes)

    def forward(self, states: Tensor) -> Tensor:
        """Return the logits (m, classes) of a classifier, given the hidden states of first tokens, (m, width)."""
        return self.output(self.pooler(states))


class SequenceClassification(Objective):
    """Base class of objectives that predict the class of each labeled sequence from its first token."""

    owns_arrangement: ClassVar[bool] = True
    classes: ClassVar[tuple[str, ...]]  # what the labels 0, 1, … mean, for demonstrations

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the label of each labeled sequence as the target at its first token; tokens are unchanged."""
        labels = sequences.labels[self.name]
        labeled = labels != UNLABELED
        sequences.targets[self.name] = (sequences.offsets[:-1][labeled], labels[labeled])
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of targets per batch, by loss term: the number of sequences in a batch."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a new classifier of sequences: a pooler and a linear layer."""
        return SequenceClassificationHead(backbone, len(self.classes))

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of a classifier on the first token of each labeled sequence."""
        targets = batch.targets[self.name]
        return classification_loss(self.name, head(backbone(*batch.packed).last[targets.at]), targets)

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return the meaning of each sequence's label, such as "in order", separated by commas."""
        return ", ".join(self.classes[int(label)] for label in target)


def split_into_pairs(
    name: str, data: Data, packing: Packing, draws: EpochRandom, short: float
) -> tuple[Array, Array, Array]:
    """Cut documents into spans, and each span into two texts at a random sentence boundary.

    Return the starts and the lengths of both texts in the token store, (m, 2) each, and the document numbers (m,). In a
    span of one sentence, the second length is 0. A share `short` of the documents is cut into shorter spans. `name` is
    the name of the objective, for error messages.
    """
    store = data.require_store(name)
    text_length = packing.length - data.template.num_special_tokens(pair=True)
    if text_length < 2:
        raise PretuneError(
            f"sequences of {packing.length} tokens leave no room for two texts; increase batch.max_length"
        )
    starts, lengths, documents = cut_documents(store, data.documents, text_length, draws, short, from_both_ends=True)
    first = split_at_sentence(store, starts, lengths, draws)
    if not first.any():
        raise PretuneError(
            f"the objective {name!r} needs documents of two sentences or more that fit into a sequence, and this corpus has none; "
            "give it longer documents or increase batch.max_length"
        )
    begins = np.stack([starts, starts + first], axis=1)
    first = np.where(first > 0, first, lengths)
    return begins, np.stack([first, lengths - first], axis=1), documents


def starts_sentence(store: Store, starts: Array) -> Array:
    """Return whether each text, (m,), starts with a sentence, given the starts of the texts in a token store."""
    sentences = store.sentence_offsets
    first: Array = sentences[np.searchsorted(sentences, starts)] == starts
    return first


def swap_texts(swapped: Array, *pairs: Array) -> None:
    """Swap the two texts of some pairs, in place: `swapped` is (m,), and each array of `pairs` is (m, 2).

    >>> starts = np.array([[0, 5], [9, 12]])
    >>> swap_texts(np.array([False, True]), starts)
    >>> starts.tolist()
    [[0, 5], [12, 9]]
    """
    for values in pairs:
        values[swapped] = values[swapped, ::-1]


@dataclass(frozen=True)
class Exchange:
    """The result of matching m sequences of two texts in pairs, and exchanging the second texts of some pairs."""

    matched: Array  # indices of sequences with a partner
    exchanged: Array  # (m,) whether the second text comes from the partner
    second: Array  # (m,) the index of the sequence from which the second text comes
    truncated: int  # number of second texts that were truncated to the length of their partner's


def exchange_second_texts(
    name: str,
    store: Store,
    begins: Array,
    spans: Array,
    documents: Array,
    pairs: Array,
    draws: EpochRandom,
    rate: float,
) -> Exchange:
    """Match sequences of two texts in pairs, and exchange the second texts of a share `rate` of these pairs.

    `begins` and `spans`, the starts and lengths of both texts, (m, 2), are changed in place: second texts of partners
    are truncated to the shorter one, exchanged or not. `documents` has the document numbers, (m,); `pairs` are the
    indices of the sequences that may be matched. `name` is the name of the objective, for error messages.
    """
    groups = exchange_groups(store.document_files, store.document_languages, documents[pairs])
    found = match_in_pairs(spans[pairs, 1], groups, documents[pairs], draws)
    partner = np.full(len(begins), -1)
    partner[pairs] = np.where(found >= 0, pairs[found], -1)
    matched = np.flatnonzero(partner >= 0)
    if not len(matched):
        raise PretuneError(
            f"the objective {name!r} found no two documents that can exchange texts: it needs two documents or more of two sentences that "
            "fit into a sequence, in one file and language; give it more documents, or increase batch.max_length"
        )
    shorter = np.minimum(spans[matched, 1], spans[partner[matched], 1])
    cut = int((shorter < spans[matched, 1]).sum())
    spans[matched, 1] = shorter
    exchanged = np.zeros(len(begins), dtype=bool)
    # One draw per match.
    exchanged[matched] = draws.uniform("negative", np.minimum(matched, partner[matched])) < rate
    second = np.where(exchanged, partner, np.arange(len(begins)))
    begins[:, 1] = begins[second, 1]
    return Exchange(matched, exchanged, second, cut)


def exchange_groups(files: Array, languages: Array, documents: Array) -> Array:
    """Return the group (m,) of each sequence, given its document number; only sequences of one group exchange texts.

    `files` and `languages` have the file number and the language number of each document. All documents of a file form
    one group. Files with a single document form one group per language, whose number is negative.

    >>> exchange_groups(np.array([0, 0, 1, 2]), np.zeros(4, dtype=int), np.array([0, 0, 1, 2, 3])).tolist()
    [0, 0, 0, -1, -1]
    """
    read = np.unique(documents)
    alone = np.bincount(files[read], minlength=int(files.max(initial=0)) + 1) < 2
    group: Array = np.where(alone[files], -1 - languages, files)[documents]
    return group


def match_in_pairs(
    lengths: Array, kinds: Array, owners: Array, draws: EpochRandom, words: Array | None = None
) -> Array:
    """Match m items of about the same length at random in pairs; return the index (m,) of each item's partner, or -1.

    `lengths`, `kinds`, `owners` and `words` are (m,). Partners have the same kind, different owners (such as documents)
    and, if `words` is given, different `words` (numbers that identify their contents).

    >>> match_in_pairs(np.array([5, 9, 9, 5]), np.zeros(4), np.arange(4), EpochRandom(0)).tolist()
    [3, 2, 1, 0]
    """
    partner = np.full(len(lengths), -1)
    left = np.arange(len(lengths))
    step = idle = 0
    while len(left) > 1 and idle < PATIENCE:
        order = left[np.lexsort((draws.random_bits("match", step, left), lengths[left], kinds[left]))]
        order = order[step % 2 :]  # items next to each other that do not match meet others in the next round
        one, other = order[: len(order) // 2 * 2 : 2], order[1::2]
        fits = (kinds[one] == kinds[other]) & (owners[one] != owners[other])
        if words is not None:
            fits &= words[one] != words[other]
        partner[one[fits]], partner[other[fits]] = other[fits], one[fits]
        left = left[partner[left] < 0]
        idle = 0 if fits.any() else idle + 1
        step += 1
    return partner
