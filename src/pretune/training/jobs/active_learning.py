"""Active learning for text classification: choose the unlabeled texts that are most worth labeling next.

A logistic regression on embeddings and TF-IDF is fitted to the labels so far. Of the texts for which its two best classes are
closest (margin sampling), weighted k-means takes one per cluster, so that a batch is uncertain and diverse (Zhdanov, 2019,
arXiv:1901.05954). While fewer than two classes have labeled texts, the clusters are those of all texts.

Texts chosen for their uncertainty are harder than others, and accuracy measured on them is too low. A fifth of each batch is
therefore a random sample of the texts, the test texts, and accuracy is cross-validated on those alone. Whether a
text is a test text depends only on the text and the seed, and is not stored with its label.
"""

from __future__ import annotations

import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretune.inference.zero_shot import unit_norm
from pretune.runtime.arrays import Array
from pretune.runtime.randomness import uniform

PRESELECTED = 10  # uncertain texts per text of a batch, among which clusters are found
MOST_CLUSTERED = 5_000  # texts among which clusters are found; of more, a random sample
MOST_WORDS = 20_000  # TF-IDF features
TEST_SHARE = 0.2  # of the texts, and of each batch
FEWEST_TESTED = 5  # labeled test texts from which accuracy is estimated
FOLDS = 5  # of cross-validation
CURVE_POINTS = 6  # sizes of a learning curve, each about half of the next


@dataclass(frozen=True)
class CurvePoint:
    """A point of a learning curve: the accuracy on test texts of a classifier trained on the first `labels` labels."""

    labels: int
    accuracy: float
    standard_error: float
    majority: float  # accuracy of always answering the most frequent label
    tested: int  # test texts


class ActiveLearner:
    """An active learner, which chooses the texts of a pool that are most worth labeling next, given their embeddings.

    A row is the index of a text in the pool.

    >>> texts = ["a cat", "two cats", "red wine", "white wine"]
    >>> vectors = np.array([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    >>> learner = ActiveLearner(texts, vectors)
    >>> sorted(row // 2 for row in learner.propose({}, count=2))  # one of each cluster
    [0, 1]
    >>> learner.predict({0: "animal", 3: "drink"}, [1, 2]).argmax(1).tolist()
    [0, 1]
    """

    def __init__(self, texts: Sequence[str], vectors: Array, seed: int = 0) -> None:
        scaled = (vectors - vectors.mean(0)) / (vectors.std(0) + 1e-6)  # what all texts share does not distinguish them
        self.vectors, self.seed = unit_norm(scaled), seed
        self.features = text_features(texts, self.vectors)
        # In [0, 1): texts below TEST_SHARE are test texts, sampled in this order
        codes = np.array([zlib.crc32(text.encode("utf-8", "replace")) for text in texts], dtype=np.int64)
        self.draws = uniform(seed, "test texts", codes)

    def propose(self, answers: Mapping[int, str], count: int, skipped: Sequence[int] = ()) -> list[int]:
        """Return the rows of up to `count` texts to label next, the most uncertain first; a row is the index of a text.

        Parameters
        ----------
        answers
            Row → label, of the texts that are labeled.
        skipped
            Further rows that are not proposed.
        """
        known = {*answers, *skipped}
        rows = np.array([row for row in np.argsort(self.draws, kind="stable") if row not in known], dtype=np.int64)
        if len(rows) <= count:
            return self.sort_by_uncertainty(answers, rows)
        test, others = np.split(rows, [int((self.draws[rows] < TEST_SHARE).sum())])
        labeled = int((self.draws[list(answers)] < TEST_SHARE).sum())
        missing = round(TEST_SHARE * (len(answers) + count)) - labeled  # also for batches of one
        sampled = test[: min(max(missing, count - len(others), 0), count)]
        chosen = self.choose_uncertain(answers, others, count - len(sampled))
        return self.sort_by_uncertainty(answers, np.append(sampled, chosen))

    def choose_uncertain(self, answers: Mapping[int, str], rows: Array, count: int) -> Array:
        """Return `count` of the given rows whose labels are uncertain and whose texts differ from one another.

        `answers` maps labeled rows to labels. While fewer than two classes have labeled texts, texts far from all
        labeled ones are preferred instead.
        """
        if not is_trainable(answers):
            rows = rows[:MOST_CLUSTERED]  # rows are in random order
        weights = self.uncertainties(answers, rows)
        if is_trainable(answers):
            best = np.argsort(-weights, kind="stable")[: PRESELECTED * count]
            rows, weights = rows[best], weights[best]
        return rows[diverse_batch(self.vectors[rows], weights, count, self.seed)]

    def sort_by_uncertainty(self, answers: Mapping[int, str], rows: Array) -> list[int]:
        """Return the given rows as a list, sorted by the uncertainty of their labels, the most uncertain first."""
        if not len(rows):
            return []
        order = np.argsort(-self.uncertainties(answers, rows), kind="stable")
        return [int(row) for row in rows[order]]

    def uncertainties(self, answers: Mapping[int, str], rows: Array) -> Array:
        """Return how uncertain the label of each row is, (rows,), from 0 to 1, given `answers` (labeled row → label).

        The uncertainty is 1 minus the difference between the probabilities of the two best classes. While fewer than two
        classes have labeled texts, it is the distance to the nearest labeled text.
        """
        if is_trainable(answers):
            best = np.sort(self.predict(answers, rows), axis=1)[:, -2:]
            return np.asarray(1 - (best[:, 1] - best[:, 0]))
        if not answers:
            return np.ones(len(rows))
        nearest = (self.vectors[rows] @ self.vectors[list(answers)].T).max(1)
        return np.asarray(np.clip((1 - nearest) / 2, 1e-6, 1))

    def predict(self, answers: Mapping[int, str], rows: Sequence[int] | Array) -> Array:
        """Return class probabilities of rows, (rows, classes); classes are the labels in `answers`, sorted."""
        model = fit_classifier(self.features[list(answers)], list(answers.values()))
        return np.asarray(model.predict_proba(self.features[list(rows)]))

    def learning_curve(self, answers: Mapping[int, str]) -> list[CurvePoint]:
        """Return the cross-validated accuracy for growing numbers of labels; [] if there are too few labels.

        Each fold of the labeled test texts is held out once. For a point with n labels, the classifier learns from the
        first n labeled texts outside the fold, in the order of labeling. All points are measured on the same texts.
        """
        rows, labels = np.array(list(answers), dtype=np.int64), np.array(list(answers.values()))
        tested = np.flatnonzero(self.draws[rows] < TEST_SHARE)
        if len(tested) < FEWEST_TESTED or not is_trainable(answers):
            return []
        folds = [tested[start::FOLDS] for start in range(FOLDS)]
        majority = np.concatenate([labels[fold] == most_common(np.delete(labels, fold)) for fold in folds])
        points = []
        for size in curve_sizes(len(rows) - max(map(len, folds))):
            hits = []
            for fold in folds:
                first = np.delete(np.arange(len(rows)), fold)[:size]
                hits.append(labels[fold] == self.classify(rows[first], labels[first], rows[fold]))
            accuracy = float(np.concatenate(hits).mean())
            error = float(np.sqrt(accuracy * (1 - accuracy) / len(tested)))
            points.append(CurvePoint(size, accuracy, error, float(majority.mean()), len(tested)))
        return points

    def classify(self, rows: Array, labels: Array, others: Array) -> Array:
        """Fit a classifier to `rows` with `labels`, and return its labels for the rows `others`, (others,)."""
        if len(set(labels.tolist())) == 1:
            return np.repeat(labels[:1], len(others))
        return np.asarray(fit_classifier(self.features[rows], labels.tolist()).predict(self.features[others]))


