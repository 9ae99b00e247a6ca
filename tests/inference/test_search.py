"""Tests of semantic search: results equal a brute-force comparison of embeddings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pretune as pt
from pretune import PretuneError
from pretune.inference import search as engine
from pretune.inference.embed import embed_texts
from pretune.inference.search import SIMILARITIES, Match, nearest_vectors, search_texts
from pretune.nn.sentence_embedding import SIMILARITIES as KNOWN_SIMILARITIES
from pretune.nn.sentence_embedding import TextEmbedding
from tests.support.cli import run_command
from tests.support.one_word_task import start

TEXTS = ["good red stone", "bad blue fire", "good green tree cloud", "yellow bird", "water fire water", "bad tree"]
ODD = ["e\u0301te\u0301 \u00e9t\u00e9", "👩‍👩‍👧 fire", "שלום water", "a\u2028b\u0085c", "\u200b", "\x00 bird", "ﬁre"]


@pytest.fixture(scope="module")
def model() -> Path:
    return start() / "start"


def prompted_model(folder: Path, prompts: dict[str, str], similarity: str) -> Path:
    """Save the model with a description of its text embeddings that has prompts and a similarity."""
    embedding = TextEmbedding(prompts=prompts, default_prompt_name="other", similarity=similarity)
    shutil.copytree(start() / "start", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["pretune"] = {**config.get("pretune", {}), "embedding": embedding.write()}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("seed", range(5))
def test_nearest_vectors_equal_brute_force(similarity: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, top_k, width = (int(rng.integers(1, high)) for high in (40, 50, 6))
    vectors = rng.integers(-2, 3, (size, width)).astype(np.float32)  # many ties and some zero vectors
    queries = rng.integers(-2, 3, (3, width)).astype(np.float32)
    cuts = np.sort(rng.integers(0, size + 1, 3))
    found = nearest_vectors(queries, np.split(vectors, cuts), top_k, similarity)
    for query, matches in zip(queries.astype(float), found, strict=True):
        norms = np.array([np.sqrt((row @ row) * (query @ query)) for row in vectors.astype(float)])
        scores = {
            "cosine": vectors @ query / np.where(norms, norms, 1),
            "dot": vectors @ query,
            "euclidean": -np.sqrt(((vectors - query) ** 2).sum(1)),
            "manhattan": -np.abs(vectors - query).sum(1),
        }[similarity]
        given = [match.similarity for match in matches]
        assert np.allclose(given, np.sort(scores)[::-1][:top_k], atol=1e-6)
        assert np.allclose(given, [scores[match.index] for match in matches], atol=1e-6)
        assert len({match.index for match in matches}) == len(matches) == min(top_k, size)
        assert matches == sorted(matches, key=lambda match: (-match.similarity, match.index))


def test_all_similarities_of_models_are_supported() -> None:
    assert set(SIMILARITIES) == set(KNOWN_SIMILARITIES)


def test_ties_keep_their_order_across_blocks() -> None:
    vectors = np.array([[0, 1], [1, 0], [2, 0], [1, 0], [0, 0], [3, 0]], np.float32)
    for size in (1, 2, 6):
        blocks = [vectors[at : at + size] for at in range(0, len(vectors), size)]
        (found,) = nearest_vectors(np.array([[1, 0]], np.float32), blocks, 6)
        assert [match.index for match in found] == [1, 2, 3, 5, 0, 4]
    assert nearest_vectors(vectors[:1], [], 3) == [[]]


@pytest.mark.not_fast
@pytest.mark.parametrize("block", [2, 100])
def test_search_equals_brute_force_on_embeddings(model: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BLOCK", block)
    texts, queries = [*TEXTS, *ODD], ["red stone", "été", "fire"]
    vectors, wanted = embed_texts(model, texts), embed_texts(model, queries)
    cosines = wanted @ vectors.T / np.linalg.norm(wanted, axis=1)[:, None] / np.linalg.norm(vectors, axis=1)
    for scores, matches in zip(cosines, search_texts(model, queries, texts, top_k=4), strict=True):
        assert np.allclose([x.similarity for x in matches], np.sort(scores)[::-1][:4], atol=1e-5)
        assert np.allclose([x.similarity for x in matches], scores[[x.index for x in matches]], atol=1e-5)


def test_equal_texts_keep_their_order_and_blank_texts_are_skipped(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BLOCK", 2)
    texts = ["", "red stone", " \t", "fire", "red stone", "water", "red stone"]
    (found,) = search_texts(model, ["red stone"], texts, top_k=10)
    assert [match.index for match in found[:3]] == [1, 4, 6] and {x.index for x in found[3:]} == {3, 5}
    assert [match.index for match in search_texts(model, ["red stone"], texts, top_k=2)[0]] == [1, 4]
    assert search_texts(model, ["a"], ["", " "]) == [[]] and search_texts(model, [], texts) == []


@pytest.mark.not_fast
def test_prompts_and_similarity_of_the_model_are_used(tmp_path: Path) -> None:
    prompts = {"query": "red ", "passage": "blue ", "other": "green "}
    folder = prompted_model(tmp_path / "model", prompts, "dot")
    vectors, query = embed_texts(folder, TEXTS, prompt="blue "), embed_texts(folder, ["stone"], prompt="red ")[0]
    (found,) = search_texts(folder, ["stone"], TEXTS, top_k=6)
    assert np.allclose([x.similarity for x in found], np.sort(vectors @ query)[::-1], rtol=1e-4)
    assert found[0] == Match(int((vectors @ query).argmax()), found[0].similarity)
    plain = prompted_model(tmp_path / "plain", {"other": "green "}, "cosine")  # the default prompt, for both
    assert search_texts(plain, [TEXTS[3]], TEXTS, top_k=1)[0][0].similarity == pytest.approx(1, abs=1e-4)
    assert search_texts(plain, [TEXTS[3]], TEXTS, top_k=1)[0][0].index == 3


@pytest.mark.not_fast
def test_lines_of_a_text_file_are_found(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    lines = ["\ufeffgood red stone", "", "bad blue fire\r", "   ", *ODD, "yellow bird"]
    file.write_bytes("\n".join(lines).encode())
    rows = pt.search(model, file, "bad blue fire", top_k=100)
    numbers = {row["line"]: row["text"] for row in rows}
    assert numbers == {1: "good red stone", 3: "bad blue fire"} | dict(enumerate([*ODD, "yellow bird"], 5))
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0]["line"] == 3 and rows[0]["similarity"] == pytest.approx(1, abs=1e-3)
    for odd in ODD:
        assert odd in [row["text"] for row in pt.search(model, file, odd, top_k=2)]
    vectors = pt.embed(model, file)
    assert [row["text"] for row in vectors] == [line.strip("\ufeff\r") for line in lines]  # row i is line i + 1


@pytest.mark.not_fast
def test_all_inputs_give_the_same_texts(model: Path, tmp_path: Path) -> None:
    table = pd.DataFrame({"id": range(6), "text": TEXTS})
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    table.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    loaded = pt.load(model)
    expected = [(row["similarity"], row["text"]) for row in pt.search(model, TEXTS, "fire", top_k=6)]
    first = {"csv": 2, "tsv": 2, "jsonl": 1, "parquet": 1, "txt": 1}  # a header is a line
    for given, line in [
        *((tmp_path / f"a.{ending}", line) for ending, line in first.items()),
        *(
            (given, 1)
            for given in (str(tmp_path / "a.txt"), str(tmp_path / "*.txt"), table, table["text"], iter(TEXTS))
        ),
    ]:
        rows = loaded.search("fire", given, top_k=6)
        assert [(row["similarity"], row["text"]) for row in rows] == expected
        assert {row["text"]: row["line"] for row in rows} == {text: i for i, text in enumerate(TEXTS, line)}
    assert [row["text"] for row in loaded.search("fire", table, 1, text="text")] == [expected[0][1]]
    assert len(loaded.search("fire", "a single text")) == 1 and len(loaded.search("fire", [])) == 0
    assert loaded.embed(tmp_path / "a.txt").shape == loaded.embed(str(tmp_path / "*.txt")).shape == (6, 64)


def test_several_queries_and_files(model: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("red stone\n", encoding="utf-8")
    (tmp_path / "two.txt").write_text("\nblue fire\n", encoding="utf-8")
    rows = pt.search(model, str(tmp_path), ["blue fire", "red stone"], top_k=1)
    assert [(row["query"], row["file"], row["line"]) for row in rows] == [
        ("blue fire", str(tmp_path / "two.txt"), 2),
        ("red stone", str(tmp_path / "one.txt"), 1),
    ]
    assert "query" in rows.table()["matches"][0]
    single = pt.search(model, tmp_path / "one.txt", "blue fire")
    assert list(single.table()["matches"][0]) == ["rank", "similarity", "line", "text"]


def test_wrong_inputs_are_refused(model: Path, tmp_path: Path) -> None:
    for name, content in (("empty.txt", ""), ("blank.txt", "\n \n"), ("bad.txt", b"a\n\xff"), ("head.csv", "text\n")):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for inputs, query, message in (
        (tmp_path / "empty.txt", "a", r"empty\.txt: the file is empty; give a file with one text per line"),
        (tmp_path / "blank.txt", "a", r"blank\.txt: all texts are blank"),
        (tmp_path / "bad.txt", "a", r"bad\.txt, line 2: not valid UTF-8"),
        (tmp_path / "head.csv", "a", "the file contains no rows"),
        ("notes.txt", "a", "notes.txt: no such file or folder"),
        ([" "], "a", "all texts are blank"),
        ([], "a", "the data has no rows"),
        (TEXTS, " ", "a query is empty"),
        (TEXTS, ["a", ""], "a query is empty"),
        (TEXTS, [], "no query was given"),
    ):
        with pytest.raises(PretuneError, match=message):
            pt.search(model, inputs, query)
    with pytest.raises(PretuneError, match=r"--top-k 0: .* above 0"):
        pt.search(model, TEXTS, "a", top_k=0)
    with pytest.raises(PretuneError, match=r"the file is empty"):
        pt.embed(model, tmp_path / "empty.txt")
    (tmp_path / "notes.pdf").write_text("x")
    expected = (
        r"expected one of \.txt, \.csv, \.tsv, \.jsonl, \.parquet, each uncompressed or as \.gz, \.bz2, \.zst, \.xz$"
    )
    with pytest.raises(PretuneError, match=expected):
        pt.search(model, tmp_path / "notes.pdf", "a")


@pytest.mark.not_fast
def test_files_may_follow_the_query_on_the_command_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    words = ["--query", "yellow bird", tmp_path / "notes.txt", "--query", "bad tree", "--top-k", "1", "--json"]
    rows = run_command("search", model, *words).json()["matches"]
    assert [(row["query"], row["line"]) for row in rows] == [("yellow bird", 4), ("bad tree", 6)]
