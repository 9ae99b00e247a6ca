"""Choose the next token from logits: repetition penalties, constraints, and top-k and nucleus sampling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from pretune.packed import copy_async
from pretune.runtime.arrays import Array

AllowedTokens = Callable[[Sequence[int]], Collection[int]]  # the tokens generated so far → those that may follow


def penalize_repetition(logits: Tensor, histories: Iterable[Sequence[int]], penalty: float, ngram: int) -> Tensor:
    """Return logits or log-probabilities in which tokens that repeat the history are less likely, (b, vocabulary).

    `histories` has the token ids of each of the b sequences so far. A `penalty` above 1 makes every token of the
    history less likely (Keskar et al., 2019, arXiv:1909.05858). If `ngram` is above 0, a token that would complete an
    n-gram of this length that is already in the history gets -inf (Paulus et al., 2018, arXiv:1705.04304).

    >>> penalize_repetition(torch.tensor([[2.0, -1.0, 1.0]]), [[0, 1]], penalty=2.0, ngram=0).tolist()
    [[1.0, -2.0, 1.0]]
    """
    if penalty == 1.0 and not ngram:
        return logits
    logits = logits.clone()
    for row, history in zip(logits, histories, strict=True):
        if penalty != 1.0:
            seen = torch.tensor(sorted(set(history)))
            row[seen] = torch.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
        if ngram and len(history) >= ngram:
            windows = np.lib.stride_tricks.sliding_window_view(np.array(history), ngram)  # (…, ngram)
            begun = windows[:, :-1] == history[len(history) - ngram + 1 :]
            row[torch.from_numpy(windows[begun.all(1), -1])] = -torch.inf
    return logits


def mask_disallowed(logits: Tensor, written: Iterable[Sequence[int]], allowed: AllowedTokens | None) -> Tensor:
    """Return logits, (b, vocabulary), in which all tokens that are not allowed are -inf.

    `allowed` is a function from the tokens generated so far in a row (`written`) to the tokens that may follow.

    >>> mask_disallowed(torch.tensor([[2.0, -1.0, 1.0]]), [[]], lambda ids: [1, 2]).tolist()
    [[-inf, -1.0, 1.0]]
    """
    if allowed is None:
        return logits
    kept = torch.full_like(logits, -torch.inf)
    for row, ids in enumerate(written):
        chosen = sorted(allowed(ids))
        values = logits[row, chosen]
        # If all of them are -inf already, they become equally likely.
        kept[row, chosen] = values if values.isfinite().any() else torch.zeros_like(values)
    return kept


def sample(
    logits: Tensor, chance: Array, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Return one sampled token id per row of logits, (b, vocabulary) → (b,).

    `chance` has a uniform random number in [0, 1) per row. `top_k` restricts sampling to the k most likely tokens, and
    `top_p` to the smallest set of most likely tokens with at least this total probability (nucleus sampling, Holtzman
    et al., 2020, arXiv:1904.09751).

    >>> sample(torch.tensor([[0.0, 9.0, 1.0]]), np.array([0.5])).tolist()
    [1]
    """
    top_k = None if top_k is None or top_k >= logits.shape[1] else top_k
    top_p = None if top_p is None or top_p >= 1 else top_p  # keeps all: same as plain sampling
    probabilities = (logits.double() / temperature).softmax(-1)
    tokens = None
    if top_k is not None:
        probabilities, tokens = probabilities.topk(top_k)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    elif top_p is not None:
        probabilities, tokens = _likeliest(probabilities, top_p)
    if top_p is not None:
        probabilities = probabilities * (probabilities.cumsum(-1) - probabilities < top_p)
    place = draw(probabilities, chance)
    return place if tokens is None else tokens.gather(1, place[:, None])[:, 0]


def draw(weights: Tensor, chance: Array) -> Tensor:
    """Return one index per row of nonnegative weights, (b, n) → (b,), sampled in proportion to the weights.

    `chance` has a uniform random number in [0, 1) per row.

    >>> draw(torch.tensor([[1.0, 0.0, 3.0]]), np.array([0.5])).tolist()
    [2]
    """
    reached = weights.cumsum(-1)
    total = reached[:, -1:]
    drawn = copy_async(torch.from_numpy(chance), total.device)[:, None] * total
    place = torch.searchsorted(reached, drawn, right=True)
    return place.minimum((reached < total).sum(-1, keepdim=True))[:, 0]  # rounding must not lead past the last token


def token_probabilities(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Return the probabilities with which `sample` chooses tokens, given logits: (b, vocabulary) in both.

    >>> token_probabilities(torch.tensor([[0.0, 9.0, 1.0]]), top_k=1).tolist()
    [[0.0, 1.0, 0.0]]
    """
    probabilities = (logits.double() / temperature).softmax(-1)
    if top_k is not None and top_k < logits.shape[1]:
        likely, tokens = probabilities.topk(top_k)
        probabilities = torch.zeros_like(probabilities).scatter(1, tokens, likely)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    if top_p is not None and top_p < 1:
        likely, tokens = probabilities.sort(-1, descending=True)
        likely = likely * (likely.cumsum(-1) - likely < top_p)
        probabilities = torch.zeros_like(probabilities).scatter(1, tokens, likely)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    return probabilities


def _likeliest(probabilities: Tensor, enough: float) -> tuple[Tensor, Tensor]:
    """Return the most likely tokens of each row, most likely first, as probabilities and token ids, (b, tokens) each.

    In every row, they have a total probability of at least `enough`, or are the whole vocabulary.
    """
    count = 64
    while True:
        found, tokens = probabilities.topk(min(count, probabilities.shape[1]))
        if count >= probabilities.shape[1] or bool((found.sum(-1) >= enough).all()):
            return found, tokens
        count *= 8
