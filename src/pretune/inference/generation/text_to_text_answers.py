"""Generate the answers of text-to-text tasks, by greedy decoding or beam search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pretune.inference.generation.beam_search import Hypothesis
from pretune.inference.generation.decoding_loops import GenerationConfig, generate_texts
from pretune.inference.generation.decoding_session import DecodingSession
from pretune.inference.generation.sampling import AllowedTokens
from pretune.inference.generation.stop_strings import StopCondition
from pretune.models.model import Model
from pretune.runtime.arrays import Array
from pretune.text.packing.sequences import Arrangement, Sequences, collate

TOKENS = 8192  # read and generated per batch, beams included


def generate_answers(model: Model, task: Any, arrangement: Arrangement) -> list[Array]:
    """Generate an answer to each input sequence of a task, and return its token ids without the end token."""
    own = task.unwrapped
    decoding, allowed = GenerationConfig(own.max_new_tokens, num_beams=own.num_beams), None
    if task.constrained:
        trie = own.closed_trie(model.require_tokenizer(), model.family.template)
        decoding, allowed = GenerationConfig(trie.longest, num_beams=own.num_beams), trie.after
    return [
        np.array(text.ids, dtype=np.int64)
        for text in generate_for_sequences(model, task, arrangement, decoding, allowed)
    ]


def generate_for_sequences(
    model: Model,
    task: Any,
    arrangement: Arrangement,
    decoding: GenerationConfig,
    allowed: AllowedTokens | None = None,
    ended: StopCondition | None = None,
) -> list[Hypothesis]:
    """Generate a text for each input sequence of a task, in batches of similar length; return the texts in order.

    `allowed` and `ended` are those of `causal_generation.generate_texts`.
    """
    begin, end = target_frame(model, task)
    longest = model.backbone.max_positions or 1 << 30
    found: dict[int, Hypothesis] = {}
    for read in generation_batches(arrangement, decoding.max_new_tokens, decoding.num_beams):
        rows, prompts, source = read.index.tolist(), sequence_ids(read), []
        if model.family.template.target:
            (packed,) = collate(read).packed
            prompts, source = [begin] * len(rows), [packed.to(model.backbone.embed.tokens.device)]
        limits = [min(decoding.max_new_tokens, longest - len(prompt)) for prompt in prompts]
        slots = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
        reader = DecodingSession(model, len(rows), slots, source, head=task.name)
        texts = generate_texts(reader, prompts, rows, limits, decoding, end, allowed, ended)
        found |= dict(zip(rows, texts, strict=True))
    return [found[row] for row in range(len(arrangement))]


def target_frame(model: Model, task: Any) -> tuple[list[int], set[int]]:
    """Return the ids of the special tokens with which a target starts, and of those with which it ends."""
    _, frame = task.unwrapped.frames(model.family.template)
    place, tokenizer = frame.index("A"), model.require_tokenizer()
    return [tokenizer.role(item) for item in frame[:place]], {tokenizer.role(item) for item in frame[place + 1 :]}


def generation_batches(arrangement: Arrangement, tokens: int, times: int) -> Iterator[Sequences]:
    """Yield batches of input sequences of similar length, small enough for text generation.

    Each sequence needs memory for `tokens` new tokens, and for `times` beams or candidates.
    """
    order = np.argsort(arrangement.lengths, kind="stable")
    while len(order):
        # costs[i]: tokens of the first i + 1 sequences, padded to the longest of them
        costs = (arrangement.lengths[order] + tokens) * np.arange(1, len(order) + 1) * times
        size = 1 + np.flatnonzero(costs <= TOKENS).max(initial=0)
        yield arrangement.take(order[:size])
        order = order[size:]


def sequence_ids(sequences: Sequences) -> list[list[int]]:
    """Return the token ids of each sequence as a list."""
    return [ids.tolist() for ids in np.split(sequences.ids, sequences.offsets[1:-1])]
