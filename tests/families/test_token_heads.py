"""Tagging and question-answering heads: logits match `transformers` after import and after export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pretune.families import BUILT_IN, FAMILIES
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.loading import load, load_model
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from tests.support.family_configs import ENCODER_CONFIGS
from tests.support.parity import Ragged, assert_same, close

LABELS = ["O", "B-X", "I-X"]


def build(name: str, *objectives: str, labels: list[str] = LABELS) -> Model:
    family = FAMILIES[name]
    config = family.read_config(ENCODER_CONFIGS[name][1])
    model = Model(family, config, Network(family.build(config)), objective="|".join(objectives), labels=labels)
    model.add_heads(parse_objective("|".join(objectives), labels=tuple(labels)).objectives)
    torch.manual_seed(0)
    for parameter in model.root.parameters():  # norms and biases too, so that no agreement is accidental
        torch.nn.init.normal_(parameter, std=0.2)
    model.root.eval().requires_grad_(False)
    return model


def batch_for(model: Model) -> Ragged:
    columns: dict[str, Any] = {} if not model.family.template.segments else {"segment": ("token_type_ids", 2)}
    padding = getattr(model.config, "pad_token_id", 0) or 0
    return Ragged.make(model.config.vocab_size, columns=columns, padding=padding, left=model.family.name == "xlnet")


# Heads that can be compared without texts; those of Longformer and BigBird for question answering search for the end of the
# question: see test_task_heads.py.
QUESTIONS = ("longformer", "big_bird")
SAME_HEADS = [
    (name, objective)
    for objective in ("tag", "answer")
    for name in ENCODER_CONFIGS
    if frozenset({objective}) in FAMILIES[name].classes and not (name in QUESTIONS and objective == "answer")
]


def test_every_encoder_family_is_covered() -> None:
    # NEZHA was removed from `transformers` 5, and what Funnel pools there depends on the padding of the batch: both have
    # tests of their own in encoders/.
    left_out = {"funnel", "nezha"}
    encoders = [FAMILIES[name] for name, place in BUILT_IN.items() if place.startswith("encoders.")]
    assert {family.name for family in encoders if family.in_transformers} == {*ENCODER_CONFIGS, *left_out}


@pytest.mark.parametrize(("name", "objective"), SAME_HEADS)
def test_logits_match_transformers_after_import_and_after_export(name: str, objective: str, tmp_path: Path) -> None:
    from transformers import AutoModelForQuestionAnswering, AutoModelForTokenClassification

    auto = AutoModelForTokenClassification if objective == "tag" else AutoModelForQuestionAnswering
    model = build(name, objective, labels=LABELS if objective == "tag" else [])
    model.save(tmp_path / "ours")
    assert not (tmp_path / "ours" / "head.safetensors").exists()
    reference, report = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not {
        key for key in report["missing_keys"] if ".pooler." not in key
    }  # BigBird has a pooler that tagging does not use
    assert not report["unexpected_keys"]
    batch = batch_for(model)
    ours = model.root.heads[objective](model.backbone(batch.packed).last)
    with torch.no_grad():
        out = reference.eval()(**batch.inputs)
    theirs = out.logits if objective == "tag" else torch.stack([out.start_logits, out.end_logits], -1)
    close(ours, batch.flat(theirs))

    reference.config.pretune = {}  # as in an unknown checkpoint
    reference.save_pretrained(tmp_path / "theirs")
    mixture = stored_objectives(tmp_path / "theirs")
    assert mixture is not None and [part.name for part in mixture.objectives] == [objective]
    back = load(tmp_path / "theirs")
    assert back.labels == model.labels and not back.untrained
    assert_same(model.root, back.root)


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_heads_are_not_loaded_for_another_task(name: str, tmp_path: Path) -> None:
    """Two tasks share a published tensor name, and have the same number of labels."""
    classes = ["a", "b", "c"]
    build(name, "classify", labels=classes).save(tmp_path / "classifier")
    model = load_model(tmp_path / "classifier", parse_objective("tag", labels=tuple(LABELS)))
    assert {n for n in model.untrained if ".output." in n} == {"heads.tag.output.weight", "heads.tag.output.bias"}
    if name == "modernbert":  # the backbone is shared
        assert len(model.untrained) == 2
    again = load_model(tmp_path / "classifier", parse_objective("classify", labels=tuple(classes)))
    assert not again.untrained


@pytest.mark.parametrize("objectives", [("tag", "classify"), ("classify", "tag"), ("mlm", "tag"), ("tag", "mlm")])
def test_several_heads_are_saved_in_one_folder(objectives: tuple[str, ...], tmp_path: Path) -> None:
    from transformers import AutoConfig

    model = build("modernbert", *objectives)
    model.save(tmp_path)
    back = load_model(tmp_path, parse_objective("|".join(objectives), labels=tuple(LABELS)))
    assert not back.untrained
    assert_same(model.root, back.root)
    published = AutoConfig.from_pretrained(tmp_path).architectures[0]
    owner = {"ModernBertForTokenClassification": "tag", "ModernBertForSequenceClassification": "classify"}[published]
    from safetensors.torch import load_file

    weight = load_file(tmp_path / "model.safetensors")["classifier.weight"]
    assert torch.equal(weight, model.root.get_parameter(f"heads.{owner}.output.weight"))


def test_tag_and_answer_heads_start_from_the_pretrained_transform(tmp_path: Path) -> None:
    model = build("modernbert", "mlm", labels=[])
    model.save(tmp_path)
    started = load_model(tmp_path, parse_objective("answer"))
    assert started.untrained == ["heads.answer.output.weight", "heads.answer.output.bias"]
    dense = "transform.dense.weight"
    assert torch.equal(
        started.root.get_parameter(f"heads.answer.{dense}"), model.root.get_parameter(f"heads.mlm.{dense}")
    )
