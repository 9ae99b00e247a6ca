"""Block masks against all pairs of tokens: all visible pairs are listed, few others are, and the mask compiles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pretune.nn.attention.big_bird import block_sparse, random_numbers
from pretune.nn.attention.flex_block_mask import BLOCK, block_mask, visible_blocks
from pretune.nn.attention.patterns import (
    Pattern,
    block_pattern,
    causal,
    dilated,
    document,
    full,
    global_keys,
    global_queries,
    global_tokens,
    permutation,
    prefix,
    window,
)
from pretune.nn.attention.query_key_layout import AttentionLayout, cross_layout, self_layout
from pretune.nn.attention.scaled_dot_product import attend
from pretune.packed import Packed, pack


def plan(size: int) -> Tensor:
    """Return a plan with two blocks per row: the row's own, and a random earlier one."""
    table = torch.eye(size, dtype=torch.long)
    table[torch.arange(size), torch.randint(40, (size,), generator=torch.Generator().manual_seed(0))] = 1
    return table


LONG = {
    "window": window(256),
    "dilated": dilated(64, 4),
    "longformer": window(256) | global_tokens,
    "longformer's first": window(256) | global_keys,
    "longformer's second": global_queries,
    "big bird": block_sparse(random_numbers(0, 2, 256, 3), 64, "64"),
    "planned": block_pattern(plan(256), 64, "planned") | global_tokens,
}
PATTERNS = {
    "full": full,
    "causal": causal,
    "causal window": causal & window(40),
    "prefix": prefix,
    "permutation": permutation,
    "document": document,
    "short big bird": block_sparse(random_numbers(0, 2, 125, 1), 4, "4"),
    **LONG,
}


def random_packed(lengths: list[int], seed: int = 0, seldom: int = 200) -> Packed:
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    columns = {
        "prefix": rng.integers(0, 2, n),
        "stream": rng.integers(0, 2, n),
        "order": rng.integers(0, 6, n),
        "document": np.cumsum(rng.integers(0, 60, n) == 0),
        "global": rng.integers(0, seldom, n) == 0,
    }
    return pack(np.zeros(n, dtype=np.int64), np.array(lengths), columns=columns)


def one_text(length: int) -> AttentionLayout:
    """Make the first token global."""
    packed = random_packed([length])
    packed.columns["global"] = packed.positions == 0
    return self_layout(packed)


def dense(numbers: Tensor, indices: Tensor, head: int) -> Tensor:
    """Return the blocks listed for a head as a mask, (rows, columns)."""
    found = torch.zeros(indices.shape[-2:], dtype=torch.long)
    for row, (number, order) in enumerate(zip(numbers[0, head].tolist(), indices[0, head].long(), strict=True)):
        found[row] = torch.zeros_like(found[row]).index_add(0, order[:number], torch.ones(number, dtype=torch.long))
    assert found.max() <= 1  # none twice
    return found > 0


