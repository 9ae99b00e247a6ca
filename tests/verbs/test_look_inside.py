"""Tests of the verbs attention, similarity and project, and of neighbors at all layers: files, tables, and bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretune as pt
from tests.support.cli import run_command
from tests.support.one_word_task import start, trained
from tests.support.tiny_models import save_random_model
from tests.support.translation_models import SENTENCES
from tests.support.translation_models import trained as trained_translator

TEXTS = ["The train was late.", "We waited for an hour.", "Nobody came.", "Yes, of course.", "It rains again today."]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("bert") / "bert", "bert", "mlm")


def columns(file: Path) -> list[str]:
    """Return the header of a .csv file."""
    with file.open(encoding="utf-8", newline="") as lines:
        return next(csv.reader(lines))


# -- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.not_fast
def test_attention_writes_tables_figures_and_a_report(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    out = tmp_path / "out"
    found = pt.attention(bert, tmp_path / "texts.txt", head=["2.1", "1.2"], importance=tmp_path / "texts.txt", out=out)
    assert len(found) == 4 and found.facts["texts"] == 5 and found.facts["loss"] > 0
    names = {path.name for path in out.iterdir()}
    figures = {"head-2.1", "head-1.2", "heads", "statistics", "importance"}
    assert names == {f"{name}.{kind}" for name in figures for kind in ("svg", "png")} | {
        "heads.csv",
        "heads.json",
        "report.html",
    }
    assert set(found.facts["files"]) == names
    rows = json.loads((out / "heads.json").read_text(encoding="utf-8"))
    assert rows == found.to_dicts() and columns(out / "heads.csv") == list(rows[0])
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 5 and TEXTS[0] in page
    pt.attention(bert, TEXTS[0], out=out)  # files of an earlier analysis are replaced


def test_heads_can_be_given_as_text_and_tokens_change_the_units(bert: Path, tmp_path: Path) -> None:
    words, tokens = (pt.attention(bert, "strangely waited", tokens=tokens).to_dicts() for tokens in (False, True))
    assert words != tokens
    with pytest.raises(pt.PretuneError, match=r"head 3 does not exist; choose one of the heads of layer 1, 1 to 2"):
        pt.attention(bert, "a", head="1.3", out=tmp_path / "out")
    with pytest.raises(pt.PretuneError, match=r"layer 5 does not exist.*with attention, 1 to 2"):
        pt.attention(bert, "a", head=["5.1"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_importance_of_a_fine_tuned_model() -> None:
    found = pt.attention(trained(), "good stone", importance=start() / "train.csv", label="label")
    assert any(row["importance"] for row in found) and found.facts["loss"] < 0.5


@pytest.mark.not_fast
def test_alignment_of_an_encoder_decoder(tmp_path: Path) -> None:
    model = trained_translator("transformer")
    found = pt.attention(model, SENTENCES[0], target="die Katze sieht eine Katze", out=tmp_path / "out")
    assert {row["layer"] for row in found} == {1}  # the encoder has one layer
    assert (tmp_path / "out" / "alignment.svg").stat().st_size and "Alignment" in (
        tmp_path / "out" / "report.html"
    ).read_text(encoding="utf-8")
    with pytest.raises(pt.PretuneError, match="has no tokens to align"):
        pt.attention(model, SENTENCES[0], target=" ", out=tmp_path / "out")


def test_bad_input_of_attention(bert: Path, tmp_path: Path) -> None:
    for texts in ("", [" ", "\n"]):
        with pytest.raises(pt.PretuneError, match="all texts are blank"):
            pt.attention(bert, texts)
    with pytest.raises(pt.PretuneError, match="no rows; give at least one"):
        pt.attention(bert, [])
    with pytest.raises(pt.PretuneError, match="not trained to translate"):
        pt.attention(bert, "a", target="b", out=tmp_path / "out")
    with pytest.raises(pt.PretuneError, match="lstm model"):
        pt.attention(save_random_model(tmp_path / "lstm", "lstm", "lm"), "a text")


# -- similarity -------------------------------------------------------------------------------------------------------


@pytest.mark.not_fast
@pytest.mark.parametrize("level", ["text", "word"])
def test_similarity_of_two_models(level: Any, bert: Path, tmp_path: Path) -> None:
    other = save_random_model(tmp_path / "gpt2", "gpt2", "lm", n_layer=3)
    found = pt.similarity(bert, TEXTS, other=other, level=level, out=tmp_path / "out")
    assert len(found) == 3 and all(len(row["similarity"]) == 4 for row in found)
    assert len(found.facts["other_layers"]) == 4 and found.facts["other"] == "gpt2"
    assert found.facts[f"{level}s"] == (5 if level == "text" else 24)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        f"{name}.{kind}" for name in ("similarity", "layers") for kind in ("svg", "png", "csv", "json")
    } | {"report.html"}
    cells = json.loads((tmp_path / "out" / "similarity.json").read_text(encoding="utf-8"))
    assert len(cells) == 12
    for cell in cells:
        value = found[cell["layer"]]["similarity"][cell["other_layer"]]
        assert value == pytest.approx(cell["similarity"], abs=1e-3)


def test_similarity_with_itself(bert: Path) -> None:
    alone, twice = pt.similarity(bert, TEXTS), pt.similarity(bert, TEXTS, other=bert)
    for number, row in enumerate(alone):
        assert row["layer"] == number and row["similarity"][number] == 1.0
        np.testing.assert_allclose(row["similarity"], twice[number]["similarity"], atol=1e-3)
        assert -1 <= row["anisotropy"] <= 1 and row["self_similarity"] is None  # no word is frequent enough
    repeated = pt.similarity(bert, [f"{word} was late" for word in ("He", "She", "It", "Nobody", "Anna")])
    assert repeated[0]["self_similarity"] > repeated[0]["anisotropy"]


def test_bad_input_of_similarity(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(pt.PretuneError, match="but one was given; give at least 4"):
        pt.similarity(bert, ["one text"])
    with pytest.raises(pt.PretuneError, match="but 2 were given"):
        pt.similarity(bert, TEXTS, max_texts=2)
    with pytest.raises(pt.PretuneError, match="--max-texts 0"):
        pt.similarity(bert, TEXTS, max_texts=0)


# -- project ----------------------------------------------------------------------------------------------------------


@pytest.mark.not_fast
@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_projection_is_written_with_its_colors(method: Any, bert: Path, tmp_path: Path) -> None:
    rows = [f'"{text}",{number % 2},{number}' for number, text in enumerate([*TEXTS, "  ", *TEXTS])]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label,length", *rows]), encoding="utf-8")
    out = tmp_path / "out"
    found = pt.project(bert, tmp_path / "texts.csv", color="label", method=method, layer=1, out=out)
    assert len(found) == 10 and [row["color"] for row in found] == ["0", "1", "0", "1", "0", "0", "1", "0", "1", "0"]
    assert {path.name for path in out.iterdir()} == {f"projection.{kind}" for kind in ("svg", "png", "csv", "json")} | {
        "report.html"
    }
    assert columns(out / "projection.csv") == ["x", "y", "text", "color"]
    with (out / "projection.csv").open(encoding="utf-8", newline="") as lines:
        assert [float(row["x"]) for row in csv.DictReader(lines)] == [row["x"] for row in found]
    if method == "pca":
        vectors = np.array([row["vector"] for row in pt.embed(bert, [row["text"] for row in found], layer=1)])
        vectors -= vectors.mean(0)
        points = np.array([[row["x"], row["y"]] for row in found])
        np.testing.assert_allclose(np.linalg.norm(points, axis=0), np.linalg.svd(vectors)[1][:2], rtol=1e-3)


def test_bad_input_of_project(bert: Path, tmp_path: Path) -> None:
    file = start() / "train.csv"
    with pytest.raises(
        pt.PretuneError, match=r"no column 'lable' to color by; the columns are 'text', 'label'; did you mean"
    ):
        pt.project(bert, file, color="lable")
    for layer in (3, -4, 99):
        with pytest.raises(pt.PretuneError, match=rf"layer {layer} does not exist.*0 \(the embeddings\) to 2"):
            pt.project(bert, file, layer=layer)
    with pytest.raises(pt.PretuneError, match="at least 3 texts"):
        pt.project(bert, ["one", "two"])
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    with pytest.raises(pt.PretuneError, match=r"a\.txt: a \.txt file has no column"):
        pt.project(bert, [tmp_path / "a.txt", file], color="label")


# -- neighbors --------------------------------------------------------------------------------------------------------


@pytest.mark.not_fast
def test_neighbors_at_every_layer_are_those_of_each_layer(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    ask: dict[str, Any] = {"corpus": tmp_path / "corpus.txt", "top_k": 2, "language": "lines"}
    word = ("pretune-small-en", "train", "The train stops here.")
    everywhere = pt.neighbors(*word, all_layers=True, **ask).to_dicts()
    assert [row["layer"] for row in everywhere] == [layer for layer in range(11) for _ in range(2)]
    for layer in (0, 5, 10):
        alone = pt.neighbors(*word, layer=layer, **ask).to_dicts()
        assert [{"layer": layer, **row} for row in alone] == [row for row in everywhere if row["layer"] == layer]
    assert everywhere[0]["word"] == "train" and everywhere[0]["similarity"] == pytest.approx(1.0, abs=1e-3)


# -- command line -----------------------------------------------------------------------------------------------------


@pytest.mark.not_fast
def test_command_line(bert: Path, tmp_path: Path) -> None:
    text = "The train was late."
    shown = run_command("attention", str(bert), text, "--head", "1.2", "--out", str(tmp_path / "a"), "--json")
    assert len(json.loads(shown.stdout)["heads"]) == 4 and (tmp_path / "a" / "head-1.2.png").is_file()
    refused = run_command("attention", str(bert), text, "--head", "x", "--out", str(tmp_path / "b"), check=False)
    assert refused.returncode == 1 and "expected LAYER.HEAD" in refused.stderr
    shown = run_command("project", str(bert), str(start() / "train.csv"), "--color", "label", "--json")
    assert len(json.loads(shown.stdout)["points"]) == 64
