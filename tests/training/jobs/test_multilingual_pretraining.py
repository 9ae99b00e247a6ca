"""Tests of pretraining on text of several languages, on translations and on dialogues: from files to models."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.inference.embed import embed_texts
from pretune.models.loading import load_model
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer

WORDS = ["cat", "dog", "fox", "owl", "pig", "rat", "bee", "cow", "elk", "hen"]
SETTINGS: dict[str, Any] = {
    "budget": pt.Budget(steps=4),
    "batch": pt.Batching(tokens=256, max_length=48),
    "monitor": pt.Monitoring(log_every=1, eval_every=2, held_out_fraction=0.1),
}


@cache
def files() -> Path:
    """Return a folder with text in two languages, translations, dialogues, a tokenizer and stores."""
    folder, chance = Path(mkdtemp()), random.Random(0)
    sentence = lambda: " ".join(chance.choice(WORDS) for _ in range(5)) + "."  # noqa: E731
    english = [" ".join(sentence() for _ in range(4)) for _ in range(60)]
    texts = {"en": english, "fr": [text[::-1] for text in english[:20]]}
    for name, lines in texts.items():
        (folder / f"text.{name}.txt").write_text("\n".join(lines), encoding="utf-8")
        short = [line.split(".")[0 if name == "en" else -1] or "x" for line in texts["en"]]
        pairs = short if name == "en" else [line[::-1] for line in short]
        (folder / f"pairs.{name}.txt").write_text("\n".join(pairs), encoding="utf-8")
    chats = [{"turns": [sentence() for _ in range(chance.randint(2, 6))]} for _ in range(40)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
    tokenizer = train_tokenizer([Document(t, folder, 1) for lines in texts.values() for t in lines], "bpe", 120)
    tokenizer.save(folder / "tokenizer")
    for name in texts:
        pt.prepare(folder / f"text.{name}.txt", tokenizer, folder / name, language=name, processes=1)
    return folder


def learn(objective: str, names: list[str], out: Path, model: str = "xlm-tiny", **changes: Any) -> pt.Run:
    data = [str(files() / name) if "=" not in name else name for name in names]
    return pt.pretrain(model, data, objective=objective, out=out, **SETTINGS | changes)


@pytest.mark.not_fast
def test_tlm_and_mlm_on_translations_and_text_of_two_languages(tmp_path: Path) -> None:
    run = learn("tlm|mlm", ["en", "fr", "pairs.en.txt", "pairs.fr.txt"], tmp_path / "run")
    found = {name for line in run.metrics() for name in line}
    assert {"tlm", "mlm", "dev/tlm"} <= found
    model = load_model(tmp_path / "run", parse_objective("mlm"))
    assert model.config.lang2id == {"en": 0, "fr": 1} and model.config.n_langs == 2
    assert model.backbone.embed.columns["language"].weight.shape[0] == 2
    first = load_model(learn("tlm|mlm", ["fr", "en", "pairs.en.txt", "pairs.fr.txt"], tmp_path / "again"))
    assert first.config.lang2id == model.config.lang2id  # for any order
    # Continue in one language that the model knows, and in one that it does not.
    more = learn("mlm", ["fr"], tmp_path / "more", model=str(tmp_path / "run"))
    moved = load_model(more).backbone.embed.columns["language"].weight - model.backbone.embed.columns["language"].weight
    assert moved[1].abs().max() > 1e-6 > moved[0].abs().max()
    with pytest.raises(PretuneError, match="no embedding of the language 'de'; the model has en, fr"):
        learn("mlm", [f"de={files() / 'fr'}", "en"], tmp_path / "other", model=str(tmp_path / "run"))


@pytest.mark.not_fast
def test_rtd_and_trtd_on_translations_and_text_of_two_languages(tmp_path: Path) -> None:
    batch = pt.Batching(tokens=256, max_length=48, language_alpha=0.5)
    names = ["en", "fr", "pairs.en.txt", "pairs.fr.txt"]
    run = learn("rtd|trtd", names, tmp_path / "run", batch=batch)
    found = {name for line in run.metrics() for name in line}
    terms = {"rtd", "generator", "trtd", "trtd_generator"}
    assert terms <= found and {f"{term}/accuracy" for term in terms} <= found and "dev/rtd/recall" in found
    model = load_model(tmp_path / "run", parse_objective("rtd|trtd"))
    assert model.root.heads["rtd"] is model.root.heads["trtd"] and model.config.lang2id == {"en": 0, "fr": 1}
    alone = learn("trtd", names[2:], tmp_path / "pairs", model="electra-tiny", tokenizer=str(files() / "tokenizer"))
    assert "dev/trtd" in alone.results and (tmp_path / "pairs/generator/config.json").is_file()
    with pytest.raises(PretuneError, match=r"text\.en\.txt: not a source of parallel texts; pass a \.csv"):
        learn("trtd", ["text.en.txt"], tmp_path / "none")


@pytest.mark.not_fast
def test_files_of_several_languages_become_stores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    named = [f"{name}={files()}/text.{name}.txt" for name in ("en", "fr")]
    run = learn(
        "mlm",
        named,
        tmp_path / "run",
        model="bert-tiny",
        batch=pt.Batching(tokens=256, max_length=48, language_alpha=0.3),
    )
    assert (tmp_path / "run/store/en/manifest.json").is_file() and (tmp_path / "run/store/fr/manifest.json").is_file()
    assert "bert-tiny has no language embeddings: it cannot tell en, fr apart" in capsys.readouterr().err
    assert "dev/mlm" in run.results
    assert pt.Run(tmp_path / "run").recipe["batch"]["language_alpha"] == 0.3


@pytest.mark.not_fast
@pytest.mark.parametrize(("objective", "names"), [("mlm+dlm", []), ("mlm+dlm|mlm", ["en"])])
def test_dlm_on_dialogues(objective: str, names: list[str], tmp_path: Path) -> None:
    tokenizer = str(files() / "tokenizer")
    run = learn(objective, [*names, "chats.jsonl"], tmp_path / "run", model="bert-tiny", tokenizer=tokenizer)
    assert {"dev/mlm", "dev/dlm", "dlm/accuracy"} <= {name for line in run.metrics() for name in line}
    model = load_model(tmp_path / "run", parse_objective(objective))
    assert "dlm" in model.root.heads and (tmp_path / "run/head.safetensors").is_file()
    again = load_model(tmp_path / "run", parse_objective(objective), seed=9)
    assert all(torch.equal(x, again.root.tensors()[name]) for name, x in model.root.tensors().items())


@pytest.mark.not_fast
def test_bilm_on_a_bidirectional_model(tmp_path: Path) -> None:
    run = learn("bilm", ["en"], tmp_path / "run", model="elmo-transformer-tiny")
    assert {"bilm/forward", "bilm/backward", "dev/bilm/forward"} <= {name for line in run.metrics() for name in line}
    assert embed_texts(run.folder, ["the cat", "a dog"]).shape == (2, 256)


def test_incompatible_inputs_are_rejected(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(PretuneError, match=r"train on rows \(tlm\), and some on running text; give a store"):
        learn("tlm|mlm", ["pairs.en.txt", "pairs.fr.txt"], out)
    with pytest.raises(PretuneError, match="tlm and dlm need different kinds of input rows"):
        learn("tlm|dlm", ["pairs.en.txt", "pairs.fr.txt"], out)
    with pytest.raises(PretuneError, match=r"text\.en\.txt has 60 lines and .*text\.fr\.txt has 20"):
        learn("tlm", ["text.en.txt", "text.fr.txt"], out)
    with pytest.raises(PretuneError, match=r"text\.en\.txt: this file format cannot hold dialogues; pass"):
        learn("dlm", ["text.en.txt"], out)
    assert not out.exists()
    with pytest.raises(
        PretuneError, match="is a token store, but other inputs are files; give only stores or only files"
    ):
        learn("mlm", ["en", "text.fr.txt"], tmp_path / "both")
    with pytest.raises(PretuneError, match="'bilm' needs a model with a forward and a backward stack"):
        learn("bilm", ["en"], out, model="bert-tiny")


@pytest.mark.not_fast
def test_languages_must_be_known(tmp_path: Path) -> None:
    lines = pt.prepare(files() / "text.fr.txt", str(files() / "tokenizer"), tmp_path / "lines", language="lines")
    with pytest.raises(
        PretuneError,
        match=r"one token store was built with the language 'lines' .*, but other text is in en; name the real language",
    ):
        learn("mlm", ["en", f"{lines.folder}"], tmp_path / "run")
    run = learn("mlm", ["en", f"fr={lines.folder}"], tmp_path / "named")
    assert load_model(run).config.lang2id == {"en": 0, "fr": 1}
    with pytest.raises(
        PretuneError,
        match=r"batch\.language_alpha=2: the value must be between 0",
    ):
        pt.Batching(language_alpha=2)
