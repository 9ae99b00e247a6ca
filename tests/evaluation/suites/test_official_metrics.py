"""Tests of the official metrics of suites and of the averages in published tables."""

from __future__ import annotations

from typing import Any

import pytest

from pretune.evaluation.suites import suite_names
from pretune.evaluation.suites.averages import average, averages, group_averages
from pretune.evaluation.suites.declaration import find_suite
from pretune.evaluation.suites.official_metrics import METRICS, phenomena, suite_metrics
from pretune.runtime.errors import PretuneError


@pytest.mark.not_fast
def test_every_metric_of_every_suite_is_known() -> None:
    names = {metric for name in suite_names() for task in find_suite(name).tasks.values() for metric in task.metrics}
    assert names <= METRICS.keys()
    with pytest.raises(PretuneError, match="did you mean 'accuracy'"):
        suite_metrics(["acuracy"], [], [])


def labels(given: list[Any]) -> list[dict[str, Any]]:
    return [{"label": value} for value in given]


def test_metrics_of_classes_and_choices() -> None:
    rows, answers = labels(["1", "0", "1", "1"]), labels(["1", "1", "0", "1"])
    assert suite_metrics(["f1", "accuracy"], rows, answers) == pytest.approx({"f1": 2 / 3, "accuracy": 0.5})
    assert suite_metrics(["accuracy"], labels(["C", "A"]), [{"choice": 2}, {"choice": 1}]) == {"accuracy": 0.5}
    assert suite_metrics(["accuracy"], labels([0, 1]), [{"choice": 0}, {"choice": 1}]) == {"accuracy": 1.0}
    assert suite_metrics(["f1"], labels(["0", "0"]), labels(["0", "0"])) == {"f1": 0.0}  # no positive prediction
    # CB: F1 is the mean over its three classes.
    rows, answers = (
        labels(["entailment", "neutral", "contradiction"]),
        labels(["entailment", "entailment", "contradiction"]),
    )
    assert suite_metrics(["macro_f1"], rows, answers)["macro_f1"] == pytest.approx((2 / 3 + 0 + 1) / 3)


def test_metrics_of_groups_numbers_clozes_tags_and_texts() -> None:
    rows = [{"label": 1, "group": "a"}, {"label": 0, "group": "a"}, {"label": 1, "group": "b"}]
    assert suite_metrics(["f1a", "exact_questions"], rows, labels(["1", "0", "0"])) == pytest.approx(
        {"f1a": 2 / 3, "exact_questions": 0.5}
    )
    assert suite_metrics(["parity"], rows[:2], labels(["x", "x"])) == {"parity": 1.0}
    assert (
        suite_metrics(["spearman"], labels(["1.0", "2.5", "5"]), [{"value": x} for x in (0, 1, 9)])["spearman"] == 1.0
    )
    gaps = [{"answers": ["the U.S. Army", "Army"]}, {"answers": ["Bob"]}]
    predicted = [{"answer": "us army"}, {"answer": "Anna"}]
    assert suite_metrics(["gap_f1", "gap_exact"], gaps, predicted) == {"gap_f1": 0.5, "gap_exact": 0.5}
    spans = [{"label": [{"text": "Paris", "start": 3}]}, {"label": []}]
    assert suite_metrics(["answer_exact"], spans, [{"answer": "paris."}, {"answer": ""}]) == {"answer_exact": 1.0}
    tags = [{"label": ["B-PER", "I-PER", "O"]}]
    assert suite_metrics(["entity_f1", "word_accuracy"], tags, [{"tags": ["B-PER", "O", "O"]}]) == pytest.approx(
        {"entity_f1": 0.0, "word_accuracy": 2 / 3}
    )
    ranked = [{"text": "q", "label": "4"}, {"text": "q", "label": "0"}, {"text": "q", "label": "2"}]
    # (4 + 0 / log2 3 + 2 / 2) / (4 + 2 / log2 3)
    assert suite_metrics(["ndcg"], ranked, [{"score": s} for s in (3, 2, 1)])["ndcg"] == pytest.approx(5 / 5.2618595)
    written = {"bleu": 1.0, "chrf": 1.0, "rougeL": 1.0}
    assert suite_metrics(list(written), labels(["a b c d e"]), [{"answer": "a b c d e"}]) == pytest.approx(written)


