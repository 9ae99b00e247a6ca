from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from pretune.metrics.classification import classification_metrics

LABELS = ["a", "b", "c", "d"]


@pytest.mark.not_fast
@given(st.integers(2, 4), st.data())
def test_metrics_equal_those_of_scikit_learn(classes: int, data: st.DataObject) -> None:
    labels = LABELS[:classes]
    rows = st.lists(st.tuples(st.sampled_from(labels), st.sampled_from(labels)), min_size=1, max_size=30)
    right, found = map(list, zip(*data.draw(rows), strict=True))
    binary = {"average": "binary", "pos_label": "b"} if classes == 2 else {"average": "macro", "labels": labels}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            "accuracy": accuracy_score(right, found),
            "f1" if classes == 2 else "macro_f1": f1_score(right, found, zero_division=0, **binary),
            "matthews": matthews_corrcoef(right, found),
        }
    assert classification_metrics(right, found, labels) == pytest.approx(expected)
