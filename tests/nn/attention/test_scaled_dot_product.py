"""Attention: packed sequences match single ones, nothing leaks, masks match patterns, scores match transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pretune.nn.attention.big_bird import block_sparse, random_numbers
from pretune.nn.attention.patterns import (
    Pattern,
    causal,
    full,
    global_queries,
    window,
)
from pretune.nn.attention.query_key_layout import AttentionLayout, TokenLayout, cross_layout, padded_groups, self_layout
from pretune.nn.attention.relative_position_bias import T5RelativeBias
from pretune.nn.attention.scaled_dot_product import attend
from pretune.packed import pack
from tests.support.attention_inputs import HEADS, PATTERNS, WIDTH, qkv, random_packed

lengths_strategy = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def naive_attention(q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, pattern: Pattern) -> Tensor:
    """Compute attention with a loop over queries and keys."""
    out = torch.zeros_like(q)
    for i in range(len(q)):
        seen = []
        for j in range(len(k)):
            query = {name: column[i] for name, column in layout.queries.columns.items()}
            key = {name: column[j] for name, column in layout.keys.columns.items()}
            if layout.queries.sequence[i] == layout.keys.sequence[j] and bool(pattern.allow(query, key)):
                seen.append(j)
        if seen:
            weights = torch.einsum("hd,shd->hs", q[i], k[seen]).div(WIDTH**0.5).softmax(-1)
            out[i] = torch.einsum("hs,shd->hd", weights, v[seen])
    return out


@pytest.mark.not_fast
@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=25)
@given(lengths=lengths_strategy, seed=st.integers(0, 99))
def test_dense_attention_matches_a_naive_loop(name: str, lengths: list[int], seed: int) -> None:
    layout = self_layout(random_packed(lengths, seed))
    q, k, v = qkv(sum(lengths), seed)
    torch.testing.assert_close(
        attend(q, k, v, layout, PATTERNS[name]), naive_attention(q, k, v, layout, PATTERNS[name])
    )


@pytest.mark.parametrize("name", PATTERNS)
def test_combined_patterns(name: str) -> None:
    layout = self_layout(random_packed([5, 9, 3]))
    q, k, v = qkv(17)
    for pattern in (
        PATTERNS[name] & window(3),
        PATTERNS[name] | causal,
        PATTERNS[name] & full,
        causal & PATTERNS[name],
    ):
        torch.testing.assert_close(attend(q, k, v, layout, pattern), naive_attention(q, k, v, layout, pattern))
    assert PATTERNS[name] & full == PATTERNS[name] == full & PATTERNS[name]
    assert (causal & window(2)).reach == (2, 0)


@pytest.mark.not_fast
@settings(max_examples=25)
@given(lengths_strategy, st.data())
def test_cross_attention_matches_a_naive_loop(lengths: list[int], data: st.DataObject) -> None:
    source = [data.draw(st.integers(1, 9)) for _ in lengths]
    layout = cross_layout(random_packed(lengths), random_packed(source, 1))
    q, _, _ = qkv(sum(lengths))
    _, k, v = qkv(sum(source), 1)
    torch.testing.assert_close(attend(q, k, v, layout, full), naive_attention(q, k, v, layout, full))


@pytest.mark.parametrize("name", PATTERNS)
def test_packed_sequences_match_single_ones_in_values_and_gradients(name: str) -> None:
    lengths = [5, 1, 9, 3, 3, 20]
    packed = random_packed(lengths)
    together = qkv(sum(lengths))
    attend(*together, self_layout(packed), PATTERNS[name]).square().sum().backward()
    start = 0
    for size in lengths:
        alone = [x[start : start + size].detach().clone().requires_grad_() for x in together]
        columns = {k: c[start : start + size].numpy() for k, c in packed.columns.items()}
        one = pack(np.zeros(size, dtype=np.int64), np.array([size]), columns=columns)
        attend(*alone, self_layout(one), PATTERNS[name]).square().sum().backward()
        for x, y in zip(together, alone, strict=True):
            torch.testing.assert_close(x.grad[start : start + size], y.grad)
        start += size


@pytest.mark.parametrize("name", PATTERNS)
def test_sequences_do_not_influence_each_other(name: str) -> None:
    lengths = [4, 6, 3]
    q, k, v = qkv(13)
    out = attend(q, k, v, self_layout(random_packed(lengths)), PATTERNS[name])
    out[4:10].sum().backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert not x.grad[:4].any() and not x.grad[10:].any()


def test_a_query_that_sees_no_key_gets_zero_and_no_gradient() -> None:
    first_only = Pattern("first token only", lambda query, key: (query["position"] == 0) & (key["position"] >= 0))
    q, k, v = qkv(9)
    out = attend(q, k, v, self_layout(random_packed([4, 5])), first_only)
    assert not out[1:4].any() and out[0].any()
    out[1:4].sum().backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert torch.isfinite(x.grad).all() and not x.grad.any()
    bias = T5RelativeBias(HEADS)
    out = attend(q, k, v, self_layout(random_packed([4, 5])), first_only, bias(q, self_layout(random_packed([4, 5]))))
    assert not out[1:4].any() and torch.isfinite(out).all()


def test_gradients_have_one_memory_layout_with_any_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's backward assumes the strides of the first gradient of a shape for all later ones."""
    strides = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def watched(*args: Tensor, **options: float | None) -> Tensor:
        out = attention(*args, **options)  # type: ignore[arg-type]
        out.register_hook(lambda grad: strides.append(grad.stride()))
        return out

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    for pattern in (window(2), global_queries):  # all rows see something; most see nothing
        q, k, v = qkv(14)
        attend(q, k, v, self_layout(random_packed([5, 9])), pattern).sum().backward()
    assert len(strides) == 4 and strides[:2] == strides[2:]  # two lengths, so two groups


