"""Layers of encoder-decoders."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pretune.nn.attention.multi_head import AttentionContext, RelativeAttention
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.attention.relative_position_bias import T5RelativeBias
from pretune.nn.embedding.positional_encoding import LearnedPositions, SinusoidalPositions
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.initialization import initialize, initialize_by_fan_in
from pretune.nn.output_heads import FixedBias, Scale, TiedVocabularyHead, UntiedVocabularyHead
from pretune.packed import pack_lists


def test_learned_positions_may_start_later() -> None:
    positions = initialize(LearnedPositions(5, 4, first=2))
    assert positions.weight.shape == (7, 4)
    assert positions.max_positions == 5
    assert torch.equal(positions(torch.tensor([0, 4])), positions.weight[[2, 6]])


@pytest.mark.parametrize("width", [8, 7])
def test_halves_are_a_permutation_of_sinusoidal_columns(width: int) -> None:
    places = torch.arange(30)
    mixed, halves = SinusoidalPositions(width)(places), SinusoidalPositions(width, halves=True)(places)
    order = [*range(0, width, 2), *range(1, width, 2)]
    torch.testing.assert_close(halves, mixed[:, order])


def test_only_token_vectors_are_scaled() -> None:
    packed = pack_lists([[1, 2, 0], [1]])
    plain, scaled = (Embeddings(3, 4, positions=SinusoidalPositions(4), scale=scale) for scale in (1.0, 3.0))
    initialize(plain)
    scaled.load_state_dict(plain.state_dict())
    waves = SinusoidalPositions(4)(packed.positions)
    torch.testing.assert_close(scaled(packed) - waves, 3 * (plain(packed) - waves))


def test_heads_compose() -> None:
    states, tokens = torch.randn(5, 4), torch.randn(7, 4)
    tied = TiedVocabularyHead(7, Scale(0.5), bias=False)
    assert not list(tied.parameters())
    torch.testing.assert_close(tied(states, tokens), states @ tokens.T / 2)
    shifted = FixedBias(tied, 7)
    shifted.bias += torch.arange(7)
    torch.testing.assert_close(shifted(states, tokens), states @ tokens.T / 2 + torch.arange(7))
    assert not list(shifted.parameters()) and list(shifted.state_dict()) == ["bias"]
    assert shifted(states.bfloat16(), tokens).dtype == torch.bfloat16
    own = UntiedVocabularyHead(7, 4)
    assert torch.equal(own(states, tokens), own(states, torch.zeros(7, 4)))


def test_a_layer_without_a_score_uses_that_of_its_stack() -> None:
    context = AttentionContext(self_layout(pack_lists([[1, 2, 3], [4, 5]])))
    score = T5RelativeBias(2, buckets=4, max_distance=3)
    attention = initialize_by_fan_in(RelativeAttention(8, 2))
    torch.nn.init.normal_(score.weight, std=3.0)
    x = torch.randn(5, 8)
    unbent = attention(x, context)
    context.score_mod = score(x, context.layout)
    bent = attention(x, context)
    assert not torch.allclose(unbent, bent)
    attention.score, context.score_mod = score, None
    torch.testing.assert_close(attention(x, context), bent)


def test_the_bias_is_constant_beyond_the_largest_distance() -> None:
    score = T5RelativeBias(1, buckets=8, max_distance=10)
    torch.nn.init.normal_(score.weight)
    ids = np.zeros(40, dtype=int).tolist()
    layout = self_layout(pack_lists([ids]))
    score_mod = score(torch.zeros(40, 1, 4), layout)
    query, key = {"position": torch.arange(40)[:, None]}, {"position": torch.arange(40)[None, :]}
    ours = score_mod(torch.zeros(40, 40), torch.zeros(1, dtype=torch.long), query, key)
    distance = torch.arange(40)[None, :] - torch.arange(40)[:, None]
    assert torch.equal(ours, score.weight[score.bucket(distance), 0])
