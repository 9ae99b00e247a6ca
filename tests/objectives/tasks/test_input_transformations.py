"""Tests of GPT's input transformations: start, delimiter and extract tokens, and pairs of texts in both orders."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

import pretune as pt
from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.inference.predict import Predictor
from pretune.models.adapt_vocabulary import add_special_token
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import Data, parse_objective
from pretune.objectives.tasks.choose import Choose
from pretune.objectives.tasks.classify import Classify
from pretune.objectives.tasks.regress import Regress
from pretune.packed import pack
from pretune.text.examples.labeled import LabeledRows
from pretune.text.tokenizers.tokenizer import Tokenizer

WORDS = ["a", "b", "c", "d", "same", "other"]
TEXTS, SECOND = ["a b", "c", "a b c d"], ["c d", "a b c", "d"]


def published(folder: Path) -> Model:
    """Save a tiny GPT with the special tokens of the published one: only the unknown token."""
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(["<unk>", *WORDS])}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    family, tokens = FAMILIES["openai-gpt"], Tokenizer(backend, {"unknown": "<unk>"})
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    config = family.read_config(sizes | {"vocab_size": tokens.size, "initializer_range": 0.3})
    torch.manual_seed(0)
    model = Model(family, config, Network(family.build(config)), tokens)
    model.save(folder)
    return model


def with_tokens(folder: Path, objective: Any) -> Model:
    model = published(folder)
    for role in ("start", "separator", "extract"):
        model = add_special_token(model, role)
    model.add_heads([objective])
    torch.nn.init.normal_(model.root.heads[objective.name].output.weight)
    model.root.eval()
    return model


def rows(pairs: bool = True, labels: Any = None) -> LabeledRows:
    return LabeledRows(Path("x"), {}, TEXTS, SECOND if pairs else None, labels)


def spelled(model: Model, task: Any, examples: Any, length: int = 16) -> list[str]:
    tokenizer = model.require_tokenizer()
    arrangement = task.tokenize_examples(Data(tokenizer, model.family.template, rows=examples), length)
    sequences = arrangement.take(np.arange(len(arrangement)))
    return [
        " ".join(tokenizer.tokens(sequences.ids[begin:end]))
        for begin, end in zip(sequences.offsets, sequences.offsets[1:], strict=False)
    ]


def test_classification_and_entailment_have_the_tokens_of_the_paper(tmp_path: Path) -> None:
    task = Classify(labels=("n", "y"), pooling="extract")
    model = with_tokens(tmp_path, task)
    assert spelled(model, task, rows(pairs=False))[:2] == ["<start> a b <extract>", "<start> c <extract>"]
    assert spelled(model, task, rows())[0] == "<start> a b <sep> c d <extract>"
    assert spelled(model, task, rows(), 6)[2] == "<start> a b <sep> d <extract>"  # only texts are truncated


def test_similarity_has_both_orders_next_to_each_other(tmp_path: Path) -> None:
    task = Regress(pooling="extract_both")
    found = spelled(with_tokens(tmp_path, task), task, rows(labels=[1.0, 2.0, 3.0]))
    assert found[:2] == ["<start> a b <sep> c d <extract>", "<start> c d <sep> a b <extract>"]
    assert len(found) == 2 * len(TEXTS)


def test_each_choice_follows_the_text_and_a_delimiter(tmp_path: Path) -> None:
    task = Choose(pooling="extract", max_candidates=2)
    file = tmp_path / "choices.jsonl"
    file.write_text('{"text": "a b", "choices": ["c", "d"], "label": 1}\n')
    found = spelled(with_tokens(tmp_path / "model", task), task, task.read(file, {}))
    assert found == ["<start> a b <sep> c <extract>", "<start> a b <sep> d <extract>"]


@torch.no_grad()
def test_logits_are_those_of_the_extract_token_or_of_the_sum_of_two(tmp_path: Path) -> None:
    for pooling in ("extract", "extract_both"):
        task = Classify(labels=("n", "y"), pooling=pooling, dropout=0.0)  # type: ignore[arg-type]
        model = with_tokens(tmp_path / pooling, task)
        predictor = Predictor(model, task, rows())
        outputs = np.stack(predictor.outputs(torch.device("cpu")))
        sequences = predictor.arrangement.take(np.arange(len(predictor.arrangement)))
        one = [
            model.backbone(pack(ids, np.array([len(ids)]), pattern=None)).last[-1]
            for ids in np.split(sequences.ids, sequences.offsets[1:-1])
        ]
        states = torch.stack(one)
        if pooling == "extract_both":
            states = states.view(3, 2, -1).sum(1).repeat_interleave(2, 0)
        expected = model.root.heads["classify"].output(states)
        np.testing.assert_allclose(outputs, expected, atol=1e-5)
        answers = predictor(torch.device("cpu"))
        assert len(answers) == 3
        exchanged = LabeledRows(Path("x"), {}, SECOND, TEXTS)
        turned = Predictor(model, task, exchanged)(torch.device("cpu"))
        differences = [
            abs(a["probabilities"]["y"] - b["probabilities"]["y"]) for a, b in zip(answers, turned, strict=True)
        ]
        assert (max(differences) < 1e-5) == (pooling == "extract_both")


@pytest.mark.end_to_end
def test_finetuning_adds_the_tokens_once_and_learns_them(tmp_path: Path) -> None:
    old = published(tmp_path / "start")
    file = tmp_path / "train.csv"
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened)
        table.writerow(["text", "pair", "label"])
        for first in WORDS[:4]:
            table.writerows([[first, second, "same" if first == second else "other"] for second in WORDS[:4]])
    options: dict[str, Any] = {
        "objective": "classify(pooling=extract_both,dropout=0)+0.5*lm", "epochs": 5,
        "optimizer": pt.Optimizer(lr=1e-2), "batch": pt.Batching(size=8, max_length=16),
    }  # fmt: skip
    run = pt.finetune(tmp_path / "start", file, out=tmp_path / "run", **options)
    model = load_model(run.folder)
    tokenizer, size = model.require_tokenizer(), old.require_tokenizer().size
    assert tokenizer.vocabulary[size:] == ["<start>", "<sep>", "<extract>"] and model.config.vocab_size == size + 3
    assert [tokenizer.role(role) for role in ("start", "separator", "extract")] == [size, size + 1, size + 2]
    learned = model.backbone.embed.tokens[size:].detach()
    assert all(not torch.allclose(learned[i], learned[j], atol=1e-3) for i, j in ((0, 1), (0, 2), (1, 2)))
    found = {(row["text"], row["pair"]): row["probabilities"]["same"] for row in pt.predict(run, file).rows}
    assert all(found[a, b] == pytest.approx(found[b, a], abs=1e-5) for a, b in found)
    again = pt.finetune(run.folder, file, out=tmp_path / "again", **options)
    assert load_model(again.folder).config.vocab_size == size + 3


def test_choices_have_no_two_orders() -> None:
    with pytest.raises(
        PretuneError,
        match="choose: pooling=extract_both applies only to pairs of texts, not to candidates; use pooling=extract",
    ):
        parse_objective("choose(pooling=extract_both)")


def test_single_texts_have_no_two_orders_and_encoder_decoders_no_extract_token(tmp_path: Path) -> None:
    task = Classify(labels=("n", "y"), pooling="extract_both")
    model = with_tokens(tmp_path, task)
    with pytest.raises(PretuneError, match=r"'classify\(pooling=extract_both\)' needs pairs of texts"):
        spelled(model, task, rows(pairs=False))
    data = Data(model.require_tokenizer(), FAMILIES["t5"].template, rows=rows())
    with pytest.raises(PretuneError, match="needs a decoder or an encoder, not an encoder-decoder"):
        task.tokenize_examples(data, 16)
