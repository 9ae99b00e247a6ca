"""Trivial baselines of sequence labeling."""

from __future__ import annotations

from itertools import chain
from typing import Any

from pretune.metrics.classification import most_frequent
from pretune.text.examples.tag_schemes import convert_tags

Answer = dict[str, Any]


def usual_tags(task: Any, learned: Any, judged: Any) -> list[Answer]:
    """Return for each word its most frequent tag in the training data, and for new words the most frequent tag of all."""
    seen: dict[str, list[str]] = {}
    for words, tags in zip(learned.words, learned.tags, strict=True):
        for word, tag in zip(words, convert_tags(tags, task.written), strict=True):
            seen.setdefault(word, []).append(tag)
    usual = most_frequent(chain.from_iterable(seen.values()))
    known = {word: most_frequent(tags) for word, tags in seen.items()}
    found = ([known.get(word, usual) for word in words] for words in judged.words)
    return [{"tags": convert_tags(tags, task.written)} for tags in found]
