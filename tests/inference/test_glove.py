"""Tests that GloVe counts co-occurrences, minimizes its objective, and finds neighbors that the text plants."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune.inference import glove
from pretune.inference.glove import GloVe, count_cooccurrences, train_glove
from pretune.models.loading import load


def planted(count: int = 400) -> list[list[str]]:
    """Return sentences in which animals share their contexts, and so do colors."""
    groups = (
        (["cat", "dog", "cow", "hen"], ["sleeps", "eats", "runs"], "now"),
        (["red", "blue", "green", "pink"], ["paint", "cloth", "ink"], "bright"),
    )
    draw = np.random.default_rng(0)
    return [
        [str(draw.choice(names)), str(draw.choice(contexts)), extra]
        for names, contexts, extra in (groups[i % 2] for i in range(count))
    ]


@settings(max_examples=30)
@given(
    sentences=st.lists(st.lists(st.sampled_from("abcx"), max_size=8), max_size=5), window=st.integers(1, 4),
    chunk=st.integers(1, 3),
)  # fmt: skip
def test_cooccurrences_equal_those_counted_one_by_one(sentences: list[list[str]], window: int, chunk: int) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    for sentence in sentences:
        for i, left in enumerate(sentence):
            for j, right in enumerate(sentence):
                if i != j and abs(i - j) <= window and "x" not in (left, right):
                    expected[left, right] += 1 / abs(i - j)  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glove, "SENTENCES_AT_ONCE", chunk)
        pairs = count_cooccurrences(sentences, "abc", window)
    found = {("abc"[i], "abc"[j]): c for i, j, c in zip(pairs.rows, pairs.columns, pairs.counts, strict=True)}
    assert found.keys() == expected.keys()
    assert all(abs(found[pair] - expected[pair]) < 1e-9 for pair in found)


def test_a_window_wider_than_all_sentences_counts_all_pairs() -> None:
    wide, exact = (count_cooccurrences([["a", "b", "c"]], "abc", window) for window in (10**9, 2))
    assert len(wide) == 6 and wide.counts.tolist() == exact.counts.tolist()


def test_objective_falls_and_equals_the_formula() -> None:
    sentences = planted()
    words = sorted({word for sentence in sentences for word in sentence})
    pairs = count_cooccurrences(sentences, words, 2)
    model = GloVe(len(words), 8, seed=0)
    with torch.no_grad():
        w, c = (getattr(model, name) for name in ("word", "context"))
        guess = (w @ c.T + model.word_bias + model.context_bias.T)[pairs.rows, pairs.columns].numpy()
    expected = (np.minimum(1, pairs.counts / 50) ** 0.75 * (guess - np.log(pairs.counts)) ** 2).mean()
    losses = list(model.fit(pairs, 30, x_max=50, seed=0))
    assert abs(losses[0] - expected) < 1e-3  # all pairs are in one batch
    assert losses[-1] < 0.5 * losses[0] and all(later < earlier for earlier, later in pairwise(losses))


def test_words_with_the_same_contexts_are_neighbors() -> None:
    vectors = train_glove(planted(), vector_size=8, window=2, min_count=2, epochs=200, x_max=20, seed=0)
    animals, colors = ["cat", "dog", "cow", "hen"], ["red", "blue", "green", "pink"]
    units = {word: vectors.vectors[vectors.row[word]] for word in animals + colors}
    units = {word: vector / np.linalg.norm(vector) for word, vector in units.items()}
    for own, others in ((animals, colors), (colors, animals)):
        for word in own:
            near = min(units[word] @ units[other] for other in own if other != word)
            assert near > max(units[word] @ units[other] for other in others)
    again = train_glove(planted(), vector_size=8, window=2, min_count=2, epochs=200, x_max=20, seed=0)
    assert np.array_equal(vectors.vectors, again.vectors)


def test_glove_is_trained_by_its_verb(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(" ".join(words) for words in planted()), encoding="utf-8")
    facts = pt.train_vectors(
        tmp_path / "text.txt", out=tmp_path / "model", kind="glove", vector_size=8, language="lines", epochs=2
    ).facts
    assert facts["words"] == 16 and facts["kind"] == "glove" and load(tmp_path / "model").backbone.width == 8
    with pytest.raises(pt.PretuneError, match="no sentence has two words that each occur at least 5000 times"):
        pt.train_vectors(tmp_path / "text.txt", out=tmp_path / "no", kind="glove", min_count=5000, language="lines")
    with pytest.raises(pt.PretuneError, match="applies only to word2vec and fastText"):
        pt.train_vectors(tmp_path / "text.txt", out=tmp_path / "no", kind="glove", negative=3)
    for wrong in ({"epochs": 0}, {"vector_size": 0}, {"window": 0}, {"min_count": 0}, {"x_max": 0.0}):
        with pytest.raises(pt.PretuneError, match=f"--{next(iter(wrong))}=.*expected a number".replace("_", "-")):
            pt.train_vectors(tmp_path / "text.txt", out=tmp_path / "no", kind="glove", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "no").exists()
