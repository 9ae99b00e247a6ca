"""Generate the answers of text-to-text tasks, by greedy decoding or beam search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pretune.inference.generation.beam_search import Beam
from pretune.inference.generation.generate import Decoding, Reader, search_on, write_on
from pretune.inference.generation.sampling import Allowed
from pretune.inference.generation.stop_strings import Ended
from pretune.models.model import Model
from pretune.runtime.arrays import Array
from pretune.text.packing.sequences import Arrangement, Sequences, collate

TOKENS = 8192  # read and generated per batch, beams included


def write_answers(model: Model, task: Any, laid: Arrangement) -> list[Array]:
    """Generate an answer to each input sequence, and return its tokens without the end token."""
    own = task.unwrapped
    decoding, allowed = Decoding(own.tokens, beams=own.beams), None
    if task.closed:
        trie = own.closed_trie(model.need_tokenizer(), model.family.template)
        decoding, allowed = Decoding(trie.longest, beams=own.beams), trie.after
    return [np.array(text.ids, dtype=np.int64) for text in write_for(model, task, laid, decoding, allowed)]


def write_for(
    model: Model,
    task: Any,
    laid: Arrangement,
    decoding: Decoding,
    allowed: Allowed | None = None,
    ended: Ended | None = None,
) -> list[Beam]:
    """Generate a text for each input sequence of a task, in batches of similar length; return the texts in order."""
    begin, end = around(model, task)
    longest = model.backbone.longest or 1 << 30
    found: dict[int, Beam] = {}
    for read in in_batches(laid, decoding.tokens, decoding.beams):
        rows, prompts, source = read.index, ids_of(read), []
        if model.family.template.target:
            (packed,) = collate(read).packed
            prompts, source = [begin] * len(rows), [packed.to(model.backbone.embed.tokens.device)]
        limits = [min(decoding.tokens, longest - len(prompt)) for prompt in prompts]
        slots = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
        reader = Reader(model, len(rows), slots, source, head=task.name)
        if decoding.beams > 1:
            written = search_on(reader, prompts, limits, decoding, end, allowed, ended)
        else:
            written = write_on(reader, prompts, rows.tolist(), limits, decoding, end, allowed, ended)
        found |= dict(zip(rows.tolist(), written, strict=True))
    return [found[row] for row in range(len(laid))]


def around(model: Model, task: Any) -> tuple[list[int], set[int]]:
    """Return the tokens that a generated text starts with, and those that end it."""
    _, frame = task.unwrapped.frames(model.family.template)
    place, tokenizer = frame.index("A"), model.need_tokenizer()
    return [tokenizer.role(item) for item in frame[:place]], {tokenizer.role(item) for item in frame[place + 1 :]}


def in_batches(laid: Arrangement, tokens: int, times: int) -> Iterator[Sequences]:
    """Yield batches of sequences of similar length, limited by their tokens.

    Each sequence gets `tokens` more and is counted `times` times (the number of beams).
    """
    order = np.argsort(laid.lengths, kind="stable")
    while len(order):
        # costs[i]: tokens of the first i + 1 sequences, padded to the longest of them
        costs = (laid.lengths[order] + tokens) * np.arange(1, len(order) + 1) * times
        size = 1 + np.flatnonzero(costs <= TOKENS).max(initial=0)
        yield laid.take(order[:size])
        order = order[size:]


def ids_of(sequences: Sequences) -> list[list[int]]:
    """Return the ids of each sequence."""
    return [ids.tolist() for ids in np.split(sequences.ids, sequences.offsets[1:-1])]
