"""Tests of custom metrics: the registry, functions that fail, and further metrics of classification."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score, matthews_corrcoef

from pretune import PretuneError
from pretune.metrics import custom
from pretune.metrics.custom import compute_metric, find_metrics, register_metric, registered_metrics


def hits(gold: Sequence[str], predicted: Sequence[str]) -> float:
    return sum(g == p for g, p in zip(gold, predicted, strict=True))


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom, "_registered", dict(custom._registered))


def test_metrics_are_found_by_decorator_entry_point_and_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    assert register_metric("hits")(hits) is hits and register_metric("hits")(hits) is hits
    monkeypatch.setattr(custom, "entry_point_objects", lambda group: {"outside": hits})
    assert find_metrics(["hits", "outside"]) == {"hits": hits, "outside": hits}
    assert find_metrics({"mine": hits}) == {"mine": hits}
    with pytest.raises(PretuneError, match=r"no registered metric 'hist'.*hits"):
        find_metrics(["hist"])
    with pytest.raises(PretuneError, match="not a function"):
        find_metrics({"mine": 3})  # type: ignore[dict-item]


def test_two_functions_cannot_have_one_name() -> None:
    with pytest.raises(PretuneError, match="both register a metric 'macro_f1'"):
        register_metric("macro_f1")(hits)


def test_failing_function_is_named() -> None:
    with pytest.raises(PretuneError, match=r"The metric 'broken' failed \(ZeroDivisionError"):
        compute_metric("broken", lambda gold, predicted: 1 / 0, ["a"], ["a"])


@pytest.mark.parametrize("seed", range(3))
def test_classification_metrics_equal_those_of_scikit_learn(seed: int) -> None:
    chance = np.random.default_rng(seed)
    gold, predicted = (chance.choice(["a", "b", "c"], 50, p=[0.7, 0.2, 0.1]).tolist() for _ in range(2))
    known = registered_metrics()
    assert known["macro_f1"](gold, predicted) == pytest.approx(f1_score(gold, predicted, average="macro"))
    assert known["weighted_f1"](gold, predicted) == pytest.approx(f1_score(gold, predicted, average="weighted"))
    assert known["balanced_accuracy"](gold, predicted) == pytest.approx(balanced_accuracy_score(gold, predicted))
    assert known["mcc"](gold, predicted) == pytest.approx(matthews_corrcoef(gold, predicted))
