"""Labels of published classifiers, untrained heads, and folders without a model type."""

from __future__ import annotations

import json
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
from pretune.models.loading import load, load_model
from pretune.models.name_resolution import find_folder
from pretune.models.presets import is_preset
from pretune.models.weight_files import PICKLE_FILE, WEIGHTS_FILE
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents
from tests.support.cli import run_command
from tests.support.family_configs import BERT
from tests.support.parity import assert_same
from tests.support.texts import english_documents
from tests.support.transformers_cases import CASES, TINY, edit_config, quick

TEXTS = ["An assignment is a statement", "and that"]


def save(folder: Path, kind: str, **sizes: Any) -> Any:
    """Save a BERT of `transformers` with a tokenizer."""
    import transformers

    words = train_on_documents([Document(text, Path("x"), 1) for text in english_documents()[:2]], "wordpiece", 300)
    torch.manual_seed(0)
    reference = getattr(transformers, kind)(
        transformers.BertConfig(**{**BERT, "vocab_size": words.size, **sizes})
    ).eval()
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    reference.save_pretrained(folder)
    words.save(folder)
    return reference


def logits(reference: Any, folder: Path) -> torch.Tensor:
    from transformers import AutoTokenizer

    with torch.no_grad():
        return reference(**AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("keys", "labels"),
    [
        ({"num_labels": 50, "id2label": None}, [f"LABEL_{i}" for i in range(50)]),
        ({"id2label": None}, [f"LABEL_{i}" for i in range(50)]),  # one per output of the head
        ({"num_labels": 50, "id2label": {str(i): f"c{i}" for i in range(50)}}, [f"c{i}" for i in range(50)]),
    ],
)
@pytest.mark.parametrize("pickled", [False, True])
def test_every_class_of_a_classifier_is_loaded(
    keys: dict[str, Any], labels: list[str], pickled: bool, tmp_path: Path
) -> None:
    reference = save(tmp_path, "BertForSequenceClassification", num_labels=50)
    expected = logits(reference, tmp_path).softmax(-1)
    edit_config(tmp_path, label2id=None, **keys)
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
def test_contradictory_numbers_of_classes_are_refused(
    kind: str, keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    save(tmp_path, kind, num_labels=5)
    edit_config(tmp_path, label2id=None, **keys)
    with pytest.raises(PretuneError, match=words):
        load(tmp_path)
    with pytest.raises(PretuneError, match=words):
        pt.predict(tmp_path, TEXTS)


def test_a_missing_number_of_classes_is_read_from_the_head(tmp_path: Path) -> None:
    import transformers

    transformers.BartForSequenceClassification(transformers.BartConfig(**TINY["bart"][0])).save_pretrained(tmp_path)
    assert load(tmp_path).labels == ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.parametrize(
    ("problem", "count", "words"),
    [
        ("regression", 3, "the problem_type 'regression' supports only one output, but there are 3"),
        ("ranking", 2, "unknown problem_type 'ranking'; known: multi_label_classification, "),
    ],
)
def test_unknown_problem_types_are_refused(problem: str, count: int, words: str, tmp_path: Path) -> None:
    save(tmp_path, "BertForSequenceClassification", num_labels=count)
    edit_config(tmp_path, problem_type=problem)
    with pytest.raises(PretuneError, match=words):
        stored_objectives(tmp_path)


def test_other_labels_make_a_new_head(tmp_path: Path) -> None:
    save(tmp_path, "BertForSequenceClassification", num_labels=5)
    model = load_model(tmp_path, parse_objective("classify", labels=("a", "b", "c")))
    assert model.untrained == ["heads.classify.output.weight", "heads.classify.output.bias"]


# -- untrained heads ------------------------------------------------------------------------------------------------


@pytest.mark.not_fast
def test_an_untrained_classifier_refuses_to_predict(tmp_path: Path) -> None:
    """config.json names a classifier, but the checkpoint is a language model."""
    save(tmp_path / "model", "BertForMaskedLM")
    edit_config(tmp_path / "model", architectures=["BertForSequenceClassification"])
    words = r"its head for classify is untrained \(bert\.pooler\.dense\.weight is missing from the checkpoint .*fine-tune it first"
    for ignore_mismatched in (False, True):
        with pytest.raises(PretuneError, match=words):
            pt.predict(tmp_path / "model", TEXTS, ignore_mismatched=ignore_mismatched)
    (tmp_path / "rows.csv").write_text("text,label\n" + "a,LABEL_0\nb,LABEL_1\n" * 4)
    with pytest.raises(PretuneError, match=words):
        pt.predict(tmp_path / "model", tmp_path / "rows.csv", score=True)
    with pytest.raises(PretuneError, match=words):
        pt.quantize(tmp_path / "model", out=tmp_path / "out")
    refused = run_command("predict", tmp_path / "model", *TEXTS, check=False)
    assert refused.returncode == 1 and "fine-tune it first" in refused.stderr.splitlines()[-1]
    # It can be fine-tuned, and embeddings need no head.
    few = pt.Budget(steps=1)
    assert pt.finetune(tmp_path / "model", tmp_path / "rows.csv", out=tmp_path / "run", budget=few, num_seeds=1)
    assert len(pt.embed(tmp_path / "model", TEXTS)) == 2


def without(folder: Path, *parts: str) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    save_file(
        {name: x for name, x in tensors.items() if not any(part in name for part in parts)}, folder / WEIGHTS_FILE
    )


def test_an_untrained_masked_language_model_refuses_to_fill(tmp_path: Path) -> None:
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


def test_an_untrained_language_model_refuses_to_generate(tmp_path: Path) -> None:
    CASES["gpt2"].reference(tmp_path / "gpt2", {"tie_word_embeddings": False})
    CASES["t5"].reference(tmp_path / "t5", {"tie_word_embeddings": False})
    edit_config(tmp_path / "t5", tie_word_embeddings=False)
    for name in ("gpt2", "t5"):
        without(tmp_path / name, "lm_head")
    words = r"its head for {} is untrained \(lm_head\.weight is missing from the checkpoint"
    with pytest.raises(PretuneError, match=words.format("lm")):
        pt.generate(tmp_path / "gpt2", ["a"])
    with pytest.raises(PretuneError, match=words.format("generate")):
        pt.generate(tmp_path / "t5", ["a"])
    with pytest.raises(PretuneError, match=words.format("spans")):
        pt.translate(tmp_path / "t5", ["a"])


# -- folders without a model type -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", quick(TINY))
@pytest.mark.parametrize("known", ["class", "tensors"])
def test_the_family_is_recognized_without_model_type(
    name: str, known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr("pretune.models.hf_config.log_info", logged.append)
    monkeypatch.setattr("pretune.models.loading.log_info", logged.append)
    case = CASES[name]
    case.reference(tmp_path, {})
    whole = load_model(tmp_path)
    edit_config(tmp_path, model_type=None, **({"architectures": None} if known == "tensors" else {}))
    if known == "class":
        model = load(tmp_path)
        assert model.family.name == name
        assert logged == [
            f"{tmp_path / 'config.json'}: there is no model_type; the model is read as {name}, because of its class {case.kind}"
        ]
        return
    model = load_model(tmp_path)
    alike = {"xlm-roberta": "roberta", "camembert": "roberta", "mt5": "t5"}  # the same layout and architecture
    assert model.family.name == alike.get(name, name)
    assert logged == [
        f"{tmp_path / 'config.json'}: there is no model_type; the model is read as {model.family.name}, because of the names of its tensors"
    ]
    assert_same(whole.root, model.root)


def test_an_ambiguous_family_is_refused(tmp_path: Path) -> None:
    import transformers

    transformers.BertModel(transformers.BertConfig(**BERT)).save_pretrained(tmp_path)  # tensor names have no prefix
    assert load_model(tmp_path).family.name == "bert"
    edit_config(tmp_path, model_type=None, architectures=None)
    with pytest.raises(
        PretuneError,
        match=r"there is no model_type, and the model could be .*bert, .*roberta.*; write the model_type into",
    ):
        load_model(tmp_path)
    tensors = {f"x.{name}": tensor for name, tensor in load_file(tmp_path / WEIGHTS_FILE).items()}
    save_file(tensors, tmp_path / WEIGHTS_FILE)
    with pytest.raises(
        PretuneError,
        match="there is no model_type, and the tensor names match no known model family; write the model_type into the file",
    ):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["gpt", "bert-tiny", "pretune-small-en"])
def test_a_folder_takes_precedence_over_a_preset_of_the_same_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr("pretune.models.hf_config.log_info", logged.append)
    monkeypatch.setattr("pretune.models.loading.log_info", logged.append)
    monkeypatch.chdir(tmp_path)
    save(tmp_path / name, "BertForMaskedLM")
    config = json.loads((tmp_path / name / "config.json").read_text())
    assert load_model(f"./{name}").config.vocab_size == config["vocab_size"] and not logged
    assert load_model(name).config.vocab_size == load_model(tmp_path / name).config.vocab_size == config["vocab_size"]
    assert logged == [f"{name}: this is a folder and a known model name; the model in the folder is used"]
    assert not is_preset(name) and not is_preset(f"./{name}")
    (tmp_path / "rows.csv").write_text("text,label\n" + "a,x\nb,y\n" * 4)
    run = pt.finetune(name, tmp_path / "rows.csv", out=tmp_path / "run", budget=pt.Budget(steps=1), num_seeds=1)
    assert load_model(run.folder).config.vocab_size == config["vocab_size"]
    (tmp_path / name / "config.json").unlink()
    with pytest.raises(PretuneError, match="there is no model in this folder"):
        find_folder(f"./{name}")


def test_parameters_in_a_pickle_are_read_as_tensors(tmp_path: Path) -> None:
    save(tmp_path, "BertForMaskedLM")
    whole = load(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS_FILE)
    (tmp_path / WEIGHTS_FILE).unlink()
    torch.save({name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}, tmp_path / PICKLE_FILE)
    again = load(tmp_path)
    assert_same(whole.root, again.root)
