"""Tests of zero-shot classification by entailment and by embeddings, with planted models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pretune as pt
from pretune.backbones.backbone import Backbone
from pretune.inference.ask import ClozeQuestion, load_cloze_predictor, load_zero_shot_predictor
from pretune.inference.zero_shot import entailment_label, fill_hypothesis
from pretune.objectives.tasks.classify import Classify
from pretune.packed import Batch
from pretune.text.examples.labeled import LabeledRows
from tests.support.tiny_models import read, save_random_model, tiny, tune

TOPICS = {"heat": ["fire", "red", "sun"], "cold": ["snow", "ice", "winter"]}
TEXTS = [f"{first} {topic} {second}" for topic, words in TOPICS.items() for first in words for second in words]
GOLD = [topic for topic, words in TOPICS.items() for _ in range(len(words) ** 2)]


def count_repeated(self: Classify, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
    """Return logits, (sequences, 2), that are higher for entailment the more tokens a sequence has twice."""
    packed = batch.packed[-1]
    assert packed.host_offsets is not None
    parts = np.split(packed.ids.cpu().numpy(), packed.host_offsets[1:-1])
    repeated = [len(part) - len(set(part.tolist())) for part in parts]
    at = list(self.labels).index("entailment")
    return torch.tensor([[float(count if place == at else 0) for place in range(2)] for count in repeated])


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder with a classifier of entailment, trained for one step."""
    folder = tmp_path_factory.mktemp("entailment")
    rows = [
        "text,pair,label",
        "fire,this text is about heat.,entailment",
        "ice,this text is about heat.,not_entailment",
    ]
    (folder / "train.csv").write_text("\n".join(rows), encoding="utf-8")
    model = tiny("bert-tiny", read([*TEXTS, *rows] * 3), folder / "start")
    tune(model, folder / "train.csv", folder / "run", "classify", steps=1)
    return folder / "run"


