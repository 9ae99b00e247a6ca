"""Tests that metrics of texts equal those of sacrebleu 2.6.0 and rouge-score 0.1.2, which gave the expected values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.metrics import bootstrap_scores, score
from pretune.metrics.generated_text import (
    bleu,
    chrf,
    exact_match,
    longest_common_subsequence,
    rouge,
    tokenize_13a,
    word_f1,
)
from pretune.objectives.tasks.generate import Generate
from pretune.text.examples.labeled import LabeledRows

EXPECTED = [
    "Heavy rain has flooded 1,200 homes (in the north), officials said.",
    "The cat sat on the mat.",
    "It's a state-of-the-art e-mail client!",
]
WRITTEN = [
    "Rain flooded 1,200 homes in the north, said officials.",
    "A cat was sitting on the mat.",
    "This is a state-of-the-art client for e-mail.",
]
texts = st.lists(st.text("ab c.1,-", max_size=12), min_size=1, max_size=4)


def test_scores_equal_those_of_sacrebleu_and_rouge_score() -> None:
    assert bleu(EXPECTED, WRITTEN).compute()["bleu"] == pytest.approx(0.2150919776014712, abs=1e-12)
    assert chrf(EXPECTED, WRITTEN).compute()["chrf"] == pytest.approx(0.61002006089174024, abs=1e-12)
    assert rouge(EXPECTED, WRITTEN).compute() == pytest.approx(
        {"rouge1": 0.7621267621267621, "rouge2": 0.4966507177033493, "rougeL": 0.7000777000777001}
    )
    pairs = ["one two three four five", "six seven"], ["one two four", "seven six"]
    assert bleu(*pairs).compute()["bleu"] == 0.0  # no common 4-gram
    assert chrf(*pairs).compute()["chrf"] == pytest.approx(0.3906709112150466, abs=1e-12)


@given(texts)
def test_identical_texts_have_the_maximum_score(written: list[str]) -> None:
    assert exact_match(written, written).compute() == {"exact_match": 1.0}
    if any(len("".join(text.split())) for text in written):
        assert chrf(written, written).compute()["chrf"] == pytest.approx(1.0)
    if any(len(tokenize_13a(text)) > 3 for text in written):
        assert bleu(written, written).compute()["bleu"] == pytest.approx(1.0)
    assert all(0 <= value <= 1 + 1e-12 for value in rouge(written, written[::-1]).compute().values())


@given(st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_longest_common_subsequence_equals_the_recursive_definition(a: str, b: str) -> None:
    def plain(a: str, b: str) -> int:
        if not a or not b:
            return 0
        if a[0] == b[0]:
            return 1 + plain(a[1:], b[1:])
        return max(plain(a[1:], b), plain(a, b[1:]))

    assert longest_common_subsequence(a, b) == plain(a, b)


def test_rouge_supports_other_scripts_than_latin() -> None:
    assert rouge(["Кот спал"], ["кот спал!"]).compute()["rouge2"] == 1.0
    assert rouge([""], [""]).compute() == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}


@pytest.mark.parametrize("judged", ["exact_match", "word_f1", "rouge", "bleu"])
@pytest.mark.parametrize("closed", [False, True])
def test_task_metrics_equal_those_of_the_texts_and_of_resamples(judged: Any, closed: bool) -> None:
    wanted, written = ["the cat sat", "a dog", "red , 1.5", "so"], ["the cat", "a dog", "", "so it is"]
    task = Generate(metric=judged, constrained=closed, labels=tuple(wanted))
    answers = [{"answer": text} for text in written]

    def examples(rows: list[int]) -> LabeledRows:
        return LabeledRows(Path("x"), {}, ["…"] * len(rows), labels=[wanted[row] for row in rows], lines=rows)

    found = score(task, answers, examples([0, 1, 2, 3]))
    expected = exact_match(wanted, written).compute()
    expected |= word_f1(wanted, written).compute() if judged == "word_f1" else {}
    expected |= rouge(wanted, written).compute() if judged == "rouge" else {}
    expected |= bleu(wanted, written).compute() | chrf(wanted, written).compute() if judged == "bleu" else {}
    assert expected.items() <= found.items() and ("accuracy" in found) == closed and task.primary_metric in found
    chances = [np.random.default_rng(0) for _ in range(2)]
    for drawn in bootstrap_scores(task, answers, examples([0, 1, 2, 3]), chances[0], 5):
        rows = chances[1].integers(0, 4, 4).tolist()
        assert drawn == pytest.approx(score(task, [answers[row] for row in rows], examples(rows)))
    assert [one.score for one in task.judge(answers, examples([0, 1, 2, 3]))][1:3] == [1.0, 0.0]
