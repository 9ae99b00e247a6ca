"""Tests of options that are added to the tasks of an objective expression."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import add_task_options, parse_objective


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("classify", "classify(threshold=0.3)"),
        ("classify()", "classify(threshold=0.3)"),
        ("classify(pooling=mean) on mix/bilstm", "classify(pooling=mean,threshold=0.3) on mix/bilstm"),
        ("classify+0.5*lm", "classify(threshold=0.3)+0.5*lm"),
        ("a: classify | b: regress", "a: classify(threshold=0.3) | b: regress"),
    ],
)
def test_options_are_added_to_the_tasks_that_have_them(text: str, expected: str) -> None:
    assert add_task_options(text, {"threshold": 0.3}) == expected
    task = parse_objective(expected).objectives[0]
    assert task.unwrapped.threshold == 0.3  # type: ignore[attr-defined]
    assert add_task_options(text, {}) == text


def test_option_that_no_task_has_or_that_is_set_already_is_an_error() -> None:
    with pytest.raises(PretuneError, match="has no option class_weight; remove this option"):
        add_task_options("regress", {"class_weight": "balanced"})
    with pytest.raises(PretuneError, match="both set class_weight"):
        add_task_options("classify( class_weight = none )", {"class_weight": "balanced"})


LABEL = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)


@settings(max_examples=50)
@given(st.dictionaries(LABEL, st.floats(0.01, 100), min_size=1, max_size=3))
def test_class_weights_of_any_labels_are_read_back(weights: dict[str, float]) -> None:
    (task,) = parse_objective(add_task_options("classify(pooling=mean)", {"class_weight": weights})).objectives
    assert task.class_weight == weights and task.pooling == "mean"  # type: ignore[attr-defined]


def test_class_weights_in_an_expression_need_no_quotes() -> None:
    first, second = parse_objective("a: classify(class_weight={spam: 5, ham: 1}, dropout=0.2)|0.5*mlm").objectives
    assert first.unwrapped.class_weight == {"spam": 5, "ham": 1}  # type: ignore[attr-defined]
    assert first.unwrapped.dropout == 0.2 and second.name == "mlm"  # type: ignore[attr-defined]