def test_scores_are_grouped_by_phenomenon() -> None:
    rows = [{"label": "a", "categories": {"logic": ["Negation"]}}, {"label": "b"}]
    assert [row["phenomenon"] for row in phenomena(rows, labels(["a", "a"]))] == ["all", "Negation"]


# The table of the BERT paper: MNLI-m, -mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE, average.
TABLE = {
    "Pre-OpenAI SOTA": (80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7, 74.0),
    "OpenAI GPT": (82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1),
    "BERT-base": (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6),
    "BERT-large": (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1),
}


@pytest.mark.parametrize("name", TABLE)
def test_average_of_the_bert_table(name: str) -> None:
    glue = find_suite("glue")
    *values, expected = TABLE[name]
    columns = ("mnli", "mnli-mm", "qqp", "qnli", "sst-2", "cola", "sts-b", "mrpc", "rte")
    metrics = ("accuracy", "accuracy", "f1", "accuracy", "accuracy", "matthews", "spearman", "f1", "accuracy")
    scores = {c: {m: v} for c, m, v in zip(columns, metrics, values, strict=True)}
    found = averages(glue, scores)["average"]
    assert found.value == pytest.approx(expected, abs=0.051) and found.label == ""


def test_official_glue_score() -> None:
    # BERT-large on the leaderboard: 80.5
    scores = {
        "cola": {"matthews": 60.5}, "sst-2": {"accuracy": 94.9}, "mrpc": {"f1": 89.3, "accuracy": 85.4},
        "sts-b": {"pearson": 87.6, "spearman": 86.5}, "qqp": {"f1": 72.1, "accuracy": 89.3}, "mnli": {"accuracy": 86.7},
        "mnli-mm": {"accuracy": 85.9}, "qnli": {"accuracy": 92.7}, "rte": {"accuracy": 70.1}, "wnli": {"accuracy": 65.1},
        "ax": {"matthews": 39.6},
    }  # fmt: skip
    assert averages(find_suite("glue"), scores)["glue_score"].value == pytest.approx(80.5, abs=0.05)


def test_official_scores_of_superglue_and_russian_superglue() -> None:
    human = {
        "boolq": {"accuracy": 89.0}, "cb": {"macro_f1": 95.8, "accuracy": 98.9}, "copa": {"accuracy": 100.0},
        "multirc": {"f1a": 81.8, "exact_questions": 51.9}, "record": {"gap_f1": 91.7, "gap_exact": 91.3},
        "rte": {"accuracy": 93.6}, "wic": {"accuracy": 80.0}, "wsc": {"accuracy": 100.0}, "ax-b": {"matthews": 76.6},
    }  # fmt: skip
    superglue = find_suite("superglue")
    assert averages(superglue, human)["score"].value == pytest.approx(89.8, abs=0.05)
    assert group_averages(superglue, human)["reading"].value == pytest.approx((66.85 + 91.5) / 2)
    people = {
        "lidirus": {"matthews": 0.626}, "rcb": {"macro_f1": 0.68, "accuracy": 0.702}, "parus": {"accuracy": 0.982},
        "muserc": {"f1a": 0.806, "exact_questions": 0.42}, "terra": {"accuracy": 0.92}, "russe": {"accuracy": 0.805},
        "rwsd": {"accuracy": 0.84}, "danetqa": {"accuracy": 0.915}, "rucos": {"gap_f1": 0.93, "gap_exact": 0.89},
    }  # fmt: skip
    assert averages(find_suite("russian-superglue"), people)["score"].value == pytest.approx(0.811, abs=0.0005)


def test_partial_averages_are_marked() -> None:
    glue = find_suite("glue")
    found = averages(glue, {"rte": {"accuracy": 0.6}, "mnli": {"accuracy": 0.8}})
    assert found["average"].value == pytest.approx(0.7) and found["average"].label == " (2 of 9)"
    assert found["glue_score"].label == " (1 of 9)"  # MNLI counts only with both parts
    assert averages(glue, {}) == {}
    xglue = find_suite("xglue")
    tongues = {f"qam-{tongue}": {"accuracy": value} for tongue, value in (("en", 0.7), ("de", 0.6), ("fr", 0.5))}
    found_languages = average(xglue, ["qam"], tongues)
    assert found_languages is not None and found_languages.value == pytest.approx(0.6)
