"""Tests that entities given by character offsets become words and tags, and that bad offsets are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pretune as pt
from pretune import PretuneError
from pretune.objectives.tasks.tag import Tag
from pretune.text.examples.annotated_spans import AnnotatedSpan, check_span, split_words, tag_words, without_overlaps
from pretune.text.examples.labeled import TableChunk
from pretune.text.examples.tag_schemes import parse_tags
from pretune.text.examples.tagged import read_tagged, tagged_rows

TEXT = "Anti-Trump rally in Paris."
WORDS = ["Anti", "-", "Trump", "rally", "in", "Paris", "."]
TAGS = ["O", "O", "B-PER", "O", "O", "B-LOC", "O"]


@pytest.fixture(autouse=True)
def show_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def brat(folder: Path, name: str, text: bytes | str, *lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_bytes(text.encode() if isinstance(text, str) else text)
    (folder / f"{name}.ann").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return folder


# -- words and tags -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't pay O’Neill $1,000.50!", ["Don't", "pay", "O’Neill", "$", "1,000.50", "!"]),
        ("U.S.-based", ["U", ".", "S", ".", "-", "based"]),
        ("'tis the dogs' 5'", ["'", "tis", "the", "dogs", "'", "5", "'"]),
        ("हिन्दी में, cafe\u0301", ["हिन्दी", "में", ",", "cafe\u0301"]),
        ("北京大学 ok カタ", ["北", "京", "大", "学", "ok", "カ", "タ"]),
        ("서울에서 👩\u200d👩\u200d👧 👍🏽!", ["서울에서", "👩\u200d👩\u200d👧", "👍🏽", "!"]),
        ("a_b\u00a0c\r\n\td", ["a_b", "c", "d"]),
        (" \n", []),
        ("", []),
    ],
)
def test_texts_are_split_into_words(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in split_words(text)] == words


@given(text=st.text("ab1 .,'’-北é\u0301\u200d👍🏽\n\u00a0", max_size=30), data=st.data())
@example(text="a", data=None)
def test_spans_are_recovered_from_tags(text: str, data: Any) -> None:
    found = []
    if data is not None and text.strip():
        ends = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)), st.sampled_from(["X", "Y-Z"]))
        for start, end, kind in data.draw(st.lists(ends, max_size=5)):
            if start < end and not text[start:end].isspace():
                found.append(check_span(AnnotatedSpan(start, end, kind), text, "here"))
    spans = without_overlaps(found)
    words, tags = tag_words(text, spans)
    assert len(words) == len(tags)
    assert "".join(text[start:end] for start, end in words) == "".join(
        text[at] for at in range(len(text)) if any(start <= at < end for start, end in words)
    )
    assert all(text[at].isspace() for at in range(len(text)) if not any(start <= at < end for start, end in words))
    assert [AnnotatedSpan(words[s.first][0], words[s.last][1], s.kind) for s in parse_tags(tags)] == spans
    for span in found:  # what is left out overlaps what is kept, which is at least as long
        assert any(
            k.start < span.end and span.start < k.end and k.end - k.start >= span.end - span.start for k in spans
        )


# -- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        {"id": 7, "text": TEXT, "label": [[5, 10, "PER"], [20, 25, "LOC"]], "Comments": []},
        {"text": TEXT, "labels": [[20, 25, "LOC"], [5, 10, "PER"]]},
        {"text": TEXT, "entities": [[5, 10, "PER"], [20, 25, "LOC"]]},
        {"text": TEXT, "entities": [{"id": 0, "label": "PER", "start_offset": 5, "end_offset": 10}, {"label": "LOC", "start_offset": 20, "end_offset": 25}], "relations": []},
        {"text": TEXT, "tokens": [{"text": "Anti"}], "spans": [{"start": 5, "end": 10, "label": "PER", "token_start": 2}, {"start": 20, "end": 25, "label": "LOC"}]},
        {"data": TEXT, "label": [[5, 11, "PER"], [19, 25, "LOC"]]},
    ],
)  # fmt: skip
def test_rows_of_annotation_tools_are_read(row: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", row, {**row, **{name: [] for name in row if isinstance(row[name], list)}})
    found = read_tagged(file)
    assert (found.words[0], found.tags) == (WORDS, [TAGS, ["O"] * len(found.words[1])])
    assert found.words[1] == ["Anti", "-", "Trump", "rally", "in", "Paris", "."]
    assert found.originals[0].text == found.take([0]).originals[0].text == TEXT
    assert read_tagged(file, tags=False).words == found.words
    assert read_tagged(file, found.columns).tags == found.tags


def test_parquet_rows_and_chunks_are_read(tmp_path: Path) -> None:
    rows = [
        {"text": TEXT, "spans": [{"start": 5, "end": 10, "label": "PER"}, {"start": 20, "end": 25, "label": "LOC"}]}
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert read_tagged(tmp_path / "a.parquet").tags == [TAGS]
    chunk = TableChunk(tmp_path / "a.parquet", list(tagged_rows(tmp_path / "a.parquet")), rows[0])
    assert read_tagged(chunk, tags=False).words == [WORDS]


def test_lists_of_words_and_tags_take_precedence(tmp_path: Path) -> None:
    row = {"text": "a b", "tokens": ["a", "b"], "ner_tags": ["O", "B-X"], "entities": [[0, 1, "Y"]]}
    found = read_tagged(write(tmp_path / "a.jsonl", row))
    assert (found.words, found.tags, found.originals) == ([["a", "b"]], [["O", "B-X"]], [])


def test_overlapping_spans_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spans = [[0, 5, "CITY"], [0, 16, "ORG"], [10, 22, "X"]]
    found = read_tagged(write(tmp_path / "a.jsonl", {"text": "Paris University there", "entities": spans}))
    assert found.tags == [["B-ORG", "I-ORG", "O"]]
    said = capsys.readouterr().err
    assert "a.jsonl: 2 of 3 spans overlap a longer one and are left out, because each word has one tag" in said
    assert "using the texts in 'text' with the spans in 'entities'; override with --text, --label" in said


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([[0, 99, "X"]], r"line 1: 'label', span 1: \[0, 99\] is outside the text; write 0 ≤ start < end ≤ 8"),
        ([[0, 2, "X"], [3, 3, "X"]], r"span 2: \[3, 3\] is empty; write 0 ≤ start"),
        ([[-1, 2, "X"]], r"\[-1, 2\] is outside"),
        ([[2, 3, "X"]], r"\[2, 3\] contains only whitespace; correct or remove it"),
        ([[0, 2, ""]], r"\[0, 2, ''\] is not a span; write start, end and type"),
        ([[0, 2.5, "X"]], "is not a span"),
        ([[0, True, "X"]], "is not a span"),
        ([[0, 2]], "is not a span"),
        ([{"start": 0, "label": "X"}], "is not a span"),
        ([[0, 2, "\ud83d"]], "the type contains a lone surrogate"),
    ],
)
def test_bad_offsets_are_named_with_file_and_line(spans: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=rf"a\.jsonl, {message}" if message.startswith("line") else message):
        read_tagged(write(tmp_path / "a.jsonl", {"text": "in Paris", "label": spans}))


def test_bad_rows_after_the_first_are_named(tmp_path: Path) -> None:
    good = {"text": "in Paris", "label": [[3, 8, "LOC"]]}
    for bad, message in (
        ({"text": None, "label": []}, "line 2: expected a text in 'text'"),
        ({"text": "a", "label": "x"}, "line 2: 'label': expected a list of spans"),
        ({"text": "\ud83d", "label": []}, "line 2: 'text' contains a lone surrogate"),
    ):
        with pytest.raises(PretuneError, match=message):
            read_tagged(write(tmp_path / "a.jsonl", good, bad))
    assert read_tagged(write(tmp_path / "a.jsonl", good, {"text": "b", "label": None})).tags == [["O", "B-LOC"], ["O"]]
    with pytest.raises(PretuneError, match="annotated spans have no predicates"):
        read_tagged(tmp_path / "a.jsonl", predicate="verb")


def test_a_task_trained_on_offsets_splits_texts_at_punctuation(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"text": TEXT, "label": [[20, 25, "LOC"]]})
    task = Tag().fit(Tag().read(file, {}))
    assert (task.labels, task.splitting) == (("O", "B-LOC", "I-LOC"), "punctuation")
    plain = write(tmp_path / "b.jsonl", {"text": "to Paris."})
    assert task.read(plain, {}, answered=False).words == [["to", "Paris", "."]]
    assert Tag().read(plain, {}, answered=False).words == [["to", "Paris."]]


def test_predicted_entities_have_character_offsets(tmp_path: Path) -> None:
    task = Tag(labels=("O", "B-LOC", "I-LOC"), scheme="BIO", splitting="punctuation")
    file = write(tmp_path / "a.jsonl", {"text": "to New-York, fast"})
    tags = ["O", "B-LOC", "I-LOC", "I-LOC", "O", "O"]
    answer = task.combine([{"tags": tags, "probabilities": [1.0] * 6}], task.read(file, {}, answered=False), 0)
    assert answer["entities"] == [{"label": "LOC", "text": "New-York", "first": 1, "last": 3, "start": 3, "end": 11}]
    both = write(tmp_path / "b.jsonl", {"text": "to Rome."}, {"text": ["a", "list"]})
    found = task.read(both, {}, answered=False)
    assert (found.words, found.originals) == ([["to", "Rome", "."], ["a", "list"]], [])


# -- brat -----------------------------------------------------------------------------------------------------------


def test_brat_folders_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = brat(tmp_path / "corpus", "b", "\nIn Rio de\nJaneiro today.\n\nNorth and South America\n",
                  "T1\tLOC 4 18\tRio de Janeiro", "T2\tLOC 27 32;43 50\tNorth America", "#1\tAnnotatorNotes T1\tx", "R1\tin Arg1:T1 Arg2:T2")  # fmt: skip
    brat(folder, "a", "No entities.", "")
    found = read_tagged(folder)
    assert found.words == [["No", "entities", "."], ["In", "Rio", "de", "Janeiro", "today", "."], ["North", "and", "South", "America"]]  # fmt: skip
    assert found.tags == [["O"] * 3, ["O", "B-LOC", "I-LOC", "I-LOC", "O", "O"], ["B-LOC", "O", "O", "B-LOC"]]
    assert found.lines == [1, 2, 5]
    assert "corpus: 1 spans are discontinuous; each of their parts is a span of its own" in capsys.readouterr().err
    for name in ("b.txt", "b.ann"):
        assert read_tagged(folder / name).tags == found.tags[1:]
    assert [row["file"] for _, row in tagged_rows(folder)] == ["a.txt", "b.txt", "b.txt"]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (b"\xef\xbb\xbfin Paris\r\nin Rome", 3), (b"\xef\xbb\xbfin Paris\r\nin Rome", 4), (b"a\r\nin Paris", 5),
        (b"a\r\nin Paris", 6), ("👍 é Paris".encode(), 4),
    ],
)  # fmt: skip
def test_offsets_with_byte_order_marks_and_windows_line_ends(text: bytes, start: int, tmp_path: Path) -> None:
    found = read_tagged(brat(tmp_path / "x", "a", text, f"T1\tLOC {start} {start + 5}\tParis\r"))
    marked = [word for words, tags in zip(found.words, found.tags or [], strict=True) for word, tag in zip(words, tags, strict=True) if tag != "O"]  # fmt: skip
    assert marked == ["Paris"]
    assert not any("\ufeff" in word for words in found.words for word in words)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("T1 LOC 0 5 Paris", r"a\.ann, line 1: not an entity in brat format; write it as in T1"),
        ("T1\tLOC 5 0\tParis", r"a\.ann, line 1: \[5, 0\] is empty"),
        ("T1\tLOC 0 50\tParis", r"a\.ann, line 1: \[0, 50\] is outside the text"),
        (
            "T1\tLOC 1 6\tParis",
            r"a\.ann, line 1: characters 1 to 6 of a\.txt are 'aris ', not 'Paris'; correct the offsets",
        ),
        (f"T1\tLOC 0 {'9' * 5000}\tParis", "not an entity in brat format"),
    ],
)
def test_bad_lines_of_brat_are_named(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=message):
        read_tagged(brat(tmp_path / "x", "a", "Paris is big", line))


def test_incomplete_brat_folders_are_refused(tmp_path: Path) -> None:
    folder = brat(tmp_path / "x", "a", "Paris")
    (folder / "a.txt").unlink()
    with pytest.raises(PretuneError, match=r"a\.ann: there is no text file a\.txt beside it"):
        read_tagged(folder)
    (folder / "a.ann").unlink()
    with pytest.raises(PretuneError, match=r"the folder contains no \.ann files"):
        read_tagged(folder)
    with pytest.raises(PretuneError, match=r"a\.txt, line 1: not valid UTF-8"):
        read_tagged(brat(folder, "a", b"\xff"))
    with pytest.raises(PretuneError, match="the file contains no sentences"):
        read_tagged(brat(folder, "a", b" \n"))


@pytest.mark.end_to_end
def test_a_model_is_trained_on_a_brat_folder_and_scored_on_offsets(tmp_path: Path) -> None:
    texts = [f"{name} met {other}." for name in ("Ann", "Bob", "Cy") for other in ("Dan", "Eve")]
    spans = [[[0, text.index(" "), "PER"], [text.rindex(" ") + 1, len(text) - 1, "PER"]] for text in texts]
    offsets = [sum(len(text) + 1 for text in texts[:n]) for n in range(len(texts))]
    lines = [
        f"T{n}\tPER {at + s[0]} {at + s[1]}\t{texts[n][s[0] : s[1]]}" for n, at in enumerate(offsets) for s in spans[n]
    ]
    folder = brat(tmp_path / "corpus", "a", "\n".join(texts), *lines)
    dev = write(tmp_path / "dev.jsonl", *({"text": text, "entities": s} for text, s in zip(texts, spans, strict=True)))
    run = pt.finetune(
        "pretune-small-en",
        folder,
        objective="tag",
        strategy="full",
        budget=pt.Budget(steps=1),
        num_seeds=1,
        out=tmp_path / "run",
    )
    pt.predict(run, dev, out=tmp_path / "predicted.jsonl", score=True)
    first = json.loads((tmp_path / "predicted.jsonl").read_text().splitlines()[0])
    assert len(first["tags"]) == 4 and first["entities"] == spans[0]
    assert all({"start", "end"} <= entity.keys() for entity in first["predicted_entities"])
