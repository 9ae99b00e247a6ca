"""Statistics of attention heads: how spread out their attention is, how far it reaches, and to which words it goes.

After Clark et al. (2019, *What Does BERT Look At?*) and Vig and Belinkov (2019). Means are over the words (or tokens) of all texts as
queries, without special tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pretune.probing.attention_maps import AttentionMap
from pretune.runtime.arrays import Array

# Name → its description in reports.
STATISTICS = {
    "entropy": "entropy of the attention of a word, in nats: 0 if it attends to one word only",
    "distance": "mean distance, in words, to the words that it attends to",
    "special": "share of attention to special tokens, such as [CLS] and [SEP]",
    "previous": "share of attention to the previous word",
    "next": "share of attention to the next word",
    "same": "share of attention to the word itself",
}
UNITS = {name: {"entropy": "nats", "distance": "words"}.get(name, "share of attention") for name in STATISTICS}


def head_statistics(maps: Iterable[AttentionMap]) -> list[dict[str, Any]]:
    """Return one row per attention head with its `STATISTICS`, such as entropy, averaged over the attention maps.

    A statistic is None if it is undefined in every text, such as the attention to the next word if all texts have one
    word.
    """
    sums: list[dict[str, Array]] = []
    counts: list[dict[str, Array]] = []
    for one in maps:
        for layer, weights in enumerate(one.weights):
            found = _sums(weights.astype(np.float64), one.special.astype(bool))
            if layer == len(sums):
                sums.append({name: np.zeros(len(weights)) for name in STATISTICS})
                counts.append({name: np.zeros(len(weights)) for name in STATISTICS})
            for name, (part, size) in found.items():
                sums[layer][name] += part
                counts[layer][name] += size
    rows = []
    for layer, (total, count) in enumerate(zip(sums, counts, strict=True), 1):
        for head in range(len(total["entropy"])):
            values = {
                name: round(float(total[name][head] / count[name][head]), 4) if count[name][head] else None
                for name in STATISTICS
            }
            rows.append({"layer": layer, "head": head + 1, **values})
    return rows


def _sums(weights: Array, special: Array) -> dict[str, tuple[Array, Array | int]]:
    """Return the sum of each statistic over the queries of a text, (heads,), and what to divide it by for the mean.

    `weights` is (heads, units, units), where units are words or tokens; `special`, (units,), is true for special
    tokens, which do not count as queries.
    """
    queries = np.flatnonzero(~special)
    chosen = weights[:, queries]  # (heads, queries, units)
    logs = np.log(np.where(chosen > 0, chosen, 1.0))
    to_words = chosen[:, :, queries]
    gaps = np.abs(queries[:, None] - queries[None, :])
    found: dict[str, tuple[Array, Array | int]] = {
        "entropy": (-(chosen * logs).sum((1, 2)), len(queries)),
        "distance": ((to_words * gaps).sum((1, 2)), to_words.sum((1, 2))),
        "special": (chosen[:, :, special].sum((1, 2)), len(queries)),
        "same": (weights[:, queries, queries].sum(1), len(queries)),
    }
    for name, step in (("previous", -1), ("next", 1)):
        inside = queries[(queries + step >= 0) & (queries + step < len(special))]
        inside = inside[~special[inside + step]]
        found[name] = weights[:, inside, inside + step].sum(1), len(inside)
    return found
