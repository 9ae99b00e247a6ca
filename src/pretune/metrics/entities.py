"""How good tags are: words that are right, and entities that are right from their first word to their last."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pretune.text.schemes import convert, find_entities


def entity_metrics(
    expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], without: Collection[str] = ()
) -> dict[str, float]:
    """Precision, recall and F1 over all entities, as conlleval counts them (Tjong Kim Sang and De Meulder, 2003).

    Tags may be of any scheme, those expected of another one than those predicted; kinds in `without` do not count.

    >>> entity_metrics([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "O"]])
    {'f1': 0.6666666666666666, 'precision': 1.0, 'recall': 0.5}
    """
    right = there = said = 0
    for gold, tags in zip(expected, predicted, strict=True):
        wanted, found = ({e for e in find_entities(side) if e.kind not in without} for side in (gold, tags))
        right, there, said = right + len(wanted & found), there + len(wanted), said + len(found)
    precision, recall = right / max(1, said), right / max(1, there)
    return {"f1": 2 * right / max(1, there + said), "precision": precision, "recall": recall}


def word_accuracy(expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """The share of words that have the right tag.

    >>> word_accuracy([["NOUN", "VERB"]], [["NOUN", "NOUN"]])
    0.5
    """
    pairs = [pair for sides in zip(expected, predicted, strict=True) for pair in zip(*sides, strict=True)]
    return sum(gold == tag for gold, tag in pairs) / max(1, len(pairs))


def score_tags(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """The metrics of `tag`. Of the roles of a predicate, that it is one itself does not count, as in CoNLL-2005."""
    predicted = [answer["tags"] for answer in answers]
    expected = [convert(tags, task.written) for tags in examples.tags]
    accuracy = {"accuracy": word_accuracy(expected, predicted)}
    if task.written == "plain":
        return accuracy
    return entity_metrics(expected, predicted, without=("V",) if task.predicate else ()) | accuracy
