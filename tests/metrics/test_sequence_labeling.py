"""Tests of tagging metrics: against `seqeval` if it is installed, and against recorded values."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.metrics.sequence_labeling import entity_metrics
from pretune.text.examples.tag_schemes import parse_tags

TAGS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC", "MISC"))]
pairs = st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=15)


@pytest.mark.not_fast
@given(st.lists(pairs, min_size=1, max_size=4))
def test_scores_equal_those_of_seqeval(sentences: list[list[tuple[str, str]]]) -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    expected, predicted = ([[pair[side] for pair in pairs] for pairs in sentences] for side in (0, 1))
    ours = entity_metrics(expected, predicted).compute()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, theirs in (
            ("f1", seqeval.f1_score),
            ("precision", seqeval.precision_score),
            ("recall", seqeval.recall_score),
        ):
            assert ours[name] == pytest.approx(theirs(expected, predicted)), name
        assert ours["accuracy"] == pytest.approx(seqeval.accuracy_score(expected, predicted))
    for tags in expected:
        assert [tuple(entity) for entity in parse_tags(tags)] == seqeval.sequence_labeling.get_entities(tags)


@pytest.mark.parametrize(
    ("expected", "predicted", "scores"),
    [
        # precision, recall and F1 of seqeval 1.2.2
        ("O O O B-MISC I-MISC I-MISC O B-PER I-PER O", "O O B-MISC I-MISC I-MISC I-MISC O B-PER I-PER O", (1 / 2, 1 / 2, 1 / 2)),
        ("B-PER I-PER O B-LOC", "I-PER I-PER O I-LOC", (1, 1, 1)),
        ("I-PER B-PER O I-LOC", "I-PER I-PER O I-LOC", (1 / 2, 1 / 3, 2 / 5)),
        ("B-PER E-PER O S-LOC", "B-PER E-PER I-PER S-LOC", (2 / 3, 1, 4 / 5)),
        ("O O", "O O", (0, 0, 0)),
        ("O B-PER", "O O", (0, 0, 0)),
    ],
)  # fmt: skip
def test_scores_equal_the_recorded_values(expected: str, predicted: str, scores: tuple[float, ...]) -> None:
    found = entity_metrics([expected.split()], [predicted.split()]).compute()
    assert (found["precision"], found["recall"], found["f1"]) == pytest.approx(scores)


def test_schemes_may_differ_and_types_can_be_excluded() -> None:
    assert entity_metrics([["I-X", "I-X", "B-X"]], [["B-X", "I-X", "B-X"]]).compute()["f1"] == 1
    found = entity_metrics([["B-V", "B-X"]], [["B-V", "O"]], without=("V",)).compute()
    assert found == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 0.5}
    assert entity_metrics([[], ["A", "B"]], [[], ["A", "A"]], plain=True).compute() == {"accuracy": 0.5}
