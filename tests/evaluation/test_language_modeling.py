"""Tests of perplexity, bits per byte, minimal pairs and bias against manual calculations."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune.evaluation.language_modeling import (
    ReadingOptions,
    evaluate_language,
    minimal_pairs,
    perplexity,
    stereotype_bias,
)
from pretune.inference.likelihood import SCORING_METHODS
from pretune.runtime.errors import PretuneError


class LetterTokenizer:
    """A tokenizer of letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def encode_many(self, texts: list[str]) -> tuple[Any, Any]:
        return np.array([i for text in texts for i in self.encode(text)]), np.array([len(text) for text in texts])

    def has_role(self, role: str) -> bool:
        return role == "unknown"

    def role(self, name: str) -> int:
        return ord("?")


class FakeScorer:
    """Gives each letter a fixed likelihood; optionally, the first letter is not predicted."""

    def __init__(self, head: str = "lm", first: bool = True) -> None:
        self.head, self.method, self.first = head, SCORING_METHODS[head], first
        self.model = type("M", (), {"require_tokenizer": lambda self: LetterTokenizer()})()

    def __call__(self, texts: list[str], *_: Any) -> list[Any]:
        found = [np.array([-(ord(letter) % 7) / 2 for letter in text], dtype=float) for text in texts]
        for scores in found:
            if not self.first and len(scores):
                scores[0] = np.nan
        return found


def score(text: str) -> float:
    return sum(-(ord(letter) % 7) / 2 for letter in text)


def test_perplexity_and_bits_per_byte_match_their_definitions() -> None:
    texts = ["ein Text", "größer?"]
    found = perplexity(FakeScorer(), texts, ReadingOptions())  # type: ignore[arg-type]
    nats = -sum(map(score, texts))
    assert found["perplexity"] == pytest.approx(math.exp(nats / 15)) and found["tokens"] == 15
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / 17) and found["bytes"] == 17
    assert found["unknown_share"] == pytest.approx(1 / 15) and found["not_predicted"] == 0
    assert "pseudo_perplexity" in perplexity(FakeScorer("mlm"), texts, ReadingOptions())  # type: ignore[arg-type]
    part = perplexity(FakeScorer(first=False), texts, ReadingOptions())  # type: ignore[arg-type]
    assert part["not_predicted"] == 2 and part["tokens"] == 15
    with pytest.raises(PretuneError, match="has no perplexity"):
        perplexity(FakeScorer("rtd"), texts, ReadingOptions())  # type: ignore[arg-type]
    with pytest.raises(PretuneError, match="no text has a token that can be predicted"):
        perplexity(FakeScorer(), [], ReadingOptions())  # type: ignore[arg-type]


def test_minimal_pairs_are_averaged_by_paradigm(tmp_path: Path) -> None:
    rows = [
        {"sentence_good": "aa", "sentence_bad": "bb", "UID": "p", "linguistics_term": "x", "field": "syntax"},
        {"sentence_good": "cc", "sentence_bad": "aa", "UID": "p", "linguistics_term": "x", "field": "syntax"},
        {"sentence_good": "b", "sentence_bad": "cc", "UID": "q", "linguistics_term": "y", "field": "syntax"},
    ]
    wins = [float(score(row["sentence_good"]) > score(row["sentence_bad"])) for row in rows]
    found = minimal_pairs(FakeScorer(), rows)  # type: ignore[arg-type]
    assert found["accuracy"] == pytest.approx(((wins[0] + wins[1]) / 2 + wins[2]) / 2)
    assert found["fields"] == [{"name": "syntax", "accuracy": pytest.approx(sum(wins) / 3)}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert evaluate_language(FakeScorer(), tmp_path / "p.jsonl", ReadingOptions(), {}) == found  # type: ignore[arg-type]
    assert evaluate_language(FakeScorer(), tmp_path, ReadingOptions(limit=1), {})["pairs"] == 1  # type: ignore[arg-type]
    (tmp_path / "p.jsonl").write_text('{"sentence_good": "a", "sentence_bad": " "}\n')
    with pytest.raises(PretuneError, match="line 1: the column 'sentence_bad' has no sentence"):
        evaluate_language(FakeScorer(), tmp_path, ReadingOptions(), {})  # type: ignore[arg-type]


def test_bias_counts_only_shared_words(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("sent_more,sent_less,bias_type\nxab,yab,age\nab,ab!,age\n")
    found = evaluate_language(FakeScorer(), tmp_path / "pairs.csv", ReadingOptions(), {})  # type: ignore[arg-type]
    assert found["stereotype"] == 0.5 and found["kinds"] == [{"kind": "age", "pairs": 2, "stereotype": 0.5}]
    rows = [{"sent_more": "abc", "sent_less": "axc"}]
    assert stereotype_bias(FakeScorer(first=False), rows)["stereotype"] == 0.5  # type: ignore[arg-type]


def test_texts_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert evaluate_language(FakeScorer(), tmp_path / "a.txt", ReadingOptions(), {})["texts"] == 2  # type: ignore[arg-type]
    assert evaluate_language(FakeScorer(), tmp_path / "a.txt", ReadingOptions(limit=1), {})["tokens"] == 3  # type: ignore[arg-type]
    (tmp_path / "b.tsv").write_text("en\tde\none\teins\n")
    found = evaluate_language(FakeScorer(), tmp_path / "b.tsv", ReadingOptions(), {"text": "en", "pair": "de"})  # type: ignore[arg-type]
    assert found["bytes"] == 4
