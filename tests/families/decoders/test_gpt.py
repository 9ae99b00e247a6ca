"""GPT and GPT-2 against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.inference.predict import load_task_model
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.models.presets import find_preset, preset_names
from pretune.objectives import parse_objective
from tests.support.family_configs import GPT
from tests.support.parity import Ragged

NAMES = ["openai-gpt", "gpt2"]
QUIET = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai-gpt": ("openai-gpt", {}),
    "openai-gpt relu": ("openai-gpt", {"afn": "relu", "layer_norm_epsilon": 1e-3}),
    "gpt2": ("gpt2", {}),
    "gpt2 inner": ("gpt2", {"n_inner": 48, "activation_function": "relu", "layer_norm_epsilon": 1e-3}),
}


def make_reference(name: str, folder: Path, kind: str = "AutoModelForCausalLM", **changes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(name, **(GPT | QUIET | ids | changes))
    model = getattr(transformers, kind).from_config(config)
    for parameter in model.parameters():  # norms and biases too, so that no agreement is accidental
        torch.nn.init.normal_(parameter, std=0.2)
    model.eval().save_pretrained(folder)
    return model


def make_ours(name: str, objective: str = "lm", labels: tuple[str, ...] = ()) -> Model:
    family = FAMILIES[name]
    config = family.read_config(GPT | QUIET)
    model = Model(family, config, Network(family.build(config)), objective=objective, labels=list(labels))
    model.add_heads(parse_objective(objective, labels=labels, pooling="last").objectives)
    model.root.eval()
    return model


def inputs(batch: Ragged) -> dict[str, Any]:
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def next_tokens(batch: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices of the tokens that have a next token, (m,), and those next tokens."""
    last = torch.zeros(len(batch.packed), dtype=torch.bool)
    last[batch.packed.offsets[1:].long() - 1] = True
    at = (~last).nonzero().flatten()
    return at, batch.packed.ids[at + 1]


