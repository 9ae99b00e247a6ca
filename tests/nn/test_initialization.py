"""Initialization schemes, and layers that describe their own initialization."""

from __future__ import annotations

import torch
from torch import nn

from pretune.nn.attention.multi_head import CrossAttention, RelativeAttention, SelfAttention
from pretune.nn.attention.relative_position_bias import T5RelativeBias
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import FeedForward
from pretune.nn.initialization import (
    InitializationScheme,
    SkipInitialization,
    initialize,
    initialize_by_fan_in,
    initialize_uniform,
    truncated_normal_,
)
from pretune.nn.linear import LayerNorm, Linear
from pretune.nn.output_heads import TiedVocabularyHead, UntiedVocabularyHead


class Threes(nn.Module):
    """A layer that starts at 3, whatever the scheme."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 2))

    def initialize_parameters(self, scheme: InitializationScheme) -> None:
        """Ignore the scheme."""
        nn.init.constant_(self.weight, 3.0)


def test_a_layer_decides_how_its_parameters_start() -> None:
    for scheme in (initialize, initialize_by_fan_in, initialize_uniform):
        module = scheme(nn.Sequential(Threes(), Linear(2, 2)))
        assert bool((module[0].weight == 3.0).all()) and not module[1].bias.any()


def test_weights_are_truncated_and_norms_stay_as_they_are() -> None:
    module = initialize(nn.Sequential(Linear(50, 50), LayerNorm(50)), deviation=0.1)
    weight = module[0].weight.detach()
    assert 0.05 < float(weight.std()) < 0.1 and float(weight.abs().max()) <= 0.2
    assert torch.equal(module[1].weight, torch.ones(50)) and not module[1].bias.any()


def test_only_outputs_of_residual_branches_are_scaled() -> None:
    def built(output_scale: float) -> nn.ModuleList:
        torch.manual_seed(0)
        parts = [SelfAttention(8, 2), FeedForward(8, 16), UntiedVocabularyHead(9, 8)]
        return initialize(nn.ModuleList(parts), output_scale=output_scale)

    plain, halved, zero = (dict(built(scale).named_parameters()) for scale in (1.0, 0.5, 0.0))
    for name, parameter in plain.items():
        scaled = name in ("0.output.weight", "1.output.weight")
        assert torch.equal(halved[name], parameter * 0.5 if scaled else parameter), name
        assert torch.equal(zero[name], torch.zeros_like(parameter) if scaled else parameter), name
    assert not torch.signbit(zero["0.output.weight"]).any()


def test_t5_redraws_queries_of_unscaled_attention_after_everything_else() -> None:
    def attention(kind: type[RelativeAttention] | type[CrossAttention], scale: float | None) -> nn.Module:
        return kind(8, 2, scale=scale, bias=False)

    for kind in (RelativeAttention, CrossAttention):
        torch.manual_seed(0)
        made = initialize_by_fan_in(nn.ModuleList([attention(kind, 1.0), Embeddings(5, 8)]), factor=2.0)
        attended, embed = made
        torch.manual_seed(0)
        attention(kind, 1.0)  # the draws of the constructors
        expected = {name: torch.empty_like(x) for name, x in attended.named_parameters()}
        for weight in expected.values():
            nn.init.normal_(weight, std=2.0 * 8**-0.5)
        tokens = nn.init.normal_(torch.empty(5, 8), std=2.0)
        nn.init.normal_(expected["query.weight"], std=2.0 * (8 * 4) ** -0.5)
        assert all(torch.equal(x, expected[name]) for name, x in attended.named_parameters())
        assert torch.equal(embed.tokens, tokens)


def test_the_bias_of_t5_depends_on_the_width_of_the_states() -> None:
    torch.manual_seed(0)
    narrow, wide = (initialize_by_fan_in(T5RelativeBias(64, 64, width=width)) for width in (4, 400))
    assert 0.45 < float(narrow.weight.detach().std()) < 0.55 and 0.045 < float(wide.weight.detach().std()) < 0.055
    assert not initialize_by_fan_in(T5RelativeBias(2)).weight.any()


def test_a_module_without_values_or_parameters_is_returned_as_it_is() -> None:
    with torch.device("meta"):
        assert initialize(Linear(2, 2)).weight.is_meta
    head = TiedVocabularyHead(7, bias=False)
    assert initialize_by_fan_in(head) is head


def test_truncated_normal_weights_are_not_drawn_before_weights_are_loaded() -> None:
    with SkipInitialization():
        assert not truncated_normal_(torch.ones(64, 64), 0.1).any()
    drawn = truncated_normal_(torch.ones(64, 64), 0.1)
    assert drawn.abs().max() <= 0.2 and 0.05 < drawn.std() < 0.1
