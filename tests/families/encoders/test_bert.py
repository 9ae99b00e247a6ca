"""BERT against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from tests.support.family_configs import BERT
from tests.support.parity import Ragged


@pytest.fixture
def reference(tmp_path: Path):  # type: ignore[no-untyped-def]
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(**BERT))
    for parameter in model.parameters():  # norms and biases too, so that no agreement is accidental
        torch.nn.init.normal_(parameter, std=0.2)
    model.eval().save_pretrained(tmp_path / "reference")
    return model


def test_hidden_states_logits_loss_and_gradients_match_transformers(reference, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model = load_model(tmp_path / "reference", parse_objective("mlm+nsp"))
    batch = Ragged.make(BERT["vocab_size"])  # type: ignore[arg-type]
    theirs = reference(**batch.inputs, output_hidden_states=True)
    ours = model.backbone(batch.packed, keep="all")
    assert len(ours.layers) == len(theirs.hidden_states)
    for layer, expected in zip(ours.layers, theirs.hidden_states, strict=True):
        torch.testing.assert_close(layer, batch.flat(expected), atol=1e-5, rtol=1e-5)

    heads = model.root.heads
    logits = heads["mlm"](ours.last, model.backbone.embed.tokens)
    torch.testing.assert_close(logits, batch.flat(theirs.prediction_logits), atol=1e-5, rtol=1e-5)
    pairs = heads["nsp"](ours.last[batch.packed.offsets[:-1].long()])
    torch.testing.assert_close(pairs, theirs.seq_relationship_logits, atol=1e-5, rtol=1e-5)

    target = torch.arange(len(logits)) % 60
    labels = torch.full_like(batch.input_ids, -100)
    labels[batch.attention_mask.bool()] = target
    order = torch.tensor([0, 1, 1, 0])
    expected = reference(**batch.inputs, labels=labels, next_sentence_label=order).loss
    loss = F.cross_entropy(logits, target) + F.cross_entropy(pairs, order)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)

    expected.backward()
    loss.backward()
    gradients = {name: p.grad for name, p in reference.named_parameters()}
    ours_in_their_names, rest = model.family.table.write({n: p.grad for n, p in model.root.named_parameters()})
    assert not rest
    for name, gradient in ours_in_their_names.items():
        torch.testing.assert_close(gradient, gradients[name], atol=1e-4, rtol=1e-4)


def test_export_loads_in_transformers_and_a_second_export_is_identical(reference, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from transformers import AutoModelForPreTraining, BertForMaskedLM, BertModel

    model = load_model(tmp_path / "reference", parse_objective("mlm+nsp"))
    model.save(tmp_path / "a")
    load_model(tmp_path / "a", parse_objective("mlm+nsp")).save(tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    batch = Ragged.make(60)
    again = AutoModelForPreTraining.from_pretrained(tmp_path / "a").eval()
    torch.testing.assert_close(
        again(**batch.inputs).prediction_logits, reference(**batch.inputs).prediction_logits, atol=1e-6, rtol=1e-6
    )
    for kind in (BertForMaskedLM, BertModel):
        _, report = kind.from_pretrained(tmp_path / "a", output_loading_info=True)
        assert not [name for name in report["missing_keys"] if "pooler" not in name]


def test_a_model_without_heads_and_with_old_tensor_names_loads(reference, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    reference.bert.save_pretrained(tmp_path / "bare")
    model = load_model(tmp_path / "bare")
    old = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
           for k, v in load_file(tmp_path / "bare" / "model.safetensors").items()}  # fmt: skip
    save_file(old, tmp_path / "bare" / "model.safetensors")
    again = load_model(tmp_path / "bare")
    for name, tensor in model.root.state_dict().items():
        assert torch.equal(tensor, again.root.state_dict()[name])


def test_classifier_round_trips_through_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    objective = parse_objective("classify", labels=("bad", "good", "so so"))
    family = FAMILIES["bert"]
    config = family.read_config(BERT)
    model = Model(family, config, Network(family.build(config)), objective="classify", labels=["bad", "good", "so so"])
    model.add_heads(objective.objectives)
    model.root.eval()
    model.save(tmp_path)
    reference = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    batch = Ragged.make(60)
    ours = model.root.heads["classify"](model.backbone(batch.packed).last, batch.packed)
    torch.testing.assert_close(ours, reference(**batch.inputs).logits, atol=1e-5, rtol=1e-5)
    assert reference.config.id2label == {0: "bad", 1: "good", 2: "so so"}
    reference.save_pretrained(tmp_path / "back")
    back = load_model(tmp_path / "back", objective)
    assert back.labels == ["bad", "good", "so so"]
    for name, tensor in model.root.state_dict().items():
        assert torch.equal(tensor, back.root.state_dict()[name])


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("bert-tiny", 4_385_920),
        ("bert-mini", 11_170_560),
        ("bert-small", 28_763_648),
        ("bert-base", 109_482_240),
        ("bert-large", 335_141_888),
    ],
)
def test_parameter_counts_of_presets_match_the_releases(name: str, count: int) -> None:
    """Counts of the released checkpoints (`BertModel`, pooler included)."""
    with torch.device("meta"):
        model = make_model(name)
        pooler = sum(p.numel() for p in model.backbone.pooler().parameters())
    assert sum(p.numel() for p in model.backbone.parameters()) + pooler == count


def damaged(folder: Path, change) -> None:  # type: ignore[no-untyped-def]
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_mismatched_checkpoints_are_refused_with_a_list(reference, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "reference"
    good = (folder / "model.safetensors").read_bytes()
    damaged(folder, lambda t: t.pop("bert.encoder.layer.1.attention.self.key.bias"))
    with pytest.raises(PretuneError, match=r"missing: bert\.encoder\.layer\.1\.attention\.self\.key\.bias; pass"):
        load_model(folder)
    load_model(folder, ignore_mismatched=True)

    (folder / "model.safetensors").write_bytes(good)
    damaged(folder, lambda t: t.update({"bert.adapter.weight": torch.zeros(2)}))
    with pytest.raises(PretuneError, match=r"unknown tensors for bert: bert\.adapter\.weight"):
        load_model(folder)

    (folder / "model.safetensors").write_bytes(good)
    damaged(folder, lambda t: t.update({"bert.embeddings.LayerNorm.weight": torch.zeros(31)}))
    with pytest.raises(PretuneError, match=r"wrong shape: bert\.embeddings\.LayerNorm\.weight is \(31,\), not \(32,\)"):
        load_model(folder)

    (folder / "model.safetensors").write_bytes(good[:-100])
    with pytest.raises(PretuneError, match=r"model\.safetensors: the file is damaged or truncated"):
        load_model(folder)

    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "bertt"}))
    with pytest.raises(PretuneError, match=r"unknown model family 'bertt'; did you mean .bert.\?"):
        load_model(folder)
    unknown = (
        r"neither a model folder nor a known model name; known: .*, and the presets that `pretune show presets` lists"
    )
    with pytest.raises(PretuneError, match=unknown):
        load_model("nowhere")
    with pytest.raises(PretuneError, match="no/where: there is no such model folder"):
        load_model("no/where")
    with pytest.raises(PretuneError, match="preset without weights"):
        load_model("bert-tiny")
