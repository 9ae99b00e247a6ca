"""Tests that a masked head is equal to one whose values are zero, in the layer at the given depth only."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from pretune.compression.importance import gated
from pretune.nn.attention.head_masking import masked_head
from pretune.nn.attention.multi_head import SelfAttention, ShowsLogits
from tests.support.family_configs import DEBERTAS
from tests.support.pruning_models import made, packed, states
from tests.support.tiny_models import WIDTHS, random_model, small_tokenizer


@pytest.mark.parametrize("family", ["bert", "gpt2", "modernbert"])
def test_masking_equals_zero_values_and_a_gate_of_0(family: str) -> None:
    model = made(family)
    before = states(model)
    with masked_head(model.backbone, 1, 0):
        masked = states(model)
    assert not torch.allclose(masked, before)
    torch.testing.assert_close(states(model), before, rtol=0, atol=0)  # the hooks are gone
    attentions = [part for part in model.backbone.modules() if isinstance(part, SelfAttention)]
    part = attentions[1]
    with gated({"part": part}, {"part": torch.tensor([0.0, 1.0])}):
        torch.testing.assert_close(states(model), masked)
    changed = deepcopy(model)
    part = [part for part in changed.backbone.modules() if isinstance(part, SelfAttention)][1]
    width = part.head_width
    with torch.no_grad():
        for tensor in part.qkv.parameters():  # rows: queries, keys, values of all heads
            tensor.view(3, part.heads, width, -1)[2, 0] = 0
    torch.testing.assert_close(states(changed), masked)


@pytest.mark.parametrize("family", ["deberta-v2", "xlnet", "longformer"])
def test_every_kind_of_attention_can_be_masked(family: str) -> None:
    model = random_model(
        family,
        small_tokenizer("byte-level-bpe"),
        "plm" if family == "xlnet" else "mlm",
        **DEBERTAS.get(family, {}) | WIDTHS,
    )
    before = states(model)
    found = []
    for layer in range(2):
        for head in range(2):
            with masked_head(model.backbone, layer, head):
                found.append(states(model))
    for one in found:
        assert not torch.allclose(one, before)
    assert not torch.allclose(found[0], found[1]) and not torch.allclose(found[0], found[2])


def test_only_one_of_the_layers_that_share_weights_is_masked() -> None:
    model = made("albert")
    assert len([part for part in model.backbone.modules() if isinstance(part, ShowsLogits)]) == 1
    with torch.no_grad():
        whole = model.backbone(packed(), keep="all").layers
        with masked_head(model.backbone, 1, 0):
            masked = model.backbone(packed(), keep="all").layers
    torch.testing.assert_close(masked[1], whole[1], rtol=0, atol=0)
    assert not torch.allclose(masked[2], whole[2])
