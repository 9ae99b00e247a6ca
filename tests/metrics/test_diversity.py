"""Tests of the metrics of repetition and diversity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.metrics.diversity import diversity_metrics, repetition_rate, self_bleu
from pretune.metrics.generated_text import tokenize_13a

texts_of_words = st.lists(st.text("abcd ", max_size=24), min_size=2, max_size=5)


def test_values_by_hand() -> None:
    # 2 + 5 of 5 + 6 words are distinct (so; a new day and night), 1 + 5 of 4 + 5 pairs, 1 + 4 of 3 + 4 triples;
    # the first text has the 4-gram "so so so so" twice, the second none twice.
    found = diversity_metrics(["so so so so so", "a new day and a night"])
    assert found == {
        "distinct_1": pytest.approx(6 / 11),
        "distinct_2": pytest.approx(6 / 9),
        "distinct_3": pytest.approx(5 / 7),
        "repetition_4": pytest.approx((1 / 2 + 0) / 2),
        "self_bleu": 0.0,
    }


def test_a_loop_repeats_and_a_sentence_does_not() -> None:
    assert repetition_rate("the cat sat on the mat.") == 0
    assert repetition_rate("I know. " * 50) == pytest.approx(1 - 3 / 147)
    assert repetition_rate("one two three") is None


@given(texts_of_words)
def test_self_bleu_equals_that_of_sacrebleu(texts: list[str]) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    expected = []
    for number, text in enumerate(texts):
        if len(tokenize_13a(text)) >= 4:
            others = texts[:number] + texts[number + 1 :]
            expected.append(sacrebleu.sentence_bleu(text, others, use_effective_order=False).score / 100)
    assert self_bleu(texts) == pytest.approx(expected)


def test_equal_texts_have_a_self_bleu_of_one_and_different_ones_of_zero() -> None:
    assert diversity_metrics(["A b c d e."] * 3)["self_bleu"] == pytest.approx(1.0)
    assert diversity_metrics(["a b c d", "e f g h"])["self_bleu"] == 0


@pytest.mark.parametrize("texts", [[], [""], [" ", "\n"]])
def test_texts_without_words_have_no_metrics(texts: list[str]) -> None:
    assert diversity_metrics(texts) == {}


def test_a_single_text_has_no_self_bleu() -> None:
    assert "self_bleu" not in diversity_metrics(["я иду домой и пою песню"])
