"""Tests of WordPiece training by likelihood: the pieces of a direct implementation, and an ordinary tokenizer.json."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pretune as pt
from pretune import PretuneError
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import first_merges, train_on_documents
from pretune.text.tokenizers.wordpiece_likelihood import MIN_FREQUENCY, PREFIX, learn_wordpieces
from tests.support.texts import RUSSIAN, english_documents

HUGS = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}


def characters(words: Any) -> list[str]:
    return sorted({piece for word in words for piece in [word[0], *(PREFIX + c for c in word[1:])]})


def learn_directly(words: dict[str, int], known: list[str], size: int) -> list[str]:
    """Learn pieces by the definition: count everything anew before each merge."""
    splits = {
        word: [word[0], *(PREFIX + c for c in word[1:])]
        for word, _ in sorted(words.items(), key=lambda item: (-item[1], item[0]))
    }
    seen: dict[tuple[str, str], None] = {}
    learned: list[str] = []
    while len(known) + len(learned) < size:
        pieces, pairs = Counter[str](), Counter[tuple[str, str]]()
        for word, split in splits.items():
            for piece in split:
                pieces[piece] += words[word]
            for pair in itertools.pairwise(split):
                pairs[pair] += words[word]
                seen.setdefault(pair)
        often = {pair: pairs[pair] for pair in seen if pairs[pair] >= MIN_FREQUENCY}
        if not often:
            break
        left, right = max(often, key=lambda pair: (often[pair] / (pieces[pair[0]] * pieces[pair[1]]), often[pair]))
        merged = left + right.removeprefix(PREFIX)
        for split in splits.values():
            at = 0
            while at + 1 < len(split):
                if (split[at], split[at + 1]) == (left, right):
                    split[at : at + 2] = [merged]
                at += 1
        if merged not in known and merged not in learned:
            learned.append(merged)
    return learned


def test_the_example_of_the_lecture_differs_from_merges_by_frequency() -> None:
    # u is in all words, so pairs with it score low: 20 / (36 · 20) for ug, but 5 / (20 · 5) for gs.
    assert learn_wordpieces(HUGS, characters(HUGS), 10) == ["##gs", "pu", "hu"]
    documents = [Document(" ".join(word for word, count in HUGS.items() for _ in range(count)), Path("x"), 1)]
    merges = [
        first_merges(train_on_documents(documents, "wordpiece", 21, pair_score=score))[0]
        for score in ("frequency", "likelihood")  # type: ignore[arg-type]
    ]
    assert merges == ["##ug", "##gs"]


@given(st.dictionaries(st.text("abc", min_size=1, max_size=7), st.integers(1, 9), min_size=1, max_size=12))
def test_pieces_equal_those_of_counting_anew_before_each_merge(words: dict[str, int]) -> None:
    known = characters(words)
    assert learn_wordpieces(words, known, 40) == learn_directly(words, known, 40)


def test_words_with_other_characters_are_left_out_and_words_that_occur_once_are_not_merged() -> None:
    assert learn_wordpieces({"abx": 9, "ab": 1}, ["a", "##b"], 10) == []
    assert learn_wordpieces({}, ["a"], 10) == []


def test_the_result_is_an_ordinary_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library

    text = "\n".join([*english_documents()[:10], *RUSSIAN * 10])
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    options: dict[str, Any] = {"vocab_size": 600, "lowercase": True, "pair_score": "likelihood"}
    ours, again = (pt.train_tokenizer(tmp_path / "text.txt", out=tmp_path / name, **options) for name in "ab")
    assert ours.vocabulary == again.vocabulary and ours.size == len({*ours.vocabulary}) == 600
    assert ours.report["pair_score"] == "likelihood" and ours.report["held_out"]["coverage"] > 0.9
    assert (
        ours.vocabulary != pt.train_tokenizer(tmp_path / "text.txt", **options | {"pair_score": "frequency"}).vocabulary
    )
    theirs = Library.from_file(str(tmp_path / "a" / "tokenizer.json"))
    for line in text.splitlines()[:20]:
        assert ours.encode(line) == theirs.encode(line, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "bpe"}, "pair_score likelihood applies only to wordpiece, not to bpe"),
        ({"pair_score": "likelyhood"}, "unknown pair_score 'likelyhood'; did you mean 'likelihood'"),
        ({"vocab_size": 16}, "a wordpiece tokenizer of size 16 is too small for this text"),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"kind": "wordpiece", "vocab_size": 600, "pair_score": "likelihood"} | changes
    with pytest.raises(PretuneError, match=message):
        train_on_documents([Document(english_documents()[0], Path("x"), 1)], **options)
