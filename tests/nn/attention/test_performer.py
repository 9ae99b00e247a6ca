"""FAVOR+: features approximate softmax, sums match pairwise products, packed sequences match single ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pretune import PretuneError
from pretune.nn.attention.patterns import Pattern, causal, full, window
from pretune.nn.attention.performer import RandomFeatureAttention, orthogonal_features
from pretune.nn.attention.query_key_layout import AttentionLayout, cross_layout, self_layout
from pretune.nn.attention.scaled_dot_product import attend
from pretune.packed import Capacity, pack
from tests.support.attention_inputs import WIDTH, qkv, random_packed

lengths_strategy = st.lists(st.integers(1, 21), min_size=1, max_size=5)
PATTERNS = {"full": full, "causal": causal}


def favor(features: int = 12, seed: int = 0, size: int = 4) -> RandomFeatureAttention:
    torch.manual_seed(seed)
    return RandomFeatureAttention(WIDTH, features, size)


def pair_by_pair(
    function: RandomFeatureAttention, q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, pattern: Pattern
) -> Tensor:
    """Compute random-feature attention with explicit pairwise weights."""
    queries, keys = (function.exponents(x, WIDTH**-0.25).exp() for x in (q, k))
    weights = torch.einsum("nhf,mhf->hnm", queries, keys)
    position, sequence = layout.queries.columns["position"], layout.queries.sequence
    seen = sequence[:, None] == sequence
    seen = seen & (position[:, None] >= position) if pattern == causal else seen
    weights = weights * seen
    return torch.einsum("hnm,mhd->nhd", weights / weights.sum(-1, keepdim=True), v)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=20)
@given(lengths=lengths_strategy, seed=st.integers(0, 99))
def test_random_feature_sums_match_pairwise_products(name: str, lengths: list[int], seed: int) -> None:
    layout, function = self_layout(random_packed(lengths)), favor(seed=seed)
    results = []
    for compute in (function, lambda *inputs: pair_by_pair(function, *inputs)):
        q, k, v = qkv(sum(lengths), seed)
        out = compute(q, k, v, layout, PATTERNS[name])
        out.sin().sum().backward()
        results.append((out, q.grad, k.grad, v.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.not_fast
@pytest.mark.parametrize("name", PATTERNS)
def test_more_features_come_closer_to_softmax(name: str) -> None:
    layout = self_layout(random_packed([40, 24]))
    q, k, v = (x.detach() * 0.5 for x in qkv(64))
    exact = attend(q, k, v, layout, PATTERNS[name])

    def error(features: int) -> float:
        outs = [favor(features, seed)(q, k, v, layout, PATTERNS[name]) for seed in range(8)]
        return float(np.mean([(out - exact).square().mean() for out in outs]))

    errors = [error(features) for features in (8, 64, 512, 4096)]
    assert all(few > 2 * more for few, more in pairwise(errors))
    assert errors[3] < 1e-4


@pytest.mark.not_fast
def test_weights_are_unbiased_and_orthogonal_features_reduce_variance() -> None:
    q, k = (torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)) * 0.5 for seed in (1, 2))

    def estimate(rows: Tensor) -> float:
        return float(((rows @ q - q @ q / 2) + (rows @ k - k @ k / 2)).exp().mean())

    torch.manual_seed(0)
    ours = [estimate(orthogonal_features(WIDTH, WIDTH)) for _ in range(4000)]
    plain = [estimate(torch.randn(WIDTH, WIDTH)) for _ in range(4000)]
    exact = float((q @ k).exp())
    assert abs(np.mean(ours) - exact) < 4 * np.std(ours) / 4000**0.5
    assert np.var(ours) < np.var(plain)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=20)
@given(lengths=lengths_strategy, seed=st.integers(0, 99))
def test_packed_sequences_match_single_ones_and_padding_is_ignored(name: str, lengths: list[int], seed: int) -> None:
    function, n, pattern = favor(), sum(lengths), PATTERNS[name]
    q, k, v = (x.detach() for x in qkv(n + 30, seed))
    k[: lengths[0]] *= 8  # the weights of one sequence are far from those of the others
    ids = np.zeros(n, dtype=np.int64)
    together = function(q[:n], k[:n], v[:n], self_layout(pack(ids, np.array(lengths))), pattern)
    parts = zip(*(x[:n].split(lengths) for x in (q, k, v)), strict=True)
    alone = [function(*part, self_layout(random_packed([len(part[0])])), pattern) for part in parts]
    torch.testing.assert_close(together, torch.cat(alone))
    filled = pack(ids, np.array(lengths), capacity=Capacity(n + 30, len(lengths) + 4, 21))
    for packed in (filled, replace(filled, host_offsets=None)):  # the second as on an accelerator
        torch.testing.assert_close(function(q, k, v, self_layout(packed), pattern)[:n], together)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_gradient_crosses_a_boundary_or_comes_from_later_tokens(name: str) -> None:
    q, k, v = qkv(29)
    out = favor()(q, k, v, self_layout(random_packed([9, 14, 6])), PATTERNS[name])
    for at in (0, 8, 9, 15, 22, 28):
        gradients = torch.autograd.grad(out[at].sum(), (q, k, v), retain_graph=True)
        start, end = next((s, e) for s, e in ((23, 29), (9, 23), (0, 9)) if s <= at)
        last = at if name == "causal" else end - 1
        for gradient in gradients[1:]:
            assert set(gradient.abs().sum((1, 2)).nonzero().flatten().tolist()) <= set(range(start, last + 1))
        assert gradients[0].abs().sum((1, 2)).nonzero().flatten().tolist() in ([], [at])
        assert gradients[2].abs().sum((1, 2)).nonzero().flatten().tolist() == list(range(start, last + 1))


def test_large_vectors_give_finite_results() -> None:
    q, k, v = qkv(21)
    out = favor(64)(q * 30, k * 30, v, self_layout(random_packed([21])), causal)
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v)) and out.isfinite().all()


def test_features_follow_from_the_seed_and_are_orthogonal() -> None:
    assert torch.equal(favor(seed=3).features, favor(seed=3).features)
    assert not torch.equal(favor(seed=3).features, favor(seed=4).features)
    rows = favor(20).features
    for block in rows.split(WIDTH):
        products = block @ block.T
        torch.testing.assert_close(products, torch.diag(products.diagonal()), atol=1e-5, rtol=0)
    torch.manual_seed(0)
    many = orthogonal_features(4096, WIDTH)
    torch.testing.assert_close(many.T @ many / 4096, torch.eye(WIDTH), atol=0.1, rtol=0)


def test_unsupported_patterns_and_layouts_raise_an_error() -> None:
    packed = random_packed([5])
    layout = self_layout(packed)
    q, k, v = qkv(5)
    with pytest.raises(PretuneError, match=r"supports full and causal patterns, but not 'window\(2\)'"):
        favor()(q, k, v, layout, window(2))
    with pytest.raises(PretuneError, match="self-attention only"):
        favor()(q, k, v, cross_layout(packed, packed), full)
