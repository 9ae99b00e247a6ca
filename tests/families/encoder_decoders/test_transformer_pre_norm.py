"""The pre-norm Transformer, compared with mBART in `transformers` with the same weights and sinusoidal positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.nn.blocks import PreNorm
from pretune.nn.embedding.positional_encoding import SinusoidalPositions
from pretune.objectives import parse_objective
from pretune.packed import pack_lists

SMALL: dict[str, Any] = {
    "vocab_size": 60, "d_model": 16, "encoder_layers": 3, "encoder_attention_heads": 2, "encoder_ffn_dim": 24,
    "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 20, "max_position_embeddings": 30,
    "activation_function": "relu", "dropout": 0.0, "scale_embedding": True, "pad_token_id": 0, "eos_token_id": 3,
    "decoder_start_token_id": 0, "bos_token_id": None,
}  # fmt: skip
SOURCE, TARGET = [7, 9, 30, 8, 12, 3], [0, 20, 21, 22]


def make() -> Model:
    family = FAMILIES["transformer-pre-norm"]
    config = family.read_config(SMALL)
    torch.manual_seed(0)
    model = Model(family, config, Network(family.build(config)), objective="translate")
    model.add_heads(parse_objective("translate").objectives)
    for parameter in model.root.parameters():  # norms and biases too, so that no agreement is accidental
        torch.nn.init.normal_(parameter.detach(), std=0.3)
    model.root.eval()
    return model


@torch.no_grad()
def with_weights_of(model: Model) -> Any:
    """Return an mBART of `transformers` with the model's weights, sinusoidal positions, and no norm of embeddings."""
    from transformers import MBartConfig, MBartForConditionalGeneration

    reference = MBartForConditionalGeneration(MBartConfig(**SMALL, is_encoder_decoder=True)).eval()
    positions = SinusoidalPositions(SMALL["d_model"], halves=True)(torch.arange(SMALL["max_position_embeddings"]))
    for stack in (reference.model.encoder, reference.model.decoder):
        stack.layernorm_embedding = torch.nn.Identity()
        stack.embed_positions.weight[2:] = positions  # mBART's positions begin at 2
    state, rest = model.family.table.write(model.root.tensors())
    assert not rest
    report = reference.load_state_dict(state, strict=False)
    assert not report.unexpected_keys
    shared = ("embed_positions.weight", "embed_tokens.weight", "lm_head.weight", "final_logits_bias")
    assert all(name.endswith(shared) for name in report.missing_keys), report.missing_keys
    return reference


@pytest.mark.not_fast
@torch.no_grad()
def test_hidden_states_and_logits_match_mbart_with_the_same_weights() -> None:
    model = make()
    source, target = pack_lists([SOURCE]), pack_lists([TARGET])
    theirs = with_weights_of(model)(
        input_ids=torch.tensor([SOURCE]), decoder_input_ids=torch.tensor([TARGET]), output_hidden_states=True
    )
    encoded = model.backbone.encoder(source, keep="all").layers
    decoded = model.backbone(source, target, keep="all").layers
    for ours, hidden in ((encoded, theirs.encoder_hidden_states), (decoded, theirs.decoder_hidden_states)):
        for layer, expected in zip(ours, hidden, strict=True):
            torch.testing.assert_close(layer, expected[0], atol=1e-5, rtol=1e-5)
    logits = model.root.heads["translate"](decoded[-1], model.backbone.embed.tokens)
    torch.testing.assert_close(logits, theirs.logits[0], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_saved_model_loads_in_pretune_and_is_refused_by_transformers(tmp_path: Path) -> None:
    from transformers import AutoModel

    model, packs = make(), (pack_lists([SOURCE]), pack_lists([TARGET]))
    model.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "transformer-pre-norm"
    again = load_model(tmp_path, parse_objective("translate"))
    again.root.eval()
    assert torch.equal(again.backbone(*packs).last, model.backbone(*packs).last)
    with pytest.raises(ValueError, match="transformer-pre-norm"):  # its Marian would compute post-norm layers
        AutoModel.from_pretrained(tmp_path)


def test_the_preset_has_the_published_depth_and_only_pre_norm_layers() -> None:
    with torch.device("meta"):
        backbone = make_model("transformer-pre-norm").backbone
    assert (len(backbone.encoder.layers), len(backbone.layers)) == (30, 6)
    blocks = [block for layer in [*backbone.encoder.layers, *backbone.layers] for block in layer.children()]
    assert len(blocks) == 30 * 2 + 6 * 3 and all(isinstance(block, PreNorm) for block in blocks)
    width, inner, vocabulary = 512, 2048, 37_000
    attention, norm = 4 * width * (width + 1), 2 * width
    feed_forward = 2 * width * inner + inner + width
    encoder, decoder = (n * (attention + norm) + feed_forward + norm for n in (1, 2))
    expected = 30 * encoder + 6 * decoder + 2 * norm + vocabulary * width
    assert sum(p.numel() for p in backbone.parameters()) == expected
