"""Properties of Performer, which `transformers` does not have; those of its attention are in tests/nn/attention/test_performer.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.nn.attention.patterns import causal, prefix
from pretune.objectives import parse_objective
from pretune.packed import Capacity, Packed, pack
from tests.support.parity import assert_same

SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 200, "num_random_features": 12, "hidden_dropout_prob": 0.0, "initializer_range": 0.2,
}  # fmt: skip
LENGTHS = (7, 130, 1, 65)


def make(objective: str = "mlm+nsp", seed: int = 0, **changes: Any) -> Model:
    family = FAMILIES["performer"]
    config = family.read_config(SMALL | changes)
    torch.manual_seed(seed)
    model = Model(family, config, Network(family.build(config)), objective=objective)
    model.add_heads(parse_objective(objective).objectives)
    model.root.eval()
    return model


def packed_of(lengths: tuple[int, ...] = LENGTHS, **options: Any) -> Packed:
    ids = np.random.default_rng(0).integers(5, 60, sum(lengths))
    return pack(ids, np.array(lengths), **options)


@pytest.mark.parametrize("pattern", [None, causal])
@torch.no_grad()
def test_packed_sequences_match_single_ones_and_padding_is_ignored(pattern: Any) -> None:
    model, packed = make(), packed_of(pattern=pattern)
    together = model.backbone(packed, keep="all").layers
    parts = packed.ids.split(LENGTHS)
    alone = [
        model.backbone(pack(ids.numpy(), np.array([len(ids)]), pattern=pattern), keep="all").layers for ids in parts
    ]
    filled = packed_of(pattern=pattern, capacity=Capacity(300, 12, 130), filler=9)
    more = model.backbone(filled, keep="all").layers
    for number, layer in enumerate(together):
        torch.testing.assert_close(layer, torch.cat([layers[number] for layers in alone]), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(layer, more[number][: len(layer)], atol=1e-5, rtol=1e-5)


@pytest.mark.not_fast
@torch.no_grad()
def test_with_many_random_features_it_approximates_bert() -> None:
    model = make(num_random_features=20_000, initializer_range=0.1)
    family = FAMILIES["bert"]
    softmax = family.build(family.read_config(SMALL)).eval()
    softmax.load_state_dict(model.backbone.state_dict(), strict=False)
    packed = packed_of((40, 9))
    near = (model.backbone(packed).last - softmax(packed).last).square().mean()
    few = make(initializer_range=0.1)
    softmax.load_state_dict(few.backbone.state_dict(), strict=False)
    assert near < 0.1 * (few.backbone(packed).last - softmax(packed).last).square().mean() < 0.1


def test_random_features_are_saved_and_loaded(tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path / "a")
    again = load_model(tmp_path / "a", parse_objective("mlm+nsp"), seed=5)
    assert_same(model.root, again.root)
    again.save(tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert not (tmp_path / "a" / "head.safetensors").exists()
    assert torch.equal(model.backbone(packed_of()).last, again.backbone(packed_of()).last)
    with pytest.raises(PretuneError, match="`transformers` has no model class for performer"):
        pt.export(tmp_path / "a", out=tmp_path / "out")


@pytest.mark.not_fast
def test_the_same_seed_draws_the_same_features() -> None:
    first, again, other = (make_model("performer-tiny", seed=seed).backbone.layers[0] for seed in (1, 1, 2))
    features = [layer.attention.part.attend.features for layer in (first, again, other)]
    assert torch.equal(features[0], features[1]) and not torch.equal(features[0], features[2])


def test_a_causal_objective_sees_no_later_tokens_and_other_patterns_are_refused() -> None:
    model, packed = make("lm"), packed_of((30,), pattern=causal)
    x = model.backbone.embed(packed).detach().requires_grad_()
    model.backbone.embed.forward = lambda _: x  # type: ignore[method-assign]
    model.backbone(packed).last[11, 0].backward()
    assert x.grad is not None
    assert x.grad.abs().sum(1).nonzero().flatten().tolist() == list(range(12))
    packed = packed_of((30,), pattern=prefix, columns={"prefix": np.ones(30, dtype=np.int64)})
    with pytest.raises(PretuneError, match="supports full and causal patterns, but not 'prefix'"):
        model.backbone(packed)


# preset → parameters of the backbone, computed from the shapes in the paper
COUNTED = {"performer-base": 36_217_856, "performer-protein": 76_242_944}


@pytest.mark.parametrize("name", COUNTED)
def test_parameter_counts_of_presets(name: str) -> None:
    with torch.device("meta"):
        backbone = make_model(name).backbone
    assert sum(p.numel() for p in backbone.parameters()) == COUNTED[name]
