"""Chunked attention: matches `attend` if a chunk holds a sequence, packed matches single, nothing leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pretune import PretuneError
from pretune.nn.attention.chunked import attend_chunks, split_into_chunks
from pretune.nn.attention.lsh import LSHAttention, sort_by_bucket
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.patterns import Pattern, causal
from pretune.nn.attention.query_key_layout import cross_layout, self_layout
from pretune.nn.attention.relative_position_bias import T5RelativeBias
from pretune.nn.attention.scaled_dot_product import attend
from pretune.nn.dropout import Noise, share_dropout_seed
from pretune.packed import Capacity, Packed, pack
from tests.support.attention_inputs import HEADS, PATTERNS, qkv, random_packed

lengths_strategy = st.lists(st.integers(1, 21), min_size=1, max_size=5)
WIDTH, SIZE = 10, 4


def chunk_pattern(size: int, before: int) -> Pattern:
    """Return chunked attention as a pattern."""
    return Pattern(
        f"chunks({size}, {before})",
        lambda q, k: (
            (q["position"] // size - k["position"] // size).clamp(0, before)
            == q["position"] // size - k["position"] // size
        ),
    )


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=15)
@given(lengths=lengths_strategy, scored=st.booleans())
def test_chunks_of_whole_sequences_match_full_attention(name: str, lengths: list[int], scored: bool) -> None:
    layout = self_layout(random_packed(lengths))
    q, k, v = qkv(sum(lengths))
    bias = T5RelativeBias(HEADS)
    torch.nn.init.normal_(bias.weight)
    score_mod = bias(q, layout) if scored else None
    whole = attend(q, k, v, layout, PATTERNS[name], score_mod, 0.3)
    for before in (0, 1):  # a previous chunk that is the same one again does not change the weights
        chunks = attend_chunks(q, k, v, layout, PATTERNS[name], score_mod, 0.3, size=21, before=before)
        torch.testing.assert_close(chunks, whole)


@settings(max_examples=25)
@given(lengths=lengths_strategy, before=st.integers(0, 1))
def test_chunks_attend_to_themselves_and_those_before(lengths: list[int], before: int) -> None:
    layout = self_layout(random_packed(lengths))
    q, k, v = qkv(sum(lengths))
    chunks = attend_chunks(q, k, v, layout, causal, size=SIZE, before=before)
    torch.testing.assert_close(chunks, attend(q, k, v, layout, causal & chunk_pattern(SIZE, before)))
    chunks.square().sum().backward()
    gradients = [x.grad for x in (q, k, v)]
    q, k, v = qkv(sum(lengths))
    attend(q, k, v, layout, causal & chunk_pattern(SIZE, before)).square().sum().backward()
    for gradient, other in zip(gradients, (q, k, v), strict=True):
        torch.testing.assert_close(gradient, other.grad)


def lsh(rounds: int = 2, pattern: Pattern = causal) -> LSHAttention:
    torch.manual_seed(0)
    return LSHAttention(
        WIDTH, 2, head_width=6, size=SIZE, before=1, buckets=(2, 4), rounds=rounds, pattern=pattern
    ).eval()


def run(attention: LSHAttention, x: Tensor, packed: Packed) -> Tensor:
    out: Tensor = attention(x, AttentionContext(self_layout(packed)))
    return out


@pytest.mark.not_fast
@settings(max_examples=25)
@given(lengths=lengths_strategy, rounds=st.integers(1, 3), seed=st.integers(0, 99))
def test_lsh_attention_of_packed_sequences_matches_single_ones(lengths: list[int], rounds: int, seed: int) -> None:
    attention, n = lsh(rounds), sum(lengths)
    x = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(seed))
    ids = np.zeros(n, dtype=np.int64)
    together = run(attention, x, pack(ids, np.array(lengths)))
    alone = [run(attention, part, random_packed([len(part)])) for part in x.split(lengths)]
    torch.testing.assert_close(together, torch.cat(alone))
    # Neither padding nor a larger bound on the number of chunks matters, as on an accelerator.
    filled = pack(ids, np.array(lengths), capacity=Capacity(n + 30, len(lengths) + 4, 21))
    more = torch.cat([x, torch.randn(30, WIDTH)])
    for packed in (filled, replace(filled, host_offsets=None)):
        torch.testing.assert_close(run(attention, more, packed)[:n], together)


def test_no_gradient_crosses_a_boundary_or_comes_from_later_tokens() -> None:
    attention, packed = lsh(), random_packed([9, 14, 6])
    x = torch.randn(29, WIDTH, requires_grad=True)
    out = run(attention, x, packed)
    for at in (0, 8, 9, 15, 22, 28):
        (gradient,) = torch.autograd.grad(out[at].sum(), x, retain_graph=True)
        start = next(s for s in (23, 9, 0) if s <= at)
        seen = gradient.abs().sum(1).nonzero().flatten().tolist()
        assert min(seen) >= start and max(seen) <= at


def test_a_token_attends_to_itself_only_if_it_sees_no_other() -> None:
    layout = self_layout(random_packed([9]))
    q, k, v = qkv(9)
    out = attend_chunks(q, k, v, layout, causal, size=SIZE, before=1, self_last=True)
    torch.testing.assert_close(out[0], v[0])
    (gradient,) = torch.autograd.grad(out[1:].sum(), v, retain_graph=True)
    assert gradient[8].abs().sum() == 0  # only the last token itself attends to the last one
    torch.testing.assert_close(out[1], v[0])


@settings(max_examples=25)
@given(lengths=lengths_strategy, seed=st.integers(0, 99))
def test_tokens_are_sorted_by_sequence_bucket_and_place(lengths: list[int], seed: int) -> None:
    side = self_layout(random_packed(lengths)).queries
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(sum(lengths), 2, 6, generator=generator)
    rotations = torch.randn(2, 6, 3, 3, generator=generator)
    order = sort_by_bucket(vectors, rotations, (2, 4), side)
    assert order.shape == (2, 3, sum(lengths))
    for head in range(2):
        for turn in range(3):
            rotated = vectors[:, head] @ rotations[head, :, turn]
            first = torch.cat([rotated[:, :1], -rotated[:, :1]], 1).argmax(1)
            second = torch.cat([rotated[:, 1:], -rotated[:, 1:]], 1).argmax(1)
            keys = zip(side.sequence.tolist(), (first + 2 * second).tolist(), range(sum(lengths)), strict=True)
            assert order[head, turn].tolist() == [place for _, _, place in sorted(keys)]


def test_more_hashing_rounds_find_more_similar_pairs() -> None:
    """With more rounds, more pairs of distant, nearly equal tokens share a bucket."""
    torch.manual_seed(0)
    half = torch.randn(64, 1, 16)
    vectors = torch.cat([half, half + 0.3 * torch.randn_like(half)]).requires_grad_()
    layout = self_layout(random_packed([128]))
    met = []
    for rounds in (1, 4):
        rotations = Noise()((1, 16, rounds, 8), 0, vectors.device)
        order = sort_by_bucket(vectors, rotations, (16,), layout.queries)
        values = torch.eye(128)[:, None]
        out = attend_chunks(vectors, vectors, values, layout, causal, size=8, before=1, order=order, self_last=True)
        met.append(int((out[64:, 0, :64].diagonal() > 0).sum()))
    assert 45 < met[0] < met[1]


def test_noise_is_normal_and_follows_from_seed_and_depth() -> None:
    noise, device = Noise(), torch.device("cpu")
    numbers = noise((300, 100), 0, device)
    assert abs(numbers.mean()) < 0.02 and abs(numbers.std() - 1) < 0.02
    assert abs((numbers.abs() < 1).float().mean() - 0.6827) < 0.01
    assert not torch.equal(numbers, noise((300, 100), 1, device))
    share_dropout_seed(noise, device).fill_(7)
    other = noise((300, 100), 0, device)
    assert not torch.equal(numbers, other) and torch.equal(other, noise((300, 100), 0, device))
    assert torch.equal(numbers, noise.eval()((300, 100), 0, device))
    torch.manual_seed(5)
    assert torch.equal(torch.randn(3, 4), Noise(5)((3, 4), 9, device))


def test_recomputation_uses_the_same_hashes() -> None:
    attention, packed = lsh().train(), random_packed([13])
    context, x = AttentionContext(self_layout(packed)), torch.randn(13, WIDTH)
    share_dropout_seed(attention, torch.device("cpu")).fill_(7)
    before = attention(x, context)
    share_dropout_seed(attention, torch.device("cpu")).fill_(8)
    assert torch.equal(before, attention(x, context))
    assert not torch.equal(before, attention(x, AttentionContext(self_layout(packed))))


def test_chunked_attention_refuses_cross_attention() -> None:
    packed = random_packed([5])
    with pytest.raises(PretuneError, match="self-attention only"):
        split_into_chunks(cross_layout(packed, packed), 4)
