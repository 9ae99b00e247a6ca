"""From text to probabilities: what we export, the peer reads with its own tokenizer, template and segments."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.families import FAMILIES
from pretune.inference.embed import embed_texts
from pretune.inference.predict import Predictor, predict_texts
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.examples.question_answering import Questions
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind, train_on_documents
from tests.families.encoders import (
    test_albert,
    test_bert,
    test_big_bird,
    test_deberta,
    test_distilbert,
    test_electra,
    test_ernie,
    test_longformer,
    test_modernbert,
    test_mpnet,
    test_roberta,
    test_xlm,
    test_xlnet,
)
from tests.support.parity import assert_same, close
from tests.support.texts import english_documents

SMALL: dict[str, tuple[Kind, dict[str, Any]]] = {
    "bert": ("wordpiece", test_bert.SMALL),
    "roberta": ("byte-level-bpe", test_roberta.SMALL),
    "xlm-roberta": ("sentencepiece-unigram", test_roberta.SMALL),
    "camembert": ("sentencepiece-unigram", test_roberta.SMALL),
    "mpnet": ("wordpiece", test_mpnet.SMALL),
    "distilbert": ("wordpiece", test_distilbert.SMALL),
    "electra": ("wordpiece", test_electra.SMALL),
    "albert": ("sentencepiece-unigram", test_albert.SMALL),
    "ernie": ("wordpiece", test_ernie.SMALL | test_ernie.TASKS),
    "xlm": ("bpe", test_xlm.SMALL),
    "xlnet": ("sentencepiece-unigram", test_xlnet.SMALL),
    "big_bird": ("sentencepiece-bpe", test_big_bird.SMALL | test_big_bird.FULL),
    "longformer": ("byte-level-bpe", test_longformer.SMALL),
    "deberta": ("byte-level-bpe", test_deberta.SMALLS["deberta"]),
    "deberta-v2": ("sentencepiece-unigram", test_deberta.SMALLS["deberta-v2"]),
    "modernbert": ("byte-level-bpe", test_modernbert.SMALL),
}


@cache
def tokenizer(kind: Kind) -> Tokenizer:
    return train_on_documents([Document(text, Path("x"), 1) for text in english_documents()[:3]], kind, 400)


@pytest.mark.parametrize("name", SMALL)
def test_a_classifier_gives_the_same_answers_to_texts_and_pairs(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    kind, small = SMALL[name]
    family, labels = FAMILIES[name], ["bad", "good"]
    words = tokenizer(kind)
    sizes = {"vocab_size": words.size, "max_position_embeddings": 90, "pad_token_id": words.role("padding")}
    config = family.read_config(small | sizes | {"initializer_range": 0.2})
    model = Model(family, config, Network(family.build(config)), words, "classify", labels)
    pooling = family.poolings.get("", "start")
    model.add_heads(parse_objective("classify", labels=tuple(labels), pooling=pooling).objectives)
    model.save(tmp_path)
    peer = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    dress = AutoTokenizer.from_pretrained(tmp_path)
    texts, pairs = (
        ["An assignment is a statement", "and that"],
        ["An expression is not", "or this one, which is longer"],
    )
    for second in (None, pairs):
        with torch.no_grad():
            theirs = peer(**dress(texts, second, padding=True, return_tensors="pt")).logits.softmax(-1)
        ours = [[row["probabilities"][label] for label in labels] for row in predict_texts(tmp_path, texts, second)]
        torch.testing.assert_close(torch.tensor(ours), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in SMALL if frozenset({"choose"}) in FAMILIES[name].classes])
def test_multiple_choice_goes_both_ways(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMultipleChoice, AutoTokenizer

    kind, small = SMALL[name]
    family, words = FAMILIES[name], tokenizer(kind)
    sizes = {"vocab_size": words.size, "max_position_embeddings": 90, "pad_token_id": words.role("padding")}
    config = family.read_config(small | sizes | {"initializer_range": 0.2})
    model = Model(family, config, Network(family.build(config)), words, "choose")
    model.add_heads(parse_objective("choose", pooling=family.poolings.get("", "start")).objectives)
    model.save(tmp_path / "ours")
    peer, report = AutoModelForMultipleChoice.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    dress = AutoTokenizer.from_pretrained(tmp_path / "ours")
    text, choices = "An assignment is a statement", ["An expression is not", "or this one, which is longer", "and"]
    given = dress([text] * 3, choices, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = peer.eval()(**{key: value[None] for key, value in given.items()}).logits.softmax(-1)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"premise": text, "choices": choices}))
    (ours,) = pt.predict(tmp_path / "ours", tmp_path / "rows.jsonl")
    torch.testing.assert_close(
        torch.tensor([[candidate["probability"] for candidate in ours["candidates"]]]), theirs, atol=1e-5, rtol=1e-5
    )
    peer.save_pretrained(tmp_path / "theirs")
    plain = json.loads((tmp_path / "theirs/config.json").read_text())
    (tmp_path / "theirs/config.json").write_text(json.dumps(plain | {"pretune": {}}))
    back = pt.load(tmp_path / "theirs")
    assert list(back.root.heads) == ["choose"]
    assert_same(model.root, back.root)


@pytest.mark.parametrize("name", ["roberta", "longformer"])  # with tokens of the question that see all, and without
def test_an_answerer_gives_the_same_logits_to_a_question(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    kind, small = SMALL[name]
    family, words = FAMILIES[name], tokenizer(kind)
    sizes = {"vocab_size": words.size, "max_position_embeddings": 90, "pad_token_id": words.role("padding")}
    special = {"sep_token_id": words.role("separator"), "bos_token_id": words.role("start")}
    config = family.read_config(small | sizes | special | {"initializer_range": 0.2})
    model = Model(family, config, Network(family.build(config)), words, "answer")
    (task,) = parse_objective("answer").objectives
    model.add_heads([task])
    model.save(tmp_path)
    peer = AutoModelForQuestionAnswering.from_pretrained(tmp_path).eval()
    dress = AutoTokenizer.from_pretrained(tmp_path)
    question, passage = "What is an assignment?", "An assignment is a statement, an expression is not one."
    with torch.no_grad():
        out = peer(**dress([question], [passage], return_tensors="pt"))
    theirs = torch.stack([out.start_logits, out.end_logits], -1)[0]
    asked = Questions(Path("x"), {}, [question], [passage])
    (ours,) = Predictor(model, task, asked).outputs(torch.device("cpu"))  # type: ignore[arg-type]
    torch.testing.assert_close(torch.tensor(ours), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_sentence_transformers_computes_the_same_vectors(name: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    kind, small = SMALL[name]
    family, words = FAMILIES[name], tokenizer(kind)
    sizes = {"vocab_size": words.size, "max_position_embeddings": 90, "pad_token_id": words.role("padding")}
    config = family.read_config(small | sizes | {"initializer_range": 0.2})
    Model(family, config, Network(family.build(config)), words).save(tmp_path / "model")
    facts = pt.export(
        tmp_path / "model", format="sentence-transformers", pooling="last+mean", max_length=16, out=tmp_path / "out"
    ).facts
    texts = ["An assignment is a statement", "and that", "or this one, which is longer " * 4]
    peer = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    theirs = peer.encode(texts, convert_to_tensor=True)
    assert theirs.shape == (3, facts["dimension"]) and peer.max_seq_length == 16
    close(torch.from_numpy(embed_texts(tmp_path / "out", texts)), theirs)
