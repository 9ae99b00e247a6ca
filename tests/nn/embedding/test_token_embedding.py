"""Token, position and column embeddings, and activations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pretune import PretuneError
from pretune.nn.embedding.positional_encoding import LearnedPositions, SinusoidalPositions
from pretune.nn.embedding.token_embedding import ColumnEmbedding, Embeddings
from pretune.nn.feed_forward import ACTIVATIONS
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm, Linear
from pretune.nn.output_heads import DenseTransform, TiedVocabularyHead
from pretune.packed import Capacity, pack, pack_lists


def test_positions_start_at_their_first_row() -> None:
    plain, shifted = initialize(LearnedPositions(4, 3)), LearnedPositions(4, 3, first=2)
    assert shifted.weight.shape == (6, 3) and shifted.max_positions == 4
    with torch.no_grad():
        shifted.weight[2:] = plain.weight
        shifted.weight[:2] = torch.nan
    assert torch.equal(plain(torch.arange(4)), shifted(torch.arange(4)))


@pytest.mark.parametrize("width", [6, 7])
def test_frozen_sinusoidal_positions_are_not_trained(width: int) -> None:
    positions = LearnedPositions(5, width)
    positions.freeze_sinusoidal()
    assert torch.equal(positions(torch.arange(5)), SinusoidalPositions(width)(torch.arange(5)))
    assert not positions.weight.requires_grad


def test_column_embeddings_are_added_and_absent_columns_use_defaults() -> None:
    ids, values = np.array([1, 2, 3]), np.array([2, 0, 1])
    embed = initialize(
        Embeddings(5, 4, columns=[ColumnEmbedding("language", 3, 4, absent=None), ColumnEmbedding("task", 2, 4)]), 1.0
    )
    tokens, language, task = embed.tokens, embed.columns["language"].weight, embed.columns["task"].weight
    assert torch.equal(embed(pack(ids, np.array([3]))), tokens[ids] + task[0])
    both = pack(ids, np.array([3]), columns={"language": values, "task": np.array([1, 1, 0])})
    assert torch.equal(embed(both), tokens[ids] + language[values] + task[[1, 1, 0]])
    filled = pack(ids, np.array([3]), columns={"language": values}, capacity=Capacity(8, 3, 4))
    assert torch.equal(embed(filled)[:3], tokens[ids] + language[values] + task[0])


def test_narrow_embeddings_are_projected_in_and_out() -> None:
    embed = Embeddings(5, 4, norm=LayerNorm(4), project=Linear(4, 6))
    assert embed.width == 6 and Embeddings(5, 4).width == 4
    initialize(embed, 1.0)
    states = embed(pack_lists([[1, 2], [3]]))
    assert torch.equal(states, embed.project(embed.norm(embed.tokens[[1, 2, 3]])))
    head = TiedVocabularyHead(5, DenseTransform(6, ACTIVATIONS["gelu"], LayerNorm(4), outputs=4))
    assert head(states, embed.tokens).shape == (3, 5)


def test_an_unknown_activation_raises_an_error_with_its_name() -> None:
    with pytest.raises(PretuneError, match="unknown activation 'gelo'; did you mean 'gelu'"):
        ACTIVATIONS["gelo"]


def test_activations_match_transformers() -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-12, 12, 1001)
    for name in ACT2FN:
        if name in ("prelu", "xielu"):  # it has parameters, which no layout can store
            with pytest.raises(PretuneError, match=f"unknown activation '{name}'"):
                ACTIVATIONS[name]
        else:
            torch.testing.assert_close(ACTIVATIONS[name](x), ACT2FN[name](x), atol=1e-5, rtol=1e-5, msg=name)
