"""Trivial baselines: the majority class, a bag of words, and the most frequent tag of each word."""

from __future__ import annotations

from typing import Any

from pretune.training.jobs.bag_of_words import bag_of_words

Answer = dict[str, Any]
ROWS, CLASSES = 20_000, 200  # limits of the bag of words, which must stay cheap


def trivial_baselines(task: Any, learned: Any, judged: Any) -> dict[str, list[Answer]]:
    """Fit trivial baselines to the examples `learned`; return the predictions of each for the examples `judged`."""
    found: dict[str, list[Answer]] = {}
    if task.classifies_texts and len(task.labels) <= CLASSES:
        some = learned.take(range(0, len(learned), -(-len(learned) // ROWS)))
        said = bag_of_words(joined_texts(some), some.labels, joined_texts(judged))
        found["a bag of words"] = [{"label": label} for label in said]
    found |= task.simple_baselines(learned, judged)
    if usual := task.majority_answers(learned, judged):
        found[f"always {usual[0]}"] = usual[1]
    return found


def joined_texts(rows: Any) -> list[str]:
    """Return one text per row, in which the two texts of a pair are joined."""
    if rows.pairs is None:
        return list(rows.texts)
    return [f"{text} ¶ {pair}" for text, pair in zip(rows.texts, rows.pairs, strict=True)]
