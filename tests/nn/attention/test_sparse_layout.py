"""The tables that the kernels of sparse attention read."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretune.nn.attention.big_bird import block_sparse, random_numbers
from pretune.nn.attention.patterns import (
    GlobalWindow,
    Pattern,
    RandomBlocks,
    causal,
    document,
    full,
    global_keys,
    global_queries,
    global_tokens,
    window,
)
from pretune.nn.attention.query_key_layout import TokenColumns, TokenLayout, token_layout
from pretune.nn.attention.sparse_layout import find_global_tokens, random_block_table, split_into_blocks
from pretune.packed import Capacity, pack

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def ragged(lengths: list[int], padding: int, seed: int = 0) -> TokenLayout:
    n = sum(lengths)
    columns = {"global": np.random.default_rng(seed).random(n) < 0.2}
    capacity = Capacity(n + padding, len(lengths) + 2, max(padding, *lengths, 1))
    return token_layout(pack(np.ones(n, dtype=np.int64), np.array(lengths), columns=columns, capacity=capacity))


@given(LENGTHS, st.integers(0, 9), st.integers(0, 5))
def test_global_tokens(lengths: list[int], padding: int, seed: int) -> None:
    side = ragged(lengths, padding, seed)
    chosen = side.columns["global"].numpy()
    found = find_global_tokens(side)
    count = int(chosen.sum())
    assert found.listed[:count].tolist() == np.flatnonzero(chosen).tolist()
    assert not found.listed[count:].any() and len(found.listed) == len(side)
    assert found.before.tolist() == [0, *np.cumsum(chosen)]
    assert found.flags.tolist() == chosen.astype(int).tolist()


@given(LENGTHS, st.integers(0, 9), st.sampled_from([1, 4, 16]))
def test_blocks_cover_every_token_once(lengths: list[int], padding: int, size: int) -> None:
    side = ragged(lengths, padding)
    blocks = split_into_blocks(side, size)
    covered, ends = [], 0
    for row, (begin, end, index, first) in enumerate(blocks.tiles.tolist()):
        tokens = list(range(begin + index * size, min(begin + (index + 1) * size, end)))
        covered += tokens
        if tokens:
            assert row == first + index
            ends += index in (0, (end - begin - 1) // size)
    assert covered == list(range(len(side)))
    assert sorted(blocks.order.tolist()) == list(range(len(blocks.tiles)))
    long = [i in (0, last) for i, last in zip(blocks.index.tolist(), blocks.last(size).tolist(), strict=True)]
    assert all(long[row] for row in blocks.order.tolist()[:ends])


def test_random_blocks_are_those_of_the_pattern() -> None:
    size, random = 2, 2
    side = ragged([50, 31], 10)
    pattern = block_sparse(random_numbers(0, 2, 40, random), size, "2")
    assert isinstance(pattern.form, RandomBlocks)
    blocks = split_into_blocks(side, size)
    drawn = random_block_table(blocks, pattern.form)
    head, query, key = torch.arange(2)[:, None, None], torch.arange(50)[:, None], torch.arange(50)[None, :]
    allowed = pattern.allow(TokenColumns(side, query, head), TokenColumns(side, key))[:, ::size, ::size]
    last = 24
    for index in range(1, last):
        for own in range(2):
            expected = {0, last, index - 1, index, index + 1, *drawn[own, index].tolist()}
            assert set(allowed[own, index].nonzero().flatten().tolist()) == expected
            assert len(expected) >= 5 + random - 2


def test_only_unions_of_a_window_and_global_tokens_have_a_form() -> None:
    both = GlobalWindow((3, 3), True, True)
    patterns: list[tuple[Pattern, GlobalWindow | None]] = [
        (window(3) | global_tokens, both),
        (global_queries | (window(3) | global_keys), both),
        ((window(3) | global_tokens) & full, both),
        (window(3) | global_keys, GlobalWindow((3, 3), True, False)),
        ((causal & window(3)) | global_tokens, GlobalWindow((3, 0), True, True)),
        (window(3) | window(4) | global_tokens, None),
        ((window(3) | global_tokens) & document, None),
        (document | global_tokens, None),
        (window(3), None),
    ]
    for pattern, form in patterns:
        assert pattern.form == form, pattern.name
