"""Tests that neighbors in context distinguish the senses of a word, which static word vectors cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pretune as pt
from pretune.cli import VERBS
from pretune.inference.neighbors import choose_diverse, find_neighbors, word_vectors
from pretune.models.loading import load_model
from pretune.verbs.command_builder import make_command
from tests.support.cli import run_command
from tests.support.one_word_task import start

MONEY = [
    "He deposited the money at the bank.",
    "The bank raised its interest rates again.",
    "She works as a clerk in a bank.",
    "The bank refused to give them a loan.",
    "They robbed the bank and fled with the cash.",
    "My bank charges a fee for every transfer.",
]
RIVER = [
    "They sat on the bank of the river.",
    "The boat was tied to the bank.",
    "Trees grew along the muddy bank of the stream.",
    "He swam across and climbed up the far bank.",
    "The river flooded its left bank in spring.",
    "We had a picnic on the grassy bank by the water.",
]


def margin(layer: int) -> float:
    """Return how much more similar uses of one sense are than uses of two senses."""
    (vectors,), words, _ = word_vectors(load_model("pretune-small-en"), [*MONEY, *RIVER], [layer])
    centered = vectors - vectors.mean(0)
    centered /= np.linalg.norm(centered, axis=1, keepdims=True) + 1e-9
    own = centered[[i for i, word in enumerate(words) if word == "bank"]]
    alike, sense = own @ own.T, np.repeat([0, 1], 6)
    same = sense[:, None] == sense
    return float(alike[same & ~np.eye(12, dtype=bool)].mean() - alike[~same].mean())


@pytest.mark.not_fast
def test_word_senses_differ_only_in_context() -> None:
    assert margin(0) == pytest.approx(0.0, abs=1e-5)
    assert margin(-1) > 0.15  # 0.23 at the time of writing


@pytest.mark.not_fast
def test_most_different_uses_are_listed_with_their_neighbors(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join([*MONEY, *RIVER]), encoding="utf-8")
    rows = pt.neighbors(
        "pretune-small-en", "Bank", corpus=tmp_path / "corpus.txt", occurrences=2, top_k=3, language="lines"
    )
    assert [row["use"] for row in rows] == [1, 1, 1, 2, 2, 2]
    first, second = rows[0]["in"], rows[3]["in"]
    assert first == MONEY[0] and second in RIVER
    assert all(row["text"] != row["in"] for row in rows)
    assert rows[3]["word"] == "bank" and rows[3]["text"] in RIVER
    with pytest.raises(pt.PretuneError, match="'zebra' is not in the 12 sentences"):
        pt.neighbors("pretune-small-en", "zebra", corpus=tmp_path / "corpus.txt", language="lines")


@pytest.mark.not_fast
def test_neighbors_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join([*MONEY, *RIVER]), encoding="utf-8")
    words = [
        "neighbors",
        "pretune-small-en",
        "--word",
        "bank",
        "--corpus",
        str(tmp_path / "corpus.txt"),
        "--top-k",
        "1",
    ]
    assert "bank" in run_command(*words).stdout
    assert make_command("neighbors", VERBS["neighbors"])


def test_diverse_members_are_chosen() -> None:
    vectors = np.array([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0], [0.0, 1.0]])
    assert choose_diverse(vectors, [0, 1, 2, 3], 3) == [0, 2, 3]
    assert choose_diverse(vectors, [1], 3) == [1]


def test_the_word_is_looked_up_before_the_corpus_is_read() -> None:
    def documents() -> Iterator[str]:
        raise AssertionError("the corpus was read")
        yield ""

    for text in ("a red stone", " "):
        with pytest.raises(pt.PretuneError, match="the word 'bird' is not in the text"):
            find_neighbors(start() / "start", "bird", text, documents(), top_k=1, layer=-1, max_words=10, language="en")
