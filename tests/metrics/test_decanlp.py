"""Tests of decaNLP's metrics."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.evaluation.suites.decanlp_formats import spell_query
from pretune.metrics.decanlp import (
    corpus_f1,
    dialogue_state,
    gold_query,
    logical_form,
    lowercase_bleu,
    mean_rouge,
    normalized_f1,
    parse_query,
    parse_state_change,
)

HEADER = ["Player", "No. of wins", "Team (years)", "Wins"]
WORD = st.text("abc xyz0123", min_size=1, max_size=8).map(lambda text: " ".join(text.split()) or "a")
CONDITION = st.tuples(st.integers(0, 3), st.integers(0, 3), WORD)
QUERY = st.fixed_dictionaries(
    {"sel": st.integers(0, 3), "agg": st.integers(0, 5), "conds": st.lists(CONDITION.map(list), max_size=3)}
)


@given(QUERY)
def test_every_query_is_parsed_back(query: dict[str, Any]) -> None:
    gold = {"sql": query, "header": HEADER}
    text = spell_query(query, HEADER)
    assert parse_query(text, HEADER) == gold_query(gold)
    assert logical_form([gold], [text.lower()]).compute() == {"lf_em": 1.0}


def test_other_queries_are_wrong() -> None:
    gold = {"sql": {"sel": 0, "agg": 0, "conds": [[3, 1, 3], [2, 0, "Ajax"]]}, "header": HEADER}
    right = "SELECT Player FROM table WHERE Wins > 3 AND Team (years) = Ajax"
    for wrong in (
        "", "Player", "SELECT Coach FROM table", "SELECT MAX Player FROM table WHERE Wins > 3 AND Team (years) = Ajax",
        right.replace("3", "4"), right.replace(">", "<"), "SELECT Player FROM table WHERE x Wins > 3",
    ):  # fmt: skip
        assert logical_form([gold], [wrong]).compute() == {"lf_em": 0.0}
    assert logical_form([gold], [right]).compute() == {"lf_em": 1.0}


def test_state_is_that_after_all_turns() -> None:
    changes = ["food: thai;", "None", "area: north; phone", "food: greek;"]
    assert dialogue_state([0] * 4, changes, changes).compute() == {"ds_em": 1.0}
    wrong = ["food: thai;", "None", "area: south; phone", "food: greek;"]
    assert dialogue_state([0] * 4, changes, wrong).compute() == {"ds_em": 0.5}  # wrong from the third turn on
    corrected = [*wrong[:3], "food: greek, area: north;"]
    assert dialogue_state([0] * 4, changes, corrected).compute() == {"ds_em": 0.75}
    assert dialogue_state([0, 0, 1, 1], changes, wrong).compute() == {"ds_em": 0.5}  # each dialogue starts anew
    assert parse_state_change("garbage; without, colons") == {}


def test_corpus_f1_counts_unanswerable_questions() -> None:
    none = "Unanswerable"
    assert corpus_f1(["a b", none], ["b a", none]).compute() == {"cf1": 1.0}
    assert corpus_f1(["a b", none], ["b a", "c"]).compute() == {"cf1": pytest.approx(2 / 3)}
    assert corpus_f1(["a b", "c"], ["b a", none]).compute() == {"cf1": pytest.approx(2 / 3)}
    assert corpus_f1([none], [none]).compute() == {"cf1": 0.0}


def test_texts_are_compared_with_all_answers_and_regardless_of_case() -> None:
    assert normalized_f1([["x y"], ["no"]], ["x", "no"]).compute() == {"nf1": pytest.approx((2 / 3 + 1) / 2)}
    assert lowercase_bleu(["A B C D E"], ["a b c d e"]).compute() == {"bleu_lowercase": 1.0}
    assert mean_rouge(["a b c"], ["a b"]).compute() == {"mean_rouge": pytest.approx((0.8 + 2 / 3 + 0.8) / 3)}
