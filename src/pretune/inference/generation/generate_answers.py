"""Answers that are texts: written token by token, the likeliest or by beams, from what a task lays out to be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pretune.inference.generation.beam_search import Beam
from pretune.inference.generation.generate import Decoding, Reader, search_on, write_on
from pretune.inference.generation.sampling import Allowed
from pretune.inference.generation.stop_strings import Ended
from pretune.models.model import Model
from pretune.text.packing.sequences import Arrangement, Sequences, collate

Array = np.ndarray[Any, np.dtype[Any]]
TOKENS = 8192  # read and written at once, beams included


def write_answers(model: Model, task: Any, laid: Arrangement) -> list[Array]:
    """The tokens of an answer to each sequence, the end left out."""
    own = task.unwrapped
    how, allowed = Decoding(own.tokens, beams=own.beams), None
    if task.closed:
        trie = own.closed_trie(model.need_tokenizer(), model.family.template)
        how, allowed = Decoding(trie.longest, beams=own.beams), trie.after
    return [np.array(text.ids, dtype=np.int64) for text in write_for(model, task, laid, how, allowed)]


def write_for(
    model: Model,
    task: Any,
    laid: Arrangement,
    how: Decoding,
    allowed: Allowed | None = None,
    ended: Ended | None = None,
) -> list[Beam]:
    """What is written for each sequence that a task lays out; long sequences with long ones."""
    begin, end = around(model, task)
    longest = model.backbone.longest or 1 << 30
    found: dict[int, Beam] = {}
    for read in in_batches(laid, how.tokens, how.beams):
        rows, prompts, source = read.index, ids_of(read), []
        if model.family.template.target:
            (packed,) = collate(read).packed
            prompts, source = [begin] * len(rows), [packed.to(model.backbone.embed.tokens.device)]
        limits = [min(how.tokens, longest - len(prompt)) for prompt in prompts]
        slots = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
        reader = Reader(model, len(rows), slots, source, head=task.name)
        if how.beams > 1:
            written = search_on(reader, prompts, limits, how, end, allowed, ended)
        else:
            written = write_on(reader, prompts, rows.tolist(), limits, how, end, allowed, ended)
        found |= dict(zip(rows.tolist(), written, strict=True))
    return [found[row] for row in range(len(laid))]


def around(model: Model, task: Any) -> tuple[list[int], set[int]]:
    """The tokens that a written text begins with, and those that end it."""
    _, frame = task.unwrapped.frames(model.family.template)
    place, tokenizer = frame.index("A"), model.need_tokenizer()
    return [tokenizer.role(item) for item in frame[:place]], {tokenizer.role(item) for item in frame[place + 1 :]}


def in_batches(laid: Arrangement, tokens: int, times: int) -> Iterator[Sequences]:
    """A few sequences at a time, short ones with short ones: with `tokens` more, so many times each, they are not too many."""
    order = np.argsort(laid.lengths, kind="stable")
    while len(order):
        # tokens of the first so many, each as long as the longest of them
        costs = (laid.lengths[order] + tokens) * np.arange(1, len(order) + 1) * times
        size = 1 + np.flatnonzero(costs <= TOKENS).max(initial=0)
        yield laid.take(order[:size])
        order = order[size:]


def ids_of(sequences: Sequences) -> list[list[int]]:
    """The ids of each sequence."""
    return [ids.tolist() for ids in np.split(sequences.ids, sequences.offsets[1:-1])]
