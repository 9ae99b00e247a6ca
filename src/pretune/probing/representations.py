"""Vectors of all layers for the texts and spans of probing tasks, computed once with packed batches and cached.

A text is pooled over its tokens (mean, cls, or max); a span is the mean of the tokens that overlap it. An example with one text and
no span, or with one span, has one vector; with two spans, or with two texts, it has two, a and b, and its features are a, b and a · b.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.recurrent_encoder_decoder import RecurrentEncoderDecoder
from pretune.inference.nan_check import check_not_nan
from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.length_bucketing import arrange_texts, rows_by_length
from pretune.models.model import Model, Network
from pretune.nn.pooling import pool, sum_by_sequence
from pretune.probing.probing_task import ProbingExample, ProbingTask, Span, Split
from pretune.probing.representation_cache import Passage, RepresentationCache, model_digest
from pretune.runtime.arrays import Array
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.progress import log_info, progress
from pretune.text.packing.sequences import Sequences, collate
from pretune.text.spans import span_indices

Pooling = Literal["mean", "cls", "max"]
SEGMENT = 4096  # texts whose vectors are written to the cache at a time
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


def example_passages(example: ProbingExample) -> tuple[Passage, ...]:
    """Return the passages of an example, one or two: its text or texts, or its spans.

    >>> example_passages(ProbingExample("a b", "x", "train", spans=((0, 1), (2, 3))))
    (Passage(text='a b', span=(0, 1)), Passage(text='a b', span=(2, 3)))
    """
    if not example.spans:
        return tuple(Passage(text) for text in (example.text, example.pair) if text is not None)
    owners = [example.text] * len(example.spans)
    if example.pair is not None:
        owners[-1] = example.pair
    return tuple(Passage(text, span) for text, span in zip(owners, example.spans, strict=True))


def combine(parts: Sequence[Array] | Sequence[Tensor]) -> Array | Tensor:
    """Return the features of a probe, given the vectors of one passage (a) or two passages (a, b) of each example.

    For two passages, the features are a, b, and their elementwise product a · b, concatenated.

    >>> combine([np.array([[2.0]]), np.array([[3.0]])]).tolist()
    [[2.0, 3.0, 6.0]]
    """
    if len(parts) == 1:
        return parts[0]
    a, b = parts
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.cat([a, b, a * b], -1)
    return np.concatenate([a, b, a * b], -1)


@dataclass
class TaskVectors:
    """A probing task, reduced to the examples that the model can read, with their vectors in all layers."""

    task: ProbingTask  # with the remaining examples
    cache: RepresentationCache = field(repr=False)

    @cached_property
    def labels(self) -> list[str]:
        """The distinct labels, sorted; classes are numbered in this order."""
        return self.task.labels

    def targets(self, split: Split) -> Array:
        """Return the class number of each example of a split, (n,): the index of its label in `labels`."""
        number = {label: place for place, label in enumerate(self.labels)}
        return np.array([number[example.label] for example in self.task.part(split)], dtype=np.int64)

    def features(self, split: Split, layer: int) -> Array:
        """Return the features of the examples of a split in a layer, (n, features), in single precision."""
        parts = [part.astype(np.float32) for part in self._parts(split, layer)]
        return np.asarray(combine(parts))

    def stack(self, split: Split, layers: Sequence[int]) -> Tensor:
        """Return the passage vectors of a split in several layers, (n, layers, passages, width), in half precision."""
        return torch.from_numpy(np.stack([np.stack(self._parts(split, layer), 1) for layer in layers], 1))

    def _parts(self, split: Split, layer: int) -> list[Array]:
        passages = [example_passages(example) for example in self.task.part(split)]
        return [self.cache.read(column, layer) for column in zip(*passages, strict=True)]


def compute_representations(
    model: Model, tasks: Sequence[ProbingTask], folder: Path, pooling: Pooling = "mean", title: str = "embedding"
) -> list[TaskVectors]:
    """Compute the vectors of all texts and spans of probing tasks in all layers, or read them from the cache.

    Examples are left out, and reported, if the model cannot read their spans because the text is truncated before them
    or because they have no tokens.
    """
    cache = RepresentationCache(folder / f"{model_digest(model)[:24]}-{pooling}")
    tokens = SpanTokens(model, [passage for task in tasks for passage in task_passages(task) if passage.span])
    kept = [tokens.readable(task) for task in tasks]
    missing = cache.missing([passage for task in kept for passage in task_passages(task)])
    if missing:
        embed_passages(model, missing, cache, pooling, title)
    return [TaskVectors(task, cache) for task in kept]


def task_passages(task: ProbingTask) -> Iterable[Passage]:
    """Yield the passages (texts or spans of texts) of all examples of a task, in order and with repetitions."""
    return (passage for example in task.examples for passage in example_passages(example))


class SpanTokens:
    """Finds the tokens that overlap a span of a text, as a range of token indices, within a model's maximum length."""

    def __init__(self, model: Model, passages: Iterable[Passage]) -> None:
        """Tokenize the texts of passages, and store the character offsets of their tokens."""
        texts = list(dict.fromkeys(passage.text for passage in passages))
        self.room = max_text_tokens(model)
        _, lengths, offsets = model.require_tokenizer().encode_with_offsets(texts)
        ends = np.cumsum(lengths)
        self.offsets = {
            text: offsets[end - length : end] for text, length, end in zip(texts, lengths, ends, strict=True)
        }

    def find(self, text: str, span: Span) -> tuple[int, int]:
        """Return the range of the tokens that overlap a span of a text: the first index, and the last index + 1.

        The two are equal if no token overlaps the span.
        """
        begin, end = span
        starts, stops = self.offsets[text].T
        inside = np.flatnonzero((starts < end) & (stops > begin))
        return (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)

    def readable(self, task: ProbingTask) -> ProbingTask:
        """Return a task without the examples whose spans the model cannot read, and log how many were dropped."""
        beyond: list[Passage] = []
        without: list[Passage] = []
        kept = []
        for example in task.examples:
            found = [(p, self.find(p.text, p.span)) for p in example_passages(example) if p.span is not None]
            absent = [passage for passage, (first, after) in found if first == after]
            cut = [passage for passage, (_, after) in found if after > self.room]
            without += absent[:1]
            beyond += cut[:1] if not absent else []
            if not absent and not cut:
                kept.append(example)
        count = len(task.examples)
        for dropped, reason in (
            (
                beyond,
                f"their spans end after the first {self.room} tokens of the text, which is all that the model reads",
            ),
            (without, "their spans have no tokens"),
        ):
            if dropped:
                text, span = dropped[0]
                log_info(
                    f"task {task.name}: {len(dropped)} of {count} examples are left out, because {reason}; the first is "
                    f"characters {span[0]} to {span[1]} of {quote(text)}"  # type: ignore[index]
                )
        return ProbingTask(task.name, task.group, kept)


