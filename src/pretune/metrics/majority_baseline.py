"""What whoever does not look answers: always the same, whatever is usual among the examples to learn from."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from pretune.metrics.classification import most_frequent
from pretune.objectives.tasks.renamed_task import kind_of
from pretune.text.examples.tag_schemes import convert

Answer = dict[str, Any]


def constant_answers(task: Any, learned: Any, judged: Any) -> tuple[str, list[Answer]] | None:
    """What that is, and an answer an example; None for a task that has no such."""
    match kind_of(task):
        case "classify" if task.multi:
            several = most_frequent(tuple(sorted(labels)) for labels in learned.labels)
            return repr(", ".join(several)), [{"labels": list(several)}] * len(judged)
        case "classify" | "match" | "prompt":
            usual = most_frequent(learned.labels)
            return repr(usual), [{"label": usual}] * len(judged)
        case "tag":
            usual = most_frequent(chain.from_iterable(learned.tags))
            return repr(usual), [{"tags": convert([usual] * len(words), task.written)} for words in judged.words]
        case "answer" if not all(learned.answers):
            return "no answer", [{"answer": ""}] * len(judged)
        case "regress":
            mean = float(np.mean(learned.labels))
            return f"{mean:.4g}", [{"value": mean}] * len(judged)
        case "choose":
            usual = most_frequent(str(group.right[0]) for group in learned.groups)
            return f"choice {usual}", [{"choice": min(int(usual), len(g.names) - 1)} for g in judged.groups]
        case "generate" if task.closed:
            usual = most_frequent(learned.labels)
            return repr(usual), [{"answer": usual}] * len(judged)
        case "rank":
            return "the same score", [{"score": 0.0}] * len(judged)
    return None


def usual_tags(task: Any, learned: Any, judged: Any) -> list[Answer]:
    """To every word the tag that it has most often among those to learn from; to new ones the most frequent of all."""
    seen: dict[str, list[str]] = {}
    for words, tags in zip(learned.words, learned.tags, strict=True):
        for word, tag in zip(words, convert(tags, task.written), strict=True):
            seen.setdefault(word, []).append(tag)
    usual = most_frequent(chain.from_iterable(seen.values()))
    known = {word: most_frequent(tags) for word, tags in seen.items()}
    found = ([known.get(word, usual) for word in words] for words in judged.words)
    return [{"tags": convert(tags, task.written)} for tags in found]
