"""From text to probabilities: `transformers` reads exports with its own tokenizer, template and segments."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.families import FAMILIES
from pretune.inference.embed import embed_texts
from pretune.inference.predict import Predictor, predict_texts
from pretune.models.loading import load
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.examples.question_answering import Questions
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind, train_on_documents
from tests.support.family_configs import ENCODER_CONFIGS
from tests.support.parity import assert_same, close
from tests.support.texts import english_documents


@cache
def tokenizer(kind: Kind) -> Tokenizer:
    return train_on_documents([Document(text, Path("x"), 1) for text in english_documents()[:3]], kind, 400)


@pytest.mark.parametrize("name", ENCODER_CONFIGS)
def test_classifier_predictions_for_texts_and_pairs_match_transformers(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    kind, small = ENCODER_CONFIGS[name]
    family, labels = FAMILIES[name], ["bad", "good"]
    words = tokenizer(kind)
    sizes = {"vocab_size": words.size, "max_position_embeddings": 90, "pad_token_id": words.role("padding")}
    config = family.read_config(small | sizes | {"initializer_range": 0.2})
    model = Model(family, config, Network(family.build(config)), words, "classify", labels)
    pooling = family.poolings.get("", "cls")
    model.add_heads(parse_objective("classify", labels=tuple(labels), pooling=pooling).objectives)
    model.save(tmp_path)
    reference = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    dress = AutoTokenizer.from_pretrained(tmp_path)
    texts, pairs = (
        ["An assignment is a statement", "and that"],
        ["An expression is not", "or this one, which is longer"],
    )
    for second in (None, pairs):
        with torch.no_grad():
            theirs = reference(**dress(texts, second, padding=True, return_tensors="pt")).logits.softmax(-1)
        ours = [[row["probabilities"][label] for label in labels] for row in predict_texts(tmp_path, texts, second)]
        torch.testing.assert_close(torch.tensor(ours), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in ENCODER_CONFIGS if frozenset({"choose"}) in FAMILIES[name].classes])
def test_multiple_choice_round_trips_through_transformers(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMultipleChoice, AutoTokenizer

    kind, small = ENCODER_CONFIGS[name]
    family, words = FAMILIES[name], tokenizer(kind)
    sizes = {"vocab_size": words.size, "max_position_embeddings": 90, "pad_token_id": words.role("padding")}
    config = family.read_config(small | sizes | {"initializer_range": 0.2})
    model = Model(family, config, Network(family.build(config)), words, "choose")
    model.add_heads(parse_objective("choose", pooling=family.poolings.get("", "cls")).objectives)
    model.save(tmp_path / "ours")
    reference, report = AutoModelForMultipleChoice.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    dress = AutoTokenizer.from_pretrained(tmp_path / "ours")
    text, choices = "An assignment is a statement", ["An expression is not", "or this one, which is longer", "and"]
    given = dress([text] * 3, choices, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = reference.eval()(**{key: value[None] for key, value in given.items()}).logits.softmax(-1)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"premise": text, "choices": choices}))
    (ours,) = pt.predict(tmp_path / "ours", tmp_path / "rows.jsonl")
    torch.testing.assert_close(
        torch.tensor([[candidate["probability"] for candidate in ours["candidates"]]]), theirs, atol=1e-5, rtol=1e-5
    )
    reference.save_pretrained(tmp_path / "theirs")
    plain = json.loads((tmp_path / "theirs/config.json").read_text())
    (tmp_path / "theirs/config.json").write_text(json.dumps(plain | {"pretune": {}}))
    back = load(tmp_path / "theirs")
    assert list(back.root.heads) == ["choose"]
    assert_same(model.root, back.root)


@pytest.mark.not_fast
@pytest.mark.parametrize("name", ["roberta", "longformer"])  # with and without global attention of the question
def test_question_answering_logits_match_transformers(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    kind, small = ENCODER_CONFIGS[name]
    family, words = FAMILIES[name], tokenizer(kind)
    sizes = {"vocab_size": words.size, "max_position_embeddings": 90, "pad_token_id": words.role("padding")}
    special = {"sep_token_id": words.role("separator"), "bos_token_id": words.role("start")}
    config = family.read_config(small | sizes | special | {"initializer_range": 0.2})
    model = Model(family, config, Network(family.build(config)), words, "answer")
    (task,) = parse_objective("answer").objectives
    model.add_heads([task])
    model.save(tmp_path)
    reference = AutoModelForQuestionAnswering.from_pretrained(tmp_path).eval()
    dress = AutoTokenizer.from_pretrained(tmp_path)
    question, passage = "What is an assignment?", "An assignment is a statement, an expression is not one."
    with torch.no_grad():
        out = reference(**dress([question], [passage], return_tensors="pt"))
    theirs = torch.stack([out.start_logits, out.end_logits], -1)[0]
    questions = Questions(Path("x"), {}, [question], [passage])
    (ours,) = Predictor(model, task, questions).outputs(torch.device("cpu"))  # type: ignore[arg-type]
    torch.testing.assert_close(torch.tensor(ours), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ENCODER_CONFIGS)
def test_sentence_vectors_match_sentence_transformers(name: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    kind, small = ENCODER_CONFIGS[name]
    family, words = FAMILIES[name], tokenizer(kind)
    sizes = {"vocab_size": words.size, "max_position_embeddings": 90, "pad_token_id": words.role("padding")}
    config = family.read_config(small | sizes | {"initializer_range": 0.2})
    Model(family, config, Network(family.build(config)), words).save(tmp_path / "model")
    facts = pt.export(
        tmp_path / "model", format="sentence-transformers", pooling="last+mean", max_length=16, out=tmp_path / "out"
    ).facts
    texts = ["An assignment is a statement", "and that", "or this one, which is longer " * 4]
    reference = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    theirs = reference.encode(texts, convert_to_tensor=True)
    assert theirs.shape == (3, facts["dimension"]) and reference.max_seq_length == 16
    close(torch.from_numpy(embed_texts(tmp_path / "out", texts)), theirs)
