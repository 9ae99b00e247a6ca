"""Attention maps: the attention weights of all heads of a model for a text, between words or between subword tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pretune.inference.attention_alignment import token_words
from pretune.inference.hidden_states import states_and_weights
from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.length_bucketing import arrange_texts
from pretune.models.model import Model
from pretune.runtime.arrays import Array
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.progress import log_info, progress
from pretune.text.packing.sequences import collate
from pretune.text.tokenizers.tokenizer import Tokenizer

MAX_WEIGHTS = 1 << 20  # squared lengths of the sequences of a batch, summed


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights between the units of a text, which are words or tokens.

    `weights` has one array (heads, units, units) per layer, from query (row) to key (column); the rows of each head sum to 1.
    """

    text: str
    units: list[str]
    special: Array  # (units,) True for special tokens, such as [SEP]
    weights: list[Array]

    def head(self, layer: int, head: int) -> Array:
        """Return the weights of a head, (units, units); layers and heads are counted from 1."""
        check_head(layer, head, [len(part) for part in self.weights])
        return self.weights[layer - 1][head - 1]

    def first(self, count: int) -> AttentionMap:
        """Return the map restricted to the first `count` units, so that its rows may sum to less than 1."""
        weights = [part[:, :count, :count] for part in self.weights]
        return AttentionMap(self.text, self.units[:count], self.special[:count], weights)


def check_head(layer: int, head: int, heads: Sequence[int]) -> None:
    """Raise an error if a layer or head, counted from 1, does not exist; `heads` has the number of heads per layer."""
    if not 1 <= layer <= len(heads):
        raise PretuneError(f"layer {layer} does not exist; choose one of the layers with attention, 1 to {len(heads)}")
    if not 1 <= head <= heads[layer - 1]:
        raise PretuneError(
            f"head {head} does not exist; choose one of the heads of layer {layer}, 1 to {heads[layer - 1]}"
        )


def parse_head(text: str) -> tuple[int, int]:
    """Return the layer and the head of a text such as "3.7", both counted from 1.

    >>> parse_head("3.7")
    (3, 7)
    """
    match = re.fullmatch(r"(\d{1,6})\.(\d{1,6})", text.strip())
    if match is None:
        raise PretuneError(f"--head {quote(text)}: expected LAYER.HEAD, both counted from 1, as in 3.7")
    return int(match[1]), int(match[2])


@torch.no_grad()
def attention_maps(model: Model, texts: Sequence[str], tokens: bool = False) -> Iterator[tuple[int, AttentionMap]]:
    """Yield the index and the attention map of each text, short texts first.

    Maps are between words or, if `tokens` is true, between subword tokens. For words, weights are summed over
    the tokens of the word that is the key, and averaged over the tokens of the word that is the query.
    Texts that are longer than the model can read are truncated, and a message gives their number.
    """
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise PretuneError(f"text {number} is blank, so there is nothing to attend to; give a text with words")
    tokenizer = model.require_tokenizer()
    device = choose_device()
    model.root.to(device).eval()
    longest = model.longest or DEFAULT_MAX_LENGTH
    arrangement = arrange_texts(model, texts, None, longest)
    if arrangement.truncated:
        log_info(f"{arrangement.truncated} of {len(texts)} texts are longer than {longest} tokens and were truncated")
    done = 0
    with progress("attention", len(texts)) as bar:
        for rows in _small_batches(arrangement.lengths):
            packed = collate(arrangement.take(rows), filler=tokenizer.roles.get("padding", 0)).packed[0]
            _, weights = states_and_weights(model, packed.to(device))
            layers = [layer.float().cpu().numpy() for layer in weights]
            ends = np.cumsum(arrangement.lengths[rows])
            for place, (row, end) in enumerate(zip(rows, ends, strict=True)):
                length = int(arrangement.lengths[row])
                ids = packed.ids[end - length : end].cpu().numpy()
                own = [layer[place, :, :length, :length] for layer in layers]
                yield int(row), map_units(texts[int(row)], ids, own, tokenizer, tokens)
            done += len(rows)
            bar.update(done)


def _small_batches(lengths: Array) -> Iterator[Array]:
    """Yield the indices of each batch: sequences of similar length whose attention weights fit into memory."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end - start + 1) * int(lengths[order[end]]) ** 2 > MAX_WEIGHTS:
            yield order[start:end]
            start = end


def map_units(text: str, ids: Array, weights: Sequence[Array], tokenizer: Tokenizer, tokens: bool) -> AttentionMap:
    """Return the attention map of a text, given its token ids and its attention weights per layer.

    Each array of `weights` is (heads, tokens, tokens). The map is between words, or between subwords if `tokens` is
    true.
    """
    special = tokenizer.specials[ids]
    if tokenizer.has_role("unknown"):
        special = special & (ids != tokenizer.role("unknown"))
    if tokens:
        return AttentionMap(text, tokenizer.tokens(ids), special, list(weights))
    words = token_words(ids.tolist(), tokenizer)
    starts = np.array([start for _, start, _ in words])
    merged = [merge_tokens(layer, starts) for layer in weights]
    return AttentionMap(text, [word for word, _, _ in words], special[starts], merged)


def merge_tokens(weights: Array, starts: Array) -> Array:
    """Return attention weights between words, (…, words, words), given those between tokens, (…, tokens, tokens).

    Weights are summed over the tokens of a key word and averaged over the tokens of a query word. `starts` has the
    index of the first token of each word.

    >>> merge_tokens(np.array([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1], [0.3, 0.4, 0.3]]), np.array([0, 1])).round(2).tolist()
    [[0.5, 0.5], [0.2, 0.8]]
    """
    counts = np.diff(np.append(starts, weights.shape[-1]))
    keys = np.add.reduceat(weights, starts, axis=-1)
    return np.add.reduceat(keys, starts, axis=-2) / counts[:, None]
