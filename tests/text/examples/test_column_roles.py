from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pretune.text.examples.column_roles import guess_columns, label_columns, mean_words, text_columns
from pretune.text.examples.labeled import parse_label, parse_number, read_labeled
from pretune.text.examples.text_files import read_text_file

SICK = [
    {
        "pair_ID": str(number),
        "sentence_A": f"A group of kids is playing in yard {number}",
        "sentence_B": f"Group {number} of boys is playing in a yard",
        "relatedness_score": f"{1 + number % 5}.{number % 10}",
        "entailment_label": ["NEUTRAL", "ENTAILMENT", "CONTRADICTION"][number % 3],
    }
    for number in range(12)
]


@pytest.fixture(autouse=True)
def show_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sick_is_read_as_pairs_with_the_label_of_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "sick.jsonl", SICK)
    texts = {"text": "sentence_A", "pair": "sentence_B"}
    assert read_labeled(file).columns == {**texts, "label": "entailment_label"}
    said = capsys.readouterr().err
    assert "label = 'entailment_label'; unused: 'pair_ID', 'relatedness_score'; override with --text" in said
    assert "'relatedness_score' could be the label, too; 'entailment_label' is used; choose with --label" in said
    assert read_labeled(file, label=parse_number).columns == {**texts, "label": "relatedness_score"}
    assert read_labeled(file, labels=False).columns == texts
    assert read_labeled(file, {"text": "sentence_B"}).columns == {"text": "sentence_B", "label": "entailment_label"}


@pytest.mark.parametrize(
    "names",
    [
        ("sentence1", "sentence2"), ("Sentence_1", "Sentence_2"), ("premise", "hypothesis"), ("question", "answer"),
        ("query", "passage"), ("text_a", "text_b"), ("title", "body"), ("Title", "Text"), ("q1", "q2"),
        ("first_text", "second_text"), ("claim", "evidence"), ("review", "comment"), ("alpha", "omega"),
    ],
)  # fmt: skip
def test_two_text_columns_are_a_pair(names: tuple[str, str]) -> None:
    first, second = names
    rows = [
        {"id": n, first: f"a text with number {n}", second: f"other words, {n} of them", "label": n % 2}
        for n in range(8)
    ]
    assert guess_columns(rows, {}) == {"text": first, "pair": second, "label": "label"}
    assert guess_columns(rows, {}, pairs=False).keys() == {"text", "label"}


@pytest.mark.parametrize(
    "other",
    [
        {"url": "https://example.com/a/b/c"}, {"date": "2024-05-01 10:00:00"}, {"id1": "x1", "id2": "x2"}, {"author": "Ann Lee"},
        {"score1": 1.5, "score2": 2.5}, {"note": None}, {"tokens": ["a", "b"]},
    ],
)  # fmt: skip
def test_codes_names_and_numbers_are_not_texts(other: dict[str, Any]) -> None:
    rows = [{"message": f"a text with number {n}", "label": n % 2, **other} for n in range(8)]
    assert guess_columns(rows, {}) == {"text": "message", "label": "label"}


def test_texts_without_spaces_are_texts() -> None:
    rows = [{"x": f"今天天气很好{n}", "y": f"明天会下雨吗{n}", "label": n % 2} for n in range(4)]
    assert mean_words(rows, "x") == 6
    assert text_columns(rows) == ["x", "y"]
    assert guess_columns(rows, {}) == {"text": "x", "pair": "y", "label": "label"}


def test_a_text_column_besides_a_usual_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": f"some text of number {n}", "reason": f"because it is text {n}", "label": n % 2} for n in range(8)]
    assert read_labeled(write(tmp_path / "a.jsonl", rows)).columns == {"text": "text", "label": "label"}
    said = capsys.readouterr().err
    assert "unused: 'reason'; override" in said
    assert "'reason' could be a second text, too; choose with --pair" in said


def test_more_than_two_unknown_text_columns_are_not_a_pair() -> None:
    rows = [{name: f"{name} text with number {n}" for name in ("a", "bb", "ccc")} | {"label": n % 2} for n in range(8)]
    assert guess_columns(rows, {}) == {"text": "ccc", "label": "label"}


def test_label_candidates_are_ordered_and_must_be_readable() -> None:
    rows = [{"score": "1.5", "my_category": "a", "class": "b", "label": "x"}] * 3
    assert label_columns(rows, ()) == ["label", "class", "my_category", "score"]
    assert label_columns(rows, (), parse_number)[0] == "score"
    assert label_columns([{"label": "", "score": 1}, {"label": "x", "score": 2}], (), parse_label)[0] == "label"
    assert guess_columns([{"topic": "a text"}, {"topic": "another"}], {}, labels=False) == {"text": "topic"}


def test_many_unused_columns_are_shortened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": "a", "label": "x", **{f"c{n}": n for n in range(12)}, "meta": {"source": "web"}}]
    read_labeled(write(tmp_path / "a.jsonl", rows))
    assert "'c6', 'c7' and 5 more; override" in capsys.readouterr().err


def test_files_of_texts_are_never_pairs(tmp_path: Path) -> None:
    rows = [{"title": "A short title here", "body": "the longer text of a document"}] * 2
    assert [each.text for each in read_text_file(write(tmp_path / "a.jsonl", rows))] == [rows[0]["body"]] * 2
