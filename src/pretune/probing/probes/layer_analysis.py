"""Where in the layers a property is found (Tenney et al., 2019): center of gravity, differential scores, expected layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def center_of_gravity(layers: Sequence[int], shares: Sequence[float]) -> float:
    """Return the center of gravity of a scalar mix: the mean layer number, weighted by mixing weights (`shares`).

    >>> center_of_gravity([0, 1, 2], [0.0, 0.5, 0.5])
    1.5
    """
    return sum(layer * share for layer, share in zip(layers, shares, strict=True)) / sum(shares)


def differential_scores(cumulative: Sequence[float]) -> list[float]:
    """Return how much each layer after the first improves the score of a scalar mix.

    `cumulative` has the score of the scalar mix of the layers 0 to k, for each k.

    >>> differential_scores([0.5, 0.75, 0.75])
    [0.25, 0.0]
    """
    return [after - before for before, after in pairwise(cumulative)]


def expected_layer(layers: Sequence[int], cumulative: Sequence[float], least_gain: float = 0.0) -> float | None:
    """Return the expected layer: the mean layer number, weighted by how much each layer raises the best score.

    `cumulative` has the score of the scalar mix of the first k + 1 of the `layers`, for each k. Unlike in the paper, a
    decrease of the score has weight 0 rather than a negative one: with few test examples, decreases are mostly noise,
    and could give a layer number that does not exist. The result is None if the total increase is at most `least_gain`.

    >>> expected_layer([0, 1, 2], [0.5, 0.75, 1.0])
    1.5
    """
    gains = differential_scores(list(accumulate(cumulative, max)))
    total = sum(gains)
    if total <= least_gain:
        return None
    return sum(layer * gain for layer, gain in zip(layers[1:], gains, strict=True)) / total
