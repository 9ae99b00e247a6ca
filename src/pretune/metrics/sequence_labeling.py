"""Sequence labeling metrics: accuracy over words; precision, recall and F1 over entities."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from operator import eq
from typing import Any

import numpy as np

from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.classification import most_frequent
from pretune.runtime.arrays import Array
from pretune.text.examples.tag_schemes import convert_tags, parse_tags


def entity_metrics(
    expected: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    *,
    plain: bool = False,
    without: Collection[str] = (),
) -> AdditiveMetrics:
    """Return word accuracy and, unless the tags are `plain`, precision, recall and F1 over entities as conlleval computes them
    (Tjong Kim Sang and De Meulder, 2003).

    The expected and the predicted tags may use different schemes; entity types in `without` are ignored.

    >>> entity_metrics([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "O"]]).whole()
    {'f1': 0.6666666666666666, 'precision': 1.0, 'recall': 0.5, 'accuracy': 0.75}
    """
    values = []
    for right, said in zip(expected, predicted, strict=True):
        sides = (set() if plain else {e for e in parse_tags(tags) if e.kind not in without} for tags in (right, said))
        wanted, found = sides
        values.append([sum(map(eq, right, said)), len(right), len(wanted & found), len(wanted), len(found)])

    def finish(sums: Array) -> dict[str, float]:
        words, total, both, there, given = sums
        accuracy = {"accuracy": words / max(1, total)}
        if plain:
            return accuracy
        rates = {"precision": both / max(1, given), "recall": both / max(1, there)}
        return {"f1": 2 * both / max(1, there + given), **rates, **accuracy}

    return AdditiveMetrics(np.array(values, dtype=np.float64).reshape(-1, 5), finish)


def tag_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> AdditiveMetrics:
    """Return the metrics of the task `tag`; for semantic roles the predicate itself (V) is ignored, as in CoNLL-2005."""
    expected, predicted = (
        [convert_tags(tags, task.written) for tags in examples.tags],
        [answer["tags"] for answer in answers],
    )
    without = ("V",) if task.predicate else ()
    return entity_metrics(expected, predicted, plain=task.written == "plain", without=without)


def usual_tags(task: Any, learned: Any, judged: Any) -> list[dict[str, Any]]:
    """Return for each word its most frequent tag in the training data, and for new words the most frequent tag of all."""
    seen: dict[str, list[str]] = {}
    for words, tags in zip(learned.words, learned.tags, strict=True):
        for word, tag in zip(words, convert_tags(tags, task.written), strict=True):
            seen.setdefault(word, []).append(tag)
    usual = most_frequent(chain.from_iterable(seen.values()))
    known = {word: most_frequent(tags) for word, tags in seen.items()}
    found = ([known.get(word, usual) for word in words] for words in judged.words)
    return [{"tags": convert_tags(tags, task.written)} for tags in found]
