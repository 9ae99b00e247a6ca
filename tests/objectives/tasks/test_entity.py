from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pretune as pt
from pretune import PretuneError
from pretune.metrics import score
from pretune.objectives.tasks.entity import Entity
from pretune.text.examples.cloze_entities import read_entity_clozes
from pretune.text.examples.multiple_choice import ChoiceExample, ChoiceExamples
from tests.support.objective_data import BEASTS, COLORS, learn, write
from tests.support.task_rows import entity_rows as rows


@pytest.mark.end_to_end
def test_entity_learns(tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.jsonl", rows(140)), write(tmp_path / "dev.jsonl", rows(20, seed=1))
    run = learn("entity", train, tmp_path / "run", dev)
    assert run.results["dev/exact_match"] >= 0.8 and run.results["dev/f1"] >= 0.8
    new = [{key: row[key] for key in ("passage", "query", "entities")} for row in rows(5, seed=1)]
    answers = pt.predict(run, write(tmp_path / "new.jsonl", new))
    assert [[c["answer"] for c in answer["candidates"]] for answer in answers] == [row["entities"] for row in new]  # type: ignore[call-overload]
    assert answers[0]["query"] == "it is @placeholder ."
    assert pt.export(run, out=tmp_path / "out").facts["class"] == "BertForMultipleChoice"
    again = pt.predict(tmp_path / "out", tmp_path / "new.jsonl")
    assert [row["answer"] for row in again] == [row["answer"] for row in answers]


def test_published_format_is_read(tmp_path: Path) -> None:
    text = "Paris is in France. The Seine is in Paris."
    spans = [
        {"start": 0, "end": 4},
        {"start": 12, "end": 17},
        {"start": 24, "end": 28, "text": "Seine"},
        {"start": 36, "end": 40},
    ]
    qas = [
        {"query": "@placeholder has a river", "answers": [{"start": 0, "end": 4, "text": "Paris"}]},
        {"query": "The @placeholder flows", "answers": [{"text": "seine"}, {"text": "river Seine"}]},
    ]
    table = read_entity_clozes(
        write(tmp_path / "a.jsonl", [{"passage": {"text": text, "entities": spans}, "qas": qas}])
    )
    first, second = table.groups
    assert first == ChoiceExample(
        ("Paris", "France", "Seine"), (text,) * 3,
        ("Paris has a river", "France has a river", "Seine has a river"), (0,), ("Paris",), "@placeholder has a river",
    )  # fmt: skip
    assert second.correct == (2,) and second.gold_answers == ("seine", "river Seine") and table.lines == [1, 1]
    blind = read_entity_clozes(tmp_path / "a.jsonl", labels=False)
    assert not blind.answered and blind.groups[0].gold_answers == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": "no gap"}, "line 1: the query 'no gap' in 'query' lacks the placeholder @placeholder"),
        ({"query": None}, "line 1: the query None in 'query' lacks the placeholder @placeholder"),
        ({"entities": []}, "line 1: expected a non-empty list in 'entities'"),
        (
            {"entities": [{"start": 3, "end": 99}]},
            "line 1: an entity in 'entities' has neither a text nor a valid position",
        ),
        ({"answers": None}, "line 1: expected a non-empty list in 'answers'"),
        ({"answers": ["elk"]}, "no answer is among the entities of its passage"),
        ({"passage": None}, "line 1: the field 'passage' is missing"),
    ],
)
def test_invalid_rows_are_rejected(tmp_path: Path, change: dict[str, object], message: str) -> None:
    file = write(tmp_path / "a.jsonl", [rows(1)[0] | change])
    with pytest.raises(PretuneError, match=rf"a\.jsonl.*{message}"):
        Entity().fit(Entity().read(file, {}))


def test_missing_query_column_is_reported(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"passage": "red", "entities": ["red"]}])
    with pytest.raises(PretuneError, match=r"cannot infer the query column.* choose one with --columns.query"):
        read_entity_clozes(file)


@given(st.lists(st.sampled_from([*COLORS, *BEASTS, "the", "U.S."]), max_size=5).map(" ".join), st.data())
def test_scores_are_the_maximum_over_gold_answers(answer: str, draw: st.DataObject) -> None:
    gold = draw.draw(st.lists(st.sampled_from([*COLORS, *BEASTS, "The"]), min_size=1, max_size=4).map(" ".join))
    group = ChoiceExample((answer,), ("x",), None, (), (gold, answer))
    found = score(Entity(), [{"answer": answer}], ChoiceExamples(Path("x"), {}, [group], lines=[1]))
    same = gold.lower().replace("the", "").split() and not answer.lower().replace("the", "").split()
    assert found["exact_match"] == found["f1"] == float(not same)
