from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.runtime.randomness import EpochRandom, permutation, random_bits, uniform
from pretune.text.packing.batch_planning import build_streams, plan_packs
from pretune.text.spans import span_indices

lengths_strategy = st.lists(st.integers(0, 20), max_size=200).map(lambda x: np.array(x, dtype=np.int64))


@given(
    lengths_strategy, st.integers(20, 60), st.integers(1, 9), st.integers(0, 2**63), st.integers(0, 5), st.booleans()
)
def test_plan_covers_every_sequence_exactly_once(
    lengths: np.ndarray, tokens: int, sequences: int, seed: int, epoch: int, shuffle: bool
) -> None:
    plan = plan_packs(lengths, tokens=tokens, sequences=sequences, seed=seed, epoch=epoch, shuffle=shuffle)
    packs = [plan.pack(index) for index in range(len(plan))]
    assert sorted(np.concatenate([np.empty(0, dtype=int), *packs]).tolist()) == list(range(len(lengths)))
    for pack in packs:
        assert 1 <= len(pack) <= sequences
        assert lengths[pack].sum() <= tokens


def test_plan_depends_on_seed_and_epoch() -> None:
    lengths = np.arange(1, 100)
    orders = {
        (seed, epoch): tuple(plan_packs(lengths, tokens=200, sequences=9, seed=seed, epoch=epoch).order)
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4
    again = plan_packs(lengths, tokens=200, sequences=9, seed=1, epoch=1)
    assert tuple(again.order) == orders[1, 1]


def test_packs_are_nearly_full() -> None:
    lengths = EpochRandom(0).integers(100, "lengths", np.arange(50_000)) + 20
    plan = plan_packs(lengths, tokens=8192, sequences=10_000)
    assert lengths.sum() / (len(plan) * 8192) > 0.98


def test_sequence_too_long_for_a_pack_is_rejected() -> None:
    with pytest.raises(PretuneError, match="a sequence with 9 tokens does not fit into a batch of 8 tokens"):
        plan_packs(np.array([3, 9]), tokens=8, sequences=4)


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 9)), max_size=60),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
)
def test_groups_stay_together_and_in_order(rows: list[tuple[int, int]], fixed: bool, shuffle: bool, seed: int) -> None:
    lengths, groups = (np.array([row[i] for row in rows], dtype=np.int64) for i in (0, 1))
    most = int(np.bincount(groups, minlength=1).max())
    tokens = int(np.bincount(groups, lengths, minlength=1).max()) + 20
    slots = most + 2 + -(-tokens // 12)
    plan = plan_packs(
        lengths, tokens=tokens, sequences=slots if fixed else most + 2, seed=seed, shuffle=shuffle,
        filler=12 if fixed else None, rows=most + 2 if fixed else None, groups=groups,
    )  # fmt: skip
    packs = [plan.pack(index) for index in range(len(plan))]
    assert sorted(x for pack in packs for x in pack.tolist()) == list(range(len(rows)))
    for pack in packs:
        assert 1 <= len(pack) <= most + 2 and lengths[pack].sum() <= tokens
        assert not fixed or len(pack) + -(-(tokens - lengths[pack].sum()) // 12) <= slots
        for group in np.unique(groups[pack]):
            assert pack[groups[pack] == group].tolist() == np.flatnonzero(groups == group).tolist()


def test_group_too_large_for_a_pack_is_rejected() -> None:
    groups = np.array([0, 1, 0])
    with pytest.raises(
        PretuneError, match="a group of 2 sequences with 9 tokens does not fit into a batch of 8 tokens"
    ):
        plan_packs(np.array([3, 1, 6]), tokens=8, sequences=4, groups=groups)
    with pytest.raises(
        PretuneError, match="a group of 2 sequences with 4 tokens does not fit into a batch of 8 tokens in 1 sequences"
    ):
        plan_packs(np.array([3, 1, 1]), tokens=8, sequences=1, groups=groups)


@pytest.mark.not_fast
@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(1, 5), st.integers(1, 12), st.integers(0, 9))
def test_streams_cover_every_token_once_and_continue(sizes: list[int], lanes: int, window: int, seed: int) -> None:
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    plan = build_streams(offsets[:-1], np.diff(offsets), num_streams=lanes, window=window, draws=EpochRandom(seed))
    seen: list[int] = []
    at: dict[int, int] = {}  # stream → the token that must come next unless a document begins
    for index in range(len(plan)):
        batch = plan.batch(index)
        for start, length, lane, fresh in zip(
            batch.starts, batch.lengths, batch.stream, batch.document_start, strict=True
        ):
            assert fresh == (start in offsets[:-1][np.diff(offsets) > 0])
            if lane in at and not fresh:
                assert at[lane] == start
            at[lane] = start + length
        seen += span_indices(batch.starts, batch.lengths).tolist()
    assert sorted(seen) == list(range(sum(sizes)))


def test_random_bits_depend_on_every_coordinate() -> None:
    position = np.arange(10_000)
    base = random_bits(1, "mask", 2, 3, position)
    assert (base == random_bits(1, "mask", 2, 3, position)).all()
    for other in (
        random_bits(2, "mask", 2, 3, position),
        random_bits(1, "swap", 2, 3, position),
        random_bits(1, "mask", 3, 2, position),
        random_bits(1, "mask", 2, 4, position),
    ):
        assert (base == other).mean() < 0.001
    column = random_bits(1, "mask", 2, np.array([[3], [5]]), position)
    assert (column[0] == base).all()


def test_random_numbers_are_uniform() -> None:
    values = uniform(0, "x", np.arange(200_000))
    assert abs(values.mean() - 0.5) < 0.003
    counts = np.bincount(EpochRandom(0).integers(10, "x", np.arange(200_000)), minlength=10)
    assert abs(counts / 20_000 - 1).max() < 0.03
    neighbors = np.corrcoef(values[:-1], values[1:])[0, 1]
    assert abs(neighbors) < 0.01
    assert sorted(permutation(50, 3, "x")) == list(range(50))


def test_padding_counts_toward_the_sequences_of_a_pack() -> None:
    lengths = np.random.default_rng(0).integers(1, 30, 500)
    plan = plan_packs(lengths, tokens=1000, sequences=100, filler=30, rows=32)
    assert max(len(plan.pack(i)) for i in range(len(plan))) == 32
    assert sum(len(plan.pack(i)) for i in range(len(plan))) == 500


@pytest.mark.not_fast
@given(st.lists(st.integers(1, 16), min_size=1, max_size=200), st.integers(1, 40))
def test_packs_are_as_full_as_tokens_and_sequences_allow(lengths: list[int], spare: int) -> None:
    tokens, filler = 64, 16
    sequences = tokens // filler + spare
    plan = plan_packs(np.array(lengths), tokens=tokens, sequences=sequences, filler=filler)
    used = [int(np.array(lengths)[plan.pack(i)].sum()) for i in range(len(plan))]
    sizes = [len(plan.pack(i)) for i in range(len(plan))]
    assert sum(sizes) == len(lengths)
    for number, (total, size) in enumerate(zip(used, sizes, strict=True)):
        assert total <= tokens and size + -(-(tokens - total) // filler) <= sequences
        if number + 1 < len(plan):  # the next sequence would not have fit
            more = lengths[plan.pack(number + 1)[0]]
            assert total + more > tokens or size + 1 + -(-(tokens - total - more) // filler) > sequences