def text_features(texts: Sequence[str], vectors: Array) -> Any:
    """Return the TF-IDF vectors of texts, concatenated with their embeddings `vectors`, as one sparse matrix."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]", sublinear_tf=True, max_features=MOST_WORDS)
    return hstack([csr_matrix(vectors), words.fit_transform(list(texts))]).tocsr()


def fit_classifier(features: Any, labels: Sequence[str]) -> Any:
    """Fit a logistic regression to features, (rows, width), with one label per row, and return it."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=10.0, max_iter=1000).fit(features, list(labels))


def diverse_batch(vectors: Array, weights: Array, count: int, seed: int = 0) -> list[int]:
    """Cluster vectors into `count` clusters by weighted k-means, and return the index of a vector near each center.

    The indices are sorted by the weights of their vectors, (n,), the largest first.

    >>> diverse_batch(np.array([[0.0], [0.1], [9.0]]), np.array([1.0, 0.5, 0.9]), 2)
    [0, 2]
    """
    from sklearn.cluster import KMeans

    order = np.argsort(-weights, kind="stable")
    if len(vectors) <= count:
        return [int(index) for index in order]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct vectors than clusters
        found = KMeans(count, n_init=1, random_state=seed % (1 << 32)).fit(vectors, sample_weight=weights)
    distances = np.linalg.norm(vectors - found.cluster_centers_[found.labels_], axis=1)
    chosen: dict[int, int] = {}  # cluster → index
    for index in np.lexsort((-weights, distances)):
        chosen.setdefault(int(found.labels_[index]), int(index))
    batch = set(chosen.values())
    for index in order:  # equal vectors are in one cluster
        if len(batch) == count:
            break
        batch.add(int(index))
    return [int(index) for index in order if int(index) in batch]


def is_trainable(answers: Mapping[int, str]) -> bool:
    """Return whether the labels in `answers` (row → label) have at least two classes, so that a classifier can be fitted.

    >>> is_trainable({0: "a"}), is_trainable({0: "a", 1: "b"})
    (False, True)
    """
    return len(set(answers.values())) > 1


def most_common(labels: Array) -> str:
    """Return the most frequent label; if several are equally frequent, the one that occurs first."""
    return str(Counter(labels.tolist()).most_common(1)[0][0])


def curve_sizes(largest: int) -> list[int]:
    """Return the numbers of labels at which a learning curve is measured: up to `largest`, each about half of the next.

    >>> curve_sizes(40)
    [2, 5, 10, 20, 40]
    """
    sizes = {round(largest / 2**power) for power in range(CURVE_POINTS)}
    return sorted(size for size in sizes if size >= 2)
