"""Parameter counts of presets match the released checkpoints, and their recipes are valid."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch

from pretune.models.create_model import make_model
from pretune.models.presets import find_preset, preset_names
from pretune.objectives import parse_objective
from pretune.training.jobs.pretraining_model import check_stages
from pretune.training.jobs.pretraining_settings import resolve_pretraining

# preset → the `transformers` class of the released checkpoint, its parts beside the backbone, and its number of parameters,
# with tied or shared ones counted once.
RELEASED = {
    "albert-base-v1": ("AlbertModel", "pooler", 11_683_584),
    "albert-base-v2": ("AlbertModel", "pooler", 11_683_584),
    "albert-large-v1": ("AlbertModel", "pooler", 17_683_968),
    "albert-large-v2": ("AlbertModel", "pooler", 17_683_968),
    "albert-xlarge-v1": ("AlbertModel", "pooler", 58_724_864),
    "albert-xlarge-v2": ("AlbertModel", "pooler", 58_724_864),
    "albert-xxlarge-v1": ("AlbertModel", "pooler", 222_595_584),
    "albert-xxlarge-v2": ("AlbertModel", "pooler", 222_595_584),
    "bert-base": ("BertModel", "pooler", 109_482_240),
    "bert-base-cased": ("BertModel", "pooler", 108_310_272),
    "bert-base-multilingual-cased": ("BertModel", "pooler", 177_853_440),
    "bert-large": ("BertModel", "pooler", 335_141_888),
    "bert-large-cased": ("BertModel", "pooler", 333_579_264),
    "bigbird-roberta-base": ("BigBirdModel", "pooler", 127_468_800),
    "bigbird-roberta-large": ("BigBirdModel", "pooler", 359_123_968),
    "camembert-base": ("CamembertForMaskedLM", "mlm", 110_655_493),
    "camembert-large": ("CamembertForMaskedLM", "mlm", 336_695_557),
    "deberta-base": ("DebertaForMaskedLM", "mlm", 139_244_121),
    "deberta-large": ("DebertaForMaskedLM", "mlm", 406_264_921),
    "deberta-v2-xlarge": ("DebertaV2ForMaskedLM", "mlm", 887_085_156),
    "deberta-v2-xxlarge": ("DebertaV2ForMaskedLM", "mlm", 1_567_041_636),
    "deberta-v3-base": ("DebertaV2Model", "", 183_831_552),
    "deberta-v3-large": ("DebertaV2Model", "", 434_012_160),
    "deberta-v3-small": ("DebertaV2Model", "", 141_304_320),
    "deberta-v3-xsmall": ("DebertaV2Model", "", 70_682_112),
    "deberta-xlarge": ("DebertaForMaskedLM", "mlm", 758_905_945),
    "distilbert-base": ("DistilBertForMaskedLM", "mlm", 66_985_530),
    "distilbert-base-cased": ("DistilBertForMaskedLM", "mlm", 65_812_036),
    "distilbert-base-multilingual-cased": ("DistilBertForMaskedLM", "mlm", 135_445_755),
    "electra-base": ("ElectraModel", "", 108_891_648),
    "electra-base-generator": ("ElectraForMaskedLM", "mlm", 33_740_602),
    "electra-large": ("ElectraModel", "", 334_092_288),
    "electra-large-generator": ("ElectraForMaskedLM", "mlm", 51_295_290),
    "electra-small": ("ElectraModel", "", 13_483_008),
    "electra-small-generator": ("ElectraForMaskedLM", "mlm", 13_546_682),
    "ernie-1.0-base": ("ErnieModel", "pooler", 99_866_112),
    "longformer-base-4096": ("LongformerForMaskedLM", "mlm", 148_711_257),
    "longformer-large-4096": ("LongformerForMaskedLM", "mlm", 434_653_273),
    "mdeberta-v3-base": ("DebertaV2Model", "", 278_218_752),
    "modernbert-base": ("ModernBertForMaskedLM", "mlm", 149_655_232),
    "modernbert-large": ("ModernBertForMaskedLM", "mlm", 395_881_664),
    "mpnet-base": ("MPNetForMaskedLM", "mlm", 109_518_527),
    "roberta-base": ("RobertaForMaskedLM", "mlm", 124_697_433),
    "roberta-large": ("RobertaForMaskedLM", "mlm", 355_412_057),
    "spanbert-base": ("BertModel", "pooler", 108_310_272),
    "spanbert-large": ("BertModel", "pooler", 333_579_264),
    "xlnet-base-cased": ("XLNetLMHeadModel", "mlm", 116_750_336),
    "xlnet-large-cased": ("XLNetLMHeadModel", "mlm", 360_300_800),
    "xlm-mlm-100-1280": ("XLMWithLMHeadModel", "mlm", 571_696_960),
    "xlm-mlm-en-2048": ("XLMWithLMHeadModel", "mlm", 667_119_041),
    "xlm-mlm-tlm-xnli15-1024": ("XLMWithLMHeadModel", "mlm", 249_071_384),
    "xlm-roberta-base": ("XLMRobertaForMaskedLM", "mlm", 278_295_186),
    "xlm-roberta-large": ("XLMRobertaForMaskedLM", "mlm", 560_142_482),
}


def count(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", RELEASED)
def test_parameter_counts_match_the_releases(name: str) -> None:
    import transformers

    kind, head, expected = RELEASED[name]
    with torch.device("meta"):
        model = make_model(name)
        config = transformers.AutoConfig.for_model(model.family.name, **asdict(model.config))
        theirs = getattr(transformers, kind)(config)
        extra = {"": 0, "pooler": count(model.backbone.pooler()), "mlm": count(model.backbone.vocabulary_head())}[head]
    assert count(model.backbone) + extra == count(theirs) == expected


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_complete(name: str) -> None:
    preset = find_preset(name)
    assert preset["source"]
    parse_objective(preset["objective"])
    plan = resolve_pretraining(name, ["texts"], "run", {}, 0, None)
    with torch.device("meta"):
        model = make_model(name, vocabulary=256, padding=0)
    assert model.backbone.embed.vocabulary == 256
    assert check_stages(plan.batch.length_schedule or ((1.0, plan.batch.max_length or 0),), model)


# preset → numbers that the lectures print (docs/lectures.md), by recipe key
PRINTED: dict[str, dict[str, Any]] = {
    "bert-base": {
        "batch.tokens": 1024 * 128, "batch.length_schedule": [[0.9, 128], [1.0, 512]], "budget.steps": 1_000_000,
        "schedule.warmup_ratio": 10_000 / 1_000_000, "schedule.kind": "linear", "optimizer.lr": 1e-4,
    },
    "roberta-base": {
        "batch.tokens": 8192 * 512, "batch.max_length": 512, "budget.steps": 500_000, "tokenizer.vocab_size": 50_265,
    },
    "gpt2-xl": {
        "batch.tokens": 512 * 1024, "config.n_positions": 1024, "config.n_layer": 48, "config.n_embd": 1600,
        "config.vocab_size": 50_257,
    },
    "gpt3-175b": {
        "config.n_layer": 96, "config.n_head": 96, "config.n_embd": 12_288, "config.n_positions": 2048,
    },
    "elmo-original": {"config.hidden_size": 4096, "config.projection_size": 512, "config.num_hidden_layers": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_recipes_have_the_numbers_that_the_lectures_print(name: str) -> None:
    preset, expected = find_preset(name), PRINTED[name]
    assert {key: preset[(parts := key.split("."))[0]][parts[1]] for key in expected} == expected


@pytest.mark.parametrize("name", preset_names())
def test_source_and_departures_are_strings(name: str) -> None:
    """A colon in an unquoted YAML string would turn a sentence into a mapping."""
    preset = find_preset(name)
    departures = preset.get("departures", [])
    lines = [preset.get("source", ""), *(departures if isinstance(departures, list) else [departures])]
    assert all(isinstance(line, str) for line in lines)
