"""Tests of question-answering metrics: the official SQuAD scores, and the best threshold."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.metrics import score
from pretune.metrics.question_answering import answer_metrics, choose_threshold, exact_match_and_f1
from pretune.objectives.tasks.answer import AnswerTask
from pretune.text.examples.question_answering import AnswerSpan, Questions


def questions(golds: list[list[str]]) -> Questions:
    answers = [[AnswerSpan(text, 0) for text in texts] for texts in golds]
    return Questions(Path("x"), {}, ["?"] * len(golds), [""] * len(golds), answers)


@pytest.mark.parametrize(
    ("golds", "predicted", "exact", "f1"),
    [
        # as in evaluate-v2.0.py
        (["Denver Broncos"], "the denver broncos!", 1, 1),
        (["Denver Broncos", "Broncos"], "Broncos win", 0, 2 / 3),
        (["gold"], "golden", 0, 0),
        (["50"], "", 0, 0),
        ([], "", 1, 1),
        ([], "x", 0, 0),
        (["The"], "", 1, 1),  # the article is removed
        (["a cat sat on a mat"], "cat mat mat", 0, 4 / 7),
        (["Дом в Твери"], "дом в твери.", 1, 1),
    ],
)
def test_scores_equal_the_official_ones(golds: list[str], predicted: str, exact: float, f1: float) -> None:
    assert exact_match_and_f1(golds, predicted) == pytest.approx((exact, f1))


def test_answered_and_unanswerable_questions_are_scored_separately() -> None:
    found = answer_metrics([["b c"], [], []], ["the b", "", "x"]).compute()
    parts = {"has_answer_exact_match": 0, "has_answer_f1": 2 / 3, "no_answer_exact_match": 0.5, "no_answer_f1": 0.5}
    assert found == pytest.approx({"exact_match": 1 / 3, "f1": 5 / 9, **parts})
    assert set(answer_metrics([["x"]], ["x"]).compute()) == {"exact_match", "f1"}
    assert set(answer_metrics([[]], [""]).compute()) == {"exact_match", "f1", "no_answer_exact_match", "no_answer_f1"}


def answers(margins: list[float], texts: list[str]) -> list[dict[str, Any]]:
    return [{"no_answer": m, "candidates": [{"answer": t}] if t else []} for m, t in zip(margins, texts, strict=True)]


@pytest.mark.not_fast
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_chosen_threshold_is_optimal(rows: list[tuple[int, bool, bool]]) -> None:
    examples = questions([["right"] if there else [] for _, there, _ in rows])
    given_ = answers([float(m) for m, _, _ in rows], ["right" if right else "wrong" for _, _, right in rows])

    def f1(threshold: float) -> float:
        predicted = [{"answer": "" if a["no_answer"] > threshold else a["candidates"][0]["answer"]} for a in given_]
        return score(AnswerTask(), predicted, examples)["f1"]

    found = AnswerTask().best_options(given_, examples)
    if all(there for _, there, _ in rows):
        assert found == {}
    else:
        assert f1(found["threshold"]) == pytest.approx(max(f1(t) for t in np.arange(-5, 5, 0.5)))


def test_questions_without_candidates_have_a_threshold() -> None:
    found = choose_threshold(answers([1e4, -2.0], ["", "x"]), questions([[], ["x"]]), SimpleNamespace())
    assert -2 < found["threshold"] < 1e4
