"""Tests of MUC, B³ and CEAF-φ4: published worked examples, cases computed by hand, and properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.metrics.coreference import coreference_metrics

Clusters = list[list[tuple[int, int]]]


def clusters(text: str) -> Clusters:
    """Return the clusters of mentions of one letter: "abc de" has two."""
    return [[(ord(letter), ord(letter)) for letter in part] for part in text.split()]


def scores(key: str, response: str) -> dict[str, float]:
    return coreference_metrics([clusters(key)], [clusters(response)]).compute()


def all_of(found: dict[str, float], name: str) -> list[float]:
    return [found[f"{name}_{part}"] for part in ("recall", "precision", "f1")]


def test_worked_example_of_the_reference_scorer() -> None:
    """Pradhan et al., 2014, figure 2: the key {a, b, c}, {d, e, f, g}; the response {a, b}, {c, d}, {f, g, h, i}."""
    found = scores("abc defg", "ab cd fghi")
    assert all_of(found, "muc") == pytest.approx([0.40, 0.40, 0.40], abs=0.005)
    assert all_of(found, "b_cubed") == pytest.approx([0.42, 0.50, 0.46], abs=0.006)  # its F1 is of the rounded values
    assert all_of(found, "ceaf") == pytest.approx([0.65, 0.43, 0.52], abs=0.005)
    assert found["conll_f1"] == pytest.approx(np.mean([all_of(found, n)[2] for n in ("muc", "b_cubed", "ceaf")]))
    assert found["mention_f1"] == pytest.approx(2 * 6 / (7 + 8))


@pytest.mark.parametrize(
    ("key", "response", "muc", "b_cubed", "ceaf"),
    [
        # Bagga and Baldwin, 1998: joining the two large clusters is the worse error, which MUC does not see.
        ("12345 67 89ABC", "12345 6789ABC", (1, 9 / 10), (1, 16 / 21), ((1 + 10 / 12) / 3, (1 + 10 / 12) / 2)),
        ("12345 67 89ABC", "1234589ABC 67", (1, 9 / 10), (1, 7 / 12), ((1 + 10 / 15) / 3, (1 + 10 / 15) / 2)),
        # Nothing is found, and nothing is right.
        ("ab cde", "", (0, 0), (0, 0), (0, 0)),
        ("ab cde", "fg", (0, 0), (0, 0), (0, 0)),
        # The mentions of the response that the key lacks lower the precision.
        ("abc", "abcx", (1, 2 / 3), (1, 9 / 16), (6 / 7, 6 / 7)),
        # Clusters of one mention count in B³ and CEAF, but have no links for MUC.
        ("ab c", "ab c", (1, 1), (1, 1), (1, 1)),
        ("ab c", "ab", (1, 1), (2 / 3, 1), (1 / 2, 1)),
    ],
)
def test_cases_computed_by_hand(
    key: str,
    response: str,
    muc: tuple[float, float],
    b_cubed: tuple[float, float],
    ceaf: tuple[float, float],
) -> None:
    found = scores(key, response)
    for name, expected in (("muc", muc), ("b_cubed", b_cubed), ("ceaf", ceaf)):
        assert all_of(found, name)[:2] == pytest.approx(expected), name


def test_sums_are_over_documents() -> None:
    both = coreference_metrics([clusters("ab cd"), clusters("abcd")], [clusters("ab"), clusters("abcd")]).compute()
    assert all_of(both, "muc")[:2] == [4 / 5, 1]
    assert all_of(both, "b_cubed")[:2] == [6 / 8, 1]
    assert all_of(both, "ceaf")[:2] == [2 / 3, 1]
    assert coreference_metrics([], []).compute()["conll_f1"] == 0


partitions = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def partition(names: list[int], least: int = 1) -> Clusters:
    """Return the clusters of mentions 0, 1, … that have the same name."""
    groups = [[(i, i) for i, name in enumerate(names) if name == wanted] for wanted in sorted(set(names))]
    return [group for group in groups if len(group) >= least]


@given(partitions, partitions, st.randoms())
def test_scores_depend_on_partitions_alone(key: list[int], response: list[int], rng: object) -> None:
    gold, guess = partition(key, 2), partition(response, 2)
    found = coreference_metrics([gold], [guess]).compute()
    assert all(0 <= value <= 1 + 1e-9 for value in found.values())
    shuffled = [rng.sample(cluster, len(cluster)) for cluster in rng.sample(guess, len(guess))]  # type: ignore[attr-defined]
    assert coreference_metrics([gold[::-1]], [shuffled]).compute() == pytest.approx(found)
    swapped = coreference_metrics([guess], [gold]).compute()
    for name in ("muc", "b_cubed", "ceaf"):
        recall, precision, f1 = all_of(found, name)
        assert all_of(swapped, name) == pytest.approx([precision, recall, f1])


@given(partitions)
def test_perfect_clusters_score_one(names: list[int]) -> None:
    gold = partition(names)
    found = coreference_metrics([gold], [gold]).compute()
    assert found["b_cubed_f1"] == pytest.approx(1) and found["ceaf_f1"] == pytest.approx(1)
    linked = any(len(cluster) > 1 for cluster in gold)
    assert found["muc_f1"] == float(linked)  # without links, there is nothing to find
    assert found["conll_f1"] == pytest.approx(1 if linked else 2 / 3)
    assert found["mention_f1"] == 1
