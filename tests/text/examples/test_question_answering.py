"""Tests that questions are read from every file format, and that answers map to the right tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.text.examples.question_answering import AnswerSpan, Questions, read_questions
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, store

PASSAGE = "Paris is the capital of France. Paris is old."


def squad(*questions: dict[str, Any], passage: str = PASSAGE) -> str:
    return json.dumps(
        {"version": "v2.0", "data": [{"title": "x", "paragraphs": [{"context": passage, "qas": questions}]}]}
    )


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def answer(text: str, start: int) -> dict[str, Any]:
    return {"text": text, "answer_start": start}


# -- files ----------------------------------------------------------------------------------------------------------


def test_both_versions_of_squad_are_read(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "question": "What is old?", "answers": [answer("Paris", 32), answer("Paris", 0)]},
        {
            "id": "b",
            "question": "Who?",
            "answers": [],
            "is_impossible": True,
            "plausible_answers": [answer("Paris", 0)],
        },
    ]
    found = read_questions(write(tmp_path, "dev-v2.0.json", squad(*rows)))
    assert found.questions == ["What is old?", "Who?"]
    assert found.passages == [PASSAGE, PASSAGE]
    assert found.answers == [[AnswerSpan("Paris", 32), AnswerSpan("Paris", 0)], []]
    assert found.identities == ["a", "b"]
    assert found.location(1).endswith("dev-v2.0.json, question b")
    assert found.take([1]).answers == [[]]
    assert read_questions(tmp_path / "dev-v2.0.json", answers=False).answers is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["France"], [AnswerSpan("France", 24)]),
        ("Paris", [AnswerSpan("Paris", 0)]),
        ([{"text": "Paris", "start": 32}], [AnswerSpan("Paris", 32)]),
        ([answer("Paris", 32)], [AnswerSpan("Paris", 32)]),
        ({"text": ["Paris", "France"], "answer_start": [32, 24]}, [AnswerSpan("Paris", 32), AnswerSpan("France", 24)]),
        ({"text": [], "answer_start": []}, []),
        (answer("Paris", 32), [AnswerSpan("Paris", 32)]),
        ([], []),
        (None, []),
        ("", []),
    ],
)
def test_all_forms_of_answers_are_read(value: Any, expected: list[AnswerSpan], tmp_path: Path) -> None:
    row = {"question": "?", "context": PASSAGE, "answers": value}
    found = read_questions(write(tmp_path, "a.jsonl", json.dumps(row)))
    assert found.answers == [expected]
    named = {"q": "?", "p": PASSAGE, "a": value}
    path = write(tmp_path, "b.jsonl", json.dumps(named))
    assert read_questions(path, {"text": "q", "pair": "p", "label": "a"}).answers == [expected]


def test_invalid_answers_are_listed_and_rejected_unless_dropped(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "question": "1", "answers": [answer("Paris", 1)]},
        {"id": "b", "question": "2", "answers": [answer("Paris", 0), answer("Lyon", 3)]},
        {"id": "c", "question": "3", "answers": [answer("France", 999)]},
        {"id": "d", "question": "4", "answers": [answer("Paris", -45)]},
    ]
    path = write(tmp_path, "a.json", squad(*rows))
    message = r"4 answers in 'answers' are not at the given position .* question a \('Paris' at 1\), question b .* …; correct them"
    with pytest.raises(PretuneError, match=message):
        read_questions(path)
    found = read_questions(path, drop_invalid=True)
    assert found.identities == ["b"]
    assert found.answers == [[AnswerSpan("Paris", 0)]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "not valid JSON"),
        ("a.json", "[]", r"not in SQuAD's format, .* \(at the top"),
        ("a.json", '{"data": [{"paragraphs": [{"context": "x"}]}]}', r"data\[0\]\.paragraphs\[0\]: KeyError\('qas'\)"),
        ("a.json", squad({"id": "a", "question": "1"}), "question a: no field 'answers'; the fields are"),
        (
            "a.json",
            squad({"id": "a", "question": 1, "answers": []}),
            "question a: expected text in 'question', but found 1",
        ),
        ("a.json", squad(), "the file contains no questions"),
        ("a.xml", "question,passage\n", "unsupported file format"),
        (
            "a.jsonl",
            '{"question": "?", "answers": []}',
            r"line 1: no field 'passage'; the fields are 'question', 'answers'",
        ),
        ("a.jsonl", '{"question": "?", "passage": "x"}', r"line 1: no field 'answers'; .* with \[\] as the answers"),
        (
            "a.jsonl",
            '{"question": "?", "passage": "x", "answers": [3]}',
            r"line 1: an answer must be a text or .*, not 3",
        ),
        (
            "a.jsonl",
            '{"question": "?", "passage": "\\ud83d", "answers": []}',
            "line 1: 'passage' contains a lone surrogate",
        ),
    ],
)
def test_invalid_files_are_rejected_in_one_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=message):
        read_questions(write(tmp_path, name, text))
    with pytest.raises(PretuneError, match="no such file"):
        read_questions(tmp_path / "nowhere.json")


# -- tokens ---------------------------------------------------------------------------------------------------------

anything = st.text(st.characters(codec="utf-8"), max_size=40) | st.text("the name [MASK]<s>½ﬁ你\u0001 \n", max_size=40)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(texts=st.lists(anything, min_size=1, max_size=4))
def test_encoding_with_offsets_gives_the_same_ids(kind: Kind, texts: list[str]) -> None:
    tokenizer = store(kind).tokenizer
    ids, lengths, offsets = tokenizer.encode_with_offsets(texts)
    expected, sizes = tokenizer.encode_many(texts)
    assert ids.tolist() == expected.tolist() and lengths.tolist() == sizes.tolist()
    assert ids.dtype == expected.dtype
    stop = 0
    for text, length in zip(texts, lengths, strict=True):
        start, stop = stop, stop + int(length)
        begins, ends = offsets[start:stop].T.tolist()
        assert begins == sorted(begins) and ends == sorted(ends)
        assert all(0 <= begin <= end <= len(text) for begin, end in zip(begins, ends, strict=True))


@pytest.mark.not_fast
def test_offsets_are_right_for_text_that_spells_a_special_token() -> None:
    for kind in KINDS:
        tokenizer = store(kind).tokenizer
        text = "the [MASK] name"
        _, _, offsets = tokenizer.encode_with_offsets([text])
        covered = "".join(text[begin:end] for begin, end in offsets if text[begin:end].strip())
        assert covered.replace(" ", "").endswith("name")
        assert offsets[-1, 1] == len(text)


words = st.lists(
    st.text("abehtn", min_size=1, max_size=6) | st.sampled_from(["Поезд", "name", "10", "(", "."]),
    min_size=1,
    max_size=9,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(
    passage=words,
    spaces=st.lists(st.sampled_from([" ", "  ", "\n", " \u00a0"]), min_size=9, max_size=9),
    data=st.data(),
)
def test_tokens_of_an_answer_decode_to_its_text(
    kind: Kind, passage: list[str], spaces: list[str], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(passage) - 1))
    last = data.draw(st.integers(first, len(passage) - 1))
    pieces = [word + space for word, space in zip(passage, spaces, strict=False)]
    text, start = "".join(pieces), len("".join(pieces[:first]))
    span = AnswerSpan("".join(pieces[first : last + 1])[: -len(spaces[last])], start)
    questions = Questions(Path("x"), {}, ["the name"], [text], [[span]])
    tokens = questions.tokenize(store(kind).tokenizer)
    begin, end = tokens.spans([[span]])[0] + tokens.rows.starts[0, 1]
    assert text[tokens.begins[begin] : tokens.ends[end]].split() == span.text.split()


def test_passages_are_tokenized_once_and_answers_without_tokens_are_recognized() -> None:
    tokenizer = store("wordpiece").tokenizer
    passages = ["the \u0001 name", "the \u0001 name", ""]
    questions = Questions(Path("x"), {}, ["a", "is it", ""], passages, [[AnswerSpan("\u0001", 4)], [], []])
    tokens = questions.tokenize(tokenizer)
    assert len(tokens.rows.ids) == sum(len(tokenizer.encode(t)) for t in ("a", "is it", "the name"))
    assert tokens.spans(questions.answers or []).tolist() == [[-2, -2], [-1, -1], [-1, -1]]
    assert tokens.rows.lengths.tolist() == [[1, 2], [2, 2], [0, 0]]
