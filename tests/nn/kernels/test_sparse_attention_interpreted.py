"""The kernels of sparse attention agree with dense attention in Triton's interpreter on a CPU.

Run with TRITON_INTERPRET=1 where Triton is installed, with a version of NumPy that its interpreter supports; tests/nn/kernels/test_sparse_attention_gpu.py has the same on a GPU.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pretune.nn.attention.big_bird import block_sparse, random_numbers
from pretune.nn.attention.patterns import RandomBlocks, causal, global_keys, global_queries, window
from pretune.nn.attention.query_key_layout import AttentionLayout, self_layout
from pretune.nn.attention.scaled_dot_product import attend_globally, attend_self
from pretune.nn.attention.sparse_layout import find_global_tokens, random_block_table, split_into_blocks
from pretune.packed import Capacity, Packed, pack

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")

HEADS, WIDTH = 2, 16


def ragged(lengths: list[int], padding: int, share: float, seed: int) -> Packed:
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    columns = {"global": (rng.random(n) < share).astype(np.int64)}
    capacity = Capacity(n + padding, len(lengths) + 2, max(n, padding, 1))
    return pack(np.ones(n, dtype=np.int64), np.array(lengths), columns=columns, capacity=capacity)


def tensors(packed: Packed, seed: int) -> list[Tensor]:
    """Return queries, keys and values of local and of global tokens, and the gradient of the output, in fp64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((len(packed), 3, HEADS, WIDTH), (len(packed), 3, HEADS, WIDTH), (len(packed), HEADS, WIDTH))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def gradients(out: Tensor, slope: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Return the output and its gradients."""
    grads = torch.autograd.grad(out, inputs, slope, allow_unused=True)
    return [out.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True))]


def agree(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def by_global_kernel(layout: AttentionLayout, reach: tuple[int, int], x: list[Tensor]) -> list[Tensor]:
    from pretune.nn.kernels import global_attention as kernel

    # Fewer programs, since the interpreter is slow, and tiles that are smaller than the sequences.
    kernel.GLOBAL_PROGRAMS = 4
    kernel.FORWARD.update(tile=32, other=16)
    kernel.BACKWARD.update(tile=32, other=16)
    qkv, global_qkv, slope = (each.float() for each in x)
    found = find_global_tokens(layout.queries)
    side = layout.queries
    tokens = [*side.bounds, found.flags, found.before, found.listed, side.offsets]
    left, right = (1 << 30 if size < 0 else size for size in reach)
    out, level = kernel.launch_forward(qkv, global_qkv, tokens, WIDTH**-0.5, left, right)
    return [
        out,
        *kernel.launch_backward(slope, qkv, global_qkv, out, level, tokens, WIDTH**-0.5, left, right),
    ]


LENGTHS = st.lists(st.integers(1, 80), min_size=1, max_size=3)


@settings(max_examples=8, deadline=None)
@given(LENGTHS, st.integers(0, 20), st.sampled_from([0.0, 0.02, 0.4, 1.0]), st.sampled_from([0, 3, 40, 500]))
def test_window_with_global_tokens(lengths: list[int], padding: int, share: float, reach: int) -> None:
    packed = ragged(lengths, padding, share, seed=reach)
    layout, x = self_layout(packed), tensors(packed, seed=reach)
    qkv, global_qkv = (each.requires_grad_() for each in x[:2])
    expected = gradients(attend_globally(qkv, global_qkv, layout, window(reach)), x[2], qkv, global_qkv)
    agree(by_global_kernel(layout, (reach, reach), [each.detach() for each in x]), expected)


def test_one_sided_window_with_global_tokens() -> None:
    packed = ragged([90, 40], 10, 0.1, seed=1)
    layout, x = self_layout(packed), tensors(packed, seed=1)
    qkv, global_qkv = (each.requires_grad_() for each in x[:2])
    pattern = causal & window(20)
    local = attend_self(qkv, layout, pattern | global_keys)
    from_global = attend_self(global_qkv, layout, global_queries)
    chosen = packed.columns["global"][:, None, None] > 0
    expected = gradients(torch.where(chosen, from_global, local), x[2], qkv, global_qkv)
    agree(by_global_kernel(layout, (20, 0), [each.detach() for each in x]), expected)


@settings(max_examples=3, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=2), st.integers(0, 20), st.integers(1, 2))
def test_block_sparse(lengths: list[int], padding: int, random: int) -> None:
    from pretune.nn.kernels import block_sparse_attention as kernel

    packed = ragged(lengths, padding, 0.0, seed=random)
    layout, x = self_layout(packed), tensors(packed, seed=random)
    size = 16
    pattern = block_sparse(random_numbers(0, HEADS, 200, random), size, f"{random}")
    qkv = x[0].requires_grad_()
    expected = gradients(attend_self(qkv, layout, pattern), x[2], qkv)
    blocks = split_into_blocks(layout.queries, size)
    form = pattern.form
    assert isinstance(form, RandomBlocks)
    tables = blocks.tiles, blocks.order, random_block_table(blocks, form)
    rest = WIDTH**-0.5, size, form.short, packed.max_length
    plain = qkv.detach().float()
    out, level = kernel.launch_forward(plain, *tables, *rest)
    agree([out, kernel.launch_backward(x[2].float(), plain, out, level, *tables, *rest)], expected)
