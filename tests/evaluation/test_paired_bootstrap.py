"""Tests of the paired bootstrap: clear differences are significant, and false positives are as rare as stated."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from pretune.evaluation import paired_bootstrap
from pretune.evaluation.paired_bootstrap import compare, compare_additive
from pretune.evaluation.suites.official_metrics import METRICS, PARTS


def answers(right: list[bool]) -> list[dict[str, str]]:
    return [{"label": "a" if good else "b"} for good in right]


ROWS = [{"label": "a"}] * 60


def test_clear_difference_is_significant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_bootstrap, "ROUNDS", 200)
    bad, good = answers([i % 2 == 0 for i in range(60)]), answers([i % 6 != 0 for i in range(60)])
    found = compare(METRICS["accuracy"], ROWS, [bad], [good])
    assert found.first == 0.5 and found.difference == pytest.approx(1 / 3)
    assert 0 < found.low < found.difference < found.high and found.p < 0.02
    same = compare(METRICS["accuracy"], ROWS, [bad, good], [bad, good])
    assert same.difference == 0 and same.low <= 0 <= same.high and same.p > 0.5
    assert compare(METRICS["accuracy"], ROWS, [bad], [bad]).p == 1.0


@pytest.mark.not_fast
def test_equal_models_rarely_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_bootstrap, "ROUNDS", 60)
    chance = np.random.default_rng(0)
    seen = [
        compare(METRICS["accuracy"], ROWS, [answers((chance.random(60) < 0.7).tolist())], [answers((chance.random(60) < 0.7).tolist())], seed=i).p
        for i in range(60)
    ]  # fmt: skip
    assert np.mean(np.array(seen) < 0.1) < 0.3


def example_answers(name: str, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return 40 rows and predictions for a metric."""
    chance = np.random.default_rng(seed)
    words = [" ".join(chance.choice(list("abcd"), 7)) for _ in range(80)]
    if name in ("pearson", "spearman"):
        return [{"label": str(i % 6)} for i in range(40)], [{"value": float(x)} for x in chance.random(40)]
    if name in ("conll_f1", "muc_f1", "b_cubed_f1", "ceaf_f1"):
        mentions = [[(word, word) for word in chance.permutation(6).tolist()] for _ in range(40)]
        return [{"label": [[(0, 0), (1, 1)], [(2, 2), (3, 3), (4, 4)]]}] * 40, [
            {"clusters": [row[:2], row[2:5]]} for row in mentions
        ]
    if name in ("entity_f1", "role_f1", "word_accuracy"):
        tags = [chance.choice(["B-X", "I-X", "O"], 5).tolist() for _ in range(40)]
        return [{"label": ["B-X", "O", "O", "B-X", "I-X"]}] * 40, [{"tags": row} for row in tags]
    if name.startswith("answer_"):
        return [{"label": [{"text": w}] if i % 4 else []} for i, w in enumerate(words[:40])], [
            {"answer": w[:5]} for w in words[:40]
        ]
    if name.startswith("gap_"):
        return [{"answers": [w, "a"]} for w in words[:40]], [{"answer": w[:3]} for w in words[:40]]
    if name == "lf_em":
        header, queries = ["name", "score"], [{"sel": 1, "agg": i % 3, "conds": []} for i in range(40)]
        gold = [{"gold": {"sql": query, "header": header}} for query in queries]
        return gold, [{"answer": f"select {chance.choice(['max ', 'min ', ''])}score from table"} for _ in range(40)]
    if name == "ds_em":
        changes = [f"food: {food};" for food in chance.choice(["thai", "greek"], 80)]
        return [{"label": change, "group": i // 4} for i, change in enumerate(changes[:40])], [
            {"answer": change} for change in changes[40:]
        ]
    if name in ("bleu", "chrf", "exact_match", "nf1", "cf1", "mean_rouge", "bleu_lowercase") or name.startswith(
        "rouge"
    ):
        predicted = chance.random(40) < 0.5
        return [{"label": w} for w in words[:40]], [
            {"answer": w if same else w[2:]} for w, same in zip(words, predicted, strict=False)
        ]
    if name == "ndcg":
        return [{"text": f"q{i // 4}", "label": str(i % 3)} for i in range(40)], [
            {"score": float(x)} for x in chance.random(40)
        ]
    labels = ["0", "1"] if name in ("f1", "f1a") else ["x", "y", "z"]
    given = [{"label": str(label)} for label in chance.choice(labels, 40)]
    return [{"label": labels[i % len(labels)], "group": i // 2} for i in range(40)], given


@pytest.mark.parametrize("name", PARTS)
def test_additive_form_equals_the_official_metric_and_its_bootstrap(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_bootstrap, "ROUNDS", 12)
    monkeypatch.setattr(paired_bootstrap, "TOGETHER", 5)
    rows, _ = example_answers(name, 0)
    first, second = ([example_answers(name, seed)[1] for seed in seeds] for seeds in ((0, 1, 2), (3, 4)))
    for answers in (*first, *second):
        assert PARTS[name](rows, answers).compute()[name] == pytest.approx(METRICS[name](rows, answers), abs=1e-12)
    quick = compare_additive(name, *([PARTS[name](rows, answers) for answers in side] for side in (first, second)))
    assert quick.first == pytest.approx(np.mean([METRICS[name](rows, a) for a in first]), abs=1e-12)
    if name != "ndcg":  # it resamples queries, not rows
        slow = compare(METRICS[name], rows, first, second)
        assert vars(quick) == pytest.approx(vars(slow), abs=1e-9)


@pytest.mark.not_fast
def test_large_sets_are_fast() -> None:
    chance = np.random.default_rng(0)
    rows = [{"label": str(label)} for label in chance.integers(0, 2, 40_430)]
    sides = [[[{"label": str(label)} for label in chance.integers(0, 2, 40_430)] for _ in range(2)] for _ in range(2)]
    began = time.process_time()
    found = compare_additive("f1", *([PARTS["f1"](rows, answers) for answers in side] for side in sides))
    assert time.process_time() - began < 8 and found.low < 0 < found.high
