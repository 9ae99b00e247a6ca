"""ModernBERT against `transformers`: sliding windows, rotary positions, biases, heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.inference.predict import load_task_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.nn.attention.patterns import causal
from pretune.nn.dropout import share_dropout_seed
from pretune.objectives import parse_objective
from tests.support.family_configs import MODERNBERT, MODERNBERT_IDS
from tests.support.parity import Ragged

FULL, SLIDING = "full_attention", "sliding_attention"
FAMILY = FAMILIES["modernbert"]
VARIANTS: dict[str, dict[str, Any]] = {
    "alternating": {},
    "full": {"layer_types": [FULL] * 4},
    "sliding first": {
        "layer_types": [SLIDING, FULL, SLIDING, SLIDING],
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 30.0},
            SLIDING: {"rope_type": "default", "rope_theta": 5.0},
        },
    },
    "other biases": {
        "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True, "decoder_bias": False,
        "hidden_activation": "silu", "classifier_activation": "relu", "norm_eps": 1e-3,
    },
}  # fmt: skip


def make_reference(folder: Path, **changes: Any) -> Any:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    torch.manual_seed(0)
    model = ModernBertForMaskedLM(ModernBertConfig(**(MODERNBERT | MODERNBERT_IDS | changes)))
    for parameter in model.parameters():  # norms and biases too, so that no agreement is accidental
        torch.nn.init.normal_(parameter, std=0.2)
    model.eval().save_pretrained(folder)
    return model


def inputs(batch: Ragged) -> dict[str, Any]:
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_loss_and_gradients_match_transformers(variant: str, tmp_path: Path) -> None:
    reference = make_reference(tmp_path / "reference", **VARIANTS[variant])
    model = load_model(tmp_path / "reference", parse_objective("mlm"))
    batch = Ragged.make(60)
    theirs = reference(**inputs(batch), output_hidden_states=True)
    ours = model.backbone(batch.packed, keep="all")
    assert len(ours.layers) == len(theirs.hidden_states)
    for layer, expected in zip(ours.layers, theirs.hidden_states, strict=True):  # the last is after the final norm
        close(layer, batch.flat(expected))
    logits = model.root.heads["mlm"](ours.last, model.backbone.embed.tokens)
    close(logits, batch.flat(theirs.logits))

    target = torch.arange(len(logits)) % 60
    labels = torch.full_like(batch.input_ids, -100)
    labels[batch.attention_mask.bool()] = target
    expected = reference(**inputs(batch), labels=labels).loss
    loss = F.cross_entropy(logits, target)
    close(loss, expected)

    expected.backward()
    loss.backward()
    gradients = {name: p.grad for name, p in reference.named_parameters()}
    ours_in_their_names, rest = FAMILY.table.write({n: p.grad for n, p in model.root.named_parameters()})
    assert not rest
    assert ours_in_their_names.keys() == gradients.keys()
    for name, gradient in ours_in_their_names.items():
        close(gradient, gradients[name], 1e-4)


def test_the_sliding_window_combines_with_the_pattern_of_the_batch(tmp_path: Path) -> None:
    make_reference(tmp_path)
    model = load_model(tmp_path)
    packed = Ragged.make(60).packed
    wide = FAMILY.build(replace(model.config, layer_types=[FULL] * 4))
    wide.load_state_dict(model.backbone.state_dict())
    assert (model.backbone(packed).last - wide(packed).last).abs().max() > 0.1

    changed = replace(packed, ids=packed.ids.clone())
    changed.ids[18] = 5 + changed.ids[18] % 5  # the last of the second sequence
    before, after = (model.backbone(replace(p, pattern=causal)).last for p in (packed, changed))
    assert torch.equal(before[:18], after[:18])
    assert not torch.equal(before[18], after[18])


@pytest.mark.parametrize("variant", VARIANTS)
def test_export_loads_in_transformers_and_a_second_export_is_identical(variant: str, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoModelForMaskedLM

    reference = make_reference(tmp_path / "reference", **VARIANTS[variant])
    load_model(tmp_path / "reference", parse_objective("mlm")).save(tmp_path / "a")
    load_model(tmp_path / "a", parse_objective("mlm")).save(tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    again, report = AutoModelForMaskedLM.from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    batch = Ragged.make(60)
    close(again.eval()(**inputs(batch)).logits, reference(**inputs(batch)).logits, 1e-6)
    _, report = AutoModel.from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not report["missing_keys"]


def test_a_custom_model_loads_in_transformers_with_its_layer_types(tmp_path: Path) -> None:
    """The preset has older keys only, and without a tokenizer no special token is known."""
    from transformers import AutoModelForMaskedLM

    config = FAMILY.read_config(MODERNBERT | {"global_attn_every_n_layers": 2})
    model = Model(FAMILY, config, Network(FAMILY.build(config)))
    model.add_heads(parse_objective("mlm").objectives)
    model.save(tmp_path)
    reference, report = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert reference.config.layer_types == config.kinds() == [FULL, SLIDING, FULL, SLIDING]
    assert {kind: reference.config.rope_parameters[kind]["rope_theta"] for kind in (FULL, SLIDING)} == {
        FULL: 60.0,
        SLIDING: 7.0,
    }
    assert reference.config.pad_token_id is None
    batch = Ragged.make(60)
    ours = model.root.eval().heads["mlm"](model.backbone(batch.packed).last, model.backbone.embed.tokens)
    close(ours, batch.flat(reference.eval()(**inputs(batch)).logits))


def test_older_and_newer_config_keys_are_equivalent() -> None:
    from transformers import ModernBertConfig

    older = {"num_hidden_layers": 5, "global_attn_every_n_layers": 4, "global_rope_theta": 9.0, "local_rope_theta": 8.0}
    newer = ModernBertConfig(**older).to_dict()
    first = FAMILY.read_config(older)
    second = FAMILY.read_config(
        {key: value for key, value in newer.items() if key not in older} | {"num_hidden_layers": 5}
    )
    assert first.kinds() == second.kinds() == [FULL, SLIDING, SLIDING, SLIDING, FULL]
    assert (
        [first.theta(kind) for kind in (FULL, SLIDING)]
        == [second.theta(kind) for kind in (FULL, SLIDING)]
        == [9.0, 8.0]
    )
    assert FAMILY.read_config(older | {"rope_parameters": {FULL: {"rope_theta": 3.0}}}).theta(SLIDING) == 8.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": [FULL] * 3}, "layer_types has 3 entries, but num_hidden_layers is 4"),
        ({"layer_types": [FULL] * 3 + ["chunked_attention"]}, "unknown layer_types chunked_attention"),
        ({"rope_parameters": {FULL: {"rope_type": "yarn", "rope_theta": 9.0}}}, "rope_type 'yarn' are not supported"),
    ],
)
def test_unsupported_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        FAMILY.build(FAMILY.read_config(MODERNBERT | changes))


def test_a_model_without_heads_loads(tmp_path: Path) -> None:
    make_reference(tmp_path / "reference").model.save_pretrained(tmp_path / "bare")
    whole, bare = load_model(tmp_path / "reference"), load_model(tmp_path / "bare")
    for name, tensor in whole.root.state_dict().items():
        assert torch.equal(tensor, bare.root.state_dict()[name])


@pytest.mark.parametrize(("theirs", "ours"), [("cls", "cls"), ("mean", "mean")])
def test_classifier_round_trips_through_transformers(theirs: str, ours: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    labels = ["bad", "good", "so so"]
    objective = parse_objective(f"classify(pooling={ours})", labels=tuple(labels))
    config = FAMILY.read_config(MODERNBERT)  # the pooling of the objective is written, whatever the configuration was
    model = Model(FAMILY, config, Network(FAMILY.build(config)), objective="classify", labels=labels)
    model.add_heads(objective.objectives)
    model.root.eval()
    model.save(tmp_path)
    reference, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    batch = Ragged.make(60)
    logits = model.root.heads["classify"](model.backbone(batch.packed).last, batch.packed)
    close(logits, reference.eval()(**inputs(batch)).logits)
    assert reference.config.id2label == dict(enumerate(labels))
    reference.save_pretrained(tmp_path / "back")
    back = load_model(tmp_path / "back", objective)
    assert back.labels == labels
    assert back.config.classifier_pooling == theirs
    assert load_task_model(tmp_path / "back")[0].root.heads["classify"].pooling == ours
    for name, tensor in model.root.state_dict().items():
        assert torch.equal(tensor, back.root.state_dict()[name])


def test_two_heads_with_the_same_published_name_are_both_kept(tmp_path: Path) -> None:
    config = FAMILY.read_config(MODERNBERT)
    objective = parse_objective("mlm+classify", labels=("bad", "good"))
    model = Model(FAMILY, config, Network(FAMILY.build(config)), objective="mlm+classify", labels=["bad", "good"])
    model.add_heads(objective.objectives[:1], seed=1)
    model.add_heads(objective.objectives[1:], seed=2)
    model.save(tmp_path)
    back = load_model(tmp_path, objective).root.state_dict()
    for name, tensor in model.root.state_dict().items():
        assert torch.equal(tensor, back[name]), name


def test_zero_initialized_layers_are_the_identity_and_learn() -> None:
    model = FAMILY.build(FAMILY.read_config(MODERNBERT | {"zero_outputs": True}))
    states = model(Ragged.make(60).packed, keep="all")
    assert torch.equal(states.layers[0], states.layers[3])
    (states.last * torch.randn_like(states.last)).sum().backward()
    for layer in model.layers:
        for part in layer.children():
            assert part.part.output.weight.grad.abs().max() > 0


@pytest.mark.parametrize("place", ["embedding_dropout", "attention_dropout", "mlp_dropout"])
def test_each_dropout_is_inactive_in_evaluation(place: str) -> None:
    model = FAMILY.build(FAMILY.read_config(MODERNBERT | {place: 0.5}))
    share_dropout_seed(model, torch.device("cpu")).fill_(3)
    packed = Ragged.make(60).packed
    trained, evaluated = model(packed).last, model.eval()(packed).last
    assert not torch.equal(trained, evaluated)
    assert torch.equal(evaluated, model(packed).last)


def test_parameter_count_of_the_published_base_matches_transformers() -> None:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    with torch.device("meta"):
        config = FAMILY.config()
        ours = Network(FAMILY.build(config))
        ours.heads["mlm"] = ours.backbone.vocabulary_head()
        theirs = ModernBertForMaskedLM(ModernBertConfig())
    count = sum(p.numel() for p in theirs.parameters())
    assert sum(p.numel() for p in ours.parameters()) == count == 149_655_232


def test_half_precision_weights_are_loaded_in_full_precision(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    make_reference(tmp_path / "reference")
    model = load_model(tmp_path / "reference", parse_objective("mlm"))
    model.save(tmp_path / "half", kind=torch.bfloat16)
    assert (tmp_path / "half" / "model.safetensors").stat().st_size < 0.6 * (
        tmp_path / "reference" / "model.safetensors"
    ).stat().st_size
    half = load_model(tmp_path / "half", parse_objective("mlm"))
    assert all(tensor.dtype == torch.float32 for tensor in half.root.state_dict().values())
    reference = AutoModelForMaskedLM.from_pretrained(tmp_path / "half").eval()
    batch = Ragged.make(60)
    logits = half.root.heads["mlm"](half.backbone(batch.packed).last, half.backbone.embed.tokens)
    close(logits, batch.flat(reference(**inputs(batch)).logits))


def test_the_bundled_model_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pretune.models import bundled
    from pretune.models.name_resolution import find_folder

    make_reference(tmp_path / "reference")
    monkeypatch.setattr(bundled, "HERE", tmp_path)
    assert find_folder("reference") == tmp_path / "reference"
    with pytest.raises(PretuneError, match="neither a model folder nor a known model name; did you mean 'reference'"):
        find_folder("referense")
