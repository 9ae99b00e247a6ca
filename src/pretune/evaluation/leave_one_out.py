"""Evaluate recommendations by leave-one-out: rank the last item of each user's history, given the items before it.

Sources: Sun et al., 2019, arXiv:1904.06690 (the protocol, with negatives sampled by popularity); Krichene and Rendle,
2020, *On Sampled Metrics for Item Recommendation* (why to rank all items).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pretune.inference.rank_items import is_item, next_item_scores, rank_targets
from pretune.metrics.ranking import ranking_metrics
from pretune.models.model import Model
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom

ALL = "all items"


@dataclass
class RecommendationBaselines:
    """Recommenders without a model, fitted to user histories: popularity, and co-occurrence with the most recent item.

    `items` is a mask of the tokens that are items, (vocabulary,). `popularity` is the number of histories with an item.
    """

    histories: Sequence[Array]
    items: Array  # (vocabulary,)
    popularity: Array = field(init=False)  # (vocabulary,)

    def __post_init__(self) -> None:
        from scipy.sparse import csr_array

        users = np.repeat(np.arange(len(self.histories)), [len(history) for history in self.histories])
        shape = (len(self.histories), len(self.items))
        ids = np.concatenate(self.histories)
        seen = csr_array((np.ones(len(ids), dtype=np.float32), (users, ids)), shape=shape)
        seen.data[:] = 1.0  # an item counts once per history
        self._seen, self._users = seen, seen.T.tocsr()
        self.popularity = np.where(self.items, np.asarray(seen.sum(axis=0)).ravel(), 0.0)

    def by_popularity(self, chosen: Array) -> Array:
        """Return the popularity of each item, repeated for every history in `chosen`, (b, vocabulary)."""
        return np.broadcast_to(self.popularity, (len(chosen), len(self.items)))

    def by_co_occurrence(self, chosen: Array) -> Array:
        """Return scores, (b, vocabulary): in how many histories an item occurs together with the user's newest item.

        `chosen`, (b,), has the indices of the users' histories. A fraction below 1 that grows with the popularity of an
        item is added to its score, to break ties.
        """
        last = np.array([self.histories[place][-1] for place in chosen])
        together: Array = (self._users[last] @ self._seen).toarray()
        together[np.arange(len(last)), last] = 0.0  # the item itself is no neighbor
        return together + self.popularity / (self.popularity.max() + 1)


def sample_negatives(popularity: Array, excluded: Array, count: int, draws: EpochRandom, rows: Array) -> Array:
    """Return a mask of `count` items per row, sampled without replacement in proportion to popularity.

    The shape is that of `excluded`, (b, vocabulary), a mask of the items that are never sampled. If fewer than `count`
    items are left in a row, all of them are sampled. `rows`, (b,), has numbers that seed the sampling of the rows, so
    that it does not depend on the batch.
    """
    with np.errstate(divide="ignore"):
        weights = np.where(excluded, -np.inf, np.log(popularity))
    uniform = draws.uniform("negatives", rows[:, None], np.arange(len(popularity))[None]).clip(1e-12)
    keys = weights - np.log(-np.log(uniform))  # the Gumbel trick: the largest keys are such a sample
    count = min(count, keys.shape[1])
    best = np.argpartition(-keys, count - 1, axis=1)[:, :count]
    found = np.zeros(excluded.shape, dtype=bool)
    np.put_along_axis(found, best, True, 1)
    return found & np.isfinite(weights)


def leave_one_out(
    model: Model,
    histories: Sequence[Array],
    top_k: int = 10,
    include_seen: bool = False,
    num_negatives: int = 100,
    seed: int = 0,
    length: int = 128,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return hit rate, NDCG and MRR of a model and of trivial baselines as table rows, and counts for a report.

    The last item of each history is ranked, given the items before it. The candidates are all items or, in further rows,
    the last item and `num_negatives` items that the user has not seen, sampled by popularity, as in the paper; among so
    few candidates, the metrics are higher. Without `include_seen`, items earlier in the history are not candidates.
    Histories of fewer than two items are skipped; a last item that the model does not know counts as missed.
    """
    for option, value in (("--top-k", top_k), ("--num-negatives", num_negatives)):
        if value < 1:
            raise PretuneError(f"{option} {value}: choose a number above 0")
    long = [history for history in histories if len(history) > 1]
    if not long:
        raise PretuneError(
            "no history has two or more items, but the last item of each is held out for evaluation; give longer histories"
        )
    before, targets = [history[:-1] for history in long], np.array([history[-1] for history in long])
    items, draws = is_item(model), EpochRandom(seed)
    baselines = RecommendationBaselines(before, items)
    sampled = f"{num_negatives} sampled by popularity"
    ranks: dict[tuple[str, str], Array] = {}
    for chosen, scores in next_item_scores(model, before, length):
        target, rows = targets[chosen], np.arange(len(chosen))
        seen = np.zeros(scores.shape, dtype=bool)
        for row, place in enumerate(chosen):
            seen[row, before[place]] = True
        candidates = np.broadcast_to(items, scores.shape) if include_seen else items & ~seen
        excluded = seen | ~items
        excluded[rows, target] = True
        negatives = sample_negatives(baselines.popularity, excluded, num_negatives, draws, chosen)
        methods = {
            "model": scores,
            "co-occurrence": baselines.by_co_occurrence(chosen),
            "popularity": baselines.by_popularity(chosen),
        }
        for name, mask in ((ALL, candidates.copy()), (sampled, negatives)):
            mask[rows, target] = items[target]
            for method, table in methods.items():
                found = ranks.setdefault((method, name), np.empty(len(long)))
                found[chosen] = rank_targets(np.where(mask, table, -np.inf), target)
    rows_by_method = [
        {"method": method, "candidates": name, **ranking_metrics(found, top_k)}
        for (method, name), found in ranks.items()
    ]
    facts = {
        "users": len(long),
        "skipped_users": len(histories) - len(long),
        "unknown_targets": int((~items[targets]).sum()),
        "seen_targets": int(sum(target in history for history, target in zip(before, targets, strict=True))),
    }
    return rows_by_method, facts
