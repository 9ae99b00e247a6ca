"""What costs nothing: answers of whoever does not look, or looks at words alone."""

from __future__ import annotations

from typing import Any

from pretune.training.jobs.bag_of_words import bag_of_words

Answer = dict[str, Any]
ROWS, CLASSES = 20_000, 200  # that a bag of words learns from, at most: it should cost nothing


def controls(task: Any, learned: Any, judged: Any) -> dict[str, list[Answer]]:
    """Answers to some examples of learners that any model should beat, by what they do."""
    found: dict[str, list[Answer]] = {}
    if task.kind in ("classify", "prompt") and task.single_label and len(task.labels) <= CLASSES:
        some = learned.take(range(0, len(learned), -(-len(learned) // ROWS)))
        said = bag_of_words(joined(some), some.labels, joined(judged))
        found["a bag of words"] = [{"label": label} for label in said]
    found |= task.simple_baselines(learned, judged)
    if usual := task.constant_answers(learned, judged):
        found[f"always {usual[0]}"] = usual[1]
    return found


def joined(rows: Any) -> list[str]:
    """Texts, pairs of them as one."""
    if rows.pairs is None:
        return list(rows.texts)
    return [f"{text} ¶ {pair}" for text, pair in zip(rows.texts, rows.pairs, strict=True)]
