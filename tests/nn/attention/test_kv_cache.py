"""The key-value cache: incremental decoding gives the states of a full forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pretune import PretuneError
from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.transformer_stack import TransformerStack
from pretune.nn.attention.kv_cache import KVCache
from pretune.nn.attention.multi_head import CrossAttention, RelativeAttention
from pretune.nn.attention.patterns import Pattern, causal, prefix, window
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.attention.relative_position_bias import T5RelativeBias
from pretune.nn.attention.scaled_dot_product import attend
from pretune.nn.attention.score_mods import TransformerXLScore
from pretune.nn.blocks import PreNorm, TransformerLayer
from pretune.nn.feed_forward import FeedForward
from pretune.nn.linear import LayerNorm
from pretune.packed import Packed, pack
from tests.support import tiny_training_cases

PATTERNS = {"causal": causal, "window": causal & window(2), "prefix": prefix & causal}
cuts_strategy = st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), min_size=1, max_size=5)


def split_sequences(
    sequences: Sequence[np.ndarray], cuts: Sequence[Sequence[int]], pattern: Pattern | None = causal
) -> list[Packed]:
    """Split sequence i into parts of cuts[i][0], cuts[i][1] … tokens."""
    packs, done = [], np.zeros(len(sequences), dtype=int)
    for lengths in np.array(cuts).T:
        ids = [x[at : at + size] for x, at, size in zip(sequences, done, lengths, strict=True)]
        positions = [at + np.arange(size) for at, size in zip(done, lengths, strict=True)]
        columns = {"prefix": (np.concatenate(positions) < 2).astype(int)}
        packs.append(
            pack(np.concatenate(ids), lengths, positions=np.concatenate(positions), columns=columns, pattern=pattern)
        )
        done += lengths
    return packs


def whole(sequences: Sequence[np.ndarray], pattern: Pattern | None = causal) -> Packed:
    (packed,) = split_sequences(sequences, [[len(x)] for x in sequences], pattern)
    return packed


def rejoin(parts: Sequence[Tensor], cuts: Sequence[Sequence[int]]) -> Tensor:
    """Return the states of parts in the order of the whole sequences."""
    split = [part.split(lengths.tolist()) for part, lengths in zip(parts, np.array(cuts).T, strict=True)]
    return torch.cat([rows[i] for i in range(len(cuts)) for rows in split])


def random_sequences(cuts: Sequence[Sequence[int]], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, tiny_training_cases.VOCABULARY, sum(row)) for row in cuts]


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=25)
@given(cuts=cuts_strategy, seed=st.integers(0, 99))
def test_cached_attention_matches_attention_to_the_sequence(name: str, cuts: list[list[int]], seed: int) -> None:
    sequences = random_sequences(cuts, seed)
    packed = whole(sequences)
    q, k, v = torch.randn(3, len(packed), 2, 8, generator=torch.Generator().manual_seed(seed))
    cache = KVCache(len(cuts), 13)
    parts, order = [], rejoin([torch.arange(len(p)) for p in split_sequences(sequences, cuts)], cuts)
    starts = np.cumsum([0, *map(len, sequences)])
    done = np.zeros(len(cuts), dtype=int)
    for part, lengths in zip(split_sequences(sequences, cuts), np.array(cuts).T, strict=True):
        rows = np.concatenate([s + at + np.arange(n) for s, at, n in zip(starts, done, lengths, strict=False)])
        layout = cache.layout(part)
        parts.append(attend(q[rows], *cache.extend(k[rows], v[rows]), layout, PATTERNS[name]))
        done += lengths
    assert cache.used.tolist() == [len(x) for x in sequences] and len(order) == len(packed)
    torch.testing.assert_close(rejoin(parts, cuts), attend(q, k, v, self_layout(packed), PATTERNS[name]))


def relative(score: nn.Module) -> TransformerStack:
    def layer() -> TransformerLayer:
        attention = RelativeAttention(tiny_training_cases.WIDTH, 2, score, pattern=causal)
        return TransformerLayer(
            attention=PreNorm(attention, LayerNorm(tiny_training_cases.WIDTH)),
            feed_forward=PreNorm(FeedForward(tiny_training_cases.WIDTH, 64), LayerNorm(tiny_training_cases.WIDTH)),
        )

    return TransformerStack(
        tiny_training_cases.embeddings(positions=False),
        [layer() for _ in range(2)],
        vocabulary_head=tiny_training_cases.head,
        pooler=nn.Identity,
    )


def shared() -> TransformerStack:
    stack = tiny_training_cases.encoder(pattern=causal)
    stack.layers = nn.ModuleList([stack.layers[0]] * 3)
    return stack


STACKS: dict[str, Any] = {
    "layers that see all, a batch that is causal": tiny_training_cases.encoder,
    "rotary": tiny_training_cases.modern,
    "relative bias": lambda: relative(T5RelativeBias(2, bidirectional=False)),
    "transformer-xl": lambda: relative(
        TransformerXLScore(tiny_training_cases.WIDTH, 2, tiny_training_cases.WIDTH // 2)
    ),
    "one layer three times": shared,
}


def randomized(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2)
    return module.eval()


@pytest.mark.parametrize("name", STACKS)
@torch.no_grad()
def test_incremental_states_match_full_ones_in_every_layer(name: str) -> None:
    stack = randomized(STACKS[name]())
    cuts = [[5, 1, 1, 2], [1, 1, 1, 3], [9, 1, 1, 1]]
    sequences = random_sequences(cuts)
    cache = KVCache(3, 12)
    parts = [stack(part, state=cache, keep="all") for part in split_sequences(sequences, cuts)]
    assert all(part.state is cache for part in parts)
    for number, expected in enumerate(stack(whole(sequences), keep="all").layers):
        ours = rejoin([part.layers[number] for part in parts], cuts)
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_decoder_projects_its_source_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = randomized(tiny_training_cases.encoder_decoder())
    assert isinstance(model, EncoderDecoder)
    cuts = [[2, 1, 1], [4, 1, 1], [1, 1, 1]]
    sequences, source = random_sequences(cuts), whole(random_sequences([[7], [3], [5]], 1), None)
    expected = model(source, whole(sequences)).last
    read = []
    monkeypatch.setattr(
        model.encoder, "forward", lambda *a, _forward=model.encoder.forward: read.append(1) or _forward(*a)
    )
    projected = []
    make = CrossAttention.keys_and_values
    monkeypatch.setattr(CrossAttention, "keys_and_values", lambda *a: projected.append(1) or make(*a))
    cache = KVCache(3, 6)
    parts = [model(source, part, state=cache).last for part in split_sequences(sequences, cuts)]
    torch.testing.assert_close(rejoin(parts, cuts), expected, atol=1e-5, rtol=1e-5)
    assert len(read) == 1 and len(projected) == len(model.layers)


@pytest.mark.parametrize("chosen", [[2, 0, 1], [1, 1, 1], [0, 1, 2], [2], [0, 0, 1, 1, 2, 2], [2, 1]])
@torch.no_grad()
def test_sequences_can_be_reordered_dropped_and_repeated(chosen: list[int]) -> None:
    cuts = [[5, 1], [2, 2], [7, 1]]
    sequences, source = random_sequences(cuts), random_sequences([[7], [3], [5]], 1)
    model = randomized(tiny_training_cases.encoder_decoder())
    cache = KVCache(3, 12)
    for part in split_sequences(sequences, cuts):
        model(whole(source, None), part, state=cache)
    cache.select(np.array(chosen))
    following = np.arange(len(chosen))
    lengths = [len(sequences[i]) for i in chosen]
    part = pack(
        following,
        np.ones(len(chosen), dtype=int),
        positions=np.array(lengths),
        columns={"prefix": following * 0},
        pattern=causal,
    )
    ours = model(whole(source, None), part, state=cache).last
    grown = [np.append(sequences[i], token) for i, token in zip(chosen, following, strict=True)]
    expected = model(whole([source[i] for i in chosen], None), whole(grown)).last
    torch.testing.assert_close(ours, expected[np.cumsum(lengths) + following], atol=1e-5, rtol=1e-5)


def test_tokens_and_sequences_beyond_the_capacity_are_refused() -> None:
    cache = KVCache(2, 4)
    cache.layout(whole(random_sequences([[3], [2]])))
    with pytest.raises(
        PretuneError, match="2 sequences of 4 tokens has no room for 2 sequences with up to 2 more tokens"
    ):
        cache.layout(whole(random_sequences([[1], [2]])[::-1]))
    with pytest.raises(PretuneError, match="no room for 1 sequences"):
        cache.layout(whole(random_sequences([[1]])))
    assert cache.used.tolist() == [3, 2]
