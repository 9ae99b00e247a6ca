"""Answers that are texts: written token by token, the likeliest or by beams, from what a task lays out to be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from pretune.inference.generate import Decoding, Reader, search_on, write_on
from pretune.model import Model
from pretune.text.sequences import Arrangement, Sequences, collate

Array = np.ndarray[Any, np.dtype[Any]]
TOKENS = 8192  # read and written at once, beams included


class Trie:
    """The texts that may be written, token by token.

    >>> sorted(Trie([[5, 7], [5, 8, 9]]).after([5]))
    [7, 8]
    """

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        self.next: dict[tuple[int, ...], set[int]] = {}
        for text in texts:
            for place, token in enumerate(text):
                self.next.setdefault(tuple(text[:place]), set()).add(token)

    def after(self, ids: Sequence[int]) -> set[int]:
        """What may follow on some tokens."""
        return self.next.get(tuple(ids), set())


def write_answers(model: Model, task: Any, laid: Arrangement) -> list[Array]:
    """The tokens of an answer to each sequence, the end left out; long sequences with long ones."""
    tokenizer, template = model.need_tokenizer(), model.family.template
    _, frame = task.frames(template)
    place = frame.index("A")
    begin, after = ([tokenizer.role(item) for item in items] for items in (frame[:place], frame[place + 1 :]))
    allowed, tokens = None, task.tokens
    if task.closed:
        spelled = [[*tokenizer.encode(task.spell(label, template)), after[0]] for label in task.labels]
        allowed, tokens = Trie(spelled).after, max(map(len, spelled))
    how = Decoding(tokens, beams=task.beams)
    longest = model.backbone.longest or 1 << 30
    found: list[Array] = [np.empty(0, dtype=np.int64)] * len(laid)
    for read in in_batches(laid, tokens, how.beams):
        rows, prompts, source = read.index, ids_of(read), []
        if template.target:
            (packed,) = collate(read).packed
            prompts, source = [begin] * len(rows), [packed.to(model.backbone.embed.tokens.device)]
        limits = [min(tokens, longest - len(prompt)) for prompt in prompts]
        slots = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
        reader = Reader(model, len(rows), slots, source, head=task.name)
        if how.beams > 1:
            written = search_on(reader, prompts, limits, how, set(after), allowed)
        else:
            written = write_on(reader, prompts, rows.tolist(), limits, how, set(after), allowed)
        for row, text in zip(rows, written, strict=True):
            found[row] = np.array(text.ids, dtype=np.int64)
    return found


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
