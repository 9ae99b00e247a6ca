"""From logits to the next token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[Any]]
Allowed = Callable[[Sequence[int]], Collection[int]]  # tokens so far → those that may follow


def discourage(logits: Tensor, histories: Iterable[Sequence[int]], penalty: float, ngram: int) -> Tensor:
    """(b, vocabulary) logits, or logarithms of probabilities, that hold against tokens what was written already.

    `penalty` makes every token of a sequence's history less likely (Keskar et al., 2019, arXiv:1909.05858); with `ngram`,
    no token may complete so many tokens in a row that the history has already (Paulus et al., 2018, arXiv:1705.04304).

    >>> discourage(torch.tensor([[2.0, -1.0, 1.0]]), [[0, 1]], penalty=2.0, ngram=0).tolist()
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


def restrict(logits: Tensor, written: Iterable[Sequence[int]], allowed: Allowed | None) -> Tensor:
    """(b, vocabulary) logits, or logarithms of probabilities, without tokens that may not follow on what was written.

    >>> restrict(torch.tensor([[2.0, -1.0, 1.0]]), [[]], lambda ids: [1, 2]).tolist()
    [[-inf, -1.0, 1.0]]
    """
    if allowed is None:
        return logits
    kept = torch.full_like(logits, -torch.inf)
    for row, ids in enumerate(written):
        chosen = sorted(allowed(ids))
        values = logits[row, chosen]
        # Where something else forbids all of them, each is as good as the others.
        kept[row, chosen] = values if values.isfinite().any() else torch.zeros_like(values)
    return kept


def draw(
    logits: Tensor, chance: Array, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> list[int]:
    """A token for each row of (b, vocabulary), by a number in [0, 1) each.

    `top_k` leaves the k likeliest tokens, `top_p` the likeliest that together have at least this probability (nucleus
    sampling, Holtzman et al., 2020, arXiv:1904.09751).

    >>> draw(torch.tensor([[0.0, 9.0, 1.0]]), np.array([0.5]))
    [1]
    """
    top_k = None if top_k is None or top_k >= logits.shape[1] else top_k
    top_p = None if top_p is None or top_p >= 1 else top_p  # all of them: plain chance, token by token the same
    shares = (logits.double() / temperature).softmax(-1)
    tokens = None
    if top_k is not None:
        shares, tokens = shares.topk(top_k)
        shares = shares / shares.sum(-1, keepdim=True)
    elif top_p is not None:
        shares, tokens = _likeliest(shares, top_p)
    reached = shares.cumsum(-1)
    if top_p is not None:
        reached = (shares * (reached - shares < top_p)).cumsum(-1)
    total = reached[:, -1:]
    drawn = torch.from_numpy(chance).to(total.device)[:, None] * total
    place = torch.searchsorted(reached, drawn, right=True)
    place = place.minimum((reached < total).sum(-1, keepdim=True))  # by rounding alone, one could miss the last
    return (place if tokens is None else tokens.gather(1, place))[:, 0].tolist()  # type: ignore[no-any-return]


def _likeliest(shares: Tensor, enough: float) -> tuple[Tensor, Tensor]:
    """The largest shares of each row, the largest first, and whose they are; few, but enough. Sorting all takes longer."""
    count = 64
    while True:
        found, tokens = shares.topk(min(count, shares.shape[1]))
        if count >= shares.shape[1] or bool((found.sum(-1) >= enough).all()):
            return found, tokens
        count *= 8
