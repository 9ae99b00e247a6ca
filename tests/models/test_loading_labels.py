"""Labels of published classifiers, heads that nobody trained, and folders that do not say what they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import pretune as pt
from pretune import PretuneError
from pretune.inference.likelihood import LikelihoodScorer
from pretune.inference.predict import predict_texts
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.loading import load_model
from pretune.models.name_resolution import find_folder
from pretune.models.presets import is_preset
from pretune.models.weight_files import PICKLE_FILE, WEIGHTS_FILE
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents
from tests.families.encoders.test_bert import SMALL
from tests.families.test_config_keys import CASES, TINY, change, quick
from tests.support.parity import assert_same
from tests.support.texts import english_documents

TEXTS = ["An assignment is a statement", "and that"]


def save(folder: Path, kind: str, **sizes: Any) -> Any:
    """A BERT of `transformers` with a tokenizer."""
    import transformers

    words = train_on_documents([Document(text, Path("x"), 1) for text in english_documents()[:2]], "wordpiece", 300)
    torch.manual_seed(0)
    peer = getattr(transformers, kind)(transformers.BertConfig(**{**SMALL, "vocab_size": words.size, **sizes})).eval()
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    peer.save_pretrained(folder)
    words.save(folder)
    return peer


def logits(peer: Any, folder: Path) -> torch.Tensor:
    from transformers import AutoTokenizer

    with torch.no_grad():
        return peer(**AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("keys", "labels"),
    [
        ({"num_labels": 50, "id2label": None}, [f"LABEL_{i}" for i in range(50)]),
        ({"id2label": None}, [f"LABEL_{i}" for i in range(50)]),  # as many as the head has outputs
        ({"num_labels": 50, "id2label": {str(i): f"c{i}" for i in range(50)}}, [f"c{i}" for i in range(50)]),
    ],
)
@pytest.mark.parametrize("pickled", [False, True])
def test_a_classifier_has_all_its_classes(
    keys: dict[str, Any], labels: list[str], pickled: bool, tmp_path: Path
) -> None:
    peer = save(tmp_path, "BertForSequenceClassification", num_labels=50)
    expected = logits(peer, tmp_path).softmax(-1)
    change(tmp_path, label2id=None, **keys)
    if pickled:
        torch.save(load_file(tmp_path / WEIGHTS_FILE), tmp_path / PICKLE_FILE)
        (tmp_path / WEIGHTS_FILE).unlink()
    found = predict_texts(tmp_path, TEXTS)
    assert list(found[0]["probabilities"]) == labels
    ours = torch.tensor([list(row["probabilities"].values()) for row in found])
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "BertForTokenClassification"])
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_labels": 3}, r"config\.json: num_labels is 3, but id2label has 5 classes"),
        (
            {"num_labels": 3, "id2label": None},
            r"classifier\.weight is \(5, 32\), not \(3, 32\) for the 3 classes of config\.json",
        ),
        (
            {"id2label": {"0": "a", "1": "b"}},
            r"outputs: classifier\.weight is \(5, 32\), not \(2, 32\) for the 2 classes",
        ),
        (
            {"id2label": {"0": "a", "2": "b"}},
            r"the classes in id2label are \[0, 2\]; they must start at 0 without gaps",
        ),
        ({"id2label": ["a", "b"]}, "id2label must map class numbers to names"),
    ],
)
def test_numbers_of_classes_that_contradict_are_refused(
    kind: str, keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    save(tmp_path, kind, num_labels=5)
    change(tmp_path, label2id=None, **keys)
    with pytest.raises(PretuneError, match=words):
        pt.load(tmp_path)
    with pytest.raises(PretuneError, match=words):
        pt.predict(tmp_path, TEXTS)


def test_a_default_of_three_classes_is_read_from_the_head(tmp_path: Path) -> None:
    import transformers

    transformers.BartForSequenceClassification(transformers.BartConfig(**TINY["bart"][0])).save_pretrained(tmp_path)
    assert pt.load(tmp_path).labels == ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.parametrize(
    ("problem", "count", "words"),
    [
        ("regression", 3, "problem_type regression supports only one output, but there are 3"),
        ("ranking", 2, "unknown problem_type 'ranking'; known: single_label_classification, "),
    ],
)
def test_kinds_of_problems_that_are_not_there_are_refused(problem: str, count: int, words: str, tmp_path: Path) -> None:
    save(tmp_path, "BertForSequenceClassification", num_labels=count)
    change(tmp_path, problem_type=problem)
    with pytest.raises(PretuneError, match=words):
        stored_objectives(tmp_path)


def test_other_labels_are_a_new_head_and_the_old_one_no_contradiction(tmp_path: Path) -> None:
    save(tmp_path, "BertForSequenceClassification", num_labels=5)
    model = load_model(tmp_path, parse_objective("classify", labels=("a", "b", "c")))
    assert model.untrained == ["heads.classify.output.weight", "heads.classify.output.bias"]


# -- heads that nobody trained --------------------------------------------------------------------------------------


def test_no_text_is_classified_by_a_head_that_is_random(tmp_path: Path) -> None:
    """A language model that config.json calls a classifier."""
    save(tmp_path / "model", "BertForMaskedLM")
    change(tmp_path / "model", architectures=["BertForSequenceClassification"])
    words = r"its head for classify is untrained \(bert\.pooler\.dense\.weight is missing from the checkpoint .*fine-tune it first"
    for partial in (False, True):
        with pytest.raises(PretuneError, match=words):
            pt.predict(tmp_path / "model", TEXTS, partial=partial)
    (tmp_path / "rows.csv").write_text("text,label\n" + "a,LABEL_0\nb,LABEL_1\n" * 4)
    with pytest.raises(PretuneError, match=words):
        pt.predict(tmp_path / "model", tmp_path / "rows.csv", score=True)
    with pytest.raises(PretuneError, match=words):
        pt.quantize(tmp_path / "model", out=tmp_path / "out")
    command = [sys.executable, "-m", "pretune", "predict", str(tmp_path / "model"), *TEXTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "fine-tune it first" in done.stderr.splitlines()[-1]
    # To train it is what is left; vectors need no head.
    few = pt.Budget(steps=1)
    assert pt.finetune(tmp_path / "model", tmp_path / "rows.csv", out=tmp_path / "run", budget=few, seeds=1)
    assert len(pt.embed(tmp_path / "model", TEXTS)) == 2


def without(folder: Path, *parts: str) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    save_file(
        {name: x for name, x in tensors.items() if not any(part in name for part in parts)}, folder / WEIGHTS_FILE
    )


def test_no_gap_is_filled_by_a_head_that_is_random(tmp_path: Path) -> None:
    save(tmp_path, "BertForMaskedLM")
    assert pt.fill(tmp_path, ["a [MASK]"])
    without(tmp_path, "cls.predictions.transform.dense.weight")
    words = r"its head for mlm is untrained \(cls\.predictions\.transform\.dense\.weight is missing from the checkpoint"
    with pytest.raises(PretuneError, match=words):
        pt.fill(tmp_path, ["a [MASK]"])
    with pytest.raises(PretuneError, match=words):
        LikelihoodScorer.load(tmp_path)
    with pytest.raises(PretuneError, match=r"its head for prompt is untrained .* pretrain it with mlm first"):
        pt.ask(tmp_path, ["a text"], answers=["one", "two"])


def test_nothing_is_written_by_a_head_that_is_random(tmp_path: Path) -> None:
    CASES["gpt2"].peer(tmp_path / "gpt2", {"tie_word_embeddings": False})
    CASES["t5"].peer(tmp_path / "t5", {"tie_word_embeddings": False})
    change(tmp_path / "t5", tie_word_embeddings=False)
    for name in ("gpt2", "t5"):
        without(tmp_path / name, "lm_head")
    words = r"its head for {} is untrained \(lm_head\.weight is missing from the checkpoint"
    with pytest.raises(PretuneError, match=words.format("lm")):
        pt.generate(tmp_path / "gpt2", ["a"])
    with pytest.raises(PretuneError, match=words.format("generate")):
        pt.generate(tmp_path / "t5", ["a"])
    with pytest.raises(PretuneError, match=words.format("spans")):
        pt.translate(tmp_path / "t5", ["a"])


# -- folders that do not say what they are --------------------------------------------------------------------------


@pytest.mark.parametrize("name", quick(TINY))
@pytest.mark.parametrize("known", ["class", "tensors"])
def test_a_family_is_recognized(name: str, known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("pretune.models.hf_config.log_info", said.append)
    monkeypatch.setattr("pretune.models.loading.log_info", said.append)
    case = CASES[name]
    case.peer(tmp_path, {})
    whole = load_model(tmp_path)
    change(tmp_path, model_type=None, **({"architectures": None} if known == "tensors" else {}))
    if known == "class":
        model = pt.load(tmp_path)
        assert model.family.name == name
        assert said == [
            f"{tmp_path / 'config.json'}: there is no model_type; the model is read as {name}, because of its class {case.kind}"
        ]
        return
    model = load_model(tmp_path)
    alike = {"xlm-roberta": "roberta", "camembert": "roberta", "mt5": "t5"}  # one layout, one wiring
    assert model.family.name == alike.get(name, name)
    assert said == [
        f"{tmp_path / 'config.json'}: there is no model_type; the model is read as {model.family.name}, because of the names of its tensors"
    ]
    assert_same(whole.root, model.root)


def test_a_family_that_could_be_several_is_refused(tmp_path: Path) -> None:
    import transformers

    transformers.BertModel(transformers.BertConfig(**SMALL)).save_pretrained(tmp_path)  # names have no prefix
    assert load_model(tmp_path).family.name == "bert"
    change(tmp_path, model_type=None, architectures=None)
    with pytest.raises(
        PretuneError, match=r"no model_type, and it could be .*bert, .*roberta.*; write the model_type into"
    ):
        load_model(tmp_path)
    tensors = {f"x.{name}": tensor for name, tensor in load_file(tmp_path / WEIGHTS_FILE).items()}
    save_file(tensors, tmp_path / WEIGHTS_FILE)
    with pytest.raises(
        PretuneError, match="no model_type, and no family has such tensors; write the model_type into the file"
    ):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["gpt", "bert-tiny", "pretune-small-en"])
def test_a_folder_goes_before_a_preset_of_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("pretune.models.hf_config.log_info", said.append)
    monkeypatch.setattr("pretune.models.loading.log_info", said.append)
    monkeypatch.chdir(tmp_path)
    save(tmp_path / name, "BertForMaskedLM")
    config = json.loads((tmp_path / name / "config.json").read_text())
    assert load_model(f"./{name}").config.vocab_size == config["vocab_size"] and not said
    assert load_model(name).config.vocab_size == load_model(tmp_path / name).config.vocab_size == config["vocab_size"]
    assert said == [f"{name}: this is a folder and a known model name; the model in the folder is used"]
    assert not is_preset(name) and not is_preset(f"./{name}")
    (tmp_path / "rows.csv").write_text("text,label\n" + "a,x\nb,y\n" * 4)
    run = pt.finetune(name, tmp_path / "rows.csv", out=tmp_path / "run", budget=pt.Budget(steps=1), seeds=1)
    assert load_model(run.folder).config.vocab_size == config["vocab_size"]
    (tmp_path / name / "config.json").unlink()
    with pytest.raises(PretuneError, match="there is no model in this folder"):
        find_folder(f"./{name}")


def test_parameters_in_a_pickle_are_tensors(tmp_path: Path) -> None:
    save(tmp_path, "BertForMaskedLM")
    whole = pt.load(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS_FILE)
    (tmp_path / WEIGHTS_FILE).unlink()
    torch.save({name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}, tmp_path / PICKLE_FILE)
    again = pt.load(tmp_path)
    assert_same(whole.root, again.root)
