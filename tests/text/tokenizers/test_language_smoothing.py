"""Tests of tokenizers that are trained on text of several languages, sampled with an exponent (Lample and Conneau, 2019)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pretune as pt
from pretune import PretuneError
from pretune.text.corpus.documents import Document
from pretune.text.corpus.word_counts import WordCounts, smooth_languages, smoothed_shares
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents
from pretune.training.jobs.pretraining_data import get_tokenizer
from pretune.training.jobs.pretraining_settings import resolve_pretraining

LETTERS = {"en": "abcdefgh", "sw": "стуфхцчш"}  # no letter belongs to both


def lines(language: str, count: int) -> list[str]:
    """Return lines of made-up words of a language, of which some are more frequent."""
    chance = random.Random(language)
    words = ["".join(chance.choices(LETTERS[language], k=chance.randint(3, 7))) for _ in range(400)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    return [" ".join(chance.choices(words, weights, k=8)) for _ in range(count)]


def documents(sizes: dict[str, int]) -> dict[str, Iterable[Document]]:
    return {name: [Document(line, Path(name), 1) for line in lines(name, size)] for name, size in sizes.items()}


def share_of(tokenizer: Tokenizer, language: str) -> float:
    """Return the share of the vocabulary, without special tokens, that consists of letters of a language."""
    letters = set(LETTERS[language])
    tokens = [t for t, special in zip(tokenizer.vocabulary, tokenizer.specials, strict=True) if t and not special]
    return sum(bool(letters & set(token)) for token in tokens) / len(tokens)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "sentencepiece-bpe", "words"])
def test_the_small_language_gets_more_of_the_vocabulary_the_smaller_alpha_is(kind: str) -> None:
    sizes = {"en": 1200, "sw": 40}
    shares = [
        share_of(train_on_documents(documents(sizes), kind, 220, language_alpha=alpha), "sw")  # type: ignore[arg-type]
        for alpha in (1.0, 0.5, 0.0)
    ]
    assert shares[0] + 0.03 < shares[1] < shares[2] - 0.03 and shares[2] > 0.35


def test_smoothing_does_not_change_the_training_on_one_language() -> None:
    (english,) = documents({"en": 100}).values()
    plain = train_on_documents(english, "bpe", 120)
    assert plain.vocabulary == train_on_documents({"en": english}, "bpe", 120, language_alpha=0.3).vocabulary


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 10**9), min_size=1), st.floats(0, 1))
def test_shares_add_up_to_one_and_keep_the_order_of_sizes(sizes: dict[str, int], alpha: float) -> None:
    if any(sizes.values()):
        shares = smoothed_shares(sizes, alpha)
        assert sum(shares.values()) == pytest.approx(1)
        ranked = sorted(sizes, key=lambda name: sizes[name])
        assert all(shares[a] <= shares[b] + 1e-12 for a, b in pairwise(ranked))


@given(st.lists(st.tuples(st.sampled_from(["en", "fr", "sw"]), st.sampled_from("abcd"), st.integers(1, 50))))
def test_no_word_is_lost_and_counts_follow_the_shares(items: list[tuple[str, str, int]]) -> None:
    counts: dict[str, WordCounts] = {}
    for language, word, count in items:
        counts.setdefault(language, WordCounts(limit=100)).add(f"{language}{word} " * count)
    merged = smooth_languages(counts, 0.5)
    assert set(merged.table) == {word for words in counts.values() for word in words.table}
    sizes = {name: sum(n for word, n in merged.table.items() if word.startswith(name)) for name in counts}
    for name, share in smoothed_shares({name: words.seen for name, words in counts.items()}, 0.5).items():
        assert sizes[name] / sum(sizes.values()) == pytest.approx(share, abs=0.1)


def test_the_command_and_a_recipe_take_files_by_language(tmp_path: Path) -> None:
    for name, count in {"en": 600, "sw": 20}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines(name, count)), encoding="utf-8")
    corpus = [f"{name}={tmp_path / name}.txt" for name in LETTERS]
    plain, smoothed = (pt.train_tokenizer(corpus, vocab_size=200, language_alpha=alpha) for alpha in (1.0, 0.3))
    assert share_of(plain, "sw") + 0.03 < share_of(smoothed, "sw")
    with pytest.raises(PretuneError, match="language_alpha=2: the value must be between 0"):
        pt.train_tokenizer(corpus, vocab_size=200, language_alpha=2.0)
    with pytest.raises(PretuneError, match="--language-alpha applies only to text of several languages"):
        pt.train_tokenizer(str(tmp_path / "en.txt"), vocab_size=200, language_alpha=0.5)


def test_pretraining_trains_a_smoothed_tokenizer(tmp_path: Path) -> None:
    def share(alpha: float) -> float:
        settings = {"tokenizer": {"kind": "bpe", "vocab_size": 200, "language_alpha": alpha}}
        job = resolve_pretraining("bert-tiny", ["corpus"], tmp_path / str(alpha), settings, 0, "cpu")
        return share_of(get_tokenizer(job, documents({"en": 600, "sw": 40})), "sw")

    assert share(1.0) + 0.03 < share(0.2)
    assert resolve_pretraining("xlm-tiny", ["a"], tmp_path, {}, 0, "cpu").tokenizer["language_alpha"] == 0.5  # type: ignore[index, call-overload]
