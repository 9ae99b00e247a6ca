"""Trivial baselines of a task: the majority class, counts of words, and others that the task defines."""

from __future__ import annotations

from typing import Any

import numpy as np

from pretune.objectives.word_baselines import classify_pairs, joined_texts, some_rows
from pretune.runtime.arrays import Array
from pretune.training.jobs.bag_of_words import bag_of_words

Answer = dict[str, Any]
CLASSES = 200  # at most, for a bag of words, which must stay cheap


def trivial_baselines(task: Any, learned: Any, judged: Any) -> dict[str, list[Answer]]:
    """Fit trivial baselines to the examples `learned`; return their answers to the examples `judged`, by baseline."""
    found: dict[str, list[Answer]] = {}
    if task.classifies_texts and len(set(learned.labels)) > 1 and len(task.labels) <= CLASSES:
        if learned.pairs is None:
            some = some_rows(learned)
            labels = bag_of_words(joined_texts(some), some.labels, joined_texts(judged))
            found["a bag of words"] = [{"label": label} for label in labels]
        else:
            labels = classify_pairs(learned, judged)
            found["word overlap and a bag of words"] = [{"label": label} for label in labels]
    found |= task.simple_baselines(learned, judged)
    if usual := task.majority_answers(learned, judged):
        found[f"always {usual[0]}"] = usual[1]
    return found


def cross_validated_baselines(task: Any, rows: Any, folds: Array) -> dict[str, list[Answer]]:
    """Return the answers of each trivial baseline to all rows, each row answered after fitting to the other folds.

    `folds` (rows,) has the number of each row's fold.
    """
    found: dict[str, list[Answer]] = {}
    for fold in np.unique(folds):
        held_out = np.flatnonzero(folds == fold)
        predicted = trivial_baselines(task, rows.take(np.flatnonzero(folds != fold)), rows.take(held_out))
        for name, answers in predicted.items():
            all_answers = found.setdefault(
                "always the most frequent answer" if name.startswith("always ") else name, [{}] * len(rows)
            )
            for row, answer in zip(held_out, answers, strict=True):
                all_answers[row] = answer
    return {name: answers for name, answers in found.items() if all(answers)}
