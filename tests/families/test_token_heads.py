"""Heads for tags and answers: what we export the peer reads with the same logits, and what it writes we read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pretune.families import ENCODERS, FAMILIES
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.loading import load, load_model
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from tests.families.test_export_from_text import SMALL
from tests.support.parity import Ragged, assert_same, close

LABELS = ["O", "B-X", "I-X"]


def build(name: str, *objectives: str, labels: list[str] = LABELS) -> Model:
    family = FAMILIES[name]
    config = family.read_config(SMALL[name][1])
    model = Model(family, config, Network(family.build(config)), objective="|".join(objectives), labels=labels)
    model.add_heads(parse_objective("|".join(objectives), labels=tuple(labels)).objectives)
    torch.manual_seed(0)
    for parameter in model.root.parameters():  # norms and biases too, so that nothing agrees by chance
        torch.nn.init.normal_(parameter, std=0.2)
    model.root.eval().requires_grad_(False)
    return model


def batch_for(model: Model) -> Ragged:
    columns: dict[str, Any] = {} if not model.family.template.segments else {"segment": ("token_type_ids", 2)}
    padding = getattr(model.config, "pad_token_id", 0) or 0
    return Ragged.make(model.config.vocab_size, columns=columns, padding=padding, left=model.family.name == "xlnet")


# Heads of `transformers` that need no texts; Longformer's and BigBird's for answers look for the end of a question: see
# test_task_heads.py.
QUESTIONS = ("longformer", "big_bird")
SAME_HEADS = [
    (name, objective)
    for objective in ("tag", "answer")
    for name in SMALL
    if frozenset({objective}) in FAMILIES[name].classes and not (name in QUESTIONS and objective == "answer")
]


def test_all_encoders_are_here() -> None:
    assert {family.name for family in ENCODERS if family.in_transformers} == set(SMALL)


@pytest.mark.parametrize(("name", "objective"), SAME_HEADS)
def test_logits_are_the_peers_both_ways(name: str, objective: str, tmp_path: Path) -> None:
    from transformers import AutoModelForQuestionAnswering, AutoModelForTokenClassification

    auto = AutoModelForTokenClassification if objective == "tag" else AutoModelForQuestionAnswering
    model = build(name, objective, labels=LABELS if objective == "tag" else [])
    model.save(tmp_path / "ours")
    assert not (tmp_path / "ours" / "head.safetensors").exists()
    peer, report = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not {key for key in report["missing_keys"] if ".pooler." not in key}  # BigBird has one that tags never see
    assert not report["unexpected_keys"]
    batch = batch_for(model)
    ours = model.root.heads[objective](model.backbone(batch.packed).last)
    with torch.no_grad():
        out = peer.eval()(**batch.inputs)
    theirs = out.logits if objective == "tag" else torch.stack([out.start_logits, out.end_logits], -1)
    close(ours, batch.flat(theirs))

    peer.config.pretune = {}  # as one that we never saw
    peer.save_pretrained(tmp_path / "theirs")
    mixture = stored_objectives(tmp_path / "theirs")
    assert mixture is not None and [part.name for part in mixture.objectives] == [objective]
    back = load(tmp_path / "theirs")
    assert back.labels == model.labels and not back.untrained
    assert_same(model.root, back.root)


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_what_one_head_says_is_no_others(name: str, tmp_path: Path) -> None:
    """Two tasks have one published name; as many labels too."""
    classes = ["a", "b", "c"]
    build(name, "classify", labels=classes).save(tmp_path / "classifier")
    model = load_model(tmp_path / "classifier", parse_objective("tag", labels=tuple(LABELS)))
    assert {n for n in model.untrained if ".output." in n} == {"heads.tag.output.weight", "heads.tag.output.bias"}
    if name == "modernbert":  # what leads to it is shared
        assert len(model.untrained) == 2
    again = load_model(tmp_path / "classifier", parse_objective("classify", labels=tuple(classes)))
    assert not again.untrained


@pytest.mark.parametrize("objectives", [("tag", "classify"), ("classify", "tag"), ("mlm", "tag"), ("tag", "mlm")])
def test_several_heads_live_in_one_folder(objectives: tuple[str, ...], tmp_path: Path) -> None:
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


def test_a_pretrained_transform_is_where_tags_and_answers_start(tmp_path: Path) -> None:
    model = build("modernbert", "mlm", labels=[])
    model.save(tmp_path)
    started = load_model(tmp_path, parse_objective("answer"))
    assert started.untrained == ["heads.answer.output.weight", "heads.answer.output.bias"]
    dense = "transform.dense.weight"
    assert torch.equal(
        started.root.get_parameter(f"heads.answer.{dense}"), model.root.get_parameter(f"heads.mlm.{dense}")
    )