@pytest.mark.not_fast
@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_loss_and_gradients_match_transformers(variant: str, tmp_path: Path) -> None:
    name, changes = VARIANTS[variant]
    reference = make_reference(name, tmp_path, **changes)
    model = load_model(tmp_path, parse_objective("lm"))
    batch = Ragged.make(60)
    theirs = reference(**inputs(batch), output_hidden_states=True)
    ours = model.backbone(batch.packed, keep="all")
    assert len(ours.layers) == len(theirs.hidden_states)
    for layer, expected in zip(ours.layers, theirs.hidden_states, strict=True):
        close(layer, batch.flat(expected))
    logits = model.root.heads["lm"](ours.last, model.backbone.embed.tokens)
    close(logits, batch.flat(theirs.logits))

    at, target = next_tokens(batch)
    loss = F.cross_entropy(logits[at], target)
    labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
    expected = reference(**inputs(batch), labels=labels).loss
    close(loss, expected)
    expected.backward()
    loss.backward()
    gradients = {name: p.grad for name, p in reference.named_parameters()}
    ours_in_their_names, rest = model.family.table.write({n: p.grad for n, p in model.root.named_parameters()})
    assert not rest
    assert ours_in_their_names.keys() == gradients.keys()
    for name, gradient in ours_in_their_names.items():
        close(gradient, gradients[name], 1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_export_loads_in_transformers_and_a_second_export_is_identical(variant: str, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoModelForCausalLM

    name, changes = VARIANTS[variant]
    reference = make_reference(name, tmp_path / "reference", **changes)
    load_model(tmp_path / "reference", parse_objective("lm")).save(tmp_path / "a")
    load_model(tmp_path / "a", parse_objective("lm")).save(tmp_path / "b")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert type(again) is type(reference)
    batch = Ragged.make(60)
    close(again.eval()(**inputs(batch)).logits, reference(**inputs(batch)).logits, 1e-6)
    _, report = AutoModel.from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not report["missing_keys"]


@pytest.mark.parametrize("name", NAMES)
def test_a_custom_model_has_no_special_ids_of_the_published_vocabulary(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = make_ours(name)
    model.save(tmp_path)
    reference, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert reference.config.eos_token_id is None and reference.config.bos_token_id is None
    batch = Ragged.make(60)
    ours = model.root.heads["lm"](model.backbone(batch.packed).last, model.backbone.embed.tokens)
    close(ours, batch.flat(reference.eval()(**inputs(batch)).logits))


@pytest.mark.parametrize("name", NAMES)
def test_models_without_heads_and_with_old_buffers_load(name: str, tmp_path: Path) -> None:
    reference = make_reference(name, tmp_path / "whole")
    reference.transformer.save_pretrained(tmp_path / "bare")
    whole, bare = load_model(tmp_path / "whole"), load_model(tmp_path / "bare")
    for folder in ("whole", "bare"):
        tensors = load_file(tmp_path / folder / "model.safetensors")
        prefix = "transformer." if folder == "whole" else ""
        for layer in range(3):
            tensors[f"{prefix}h.{layer}.attn.bias"] = torch.ones(1, 1, 40, 40).tril()
        tensors["lm_head.weight"] = torch.zeros(60, 32)
        save_file(tensors, tmp_path / folder / "model.safetensors")
    again = load_model(tmp_path / "bare"), load_model(tmp_path / "whole")
    for key, tensor in whole.root.state_dict().items():
        assert all(torch.equal(tensor, other.root.state_dict()[key]) for other in (bare, *again))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("objective", ["classify", "classify+0.5*lm"])
def test_a_classifier_pools_the_last_token_and_round_trips_through_transformers(
    name: str, objective: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    labels = ("bad", "good", "so so")
    model = make_ours(name, objective, labels)
    model.save(tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    (tmp_path / "ours" / "config.json").write_text(json.dumps(config | {"pad_token_id": 0}))
    reference, report = AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert config["architectures"] == [type(reference).__name__] and "classifier_pooling" not in config
    batch = Ragged.make(60)
    head = model.root.heads["classify"]
    close(head(model.backbone(batch.packed).last, batch.packed), reference.eval()(**inputs(batch)).logits)
    assert reference.config.id2label == dict(enumerate(labels))
    reference.save_pretrained(tmp_path / "back")
    back = load_task_model(tmp_path / "back")[0]
    assert back.labels == list(labels) and back.root.heads["classify"].pooling == "last"
    for key, tensor in model.root.state_dict().items():
        assert torch.equal(tensor, back.root.state_dict()[key])


def test_a_classifier_with_another_pooling_is_not_exported_as_a_transformers_class(tmp_path: Path) -> None:
    model = make_ours("gpt2", "classify", ("a", "b"))
    model.root.heads["classify"].pooling = "mean"
    model.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["GPT2Model"]


@pytest.mark.not_fast
def test_parameter_counts_of_presets_match_the_releases() -> None:
    """Counts of the released checkpoints; GPT-3 was never released, and gpt2-mini is a preset of pretune only."""
    from transformers import AutoConfig, AutoModelForCausalLM

    released = {
        "gpt": 116_534_784,
        "gpt2-mini": 16_156_416,
        "gpt2-small": 124_439_808,
        "gpt2-medium": 354_823_168,
        "gpt2-large": 774_030_080,
        "gpt2-xl": 1_557_611_200,
        "gpt3-125m": 125_226_240,
        "gpt3-350m": 355_871_744,
        "gpt3-760m": 760_300_032,
        "gpt3-1.3b": 1_315_723_264,
        "gpt3-2.7b": 2_651_553_280,
        "gpt3-6.7b": 6_658_404_352,
        "gpt3-13b": 12_853_386_240,
        "gpt3-175b": 174_604_259_328,
    }
    assert set(released) == {name for name in preset_names() if name.startswith("gpt") and not name.endswith("-tiny")}
    for name, count in released.items():
        preset = find_preset(name)
        with torch.device("meta"):
            ours = make_model(name).backbone
            # GPT-3 is not in `transformers`; its parameters are those of GPT-2.
            name_there = preset["family"].replace("gpt3", "gpt2")
            theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(name_there, **preset["config"]))
        assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters()) == count, name


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights false is not supported"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx true is not supported"),
        ("openai-gpt", {"afn": "mish"}, 'afn "mish" is not supported'),
    ],
)
def test_unsupported_configurations_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        FAMILIES[name].build(FAMILIES[name].read_config(GPT | changes))


def test_residual_projections_of_gpt2_are_initialized_smaller() -> None:
    torch.manual_seed(0)
    family = FAMILIES["gpt2"]
    layer = family.build(family.read_config(GPT | {"n_layer": 8})).layers[0]
    inner, output = layer.feed_forward.part.inner.weight, layer.feed_forward.part.output.weight
    assert float((output.std() / inner.std()).detach()) == pytest.approx(0.25, rel=0.05)
