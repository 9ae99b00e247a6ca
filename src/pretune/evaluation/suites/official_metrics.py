"""The official metrics of suites by name, as functions of the rows of a file and the answers to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pretune.metrics import confusion, decanlp
from pretune.metrics.additive import AdditiveMetrics, join_metrics
from pretune.metrics.coreference import coreference_metrics
from pretune.metrics.diagnostics import by_phenomenon, gender_parity, matthews
from pretune.metrics.generated_text import TEXT_METRICS
from pretune.metrics.multirc import multirc_metrics
from pretune.metrics.question_answering import answer_metrics
from pretune.metrics.ranking import query_metrics
from pretune.metrics.regression import correlations
from pretune.metrics.semantic_roles import role_metrics
from pretune.metrics.sequence_labeling import entity_metrics
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, suggest
from pretune.text.examples.multiple_choice import choice_number

Rows = Sequence[Mapping[str, Any]]  # of a suite, see evaluation/suites/declaration.py
Answers = Sequence[Mapping[str, Any]]  # of a task, in the same order


def suite_metrics(names: Sequence[str], rows: Rows, answers: Answers) -> dict[str, float]:
    """Return the metrics called `names`, given the rows of a suite's task and a model's answers to them.

    >>> suite_metrics(["accuracy"], [{"label": 1}, {"label": 0}], [{"label": "1"}, {"label": "1"}])
    {'accuracy': 0.5}
    """
    for name in names:
        if name not in METRICS:
            raise PretuneError(f"unknown metric {name!r}; {suggest(name, METRICS)}")
    return {name: METRICS[name](rows, answers) for name in names}


def phenomena(rows: Rows, answers: Answers) -> list[dict[str, Any]]:
    """Score answers on a diagnostic set; return one result row per linguistic category and phenomenon.

    `rows` are the examples, whose `categories` name their phenomena.
    """
    return by_phenomenon([row.get("categories", {}) for row in rows], *_labels(rows, answers))


def _labels(rows: Rows, answers: Answers) -> tuple[list[str], list[str]]:
    """Return the gold and predicted labels of all rows as strings; for multiple choice, the numbers of the choices."""
    chosen = "choice" in answers[0]
    expected = [choice_number(row["label"]) if chosen else str(row["label"]) for row in rows]
    return expected, [str(answer["choice"] if chosen else answer["label"]) for answer in answers]


def _accuracy(rows: Rows, answers: Answers) -> float:
    return float(np.mean([a == b for a, b in zip(*_labels(rows, answers), strict=True)]))


def _f1(rows: Rows, answers: Answers) -> float:
    """Return the F1 of the positive class: the class "1" or, for other class names, the last in alphabetical order."""
    from sklearn.metrics import f1_score

    expected, given = _labels(rows, answers)
    known = {*expected, *given}
    positive = "1" if known <= {"0", "1"} else max(known)
    sides = ([label == positive for label in side] for side in (expected, given))
    return float(f1_score(*sides, zero_division=0))


def _macro_f1(rows: Rows, answers: Answers) -> float:
    """Return macro F1: the unweighted mean of the F1 of all classes that occur in gold or predicted labels."""
    from sklearn.metrics import f1_score

    return float(f1_score(*_labels(rows, answers), average="macro", zero_division=0))


def _several(name: str) -> Callable[[Rows, Answers], float]:
    def metric(rows: Rows, answers: Answers) -> float:
        expected, given = ([label in ("1", "true") for label in side] for side in _labels(rows, answers))
        return multirc_metrics([row["group"] for row in rows], expected, given)[name]

    return metric


def _correlation(name: str) -> Callable[[Rows, Answers], float]:
    return lambda rows, answers: correlations([float(row["label"]) for row in rows], [a["value"] for a in answers])[
        name
    ]


def _spans(rows: Rows, answers: Answers) -> AdditiveMetrics:
    expected = [[span["text"] for span in row["label"]] for row in rows]
    return answer_metrics(expected, [answer["answer"] for answer in answers])


def _gaps(rows: Rows, answers: Answers) -> AdditiveMetrics:
    """Return exact match and F1 of predicted entities (ReCoRD), each the best over the gold answers to a query."""
    return answer_metrics([row["answers"] for row in rows], [answer["answer"] for answer in answers])


def _tags(rows: Rows, answers: Answers) -> tuple[list[list[str]], list[list[str]]]:
    return [row["label"] for row in rows], [answer["tags"] for answer in answers]


def _clusters(rows: Rows, answers: Answers) -> AdditiveMetrics:
    return coreference_metrics([row["label"] for row in rows], [answer["clusters"] for answer in answers])


def _queries(rows: Rows, answers: Answers) -> AdditiveMetrics:
    """Return ranking metrics of the predicted scores; rows with the same text are candidates for the same query."""
    queries = np.unique(np.array([str(row["text"]) for row in rows], dtype=object), return_inverse=True)[1]
    relevance = np.array([float(row["label"]) for row in rows])
    return query_metrics(queries, relevance, np.array([answer["score"] for answer in answers]))


def _texts(kind: str) -> Callable[[Rows, Answers], AdditiveMetrics]:
    def make(rows: Rows, answers: Answers) -> AdditiveMetrics:
        expected, written = [row["label"] for row in rows], [answer["answer"] for answer in answers]
        return join_metrics([measure(expected, written) for measure in TEXT_METRICS[kind]])

    return make


def _written(answers: Answers) -> list[str]:
    return [answer["answer"] for answer in answers]


def _of_texts(
    metric: Callable[[Sequence[str], Sequence[str]], AdditiveMetrics],
) -> Callable[[Rows, Answers], AdditiveMetrics]:
    return lambda rows, answers: metric([row["label"] for row in rows], _written(answers))


def _pearson(rows: Rows, answers: Answers) -> AdditiveMetrics:
    a, b = np.array([float(row["label"]) for row in rows]), np.array([float(answer["value"]) for answer in answers])
    a, b = a - a.mean(), b - b.mean()  # for numerical precision

    def finish(sums: Array) -> dict[str, float]:
        x, y, xx, yy, xy, n = sums
        spread = np.sqrt(max(0.0, (n * xx - x * x) * (n * yy - y * y)))
        return {"pearson": float((n * xy - x * y) / spread) if spread else 0.0}

    return AdditiveMetrics(np.stack([a, b, a * a, b * b, a * b, np.ones_like(a)], 1), finish)


def _cells(name: str, metric: confusion.Metric) -> Callable[[Rows, Answers], AdditiveMetrics]:
    return lambda rows, answers: confusion.confusion_metric(name, metric, *_labels(rows, answers))


def _called(
    name: str, part: str, make: Callable[[Rows, Answers], AdditiveMetrics]
) -> Callable[[Rows, Answers], AdditiveMetrics]:
    """Return a function that computes metrics with `make` and returns one of them, `part`, under the name `name`."""

    def renamed(rows: Rows, answers: Answers) -> AdditiveMetrics:
        found = make(rows, answers)
        return AdditiveMetrics(found.values, lambda sums: {name: found.from_sums(sums)[part]})

    return renamed


# Additive metrics, whose bootstrap samples are computed quickly.
PARTS: dict[str, Callable[[Rows, Answers], AdditiveMetrics]] = {
    "accuracy": _cells("accuracy", confusion.accuracy),
    "f1": _cells("f1", confusion.f1),
    "macro_f1": _cells("macro_f1", confusion.macro_f1),
    "matthews": _cells("matthews", confusion.matthews),
    "f1a": _cells("f1a", confusion.f1_of_true),
    "pearson": _pearson,
    "answer_exact": _called("answer_exact", "exact_match", _spans),
    "answer_f1": _called("answer_f1", "f1", _spans),
    "gap_exact": _called("gap_exact", "exact_match", _gaps),
    "gap_f1": _called("gap_f1", "f1", _gaps),
    "entity_f1": _called("entity_f1", "f1", lambda rows, answers: entity_metrics(*_tags(rows, answers))),
    "word_accuracy": _called(
        "word_accuracy", "accuracy", lambda rows, answers: entity_metrics(*_tags(rows, answers), plain=True)
    ),
    "role_f1": _called("role_f1", "role_f1", lambda rows, answers: role_metrics(*_tags(rows, answers))),
    **{name: _called(name, name, _clusters) for name in ("conll_f1", "muc_f1", "b_cubed_f1", "ceaf_f1")},
    "ndcg": _called("ndcg", "ndcg@10", _queries),
    **{name: _called(name, name, _texts("bleu")) for name in ("bleu", "chrf", "exact_match")},
    **{name: _called(name, name, _texts("rouge")) for name in ("rouge1", "rouge2", "rougeL")},
    # Metrics of decaNLP: questions may have several correct answers (`gold`).
    "nf1": lambda rows, answers: decanlp.normalized_f1(
        [row.get("gold", [row["label"]]) for row in rows], _written(answers)
    ),
    "cf1": _of_texts(decanlp.corpus_f1),
    "mean_rouge": _of_texts(decanlp.mean_rouge),
    "bleu_lowercase": _of_texts(decanlp.lowercase_bleu),
    "ds_em": lambda rows, answers: decanlp.dialogue_state(
        [row["group"] for row in rows], [row["label"] for row in rows], _written(answers)
    ),
    "lf_em": lambda rows, answers: decanlp.logical_form([row["gold"] for row in rows], _written(answers)),
}


def _whole(name: str) -> Callable[[Rows, Answers], float]:
    return lambda rows, answers: PARTS[name](rows, answers).compute()[name]


METRICS: dict[str, Callable[[Rows, Answers], float]] = {
    **{name: _whole(name) for name in PARTS},
    # These come from scikit-learn and SciPy; the additive versions above are tested against them.
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews": lambda rows, answers: matthews(*_labels(rows, answers)),
    "parity": lambda rows, answers: gender_parity([row["group"] for row in rows], _labels(rows, answers)[1]),
    "f1a": _several("f1a"),
    "exact_questions": _several("exact_questions"),
    "pearson": _correlation("pearson"),
    "spearman": _correlation("spearman"),
}