def max_text_tokens(model: Model) -> int:
    """Return the maximum number of tokens of a single text that a model reads, not counting special tokens."""
    longest = model.longest or DEFAULT_MAX_LENGTH
    return longest - model.family.template.num_special_tokens(pair=False)


@torch.no_grad()
def embed_passages(
    model: Model, passages: Sequence[Passage], cache: RepresentationCache, pooling: Pooling, title: str = "embedding"
) -> None:
    """Compute the vectors of passages in all layers, and add them to the cache, some thousand texts at a time."""
    model.root.to(choose_device()).eval()
    by_text: dict[str, list[Passage]] = {}
    for passage in passages:
        by_text.setdefault(passage.text, []).append(passage)
    texts = list(by_text)
    truncated = done = 0
    with progress(title, len(texts)) as bar:
        for first in range(0, len(texts), SEGMENT):
            some = texts[first : first + SEGMENT]
            arranged = arrange_texts(model, some, None, model.longest or DEFAULT_MAX_LENGTH)
            truncated += arranged.truncated
            tokens = SpanTokens(model, [p for text in some for p in by_text[text] if p.span is not None])
            found: list[Passage] = []
            batches: list[list[Tensor]] = []
            for rows in rows_by_length(arranged.lengths):
                in_batch = [by_text[some[row]] for row in rows]
                ordered, vectors = embed_batch(model, arranged.take(rows), in_batch, tokens, pooling)
                found += ordered
                batches.append(vectors)
                done += len(rows)
                bar.update(done)
            cache.add(found, [torch.cat(layer) for layer in zip(*batches, strict=True)])
    if truncated:
        log_info(
            f"{truncated} of {len(texts)} texts are longer than the {max_text_tokens(model)} tokens that the model reads, and "
            "were truncated"
        )


def embed_batch(
    model: Model, sequences: Sequences, passages: Sequence[Sequence[Passage]], tokens: SpanTokens, pooling: Pooling
) -> tuple[list[Passage], list[Tensor]]:
    """Run a model on a batch, and return the passages in it and their vectors in each layer, (passages, width).

    `passages` has the passages of each sequence, that is, of each text. Whole texts come first in the result, then
    spans.
    """
    numbered = [(number, passage) for number, own in enumerate(passages) for passage in own]
    whole = [(number, passage) for number, passage in numbered if passage.span is None]
    parts = [(number, passage, passage.span) for number, passage in numbered if passage.span is not None]
    # A text follows the special tokens at the beginning of its sequence; one without tokens has no spans.
    of_text = np.append(np.flatnonzero(~sequences.columns["special"]), len(sequences.ids))
    text_starts = of_text[np.searchsorted(of_text, sequences.offsets[:-1])]
    ranges = np.array([tokens.find(passage.text, span) for _, passage, span in parts], dtype=np.int64).reshape(-1, 2)
    starts, lengths = text_starts[[number for number, *_ in parts]] + ranges[:, 0], ranges[:, 1] - ranges[:, 0]
    device = choose_device()
    packed = collate(sequences).packed[0].to(device)
    at, rows = torch.from_numpy(span_indices(starts, lengths)).to(device), [number for number, _ in whole]
    owner = torch.from_numpy(np.repeat(np.arange(len(parts)), lengths)).to(device)
    counts = torch.from_numpy(lengths).to(device)[:, None]
    vectors = []
    for layer in encoder_of(model.root)(packed, keep="all").layers:
        states = check_not_nan(layer).float()
        texts = pool(states, packed, pooling)[rows]
        spans = sum_by_sequence(states[at], owner, len(parts)) / counts
        vectors.append(torch.cat([texts, spans]).cpu())
    return [passage for _, passage in whole] + [passage for _, passage, _ in parts], vectors


def encoder_of(root: Network) -> torch.nn.Module:
    """Return the network that reads texts: the encoder of an encoder-decoder, or the whole backbone."""
    backbone: torch.nn.Module = root.backbone
    return backbone.encoder if isinstance(backbone, EncoderDecoder | RecurrentEncoderDecoder) else backbone


def choose_layers(requested: Sequence[int] | None, count: int) -> list[int]:
    """Return the layers to probe, sorted: all `count`, or those requested (negative numbers count from the top).

    >>> choose_layers([-1, 0], 13)
    [0, 12]
    """
    if not requested:
        return list(range(count))
    for layer in requested:
        if not -count <= layer < count:
            raise PretuneError(
                f"--layers {layer}: this model has no such layer; choose from 0 (the embeddings) to {count - 1} (the top)"
            )
    return sorted({layer % count for layer in requested})
