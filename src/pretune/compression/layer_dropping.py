"""Choice of the layers to drop (Sajjad et al., 2020, *Poor Man's BERT*).

top(4)             the four top layers
bottom(4)          the four bottom layers
even(4), odd(4)    every second layer, from the top
symmetric(4)       the middle layers
contributions(4)   the layers whose output is most similar to their input
random(4)          random layers
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.packed import Batch
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.randomness import EpochRandom

METHODS = ("top", "bottom", "even", "odd", "symmetric", "contributions", "random")
_FORM = re.compile(r"\s*(?P<method>\w+)\s*\(\s*(?P<count>\d+)\s*\)\s*")


def parse_drop(text: str) -> tuple[str, int]:
    """Return the method and the number of layers of a --drop-layers expression.

    >>> parse_drop("top(4)")
    ('top', 4)
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise PretuneError(f"--drop-layers {text}: write a method and a number of layers, such as top(4)")
    if match["method"] not in METHODS:
        raise PretuneError(
            f"--drop-layers {text}: unknown method {match['method']!r}; {suggest(match['method'], METHODS)}"
        )
    return match["method"], int(match["count"])


def layers_to_keep(
    method: str, count: int, depth: int, similarity: Callable[[], list[float]], seed: int = 0
) -> list[int]:
    """Return the indices of the layers to keep, from 0, when a method such as top drops `count` of `depth` layers.

    The method "contributions" drops the layers that change hidden states least; it calls `similarity` to get the
    similarity of the output of each layer to its input. `seed` is that of the method "random".

    >>> layers_to_keep("even", 2, 6, list)
    [0, 1, 2, 4]
    """
    if not 1 <= count < depth:
        raise PretuneError(
            f"--drop-layers {method}({count}): the model has {depth} layers; drop 1 to {depth - 1} of them"
        )
    match method:
        case "top":
            dropped = list(range(depth))[-count:]
        case "bottom":
            dropped = list(range(count))
        case "even" | "odd":  # counted from 1
            dropped = [layer for layer in reversed(range(depth)) if (layer + 1) % 2 == (method == "odd")][:count]
        case "symmetric":
            first = (depth - count) // 2
            dropped = list(range(first, first + count))
        case "contributions":
            dropped = np.argsort(-np.array(similarity()), kind="stable")[:count].tolist()
        case _:
            dropped = np.argsort(EpochRandom(seed).uniform("layers", np.arange(depth)))[:count].tolist()
    if len(dropped) < count:
        raise PretuneError(
            f"--drop-layers {method}({count}): only {len(dropped)} of the {depth} layers are {method}; drop at most "
            f"{len(dropped)} layers"
        )
    return [layer for layer in range(depth) if layer not in dropped]


@torch.no_grad()
def layer_similarity(backbone: Any, batches: Iterable[Batch]) -> list[float]:
    """Return the mean cosine similarity of hidden states before and after each layer, over all tokens of batches."""
    sums: Tensor | None = None
    tokens = 0
    device = next(backbone.parameters()).device
    backbone.eval()
    for batch in (batch.to(device) for batch in batches):
        states = torch.stack([x.float() for x in backbone(*batch.packed, keep="all").layers])  # (depth + 1, n, width)
        similarity = torch.cosine_similarity(states[:-1], states[1:], dim=-1).sum(1)
        sums = similarity if sums is None else sums + similarity
        tokens += states.shape[1]
    if sums is None or not tokens:
        raise PretuneError(
            "--drop-layers: the method 'contributions' measures the layers on texts; give labeled examples with --train"
        )
    return (sums / tokens).tolist()
