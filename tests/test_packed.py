from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.packed import Batch, Capacity, pack, pack_lists, pack_targets


@given(st.lists(st.integers(1, 10), max_size=8), st.integers(0, 50), st.integers(0, 5))
def test_padding_keeps_shapes_fixed_and_sequences_short(lengths: list[int], spare: int, more: int) -> None:
    sizes = np.array(lengths, dtype=np.int64)
    n = int(sizes.sum())
    capacity = Capacity(tokens=n + spare, sequences=len(lengths) + -(-spare // 10) + more, max_length=10)
    packed = pack(
        np.arange(1, n + 1), sizes, columns={"segment": np.ones(n, dtype=np.int64)}, capacity=capacity, filler=7
    )
    offsets = packed.offsets.numpy()
    assert len(packed) == n + spare
    assert len(offsets) == capacity.sequences + 1
    assert offsets[0] == 0 and offsets[-1] == n + spare
    assert (np.diff(offsets) >= 0).all() and np.diff(offsets).max(initial=0) <= 10
    assert offsets[: len(lengths) + 1].tolist() == [0, *np.cumsum(sizes)]
    assert packed.ids[n:].tolist() == [7] * spare
    assert packed.positions.max().item() < 10 if n + spare else True
    assert packed.columns["segment"].tolist() == [1] * n + [0] * spare
    assert packed.max_length == 10


def test_inputs_over_the_capacity_are_rejected() -> None:
    with pytest.raises(PretuneError, match="do not fit"):
        pack(np.arange(5), np.array([5]), capacity=Capacity(4, 2, 8))
    with pytest.raises(PretuneError, match="do not fit"):
        pack(
            np.arange(2), np.array([1, 1]), capacity=Capacity(20, 3, 8)
        )  # there is no room for the three sequences of padding
    with pytest.raises(PretuneError, match="20 tokens do not fit into 2 sequences of at most 8"):
        Capacity(20, 2, 8)
    with pytest.raises(PretuneError, match="3 targets do not fit into the 2"):
        pack_targets(np.arange(3), np.arange(3), capacity=2)


def test_blank_batch_counts_nothing() -> None:
    batch = Batch((pack_lists([[1, 2]]),), {"x": pack_targets(np.array([1]), np.array([2]))}, {"x": 1.0, "tokens": 2.0})
    blank = batch.with_zero_weights()
    assert blank.counts == {"x": 0.0, "tokens": 0.0}
    assert not blank.targets["x"].weight.any()
    assert batch.targets["x"].weight.all()
    moved = batch.to(torch.device("cpu"))
    assert moved.packed[0].host_offsets is not None and moved.counts == batch.counts
