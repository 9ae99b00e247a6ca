"""Pooling of the hidden states of each sequence into one vector."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.query_key_layout import token_layout
from pretune.nn.linear import Linear
from pretune.packed import Packed


def pool(states: Tensor, packed: Packed, mode: str, included: Tensor | None = None) -> Tensor:
    """Pool the hidden states of each sequence into one vector by `mode`: (n, width) → (sequences, width).

    `cls` and `last` take the first or the last token; `second_to_last` the token before the last, or the only one
    (mBART, whose texts end with </s> and a language token); `mean` and `max` are over all tokens. `mean_sqrt_len`
    divides the sum by the square root of the length; `weighted_mean` weights tokens by their position, counted from 1;
    `increasing_mean` has weights that grow from 0 to 1 along the sequence (Dai and Le, 2015); `concat` concatenates
    last, max and mean (Howard and Ruder, 2018). `pair` tells the two texts of a sequence apart by their segments; it
    concatenates their means, the absolute difference of the means and their product (Conneau et al., 2017). `separate`
    compares the means of two texts that are sequences of their own (see `compare_neighbors`). `extract` takes the last
    token, which GPT adds to its inputs; `extract_both` adds the vectors of this token from two sequences, which have
    two texts in either order (Radford et al., 2018).

    `included`, (n,), is False for tokens to leave out at the beginning of sequences, such as a prompt; the positions of
    the other tokens do not change. An empty sequence gives 0. Means are computed in fp32, as half precision is too
    coarse.

    >>> from pretune.packed import pack_lists
    >>> pool(torch.tensor([[1.0], [3.0], [5.0]]), pack_lists([[7, 7], [7]]), "mean").tolist()
    [[2.0], [5.0]]
    """
    first, ends = packed.offsets[:-1].long(), packed.offsets[1:].long()
    tokens = states.shape[0]  # not len(packed), which a traced graph would keep as a constant for all batches
    sequences = first.shape[0]
    if not len(packed):
        return states.new_zeros(sequences, states.shape[1])
    if mode == "concat":
        return torch.cat([pool(states, packed, each, included) for each in ("last", "max", "mean")], -1)
    if mode == "pair":
        return pair_features(states, packed)
    if mode == "separate":
        return compare_neighbors(pool(states, packed, "mean", included))
    if mode == "extract_both":
        return add_neighbors(pool(states, packed, "extract", included))
    starts = first if included is None else first.index_add(0, token_layout(packed).sequence.long(), (~included).long())
    empty = (starts == ends)[:, None]
    at = _tokens_at(starts, ends, mode, tokens)
    if at is not None:
        return states[at].masked_fill(empty, 0.0)
    owner = token_layout(packed).sequence.long()
    if mode == "increasing_mean":
        place = (torch.arange(tokens, device=owner.device) - starts[owner]).float()
        last = (ends - starts - 1).clamp(min=1).float()[owner]
        weights = torch.where((ends - starts)[owner] == 1, 1.0, place / last)
        total = weights.new_zeros(sequences).index_add(0, owner, weights).clamp(min=1e-6)
        return sum_by_sequence(states * (weights / total[owner])[:, None], owner, sequences)
    if mode == "max":
        lowest = torch.finfo(states.dtype).min
        index = owner[:, None].expand_as(states)
        counted = states if included is None else states.masked_fill(~included[:, None], lowest)
        highest = states.new_full((sequences, states.shape[1]), lowest).scatter_reduce(0, index, counted, "amax")
        return highest.masked_fill(empty, 0.0)
    if included is not None:
        states = states.masked_fill(~included[:, None], 0.0)
    if mode == "weighted_mean":
        weights = (torch.arange(tokens, device=owner.device) - first[owner] + 1).float()
        counted = weights if included is None else weights * included
        total = counted.new_zeros(sequences).index_add(0, owner, counted).clamp(min=1.0)
        return sum_by_sequence(states * weights[:, None], owner, sequences) / total[:, None]
    count = (ends - starts).clamp(min=1)[:, None]
    return sum_by_sequence(states, owner, sequences) / (count.sqrt() if mode == "mean_sqrt_len" else count)


def chosen_tokens(packed: Packed, mode: str) -> Tensor | None:
    """Return the index of the only token of each sequence that a pooling reads, (sequences,); None if it reads several.

    Empty sequences get the index of any token.

    >>> from pretune.packed import pack_lists
    >>> chosen_tokens(pack_lists([[7, 7], [7]]), "last").tolist()
    [1, 2]
    """
    return _tokens_at(packed.offsets[:-1].long(), packed.offsets[1:].long(), mode, packed.ids.shape[0])


def _tokens_at(starts: Tensor, ends: Tensor, mode: str, tokens: int) -> Tensor | None:
    """Return the token that a pooling reads of each sequence, given the `starts` and `ends` of all, (sequences,) each."""
    if mode == "cls":
        return starts.clamp(max=tokens - 1)
    if mode in ("last", "extract"):
        return (ends - 1).clamp(min=0)
    if mode == "second_to_last":
        return torch.maximum(ends - 2, starts).clamp(max=tokens - 1)
    return None


def sum_by_sequence(states: Tensor, owner: Tensor, sequences: int) -> Tensor:
    """Return the sum of the states of each sequence, in fp32: (n, width) → (sequences, width).

    `owner`, (n,), is the index of each token's sequence.
    """
    return states.new_zeros(sequences, states.shape[1], dtype=torch.float32).index_add(0, owner, states.float())


def pair_features(states: Tensor, packed: Packed) -> Tensor:
    """Return a, b, |a - b| and a · b for the means a and b of the two texts of each sequence: (sequences, 4 · width).

    The texts are told apart by the column `segment`; without a second text, all but a is 0.

    >>> import numpy as np
    >>> from pretune.packed import pack_lists
    >>> packed = pack_lists([[7, 7], [7]], columns={"segment": np.array([0, 1, 0])})
    >>> pair_features(torch.tensor([[1.0], [3.0], [5.0]]), packed).tolist()
    [[1.0, 3.0, 2.0, 3.0], [5.0, 0.0, 0.0, 0.0]]
    """
    sequences = packed.offsets.shape[0] - 1
    owner, second = token_layout(packed).sequence.long(), packed.columns["segment"] == 1
    texts = 2 * owner + second.long()  # the text that each token belongs to
    counts = sum_by_sequence(torch.ones_like(states[:, :1]), texts, 2 * sequences)
    means = sum_by_sequence(states, texts, 2 * sequences) / counts.clamp(min=1)
    a, b = means.view(sequences, 2, -1).unbind(1)
    distance = (a - b).abs() * (counts.view(sequences, 2)[:, 1:] > 0)
    return torch.cat([a, b, distance, a * b], -1)


def compare_neighbors(vectors: Tensor) -> Tensor:
    """Compare the vectors a and b of texts 0 and 1, 2 and 3, …: return |a - b|, a · b and their cosine.

    The shapes are (n, width) → (n, 2 · width + 1). Both texts of a pair get the same row (Reimers and Gurevych, 2019).

    >>> compare_neighbors(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))[1].tolist()
    [1.0, 2.0, 0.0, 0.0, 0.0]
    """
    count = vectors.shape[0]
    a, b = F.pad(vectors, (0, 0, 0, count % 2)).view(-1, 2, vectors.shape[1]).unbind(1)  # padding has no neighbor
    compared = torch.cat([(a - b).abs(), a * b, F.cosine_similarity(a, b)[:, None]], -1)
    return compared.repeat_interleave(2, 0)[:count]


def add_neighbors(vectors: Tensor) -> Tensor:
    """Replace both vectors of each pair, 0 and 1, 2 and 3, …, with their sum: (n, width) → (n, width).

    >>> add_neighbors(torch.tensor([[1.0], [2.0], [5.0], [7.0]])).tolist()
    [[3.0], [3.0], [12.0], [12.0]]
    """
    count = vectors.shape[0]
    summed = F.pad(vectors, (0, 0, 0, count % 2)).view(-1, 2, vectors.shape[1]).sum(1)  # padding has no neighbor
    return summed.repeat_interleave(2, 0)[:count]


class AttentionPooling(nn.Module):
    """Attention pooling: the mean of the states of a sequence, weighted by the softmax of a learned score."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.look = Linear(width, 1)

    def forward(self, states: Tensor, packed: Packed) -> Tensor:
        """Pool the hidden states of each sequence into one vector: (n, width) → (sequences, width)."""
        sequences = packed.offsets.shape[0] - 1
        owner = token_layout(packed).sequence.long()
        scores = self.look(states)[:, 0].float()  # (n,)
        highest = scores.new_full((sequences,), torch.finfo(scores.dtype).min).scatter_reduce(0, owner, scores, "amax")
        weights = (scores - highest.detach()[owner]).exp()
        total = weights.new_zeros(sequences).index_add(0, owner, weights)
        return sum_by_sequence(states * (weights / total[owner])[:, None], owner, sequences)
