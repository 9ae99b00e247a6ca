"""GPT-3's alternating dense and locally banded layers, compared with those of GPT-Neo in `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.inference.generation.decoding_session import DecodingSession
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.nn.attention.patterns import causal
from pretune.objectives import parse_objective
from pretune.packed import pack_lists
from tests.support.family_configs import GPT
from tests.support.parity import Ragged
from tests.support.tiny_models import random_model, save_random_model, small_tokenizer

WINDOW = 4
SMALL: dict[str, Any] = GPT | {"n_layer": 4, "window_size": WINDOW, "initializer_range": 0.2}


def make(seed: int = 0, **changes: Any) -> Model:
    family = FAMILIES["gpt3"]
    config = family.read_config(SMALL | changes)
    torch.manual_seed(seed)
    model = Model(family, config, Network(family.build(config)), objective="lm")
    model.add_heads(parse_objective("lm").objectives)
    model.root.eval()
    return model


@torch.no_grad()
def with_weights_of(model: Model) -> Any:
    """Return a GPT-Neo of `transformers` with the weights of a GPT-3 whose projections to q, k and v have no bias."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    layers, width = SMALL["n_layer"], SMALL["n_embd"]
    reference = GPTNeoForCausalLM(
        GPTNeoConfig(
            vocab_size=SMALL["vocab_size"], max_position_embeddings=SMALL["n_positions"], hidden_size=width,
            num_layers=layers, num_heads=SMALL["n_head"], attention_types=[[["global", "local"], layers // 2]],
            window_size=WINDOW, bos_token_id=None, eos_token_id=None,
        )
    ).eval()  # fmt: skip
    state, _ = model.family.table.write(model.root.state_dict())
    found = {}
    for name, tensor in state.items():
        if name.endswith("attn.c_attn.weight"):
            q, k, v = tensor.T.split(width)
            prefix = name.removesuffix("c_attn.weight") + "attention."
            scale = (width // SMALL["n_head"]) ** -0.5  # GPT-Neo does not scale its logits
            found |= {f"{prefix}q_proj.weight": q * scale, f"{prefix}k_proj.weight": k, f"{prefix}v_proj.weight": v}
        elif name.endswith("attn.c_attn.bias"):
            assert not tensor.any()
        elif ".c_" in name:
            renamed = name.replace("attn.c_proj", "attn.attention.out_proj")
            found[renamed] = tensor.T if name.endswith("weight") else tensor
        else:
            found[name] = tensor
    report = reference.load_state_dict(found, strict=False)
    assert not report.unexpected_keys and {*report.missing_keys} <= {"lm_head.weight"}
    return reference


@pytest.mark.not_fast
@torch.no_grad()
def test_hidden_states_and_logits_match_gpt_neo_with_the_same_weights() -> None:
    model, batch = make(), Ragged.make(60)
    assert batch.input_ids.shape[1] > 2 * WINDOW  # bands leave tokens out
    theirs = with_weights_of(model)(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=True
    )
    ours = model.backbone(batch.packed, keep="all")
    for layer, expected in zip(ours.layers, theirs.hidden_states, strict=True):
        torch.testing.assert_close(layer, batch.flat(expected), atol=1e-5, rtol=1e-5)
    logits = model.root.heads["lm"](ours.last, model.backbone.embed.tokens)
    torch.testing.assert_close(logits, batch.flat(theirs.logits), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("layers", "reach"), [(1, 12), (2, 12), (0, WINDOW)])
@torch.no_grad()
def test_a_token_is_read_as_far_ahead_as_the_layers_allow(layers: int, reach: int) -> None:
    """Change the first token and count the outputs that change: dense layers pass it on, a banded layer alone does not."""
    model = make(n_layer=max(layers, 2))
    stack = model.backbone.layers
    model.backbone.layers = stack[:layers] if layers else stack[1:2]
    model.backbone.order = range(len(model.backbone.layers))
    first, second = (model.backbone(pack_lists([[token, *range(20, 31)]])).last for token in (5, 6))
    assert [*(first != second).any(1)] == [True] * reach + [False] * (12 - reach)


@torch.no_grad()
def test_cached_logits_equal_uncached_logits_past_the_band() -> None:
    model = random_model("gpt3", small_tokenizer("byte-level-bpe"), "lm", n_layer=4, window_size=WINDOW)
    texts = [[5, 9, 20], [17] * 9, [50, 4, 30, 31, 32, 40], [8]]
    session = DecodingSession(model, len(texts), 30)
    pieces = texts
    for step in range(2 * WINDOW + 3):
        logits = session.read(pieces)
        packed = pack_lists(texts, pattern=causal)
        last = model.backbone(packed).last[packed.offsets[1:].long() - 1]
        expected = model.root.heads["lm"](last, model.backbone.embed.tokens)
        torch.testing.assert_close(logits, expected[:, : logits.shape[1]], atol=1e-5, rtol=1e-5)
        pieces = [[(step * 31 + row * 7) % 200] for row in range(len(texts))]
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]


@torch.no_grad()
def test_a_saved_model_loads_in_pretune_and_is_refused_by_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, packed = make(), Ragged.make(60).packed
    model.save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["model_type"] == "gpt3" and config["window_size"] == WINDOW
    again = load_model(tmp_path / "model", parse_objective("lm"))
    again.root.eval()
    assert torch.equal(again.backbone(packed).last, model.backbone(packed).last)
    with pytest.raises(ValueError, match="gpt3"):  # it would compute dense attention in all layers
        AutoModelForCausalLM.from_pretrained(tmp_path / "model")


def test_an_export_for_transformers_is_refused(tmp_path: Path) -> None:
    run = save_random_model(tmp_path / "run", "gpt3", "lm", window_size=WINDOW)
    with pytest.raises(PretuneError, match="gpt3"):
        pt.export(run, out=tmp_path / "out")


def test_a_dense_model_of_the_same_size_is_a_gpt2(tmp_path: Path) -> None:
    (tmp_path / "dense.yaml").write_text("like: gpt3-125m\nfamily: gpt2\nconfig: {n_layer: 2, n_embd: 24, n_head: 2}\n")
    dense, banded = make_model(str(tmp_path / "dense.yaml")), make_model("gpt3-tiny")
    reaches = [[layer.attention.part.pattern.reach for layer in model.backbone.layers] for model in (dense, banded)]
    assert dense.family.in_transformers and reaches == [[(-1, 0), (-1, 0)], [(-1, 0), (31, 0)]]


def test_the_band_must_be_positive() -> None:
    with pytest.raises(PretuneError, match="window_size is 0; it must be from 1"):
        make(window_size=0)
