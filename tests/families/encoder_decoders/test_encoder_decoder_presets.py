"""Parameter counts of presets match the released checkpoints, and `transformers` models with the same configuration."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from pretune.families import FAMILIES
from pretune.families.parameter_names import SEQ2SEQ_OBJECTIVES
from pretune.models.create_model import make_model
from pretune.models.presets import find_preset, preset_names

COUNTS = {
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "t5-v1.1-large": 783_150_080,
    "t5-v1.1-xl": 2_849_757_184,
    "t5-v1.1-xxl": 11_135_332_352,
    "mt5-small": 300_176_768,
    "mt5-base": 582_401_280,
    "mt5-large": 1_229_581_312,
    "mt5-xl": 3_742_619_648,
    "mt5-xxl": 12_921_057_280,
    "bart-base": 139_420_416,
    "bart-large": 406_291_456,
    "mbart-large-cc25": 610_851_840,
    "mbart-large-50": 610_879_488,
    # Without the sinusoidal positions, which `transformers` stores as frozen parameters.
    "transformer-base": 63_082_496,
    "transformer-big": 214_245_376,
    "mass": 237_797_376,
}


@pytest.mark.not_fast
@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_of_presets_match_the_releases(name: str) -> None:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    with torch.device("meta"):
        model = make_model(name)
        ours = model.root
        ours.heads["spans"] = model.backbone.vocabulary_head()
        config = AutoConfig.for_model(model.family.name, **asdict(model.config))
        theirs = AutoModelForSeq2SeqLM.from_config(config)
    count = sum(p.numel() for p in ours.parameters())
    expected = sum(p.numel() for p in theirs.parameters() if p.requires_grad)
    if not getattr(model.config, "tie_word_embeddings", True):  # `transformers` ties them until a checkpoint is loaded
        assert theirs.lm_head.weight is theirs.shared.weight
        expected += theirs.lm_head.weight.numel()
    assert count == expected == COUNTS[name]


def test_every_encoder_decoder_preset_is_complete_and_has_a_parameter_count_here() -> None:
    presets = {name: find_preset(name) for name in preset_names()}
    # Counts of others are in test_recurrent_families.py and test_transformer_pre_norm.py.
    layers = {name: preset for name, preset in presets.items() if FAMILIES[preset["family"]].in_transformers}
    writing = {
        name for name, preset in layers.items() if preset["objective"].split("(")[0] in {*SEQ2SEQ_OBJECTIVES} - {"lm"}
    }
    assert {name for name in writing if not name.endswith("-tiny")} == set(COUNTS)
    for name in writing:
        assert {"source", "departures", "tokenizer", "batch", "optimizer", "schedule", "budget"} <= presets[name].keys()
        assert presets[name]["tokenizer"]["vocab_size"] <= presets[name]["config"]["vocab_size"]
