"""A bag-of-words baseline: logistic regression on TF-IDF of words and word pairs."""

from __future__ import annotations

from collections.abc import Sequence


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
