from __future__ import annotations

import math
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.objectives.segment_ops import (
    local_shuffle,
    reorder_groups,
    segment_cumsum,
    segment_sample,
    segment_shuffle,
    segment_starts,
    segment_sum,
)
from pretune.objectives.seq2seq.noise_functions import poisson, span_lengths
from pretune.runtime.randomness import EpochRandom

lengths_strategy = st.lists(st.integers(0, 30), min_size=1, max_size=12).map(np.array)
seeds = st.integers(0, 2**40)


@settings(max_examples=60)
@given(lengths_strategy, seeds, st.data())
def test_samples_have_the_requested_sizes_and_segments_are_independent(
    lengths: np.ndarray, seed: int, draw: st.DataObject
) -> None:
    counts = np.array([draw.draw(st.integers(0, int(n))) for n in lengths])
    index = np.arange(len(lengths)) * 7
    picked = segment_sample(lengths, counts, EpochRandom(seed), "test", index)
    assert segment_sum(picked, lengths).tolist() == counts.tolist()
    order = segment_shuffle(lengths, EpochRandom(seed), "test", index)
    for start, size in zip(segment_starts(lengths), lengths, strict=True):
        assert sorted(order[start : start + size]) == list(range(start, start + size))
    # A segment alone gets the same sample as among others.
    for row, (start, size) in enumerate(zip(segment_starts(lengths), lengths, strict=True)):
        alone = segment_sample(lengths[[row]], counts[[row]], EpochRandom(seed), "test", index[[row]])
        assert alone.tolist() == picked[start : start + size].tolist()


def test_all_subsets_are_equally_likely() -> None:
    rows = 6000
    picked = segment_sample(np.full(rows, 4), np.full(rows, 2), EpochRandom(0), "test", np.arange(rows)).reshape(
        rows, 4
    )
    found = Counter(map(tuple, picked.tolist()))
    assert len(found) == 6
    assert max(abs(count - rows / 6) for count in found.values()) < 5 * (rows * 5 / 36) ** 0.5


@settings(max_examples=60)
@given(lengths_strategy, st.integers(1, 9), seeds)
def test_local_shuffle_moves_elements_at_most_by_the_window(lengths: np.ndarray, window: int, seed: int) -> None:
    order = local_shuffle(lengths, window, EpochRandom(seed), "test", np.arange(len(lengths)))
    places = np.arange(len(order))
    assert sorted(order.tolist()) == places.tolist()
    assert np.abs(order - places).max(initial=0) <= window


def test_local_shuffle_uses_the_whole_window() -> None:
    order = local_shuffle(np.array([5000]), 3, EpochRandom(0), "test", np.array([0]))
    moved = Counter((order - np.arange(5000)).tolist())
    assert set(moved) == set(range(-3, 4))


@given(lengths_strategy)
def test_segment_sums_equal_those_of_the_parts(lengths: np.ndarray) -> None:
    values = np.arange(lengths.sum()) % 5
    parts = np.split(values, np.cumsum(lengths)[:-1])
    assert segment_sum(values, lengths).tolist() == [int(part.sum()) for part in parts]
    assert segment_cumsum(values, lengths).tolist() == [int(x) for part in parts for x in part.cumsum()]


def test_groups_are_reordered_as_a_whole() -> None:
    begins = np.array([1, 0, 1, 1, 0, 0], dtype=bool)
    assert reorder_groups(begins, np.array([2, 0, 1])).tolist() == [3, 4, 5, 0, 1, 2]


def test_poisson_samples_follow_the_distribution() -> None:
    chance = (np.arange(100_000) + 0.5) / 100_000
    for mean in (0.5, 3.0, 20.0):
        drawn = poisson(chance, mean)
        assert abs(drawn.mean() - mean) < 0.01
        for number, count in Counter(drawn.tolist()).items():
            wanted = math.exp(number * math.log(mean) - mean - math.lgamma(number + 1))
            assert abs(count / 100_000 - wanted) < 2e-5


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=9).map(np.array), st.sampled_from([0.3, 1.0, 3.0, 8.0]), seeds)
def test_span_lengths_do_not_exceed_the_number_of_masked_tokens(hidden: np.ndarray, mean: float, seed: int) -> None:
    lengths, counts = span_lengths(hidden, mean, EpochRandom(seed), np.arange(len(hidden)))
    gone = segment_sum(lengths, counts)
    assert (gone <= hidden).all()
    assert (counts <= gone).all()
    if mean == 8:  # with this mean, one draw per token always reaches the number
        assert (gone == hidden).all()
