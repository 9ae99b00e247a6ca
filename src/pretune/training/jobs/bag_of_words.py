"""Bags of words: logistic regression on TF-IDF, as a baseline, and as a model that is chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pretune.objectives.tasks.bag_of_words import (
    Analyzer,
    BagOfWords,
    analyzed_texts,
    make_vectorizer,
    stack_features,
)
from pretune.runtime.arrays import Array
from pretune.text.examples.labeled import LabeledRows
from pretune.training.jobs.linear_models import CrossValidated, Kind, cross_validate, fit_average

MOST_FEATURES = 50_000  # of each analyzer
STRENGTHS = (
    3.0,
    30.0,
    300.0,
)  # inverse regularization; TF-IDF vectors are short, so weak regularization suits few rows
TEXT_ANALYZERS: tuple[tuple[Analyzer, ...], ...] = (("words",), ("words", "characters"))
PAIR_ANALYZERS: tuple[tuple[Analyzer, ...], ...] = (("words", "pair_words"), ("pair_words",))


def bag_of_words(train: Sequence[str], labels: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Return labels for `texts`, predicted by logistic regression on TF-IDF features, fitted to the texts `train`.

    >>> bag_of_words(["good film", "bad film"], ["+", "-"], ["a good one"])
    ['+']
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    # Punctuation counts as words, because question marks and the like are informative.
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", sublinear_tf=True)
    model = make_pipeline(words, LogisticRegression(C=10.0, max_iter=1000)).fit(list(train), list(labels))
    return [str(label) for label in model.predict(list(texts))]


@dataclass(frozen=True)
class ChosenBag:
    """A choice of text analyzers for a bag of words, with its cross-validated predictions."""

    analyzers: tuple[Analyzer, ...]
    validated: CrossValidated


def fit_vectorizers(analyzers: Sequence[Analyzer], rows: LabeledRows) -> dict[Analyzer, Any]:
    """Return a TF-IDF vectorizer for each analyzer, fitted to the texts of labeled rows."""
    made = {analyzer: make_vectorizer(analyzer, most=MOST_FEATURES) for analyzer in analyzers}
    for analyzer, vectorizer in made.items():
        vectorizer.fit([*analyzed_texts(analyzer, rows.texts, rows.pairs), "no words"])  # no text at all is an error
    return made


def choose_bag(
    rows: LabeledRows, targets: Array, kind: Kind, outputs: int, folds: Array, weights: Array | None = None
) -> ChosenBag:
    """Choose the analyzers of a bag of words by cross-validation, and the weights of its strengths of regularization.

    The parameters after `rows` are those of `cross_validate`.
    """
    found = []
    for analyzers in PAIR_ANALYZERS if rows.pairs is not None else TEXT_ANALYZERS:
        features = stack_features(fit_vectorizers(analyzers, rows), rows.texts, rows.pairs)
        validated = cross_validate(features, targets, kind, outputs, folds, STRENGTHS, weights)
        found.append(ChosenBag(analyzers, validated))
    return min(found, key=lambda bag: bag.validated.loss)


def fit_bag(
    chosen: ChosenBag, rows: LabeledRows, targets: Array, kind: Kind, outputs: int, weights: Array | None = None
) -> BagOfWords:
    """Fit a bag of words to all labeled rows, with the analyzers and the strengths of regularization in `chosen`.

    The parameters after `rows` are those of `fit_average`.
    """
    vectorizers = fit_vectorizers(chosen.analyzers, rows)
    features = stack_features(vectorizers, rows.texts, rows.pairs)
    model = fit_average(features, targets, kind, outputs, chosen.validated.shares, weights)
    vocabularies = {name: [str(term) for term in v.get_feature_names_out()] for name, v in vectorizers.items()}
    return BagOfWords(vocabularies, {name: v.idf_ for name, v in vectorizers.items()}, model.weight, model.bias, kind)