def test_t5_bias_matches_transformers() -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    for bidirectional in (True, False):
        ours = T5RelativeBias(HEADS, buckets=16, max_distance=40, bidirectional=bidirectional)
        distances = torch.arange(-90, 91)
        theirs = T5Attention._relative_position_bucket(distances, bidirectional, 16, 40)
        assert torch.equal(ours.bucket(distances), theirs)
    torch.nn.init.normal_(ours.weight)
    lengths = [6, 3]
    layout = self_layout(random_packed(lengths))
    q, k, v = qkv(9)
    out = attend(q, k, v, layout, full, ours(q, layout), scale=1.0)
    distance = torch.arange(6)[None] - torch.arange(6)[:, None]
    bias = ours.weight[ours.bucket(distance)].permute(2, 0, 1)
    logits = torch.einsum("ihd,jhd->hij", q[:6], k[:6]) + bias
    torch.testing.assert_close(out[:6], torch.einsum("hij,jhd->ihd", logits.softmax(-1), v[:6]))


def test_groups_cover_every_token_once_with_little_padding() -> None:
    lengths = [3, 90, 5, 80, 4, 4, 31, 2]
    layout = self_layout(random_packed(lengths))
    groups, back = padded_groups(layout).groups, padded_groups(layout).queries.inverse
    rows = torch.cat([group.queries.flatten()[group.real_queries.flatten()] for group in groups])
    assert sorted(rows.tolist()) == list(range(sum(lengths)))
    assert sorted(back.tolist()) == sorted(set(back.tolist()))
    assert sum(group.queries.numel() for group in groups) < 1.5 * sum(lengths)


@pytest.mark.not_fast
def test_flex_without_compiling_agrees_with_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the mask and score of the flex path with torch's uncompiled reference implementation."""
    from torch.nn.attention import flex_attention as library

    from pretune.nn.attention import scaled_dot_product as module

    monkeypatch.setattr(module, "_compiled_flex", lambda: library.flex_attention)
    layout = self_layout(random_packed([40, 90, 7, 60]))
    q, k, v = (x.detach() for x in qkv(197))  # no backward on a CPU
    bias = T5RelativeBias(HEADS).requires_grad_(False)
    torch.nn.init.normal_(bias.weight)
    sparse = block_sparse(random_numbers(0, HEADS, 23, 1), 4, "4")
    scored = [(pattern, bias) for pattern in (full, PATTERNS["longformer"], sparse)]
    for pattern, score in [*((pattern, None) for pattern in (*PATTERNS.values(), sparse)), *scored]:
        score_mod = None if score is None else score(q, layout)
        dense = attend(q, k, v, layout, pattern, score_mod, backend="dense")
        torch.testing.assert_close(
            attend(q, k, v, layout, pattern, score_mod, backend="flex"), dense, atol=1e-5, rtol=1e-5
        )


def test_sequence_indices_are_right_with_unused_offsets() -> None:
    side = TokenLayout(torch.tensor([0, 3, 3, 5, 5, 5], dtype=torch.int32), 3, {"position": torch.zeros(5)})
    assert side.sequence.tolist() == [0, 0, 0, 2, 2]


def test_block_masks_admit_no_forbidden_pairs() -> None:
    """This includes rows for which no key is both listed and allowed."""
    far = Pattern("far", lambda query, key: (query["position"] - key["position"]).abs() > 8)
    q, k, v = qkv(60)
    layout = self_layout(random_packed([40, 20]))
    sparse = block_sparse(random_numbers(0, HEADS, 20, 1), 2, "2")
    attend(q, k, v, layout, sparse & far)[20].sum().backward()  # would see 0 to 11 and 29 to 39
    for x in (k, v):
        assert x.grad is not None
        assert x.grad[:12].any() and not x.grad[12:29].any() and not x.grad[40:].any()
