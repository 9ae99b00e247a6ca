"""Compute the metrics of coreference resolution, as the scorer of CoNLL-2012 does (Pradhan et al., 2014, P14-2006).

The units are documents, whose entities are sets of mentions. Entities of one mention do not count, as in OntoNotes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set

import numpy as np

from pretune.metrics.additive import AdditiveMetrics
from pretune.runtime.arrays import Array

Entities = Sequence[Set[Hashable]]
Part = tuple[float, float]  # numerator and denominator


def coreference_metrics(expected: Sequence[Entities], predicted: Sequence[Entities]) -> AdditiveMetrics:
    """Return the F1 of MUC, B³ and CEAF (φ4), and their mean, the score of CoNLL-2012.

    `expected` and `predicted` have the entities of each document.

    >>> coreference_metrics([[{1, 2, 3}, {4, 5}]], [[{1, 2}, {4, 5}]]).compute()["muc_f1"]
    0.8
    """
    rows = []
    for pair in zip(expected, predicted, strict=True):
        gold, guess = ([entity for entity in entities if len(entity) > 1] for entities in pair)
        row: list[float] = []
        for one, other in ((gold, guess), (guess, gold)):  # recall, then precision
            for part in (muc, b_cubed):
                row += part(one, other)
        rows.append([*row, ceaf(gold, guess), float(len(gold)), float(len(guess))])

    def from_sums(sums: Array) -> dict[str, float]:
        muc_r, muc_rs, b_r, b_rs, muc_p, muc_ps, b_p, b_ps, similarity, golds, guesses = map(float, sums)
        scores = {
            "muc_f1": f1((muc_r, muc_rs), (muc_p, muc_ps)),
            "b_cubed_f1": f1((b_r, b_rs), (b_p, b_ps)),
            "ceaf_f1": f1((similarity, golds), (similarity, guesses)),
        }
        return {**scores, "coreference_f1": sum(scores.values()) / len(scores)}

    return AdditiveMetrics(np.array(rows, dtype=np.float64).reshape(-1, 11), from_sums)


def f1(recall: Part, precision: Part) -> float:
    """Return the harmonic mean of two fractions, given as numerator and denominator; 0 if one of them is 0."""
    rates = [part[0] / part[1] if part[1] else 0.0 for part in (recall, precision)]
    return 2 * rates[0] * rates[1] / sum(rates) if sum(rates) else 0.0


def muc(entities: Entities, others: Entities) -> Part:
    """Return how many of the links that join the mentions of entities `others` have, and the number of these links.

    >>> muc([{1, 2, 3, 4}], [{1, 2}, {3, 4}])
    (2.0, 3.0)
    """
    owner = owners(others)
    found = links = 0
    for entity in entities:
        parts = {owner.get(mention, ("alone", mention)) for mention in entity}
        found += len(entity) - len(parts)
        links += len(entity) - 1
    return float(found), float(links)


def b_cubed(entities: Entities, others: Entities) -> Part:
    """Return the sum, over mentions, of the share of a mention's entity that is in its entity of `others`; and the count.

    >>> b_cubed([{1, 2, 3, 4}], [{1, 2}, {3, 4}])
    (2.0, 4.0)
    """
    owner = owners(others)
    total = 0.0
    for entity in entities:
        for mention in entity:
            if mention in owner:
                total += len(entity & others[owner[mention]]) / len(entity)
    return total, float(sum(map(len, entities)))


def ceaf(entities: Entities, others: Entities) -> float:
    """Return the similarity of entities under the best one-to-one alignment: φ4, the Dice coefficient of mentions.

    >>> ceaf([{1, 2, 3, 4}], [{1, 2}, {3, 4}])
    0.6666666666666666
    """
    from scipy.optimize import linear_sum_assignment

    similarity = np.array(
        [[2 * len(one & other) / (len(one) + len(other)) for other in others] for one in entities]
    ).reshape(len(entities), len(others))
    return float(similarity[linear_sum_assignment(-similarity)].sum())


def owners(entities: Entities) -> dict[Hashable, int]:
    """Return the index of the entity of each mention."""
    return {mention: number for number, entity in enumerate(entities) for mention in entity}


def link_mentions(mentions: Iterable[Hashable], links: Mapping[Hashable, Hashable]) -> list[set[Hashable]]:
    """Return the entities that follow from `links`, which map mentions to their antecedents; mentions are in order.

    >>> link_mentions([1, 2, 3, 4], {3: 1, 4: 3})
    [{1, 3, 4}, {2}]
    """
    found: dict[Hashable, set[Hashable]] = {}
    entities: list[set[Hashable]] = []
    for mention in mentions:
        if mention in links:
            found[mention] = found[links[mention]]
        else:
            entities.append(set())
            found[mention] = entities[-1]
        found[mention].add(mention)
    return entities