def in_blocks(seen: Tensor) -> Tensor:
    """Split a mask (n, m) into blocks, (query blocks, key blocks, BLOCK, BLOCK), padded with False."""
    n, m = (-(-size // BLOCK) for size in seen.shape)
    padded = torch.zeros(n * BLOCK, m * BLOCK, dtype=torch.bool)
    padded[: seen.shape[0], : seen.shape[1]] = seen
    return padded.view(n, BLOCK, m, BLOCK).transpose(1, 2)


def check(layout: AttentionLayout, pattern: Pattern) -> tuple[Tensor, Tensor]:
    """Return masks of the listed blocks and of those with a visible pair, (heads, rows, columns) each."""
    mask = block_mask(layout, pattern)
    assert mask.kv_num_blocks.shape[1] == pattern.heads
    rows, columns = torch.arange(len(layout.queries)), torch.arange(len(layout.keys))
    listed, needed = [], []
    for head in range(pattern.heads):
        part, whole = (
            dense(mask.kv_num_blocks, mask.kv_indices, head),
            dense(mask.full_kv_num_blocks, mask.full_kv_indices, head),
        )
        seen = in_blocks(mask.mask_mod(0, torch.tensor(head), rows[:, None], columns[None, :]))
        assert not (part & whole).any()
        assert not (seen.any(-1).any(-1) & ~part & ~whole).any()
        assert seen.all(-1).all(-1)[whole].all()
        assert torch.equal(dense(mask.q_num_blocks, mask.q_indices, head), part.T)
        assert torch.equal(dense(mask.full_q_num_blocks, mask.full_q_indices, head), whole.T)
        listed.append(part | whole)
        needed.append(seen.any(-1).any(-1))
    return torch.stack(listed), torch.stack(needed)


lengths_strategy = st.lists(st.integers(1, 300), min_size=1, max_size=6)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=10, deadline=None)
@given(lengths=lengths_strategy, seed=st.integers(0, 99))
def test_every_visible_pair_lies_in_a_listed_block(name: str, lengths: list[int], seed: int) -> None:
    check(self_layout(random_packed(lengths, seed)), PATTERNS[name])


@settings(max_examples=10, deadline=None)
@given(lengths=lengths_strategy, data=st.data())
def test_every_visible_pair_of_cross_attention_lies_in_a_listed_block(lengths: list[int], data: st.DataObject) -> None:
    source = [data.draw(st.integers(1, 300)) for _ in lengths]
    layout = cross_layout(random_packed(lengths), random_packed(source, 1))
    for pattern in (full, causal, window(20) | global_keys):
        check(layout, pattern)


@pytest.mark.parametrize("name", LONG)
def test_number_of_listed_blocks_grows_linearly_with_length(name: str) -> None:
    short, long = (int(visible_blocks(one_text(length), LONG[name])[0].sum()) for length in (4096, 16384))
    assert long <= 4.5 * short


@pytest.mark.parametrize("name", [*LONG, "causal window", "document"])
def test_packed_texts_list_few_superfluous_blocks(name: str) -> None:
    listed, needed = check(self_layout(random_packed([900, 1300, 70, 30, 800], seldom=1000)), PATTERNS[name])
    assert listed.sum() <= 1.1 * needed.sum()


@pytest.mark.not_fast
def test_a_block_mask_compiles_once_without_graph_breaks() -> None:
    """There is no graph break, so no host synchronization, and other lengths of one capacity have the same shapes."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()

    def lists(packed: Packed, pattern: Pattern) -> list[Tensor]:
        mask = block_mask(self_layout(packed), pattern)
        return [mask.kv_num_blocks, mask.kv_indices, mask.full_kv_indices, mask.q_indices, mask.full_q_num_blocks]

    torch._dynamo.reset()
    compiled = torch.compile(lists, fullgraph=True, dynamic=False, backend=counter)
    for lengths in ([500, 200, 300], [100, 800, 100]):
        packed = random_packed(lengths)
        packed.max_length = 800
        for found, expected in zip(
            compiled(packed, LONG["longformer"]), lists(packed, LONG["longformer"]), strict=True
        ):
            assert torch.equal(found, expected)
    assert counter.frame_count == 1
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "causal", "document", "short big bird", "longformer", "planned"])
def test_listed_blocks_are_enough_for_attention(name: str) -> None:
    """Compiled for a CPU, too, flex_attention reads listed blocks only, and evaluates the mask only in partial blocks."""
    torch._dynamo.reset()
    layout = self_layout(random_packed([300, 70, 500, 30, 333]))
    with torch.no_grad():
        q, k, v = (torch.randn(1233, 2, 32) for _ in range(3))
        dense, flex = (attend(q, k, v, layout, PATTERNS[name], backend=backend) for backend in ("dense", "flex"))
    torch.testing.assert_close(flex, dense, atol=1e-5, rtol=1e-5)
