"""Tests of the language of models with language embeddings: in fine-tuning, prediction, and embedding; against transformers."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.models.create_model import make_model, random_copy
from pretune.models.hf_config import log_once
from pretune.models.language_embeddings import language_ids, language_table, use_language
from pretune.models.loading import load_model
from pretune.runtime.progress import PROGRESS
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents

WORDS = ["cat", "dog", "fox", "owl", "pig", "rat", "bee", "cow", "elk", "hen"]
TEXTS = ["cat dog fox", "owl pig"]
CHANGED = {"emb_dim": 32, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 32}


@cache
def model_folder() -> Path:
    """Return the folder of a small XLM model with random weights and embeddings of the languages en, fr, and sw."""
    folder = Path(mkdtemp())
    (folder / "small.yaml").write_text(f"like: xlm-tiny\nconfig: {json.dumps(CHANGED)}\n", encoding="utf-8")
    tokenizer = train_on_documents([Document(" ".join(WORDS), folder, 1)], "words", 32)
    model = make_model(str(folder / "small.yaml"), 32, padding=tokenizer.role("padding"), languages=["en", "fr", "sw"])
    table = language_table(model)
    assert table is not None
    torch.nn.init.normal_(table.weight, std=1.0)
    model.tokenizer = tokenizer
    model.save(folder / "model")
    return folder / "model"


@cache
def rows() -> Path:
    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=4)) for _ in range(40)]
    file = Path(mkdtemp()) / "train.csv"
    file.write_text("text,label\n" + "\n".join(f"{t},{'cat' in t}" for t in texts), encoding="utf-8")
    return file


def finetuned(out: Path, **options: Any) -> pt.Run:
    budget, batch = pt.Budget(steps=2), pt.Batching(size=8, max_length=16)
    usual: dict[str, Any] = {"budget": budget, "batch": batch, "num_seeds": 1, "report": False, "device": "cpu"}
    return pt.finetune(str(model_folder()), str(rows()), out=out, **usual | options)


def test_languages_have_names_or_numbers() -> None:
    assert language_ids(load_model(model_folder())) == {"en": 0, "fr": 1, "sw": 2}
    assert language_ids(make_model("bert-tiny", 32)) == {}
    model = make_model("xlm-tiny", 32, languages=["en", "fr"])
    object.__setattr__(model.config, "lang2id", None)
    assert language_ids(model) == {"0": 0, "1": 1}


def test_embeddings_in_a_language_equal_those_of_transformers_with_langs(tmp_path: Path) -> None:
    from transformers import AutoModel

    pt.load(str(model_folder())).export(tmp_path / "out", format="hf")
    theirs = AutoModel.from_pretrained(tmp_path / "out").eval()
    model = load_model(model_folder())
    tokenizer = model.require_tokenizer()
    for language, number in {"en": 0, "fr": 1, "sw": 2}.items():
        vectors = pt.embed(str(model_folder()), TEXTS, pooling="mean", language=language)
        for row, text in zip(vectors, TEXTS, strict=True):
            ids = torch.tensor([[tokenizer.role("start"), *tokenizer.encode(text), tokenizer.role("separator")]])
            with torch.no_grad():
                states = theirs(input_ids=ids, langs=torch.full_like(ids, number)).last_hidden_state
            np.testing.assert_allclose(row["vector"], states[0].mean(0).numpy(), atol=1e-5)


def test_without_a_language_no_embedding_is_added_and_one_line_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROGRESS, "plain")
    log_once.cache_clear()  # type: ignore[attr-defined]
    loaded = pt.load(str(model_folder()))
    plain = loaded.embed(TEXTS)
    french = loaded.embed(TEXTS, language="fr")
    assert np.abs(plain - french).max() > 0.01
    np.testing.assert_array_equal(loaded.embed(TEXTS), plain)  # the language of a call is not kept
    written = capsys.readouterr().err
    assert written.count("embeddings of the languages en, fr, sw: no language embedding is added") == 1


@pytest.mark.not_fast
def test_the_language_of_finetuning_is_saved_and_another_can_be_chosen(tmp_path: Path) -> None:
    run = finetuned(tmp_path / "run", language="fr")
    assert run.recipe["language"] == "fr"
    assert json.loads((run.folder / "config.json").read_text())["pretune"]["language"] == "fr"
    assert load_model(run.folder).language == "fr"

    def scores(**options: Any) -> list[dict[str, Any]]:
        return list(pt.predict(str(run.folder), TEXTS, probabilities=True, **options))

    usual = scores()
    assert usual == scores(language="fr") != scores(language="sw")
    before, after = (load_model(folder).backbone.embed.columns["language"].weight for folder in (model_folder(), run))
    moved = (after - before).abs().amax(1)
    assert moved[1] > 5 * max(moved[0], moved[2])  # the others only decay


@pytest.mark.not_fast
def test_compressed_and_exported_models_read_texts_in_the_saved_language(tmp_path: Path) -> None:
    run = finetuned(tmp_path / "run", language="fr")

    def scores(folder: Path, **options: Any) -> list[float]:
        return [row["probability_True"] for row in pt.predict(str(folder), TEXTS, probabilities=True, **options)]

    french, other = scores(run.folder), scores(run.folder, language="sw")
    assert np.abs(np.subtract(french, other)).min() > 1e-4
    graph = tmp_path / "graph"
    pt.load(str(run.folder)).export(graph, format="onnx")
    np.testing.assert_allclose(scores(graph), french, atol=1e-5)
    assert scores(graph, language="fr") == scores(graph)
    with pytest.raises(PretuneError, match="the ONNX graph was exported to read texts as fr only"):
        scores(graph, language="sw")
    with pytest.raises(PretuneError, match="ONNX"):
        pt.load(str(graph)).export(tmp_path / "again", format="hf")
    pt.quantize(str(run.folder), out=tmp_path / "small")
    np.testing.assert_allclose(scores(tmp_path / "small"), french, atol=5e-3)


def test_a_saved_language_is_used_wherever_a_model_is_loaded(tmp_path: Path) -> None:
    model = load_model(model_folder())
    model.language = "fr"
    model.save(tmp_path / "french")
    handle = pt.load(str(tmp_path / "french"))
    for reference in (str(tmp_path / "french"), handle.open_model):
        table = language_table(load_model(reference))
        assert table is not None and table.absent == 1
    handle.embed(TEXTS, language="sw")
    table = language_table(load_model(handle.open_model))  # the language of a call is not kept
    assert table is not None and table.absent == 1
    copy = language_table(random_copy(load_model(tmp_path / "french")))
    assert copy is not None and copy.absent == 1


def test_wrong_languages_are_errors_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=r"no embedding of the language 'de'; .*en, fr, sw"):
        pt.embed(str(model_folder()), TEXTS, language="de")
    with pytest.raises(PretuneError, match="has no language embeddings, so it cannot be told that texts are in 'fr'"):
        pt.embed("pretune-small-en", TEXTS, language="fr")
    model = load_model(model_folder())
    model.language = "xx"
    with pytest.raises(PretuneError, match="no embedding of the language 'xx'"):
        use_language(model, None, "model")
