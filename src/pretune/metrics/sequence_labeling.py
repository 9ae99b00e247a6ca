"""Compute word accuracy and entity F1 as conlleval does (Tjong Kim Sang and De Meulder, 2003)."""

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
    """Return word accuracy and, unless `plain`, precision, recall and F1 over entities, as conlleval computes them.

    `expected` and `predicted` have the tags of each sentence, possibly in different tag schemes. Use `plain` if the
    tags label words, such as parts of speech, not entities. `without` are entity types to ignore.

    >>> entity_metrics([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "O"]]).compute()
    {'f1': 0.6666666666666666, 'precision': 1.0, 'recall': 0.5, 'accuracy': 0.75}
    """
    values = []
    for pair in zip(expected, predicted, strict=True):
        gold, guess = (set() if plain else {e for e in parse_tags(tags) if e.kind not in without} for tags in pair)
        values.append([sum(map(eq, *pair)), len(pair[0]), len(gold & guess), len(gold), len(guess)])

    def from_sums(sums: Array) -> dict[str, float]:
        correct, words, both, gold, guessed = sums
        accuracy = {"accuracy": correct / max(1, words)}
        if plain:
            return accuracy
        rates = {"precision": both / max(1, guessed), "recall": both / max(1, gold)}
        return {"f1": 2 * both / max(1, gold + guessed), **rates, **accuracy}

    return AdditiveMetrics(np.array(values, dtype=np.float64).reshape(-1, 5), from_sums)


def tag_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> AdditiveMetrics:
    """Return word accuracy and, for entities, precision, recall and F1 of predicted tags (`answers`).

    `examples` are the labeled sentences. For semantic roles, the tag V of the predicate is ignored.
    """
    expected = [convert_tags(tags, task.written) for tags in examples.tags]
    without = ("V",) if task.predicate else ()
    plain = task.written == "plain"
    return entity_metrics(expected, [answer["tags"] for answer in answers], plain=plain, without=without)


def most_frequent_tags(task: Any, train: Any, test: Any) -> list[dict[str, Any]]:
    """Predict for each word in `test` the tag that it has most often in `train`; this is a baseline for taggers.

    Words that do not occur in `train` get the most frequent tag overall.
    """
    seen: dict[str, list[str]] = {}
    for words, tags in zip(train.words, train.tags, strict=True):
        for word, tag in zip(words, convert_tags(tags, task.written), strict=True):
            seen.setdefault(word, []).append(tag)
    overall = most_frequent(chain.from_iterable(seen.values()))
    by_word = {word: most_frequent(tags) for word, tags in seen.items()}
    predicted = ([by_word.get(word, overall) for word in words] for words in test.words)
    return [{"tags": convert_tags(tags, task.written)} for tags in predicted]
