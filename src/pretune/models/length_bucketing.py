"""Length-bucketed batches for inference; batches keep the indices of their rows, to put results in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.model import Model
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.progress import log_info
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.batch_planning import plan_packs
from pretune.text.packing.sequences import Arrangement, Sequences, collate
from pretune.text.packing.token_rows import PAIR, TokenRows, arrange_rows

TOKENS = 8192  # per batch


def text_batches(
    model: Model,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    length: int | None = None,
    change: Callable[[Sequences], Sequences] = lambda sequences: sequences,
) -> Iterator[Batch]:
    """Yield batches of tokenized texts, or pairs of texts, of similar length; `batch.rows` has the texts' indices.

    Texts are truncated to `length` tokens, by default the model's maximum. `change` is a function that modifies the
    sequences of each batch before they are collated.
    """
    longest = length or model.longest or DEFAULT_MAX_LENGTH
    arrangement = arrange_texts(model, texts, pairs, longest)
    if arrangement.truncated:
        log_info(f"{arrangement.truncated} of {len(texts)} texts are longer than {longest} tokens and were truncated")
    yield from batches_by_length(arrangement, change)


def arrange_texts(model: Model, texts: Sequence[str], pairs: Sequence[str] | None, length: int) -> Arrangement:
    """Return texts, or pairs of texts, as tokenized sequences for a model, truncated to `length` tokens."""
    tokenizer = model.require_tokenizer()
    rows = LabeledRows(Path("texts"), {}, list(texts), None if pairs is None else list(pairs))
    return arrange_rows(TokenRows.make(rows, tokenizer), tokenizer, model.family.template, length, {})


def batches_by_length(
    arrangement: Arrangement, change: Callable[[Sequences], Sequences] = lambda sequences: sequences
) -> Iterator[Batch]:
    """Yield batches of sequences of similar length; `batch.rows` has the indices of the sequences in the arrangement.

    `change` is a function that modifies the sequences of each batch before they are collated.
    """
    for rows in rows_by_length(arrangement.lengths, arrangement.labels.get(PAIR)):
        yield collate(change(arrangement.take(rows)), filler=arrangement.tokenizer.roles.get("padding", 0))


def rows_by_length(lengths: Array, groups: Array | None = None) -> Iterator[Array]:
    """Yield, for each batch, the indices of its sequences; batches of short sequences come first.

    `lengths` has the length of each sequence; sequences of similar length share a batch. Sequences with the same number
    in `groups` stay in the same batch, next to each other.

    >>> [rows.tolist() for rows in rows_by_length(np.array([5, 2, 1, 1]), np.array([0, 0, 1, 1]))]
    [[2, 3, 0, 1]]
    """
    if groups is not None:
        _, group = np.unique(groups, return_inverse=True)
        totals = np.bincount(group, lengths)
        rank = np.empty(len(totals), dtype=np.int64)
        rank[np.argsort(totals, kind="stable")] = np.arange(len(totals))
        tokens = max(TOKENS, int(totals.max(initial=0)))
        grouped = plan_packs(lengths, tokens=tokens, sequences=1 << 30, shuffle=False, groups=rank[group])
        for index in range(len(grouped)):
            yield grouped.pack(index)
        return
    order = np.argsort(lengths, kind="stable")
    if 0 < lengths.sum() <= TOKENS:  # one batch, as for a single text
        yield order
        return
    tokens = max(TOKENS, int(lengths.max(initial=0)))
    plan = plan_packs(lengths[order], tokens=tokens, sequences=1 << 30, shuffle=False)
    for index in range(len(plan)):
        yield order[plan.pack(index)]
