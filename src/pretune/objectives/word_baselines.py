"""Trivial baselines that count words, with which fine-tuned models are compared.

A model that is not better than these has learned nothing that word counts do not show. The baselines must stay cheap:
they are fitted to at most `MAX_ROWS` training rows.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array

MAX_ROWS = 10_000  # training rows used by a baseline
_WORD = re.compile(r"\w+|[^\w\s]")  # punctuation counts as words, because question marks and the like are informative
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+")
_NAME_OR_NUMBER = re.compile(r"(?:[A-Z]\w*|\d[\d.,]*\d|\d+)(?:[ -](?:[A-Z]\w*|\d[\d.,]*\d|\d+))*")


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lowercase.

    >>> split_words("Is it? Yes.")
    ['is', 'it', '?', 'yes', '.']
    """
    return _WORD.findall(text.lower())


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, split after ., ! and ? before a space; at least one.

    >>> sentences("It rains. Stay in!")
    ['It rains.', 'Stay in!']
    """
    return [part for part in _SENTENCE_END.split(text.strip()) if part] or [text]


def overlap(first: str, second: str) -> float:
    """Return the share of the distinct words of two texts that occur in both (the Jaccard index).

    >>> overlap("a red car", "a blue car")
    0.5
    """
    one, other = set(split_words(first)), set(split_words(second))
    return len(one & other) / max(1, len(one | other))


def overlap_features(texts: Sequence[str], pairs: Sequence[str]) -> Array:
    """Return word-overlap features of pairs of texts, (pairs, 5).

    They are the Jaccard index, the share of each text's words that occur in the other, and the logarithms of both
    lengths.
    """
    rows = []
    for text, pair in zip(texts, pairs, strict=True):
        one, other = set(split_words(text)), set(split_words(pair))
        both = len(one & other)
        lengths = (np.log1p(len(one)), np.log1p(len(other)))
        rows.append((both / max(1, len(one | other)), both / max(1, len(one)), both / max(1, len(other)), *lengths))
    return np.array(rows, dtype=np.float64).reshape(-1, 5)


def pair_words(text: str, pair: str) -> str:
    """Return the words of two texts, marked as common (=), only in the second text (+), or only in the first (-).

    >>> pair_words("a man sings", "nobody sings")
    '+nobody =sings -a -man'
    """
    one, other = split_words(text), split_words(pair)
    known, found = set(one), set(other)
    return " ".join([("=" if w in known else "+") + w for w in other] + ["-" + w for w in one if w not in found])


def join_texts(texts: Sequence[str], pairs: Sequence[str] | None) -> list[str]:
    """Return one text per row, in which the two texts of a pair are joined.

    >>> join_texts(["a"], ["b"])
    ['a ¶ b']
    """
    if pairs is None:
        return list(texts)
    return [f"{text} ¶ {pair}" for text, pair in zip(texts, pairs, strict=True)]


def joined_texts(rows: Any) -> list[str]:
    """Return one text per labeled row of `rows`; the two texts of a pair are joined."""
    return join_texts(rows.texts, rows.pairs)


def some_rows(rows: Any) -> Any:
    """Return at most `MAX_ROWS` of the rows, evenly spaced."""
    return rows.take(range(0, len(rows), -(-len(rows) // MAX_ROWS))) if len(rows) > MAX_ROWS else rows


def word_features(learned: Any, judged: Any) -> tuple[Any, Any]:
    """Return sparse features of the training rows `learned` and of the rows to predict, `judged`.

    Features are fitted to `learned`: for single texts, TF-IDF of words and word pairs; for pairs of texts, TF-IDF of
    words and of `pair_words`, and word overlap.
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    longest = 2 if learned.pairs is None else 1
    words = TfidfVectorizer(ngram_range=(1, longest), token_pattern=_WORD.pattern, sublinear_tf=True)
    words.fit([*joined_texts(learned), "."])  # texts without a word would be an error
    parts = [(words.transform(joined_texts(learned)), words.transform(joined_texts(judged)))]
    if learned.pairs is not None:
        marked = TfidfVectorizer(token_pattern=r"\S+", sublinear_tf=True, lowercase=False)
        fields = [list(map(pair_words, rows.texts, rows.pairs)) for rows in (learned, judged)]
        parts.append((marked.fit_transform([*fields[0], "="])[:-1], marked.transform(fields[1])))
        dense = [overlap_features(rows.texts, rows.pairs) for rows in (learned, judged)]
        mean, spread = dense[0].mean(0), dense[0].std(0) + 1e-9
        parts.append((csr_matrix((dense[0] - mean) / spread), csr_matrix((dense[1] - mean) / spread)))
    known, asked = zip(*parts, strict=True)
    return hstack(known).tocsr(), hstack(asked).tocsr()