@pytest.fixture
def entailer(planted: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run folder whose model says entailment if the hypothesis repeats a word of the text."""
    monkeypatch.setattr(Classify, "outputs", count_repeated)
    return planted


def test_labels_of_entailment_are_recognized() -> None:
    assert entailment_label(["contradiction", "entailment", "neutral"]) == "entailment"
    assert entailment_label(["not_entailment", "ENTAILMENT"]) == "ENTAILMENT"
    assert entailment_label(["LABEL_0", "not_entailment"]) is None


def test_hypothesis_is_the_template_without_the_text() -> None:
    assert fill_hypothesis("{text} It is about [MASK].", "snow") == "It is about snow."
    assert fill_hypothesis("It is about [MASK].", "{text}") == "It is about {text}."
    with pytest.raises(pt.PretuneError, match=r"expected \[MASK\] once"):
        fill_hypothesis("It is about it.", "snow")


@pytest.mark.not_fast
def test_entailment_classifies_topics_without_their_labels(entailer: Path, tmp_path: Path) -> None:
    """The default hypothesis, answers with other labels, a file with labels, and calibration."""
    found = pt.ask(entailer, TEXTS, answers=["heat", "cold"])
    assert np.mean([row["label"] == gold for row, gold in zip(found, GOLD, strict=True)]) == 1.0
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1)
    named = pt.ask(entailer, ["fire heat"], answers=["h:heat", "c:cold"], template="{text} This text is about [MASK].")
    assert named[0]["label"] == "h"
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", "snow cold,cold", "red heat,heat"]))
    judged = pt.ask(entailer, tmp_path / "rows.csv", answers=["heat", "cold"], label="label", calibrate=True)
    assert judged.facts["accuracy"] == 1.0
    assert load_zero_shot_predictor(entailer, ["heat", "cold"], TEXTS)(["ice cold"])[0]["label"] == "cold"


@pytest.mark.not_fast
def test_entailment_refuses_examples_and_pairs(entailer: Path) -> None:
    shown = LabeledRows(Path("x"), {}, ["ice"], labels=["cold"])
    with pytest.raises(pt.PretuneError, match="an entailment classifier uses no examples; ask without examples"):
        load_cloze_predictor(entailer, ClozeQuestion(labels=["heat", "cold"], shown=shown))
    answer = load_cloze_predictor(entailer, ClozeQuestion(labels=["heat", "cold"]))
    with pytest.raises(pt.PretuneError, match="answers about one text, not about pairs"):
        answer(LabeledRows(Path("x"), {}, ["ice"], ["snow"]))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder without any head: equal texts have equal embeddings, which is all that is planted."""
    folder = tmp_path_factory.mktemp("encoder")
    return tiny("bert-tiny", read([*TEXTS, *TOPICS, "n / a"] * 3), folder / "model")


def test_an_encoder_without_heads_compares_embeddings(encoder: Path) -> None:
    found = pt.ask(encoder, ["snow ice", "fire"], answers=["fire", "snow ice"])
    assert [row["label"] for row in found] == ["snow ice", "fire"]
    assert all(sum(row["probabilities"].values()) == pytest.approx(1) for row in found)


def test_an_encoder_compares_with_examples(encoder: Path) -> None:
    """The names of the labels say nothing; each text is one of the examples."""
    examples = [{"text": "fire red", "label": "a"}, {"text": "ice", "label": "b"}]
    found = pt.ask(encoder, ["ice", "fire red"], answers=["a", "b"], examples=examples)
    assert [row["label"] for row in found] == ["b", "a"]


def test_a_masked_language_model_compares_with_examples(tmp_path: Path) -> None:
    masked = tiny("bert-tiny", read([*TEXTS, *TOPICS] * 3), tmp_path / "mlm", "mlm")
    examples = [{"text": "fire red", "label": "heat"}, {"text": "ice", "label": "cold"}]
    found = pt.ask(masked, ["ice", "fire red"], answers=["heat", "cold"], examples=examples)
    assert [row["label"] for row in found] == ["cold", "heat"]
    with pytest.raises(pt.PretuneError, match="examples are used without a template"):
        pt.ask(masked, ["ice"], answers=["heat", "cold"], examples=examples, template="It was [MASK].")


def test_zero_shot_takes_names_of_several_tokens(tmp_path: Path) -> None:
    """A masked language model cannot fill one [MASK] with several tokens, so that embeddings are compared."""
    masked = tiny("bert-tiny", read([*TEXTS, *TOPICS] * 3), tmp_path / "mlm", "mlm")
    found = load_zero_shot_predictor(masked, ["fire red", "snow ice"], TEXTS)(["snow ice", "fire red"])
    assert [answer["label"] for answer in found] == ["snow ice", "fire red"]
    with pytest.raises(pt.PretuneError, match="choose a word that is a single token"):
        pt.ask(masked, ["snow"], answers=["fire red", "snow ice"])


@pytest.mark.parametrize(
    ("family", "objective"), [("bert", "nsp"), ("gpt2", "lm"), ("bilstm", "bilm"), ("t5", "generate")]
)
def test_zero_shot_works_with_every_kind_of_model(family: str, objective: str, tmp_path: Path) -> None:
    model = save_random_model(tmp_path / family, family, objective)
    answers = load_zero_shot_predictor(model, ["a word", "another"], ["one", "two words"])(["one", "two words"])
    assert all(sum(answer["probabilities"].values()) == pytest.approx(1) for answer in answers)


def test_zero_shot_is_calibrated_over_the_usual_texts(encoder: Path) -> None:
    """The mean probability of every label over the usual texts becomes about equal."""
    answers = load_zero_shot_predictor(encoder, ["heat", "cold"], TEXTS)(TEXTS)
    means = np.mean([[answer["probabilities"][label] for label in ("heat", "cold")] for answer in answers], 0)
    assert means == pytest.approx([0.5, 0.5], abs=0.02)
