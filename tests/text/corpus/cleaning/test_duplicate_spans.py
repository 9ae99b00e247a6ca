"""Tests of repeated spans of three sentences."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pretune.text.corpus.cleaning.duplicate_spans import repeated_sentences, sentence_hashes


def left(*documents: str) -> list[str]:
    """Return what is left of documents in which each letter is a sentence."""
    hashes = np.array([ord(letter) for document in documents for letter in document], dtype=np.uint64)
    removed = repeated_sentences(hashes, np.array([len(document) for document in documents], dtype=np.int64))
    letters = iter(removed.tolist())
    return ["".join(letter for letter in document if not next(letters)) for document in documents]


def test_all_but_the_first_of_a_repeated_span_are_removed() -> None:
    assert left("abcd", "xabcy", "ab", "abc") == ["abcd", "xy", "ab", ""]
    assert left("abcdabc") == ["abcd"]
    assert left("aaaaa") == ["aaa"]
    assert left("ab", "cab", "c") == ["ab", "cab", "c"]  # spans do not cross documents
    assert left("abc", "abcd", "bcd") == ["abc", "bcd", ""]
    assert left() == [] and left("", "a", "") == ["", "a", ""]


@given(st.lists(st.text("abc", max_size=7), max_size=6))
def test_one_of_each_repeated_span_is_left(documents: list[str]) -> None:
    kept = left(*documents)
    spans = [document[i : i + 3] for document in documents for i in range(len(document) - 2)]
    left_spans = {document[i : i + 3] for document in kept for i in range(len(document) - 2)}
    assert {span for span in spans if spans.count(span) > 1} <= left_spans
    assert set("".join(documents)) == set("".join(kept))  # no sentence is lost altogether
    assert kept == documents or len(set(spans)) < len(spans)  # nothing is removed where no span is repeated


def test_sentences_are_compared_regardless_of_case_and_whitespace() -> None:
    one, other = (
        sentence_hashes("All rights  reserved. No.\n\nYes!", "en"),
        sentence_hashes("ALL rights reserved.\nno. Yes!", "en"),
    )
    assert one.tolist() == other.tolist() and len(set(one.tolist())) == 3
    assert len(sentence_hashes("", "en")) == 0
