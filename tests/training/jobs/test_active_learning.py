"""Tests of active learning on synthetic topics, labeled by an oracle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pretune.runtime.arrays import Array
from pretune.training.jobs.active_learning import (
    TEST_SHARE,
    ActiveLearner,
    curve_sizes,
    diverse_batch,
    is_trainable,
)

SHARES = (0.7, 0.2, 0.06, 0.04)  # of the topics: random choice finds the last ones late
WIDTH = 12


def topics(seed: int, count: int = 400) -> tuple[list[str], Array, list[str]]:
    """Return texts of common words with embeddings that are clusters of unequal size, and their topics."""
    draws = np.random.default_rng(seed)
    centers = 2 * np.eye(len(SHARES), WIDTH)
    kinds = draws.choice(len(SHARES), count, p=SHARES)
    kinds[: len(SHARES)] = range(len(SHARES))
    vectors = centers[kinds] + 0.3 * draws.normal(size=(count, WIDTH))
    return [f"text {i}" for i in range(count)], vectors, [f"topic {kind}" for kind in kinds]


def balanced_accuracy(learner: ActiveLearner, answers: dict[int, str], gold: list[str]) -> float:
    """Return the mean over topics of the share of their texts that are classified correctly."""
    rows = np.arange(len(gold))
    found = learner.classify(np.array(list(answers)), np.array(list(answers.values())), rows)
    return float(np.mean([np.mean(found[np.array(gold) == kind] == kind) for kind in sorted(set(gold))]))


def labels_needed(seed: int, active: bool, accuracy: float = 0.9) -> int:
    """Return the number of labels, in batches of 4, after which the balanced accuracy is reached."""
    texts, vectors, gold = topics(seed)
    learner = ActiveLearner(texts, vectors, seed)
    order = np.random.default_rng(seed).permutation(len(texts)).tolist()
    answers: dict[int, str] = {}
    while not is_trainable(answers) or balanced_accuracy(learner, answers, gold) < accuracy:
        rows = learner.propose(answers, 4) if active else order[len(answers) : len(answers) + 4]
        answers |= {row: gold[row] for row in rows}
    return len(answers)


@pytest.mark.not_fast
def test_uncertainty_and_diversity_need_fewer_labels_than_random_choice() -> None:
    """Averaged over draws of the data, by a wide margin: random choice first has to meet the rare topics."""
    chosen, random = ([labels_needed(seed, active) for seed in range(4)] for active in (True, False))
    assert np.mean(chosen) < 0.6 * np.mean(random)


def test_first_batch_has_every_cluster() -> None:
    texts, vectors, gold = topics(0)
    rows = ActiveLearner(texts, vectors).propose({}, 20)
    assert len(set(rows)) == 20 and {gold[row] for row in rows} == set(gold)


def test_one_class_is_left_behind_for_unlike_texts() -> None:
    """With labels of one class only, the next texts are far from the labeled ones."""
    texts, vectors, gold = topics(0)
    own = {row: gold[row] for row in range(len(gold)) if gold[row] == "topic 0"}
    rows = ActiveLearner(texts, vectors).propose({row: own[row] for row in list(own)[:50]}, 10)
    assert {gold[row] for row in rows} - {"topic 0"}


def test_proposals_are_new_and_end_with_the_pool() -> None:
    texts, vectors, gold = topics(0, count=30)
    learner = ActiveLearner(texts, vectors)
    answers: dict[int, str] = {}
    skipped = [3, 4]
    while rows := learner.propose(answers, 7, skipped):
        assert len(rows) == min(7, 28 - len(answers)) and not {*rows} & {*answers, *skipped}
        answers |= {row: gold[row] for row in rows}
    assert sorted([*answers, *skipped]) == list(range(30))


def test_a_fifth_of_each_batch_is_a_random_sample() -> None:
    """Test texts are drawn in an order that does not depend on the labels, so that accuracy on them is unbiased."""
    texts, vectors, gold = topics(1)
    learner = ActiveLearner(texts, vectors, 1)
    order = [int(row) for row in np.argsort(learner.draws) if learner.draws[row] < TEST_SHARE]
    answers: dict[int, str] = {}
    for batch in range(1, 5):
        rows = learner.propose(answers, 10)
        answers |= {row: gold[row] for row in rows}
        assert sorted(set(answers) & set(order)) == sorted(order[: 2 * batch])
    again = ActiveLearner(texts[::-1], vectors[::-1], 1)  # it depends on the text, not on its place
    assert np.array_equal(again.draws[::-1], learner.draws)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_batches_of_any_size_include_test_texts(size: int) -> None:
    texts, vectors, gold = topics(0, count=150)
    learner = ActiveLearner(texts, vectors)
    answers: dict[int, str] = {}
    while len(answers) < 40:
        answers |= {row: gold[row] for row in learner.propose(answers, size)}
    assert int((learner.draws[list(answers)] < TEST_SHARE).sum()) == round(TEST_SHARE * len(answers))


def test_learning_curve_estimates_the_accuracy_on_new_texts() -> None:
    """Half of the labels are noise, so that the accuracy on new texts is known, and the texts asked for are no easier."""
    texts, vectors, gold = topics(2)
    noisy = [kind if index % 2 else f"topic {index // 2 % 4}" for index, kind in enumerate(gold)]
    learner = ActiveLearner(texts, vectors, 2)
    answers: dict[int, str] = {}
    assert learner.learning_curve(answers) == []
    while len(answers) < 200:
        answers |= {row: noisy[row] for row in learner.propose(answers, 20)}
    curve = learner.learning_curve(answers)
    others = np.array([row for row in range(len(texts)) if row not in answers])
    labels = np.array(noisy)
    found = learner.classify(np.array(list(answers)), labels[list(answers)], others)
    last = curve[-1]
    assert [point.labels for point in curve] == curve_sizes(last.labels) and last.tested == 40
    assert abs(last.accuracy - np.mean(found == labels[others])) < 4 * max(last.standard_error, 0.05)


def test_learning_curve_rises_where_labels_help() -> None:
    texts, vectors, gold = topics(3)
    learner = ActiveLearner(texts, vectors, 3)
    answers: dict[int, str] = {}
    while len(answers) < 80:
        answers |= {row: gold[row] for row in learner.propose(answers, 10)}
    curve = learner.learning_curve(answers)
    assert curve[-1].accuracy >= 0.9 and curve[-1].accuracy >= curve[0].accuracy


@pytest.mark.parametrize("make", [np.zeros, np.ones], ids=["zero", "equal"])
def test_equal_vectors_are_batched(make: Callable[[tuple[int, int]], Array]) -> None:
    """Fewer distinct vectors than texts to choose: the batch is full nevertheless, without warnings."""
    vectors = make((9, 3))
    assert len(diverse_batch(vectors, np.ones(9), 4)) == 4
    learner = ActiveLearner([f"text {i}" for i in range(9)], vectors)
    assert len(learner.propose({}, 4)) == 4 and len(learner.propose({0: "a", 1: "b"}, 4)) == 4
