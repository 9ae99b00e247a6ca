"""Tests of published results: well formed, consistent with their averages, and in one table with new results."""

from __future__ import annotations

import pytest

from pretune.evaluation.suites.averages import averages
from pretune.evaluation.suites.declaration import find_suite
from pretune.evaluation.suites.published_results import legend, published_results, results_table, sources

WITH_ROWS = ["glue", "superglue", "russian-superglue", "squad", "text", "decanlp"]


@pytest.mark.parametrize("name", WITH_ROWS)
def test_rows_name_tasks_metrics_splits_and_sources(name: str) -> None:
    suite = find_suite(name)
    assert published_results(suite)
    for row in published_results(suite):
        assert row.split in ("dev", "test") and row.source and row.scores.keys() <= suite.tasks.keys()
        assert row.averages.keys() <= {**suite.averages, **suite.sums}.keys()
        for task, scores in row.scores.items():
            assert isinstance(scores, int | float) or scores.keys() <= set(suite.tasks[task].metrics)


@pytest.mark.parametrize("name", WITH_ROWS)
def test_printed_averages_equal_those_of_their_rows(name: str) -> None:
    suite = find_suite(name)
    for row in published_results(suite):
        whole = {}
        for task, scores in row.scores.items():
            metric = suite.tasks[task].metrics[0]
            whole[task] = scores if isinstance(scores, dict) else {metric: scores}
        for average, value in row.averages.items():
            found = averages(suite, whole)[average]
            if found.missing:  # the leaderboard's score counts tasks that the lecture does not print
                continue
            # The SOTA row before OpenAI's combines different systems; its average is as printed.
            close = 0.5 if average in suite.sums else 0.0011 if suite.scale == 1 else 0.11
            assert found.value == pytest.approx(value, abs=close), row.name


def test_systems_of_the_lecture_are_included() -> None:
    names = {row.name for row in published_results(find_suite("glue"))}
    assert {"Pre-OpenAI SOTA", "BiLSTM+ELMo+Attn", "OpenAI GPT", "BERT-base", "BERT-large", "RoBERTa", "XLNet"} <= names
    assert {"ALBERT (1.5M)", "ELECTRA-1.75M", "BERT-6, patient distillation", "ALBERT-xlarge (60M)"} <= names
    leaderboard = [row for row in published_results(find_suite("glue")) if row.source.startswith("gluebenchmark.com")]
    assert len(leaderboard) == 11 and [row.averages["glue_score"] for row in leaderboard] == sorted(
        (row.averages["glue_score"] for row in leaderboard), reverse=True
    )
    assert {"BERT-base (108M)", "ALBERT-xlarge (60M)"} <= {row.name for row in published_results(find_suite("text"))}


def test_new_results_are_listed_with_published_ones() -> None:
    glue = find_suite("glue")
    tasks = {name: glue.tasks[name] for name in ("cola", "mrpc", "sts-b")}
    scores = {"cola": {"matthews": (0.3456, 0.0123)}, "mrpc": {"f1": (0.88, 0.01), "accuracy": (0.84, 0.02)}}
    rows = results_table(glue, [{"system": "mine", "split": "dev", "scores": scores}], tasks)
    assert rows[0] == {
        "system": "mine", "split": "dev", "CoLA": "34.6±1.2", "MRPC": "88.0±1.0/84.0±2.0", "STS-B": "-",
        "average": "61.3 (2 of 9)", "glue score": "60.3 (2 of 9)",
    }  # fmt: skip
    base = next(row for row in rows if row["system"] == "BERT-base")
    assert base == {
        "system": "BERT-base", "split": "test", "CoLA": "52.1", "MRPC": "88.9/-", "STS-B": "-/85.8",
        "average": "79.6", "glue score": "-",
    }  # fmt: skip
    assert legend(tasks) == "CoLA mcc, MRPC f1/acc, STS-B r/ρ"
    assert any("1810.04805" in source for source in sources(glue, tasks))
    russian = find_suite("russian-superglue")
    rows = results_table(
        russian,
        [{"system": "mine", "split": "dev", "scores": {"terra": {"accuracy": 0.5}}}],
        {"terra": russian.tasks["terra"]},
    )
    assert rows[0]["TERRa"] == "0.500" and rows[1]["score"] == "0.811"
    assert published_results(find_suite("translation")) == []