def classify_pairs(learned: Any, judged: Any) -> list[str]:
    """Return labels for the text pairs `judged`, predicted by a logistic regression that is fitted to `learned`.

    The regression reads word overlap and a bag of words.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    some = some_rows(learned)
    if len(set(some.labels)) == 1:
        return [str(some.labels[0])] * len(judged)
    known, asked = word_features(some, judged)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nearly converged is good enough for a baseline
        model = LogisticRegression(C=1.0, max_iter=200, tol=1e-3).fit(known, list(some.labels))
    return [str(label) for label in model.predict(asked)]


def classify_multi_label(learned: Any, judged: Any, labels: Sequence[str]) -> list[list[str]]:
    """Return label sets for the rows `judged`, predicted by one logistic regression per label, fitted to `learned`.

    The regressions read a bag of words.
    """
    from sklearn.linear_model import LogisticRegression

    some = some_rows(learned)
    known, asked = word_features(some, judged)
    found: list[list[str]] = [[] for _ in range(len(judged))]
    for label in labels:
        there = np.array([label in row for row in some.labels])
        if there.all() or not there.any():
            chosen = np.full(len(judged), bool(there.any()))
        else:
            chosen = LogisticRegression(C=10.0, max_iter=1000, class_weight="balanced").fit(known, there).predict(asked)
        for row in np.flatnonzero(chosen):
            found[row].append(label)
    return found


def regress_words(learned: Any, judged: Any) -> list[float]:
    """Return numbers for the rows `judged`, predicted by a ridge regression that is fitted to `learned`.

    The regression reads a bag of words and, for pairs of texts, word overlap.
    """
    from sklearn.linear_model import Ridge

    some = some_rows(learned)
    known, asked = word_features(some, judged)
    model = Ridge(alpha=1.0, solver="lsqr").fit(known, np.array(some.labels, dtype=np.float64))
    return [float(value) for value in model.predict(asked)]


def tfidf_cosines(texts: Sequence[str], others: Sequence[str]) -> Array:
    """Return the cosine similarity of each of `texts` to each of `others`, by TF-IDF vectors, (texts, others)."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(token_pattern=_WORD.pattern, sublinear_tf=True).fit([*texts, *others, "."])
    return np.asarray((words.transform(texts) @ words.transform(others).T).toarray())


def bm25_scores(queries: Sequence[str], texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> list[float]:
    """Return the BM25 score of each text for the query of the same index (Robertson and Zaragoza, 2009).

    >>> high, low = bm25_scores(["red car"] * 2, ["a red car", "a tall tree"])
    >>> high > low
    True
    """
    counts = [Counter(split_words(text)) for text in texts]
    lengths = np.array([count.total() for count in counts], dtype=np.float64)
    usual = float(lengths.mean()) if len(lengths) else 1.0
    occurs = Counter(word for count in counts for word in count)
    scores = []
    for query, count, length in zip(queries, counts, lengths, strict=True):
        total = 0.0
        for word in set(split_words(query)) & count.keys():
            rarity = np.log(1 + (len(texts) - occurs[word] + 0.5) / (occurs[word] + 0.5))
            total += rarity * count[word] * (k1 + 1) / (count[word] + k1 * (1 - b + b * length / max(1.0, usual)))
        scores.append(float(total))
    return scores


def closest_sentence(question: str, passage: str) -> str:
    """Return the sentence of a passage that shares the most words with a question.

    >>> closest_sentence("Who wrote it?", "It sold well. Anna Smith wrote it.")
    'Anna Smith wrote it.'
    """
    wanted = set(split_words(question))
    return max(sentences(passage), key=lambda sentence: len(wanted & set(split_words(sentence))))


def name_or_number(question: str, sentence: str) -> str:
    """Return the longest name or number in a sentence that is not in the question; without one, return the sentence.

    >>> name_or_number("Who wrote it?", "Anna Smith wrote it.")
    'Anna Smith'
    """
    asked = set(split_words(question))
    spans = [match[0] for match in _NAME_OR_NUMBER.finditer(sentence)]
    new = [span for span in spans if not set(split_words(span)) <= asked]
    return max(new, key=len) if new else sentence
