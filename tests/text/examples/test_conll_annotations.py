"""Tests of documents with coreferent mentions: CoNLL-2012 and .jsonl, and one clear line for files that are damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pretune import PretuneError
from pretune.text.examples.conll_annotations import coreference_clusters, read_annotated_documents
from pretune.text.examples.coreference import coreference_rows, read_coreference

FIRST = [
    [("Ann", "(1)"), ("saw", "-"), ("the", "(2"), ("house", "2)")],
    [("She", "(1)"), ("bought", "-"), ("it", "(2)")],
]
SECOND = [[("It", "-"), ("rained", "-")]]
CLUSTERS = [[(0, 0), (4, 4)], [(2, 3), (6, 6)]]


@pytest.fixture(autouse=True)
def show_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)


def document(sentences: list[list[tuple[str, str]]], part: int = 0, name: str = "bc/cctv_0001") -> str:
    """Return a document in the format of CoNLL-2012, with its words and the cells of the column of coreference."""
    blocks = [
        "\n".join(
            f"{name}  {part}  {i}  {word}  NN  *  -  -  -  speaker  *  {cell}" for i, (word, cell) in enumerate(words)
        )
        for words in sentences
    ]
    return f"#begin document ({name}); part {part:03d}\n" + "\n\n".join(blocks) + "\n\n#end document\n"


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def test_documents_of_a_folder_are_read_with_their_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "bc" / "a.v4_gold_conll", document(FIRST) + document(SECOND, 1))
    write(tmp_path / "wb" / "b.v4_gold_conll", document(FIRST, name="wb/eng_0002"))
    write(tmp_path / "wb" / "b.v4_auto_conll", "not read")
    found = read_coreference(tmp_path)
    assert found.sentences[0] == [["Ann", "saw", "the", "house"], ["She", "bought", "it"]]
    assert found.clusters == [CLUSTERS, [], CLUSTERS]
    assert found.names == ["bc/cctv_0001, part 0", "bc/cctv_0001, part 1", "wb/eng_0002, part 0"]
    said = capsys.readouterr().err
    assert "(bc/cctv_0001, part 1): the document has no coreferent mentions (1 of 3 documents have none)" in said
    assert read_coreference(tmp_path, clusters=False).clusters is None


def test_rows_of_json_are_those_of_the_columns(tmp_path: Path) -> None:
    file = write(tmp_path / "a.v4_gold_conll", document(FIRST))
    rows = [row for _, row in coreference_rows(file)]
    copied = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert read_coreference(copied).clusters == read_coreference(file).clusters == [CLUSTERS]
    assert read_coreference(copied).sentences == read_coreference(file).sentences


def test_texts_are_split_into_sentences_and_words(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", json.dumps({"text": "Ann fell. She rose."}) + "\n")
    found = read_coreference(file, clusters=False)
    assert found.sentences == [[["Ann", "fell", "."], ["She", "rose", "."]]]
    assert found.originals == [("Ann fell. She rose.", [(0, 3), (4, 8), (8, 9), (10, 13), (14, 18), (18, 19)])]


def test_mentions_can_be_nested_and_share_words() -> None:
    lines = [1, 2, 3, 4]
    assert coreference_clusters([(lines, ["(1|(2", "2)", "(3)", "1)|(2)"])]) == [[(0, 1), (3, 3)], [(0, 3)], [(2, 2)]]
    assert coreference_clusters([(lines, ["(1|(1", "1)", "1)", "-"])]) == [[(0, 1), (0, 2)]]


def test_clusters_with_the_same_mention_are_merged(capsys: pytest.CaptureFixture[str]) -> None:
    found = coreference_clusters([([1, 2, 3], ["(1)", "(1)|(2)", "(2)"])], "a, part 0")
    assert found == [[(0, 0), (1, 1), (2, 2)]]
    assert "a, part 0: 1 clusters share a mention with another cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["(1", "-", "-", "-"], "line 2: '(1' opens a mention that its sentence does not close"),
        (["-", "1)", "-", "-"], "line 3: '1)' closes a mention that is not open in its sentence"),
        (["(1)|(1)", "-", "-", "-"], "line 2: the cluster 1 opens twice around the same words"),
        (["(a)", "-", "-", "-"], "line 2: '(a)' is not a list of mentions"),
        (["1", "-", "-", "-"], "line 2: '1' is not a list of mentions"),
        (["-", "- more", "-", "-"], "line 3: this word has 13 columns; give all words of a sentence the same"),
    ],
)
def test_damaged_columns_are_errors_with_file_and_line(cells: list[str], message: str, tmp_path: Path) -> None:
    words = [(word, cell) for (word, _), cell in zip(FIRST[0], cells, strict=True)]
    file = write(tmp_path / "a.v4_gold_conll", document([words]))
    with pytest.raises(PretuneError) as error:
        read_coreference(file)
    assert f"{file}, {message}" in str(error.value) and "\n" not in str(error.value)


def test_incomplete_documents_are_errors(tmp_path: Path) -> None:
    whole = document(FIRST)
    cut = write(tmp_path / "a.v4_gold_conll", whole.removesuffix("#end document\n"))
    with pytest.raises(PretuneError, match=r"part 0, which begins in line 1, has no line '#end document'"):
        list(read_annotated_documents(cut))
    twice = write(tmp_path / "b.v4_gold_conll", whole.removesuffix("#end document\n") + whole)
    with pytest.raises(PretuneError, match="line 11: the document bc/cctv_0001, part 0 has no line"):
        list(read_annotated_documents(twice))
    with pytest.raises(PretuneError, match="contains no documents"):
        read_coreference(write(tmp_path / "c.v4_gold_conll", "\n"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"sentences": [["a"]]}, "no field 'clusters'; the fields are 'sentences'"),
        ({"clusters": []}, "no field 'sentences'"),
        ({"sentences": ["a b"], "clusters": []}, "expected a text, or a list of sentences with their words"),
        ({"sentences": [["a"]], "clusters": [[0, 1]]}, "the mention 0 must be"),
        ({"sentences": [["a"]], "clusters": [[[0, 1]]]}, "must be [first, last] with indices of the 1 words"),
        ({"sentences": [["a"]], "clusters": 3}, "expected a list of clusters"),
        ({"sentences": [["a"]], "clusters": [[[0, 0], [0, 0]]]}, "the mention [0, 0] is twice in a cluster"),
    ],
)
def test_damaged_rows_are_errors_with_file_and_line(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    good = {"sentences": [["a", "a"]], "clusters": [[[0, 0], [1, 1]]]}
    file = write(tmp_path / "a.jsonl", "".join(json.dumps(one) + "\n" for one in (good, row)))
    with pytest.raises(PretuneError) as error:
        read_coreference(file)
    assert f"{file}, line 2: " in str(error.value) and message in str(error.value)
