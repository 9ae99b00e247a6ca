"""Splits that share nothing, balanced labels, and tasks that cannot be probed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.probing.probing_task import ProbingExample, ProbingTask, Split
from pretune.probing.suites.candidates import (
    FEWEST,
    SPLITS,
    Candidate,
    UnusableTaskError,
    balance,
    draw_splits,
    limit_examples,
    limit_per_key,
    make_task,
    separate,
    settle_splits,
)

SPLIT = st.sampled_from(SPLITS)


def candidates(split: st.SearchStrategy[Split | None]) -> st.SearchStrategy[list[Candidate]]:
    one = st.builds(Candidate, st.text("ab", max_size=3), st.sampled_from("xyz"), split, st.sampled_from("abcdefgh"))
    return st.lists(one, max_size=60)


@given(found=st.one_of(candidates(SPLIT), candidates(st.none())), seed=st.integers(0, 3))
def test_no_key_is_in_two_splits(found: list[Candidate], seed: int) -> None:
    kept = separate(found, seed, "test")
    homes: dict[str, Split | None] = {}
    for candidate in kept:
        assert candidate.split in SPLITS
        assert homes.setdefault(candidate.key, candidate.split) == candidate.split
    if all(candidate.split is None for candidate in found):
        assert [replace(candidate, split=None) for candidate in kept] == found  # nothing is left out


@given(found=candidates(SPLIT), seed=st.integers(0, 3), choose=st.booleans())
def test_balanced_labels_are_equally_frequent_in_each_split(found: list[Candidate], seed: int, choose: bool) -> None:
    kept = balance(found * 10, seed, "test", choose=choose)
    counts = Counter((candidate.label, candidate.split) for candidate in kept)
    labels = {candidate.label for candidate in kept}
    assert len(labels) != 1
    for split in SPLITS:
        assert len({counts[label, split] for label in labels}) <= 1
        assert all(counts[label, split] >= FEWEST[split] for label in labels)


def test_splits_follow_the_names_of_files() -> None:
    given: list[Split | None] = ["train", "dev", "test", "train"]
    assert settle_splits(given, "x") == given
    assert settle_splits(["train", "dev"], "x") == ["train", "test"]  # the only held-out file is for testing
    assert settle_splits(["train", "test"], "x") == ["train", "test"]
    assert settle_splits(["train", "test", None], "x") == ["train", "test", "train"]
    for without_training_or_held_out in (["dev", "test"], ["train", "train"], [None, None]):
        assert settle_splits(without_training_or_held_out, "x") == [None, None]  # type: ignore[arg-type]


def test_a_missing_dev_set_is_drawn_from_the_training_set() -> None:
    found = [Candidate(f"t{i}", "ab"[i % 2], "test" if i < 20 else "train", f"t{i}") for i in range(220)]
    counts = Counter((candidate.split, candidate.label) for candidate in separate(found, 0, "test"))
    assert counts == {
        ("test", "a"): 10,
        ("test", "b"): 10,
        ("train", "a"): 90,
        ("train", "b"): 90,
        ("dev", "a"): 10,
        ("dev", "b"): 10,
    }


def test_frequent_words_are_for_training() -> None:
    words = {"be": ("a", 500), **{f"w{i}": ("a", 5) for i in range(100)}}
    drawn = draw_splits(words, 0, "words")
    assert drawn["be"] == "train"
    sizes = Counter[str]()
    for word, split in drawn.items():
        sizes[split] += words[word][1]
    assert sizes == {"train": 800, "dev": 100, "test": 100}


def test_what_is_drawn_depends_on_the_seed_and_not_on_the_order() -> None:
    words = {f"w{i}": ("a", 1) for i in range(50)}
    assert draw_splits(words, 0, "p") == draw_splits(dict(reversed(words.items())), 0, "p")
    assert draw_splits(words, 0, "p") != draw_splits(words, 1, "p")


def test_limits_keep_proportions() -> None:
    task = ProbingTask("t", "syntax", [ProbingExample(f"{i}", "ab"[i % 4 == 0], SPLITS[i % 3]) for i in range(1200)])
    kept = limit_examples(task, 120, 0)
    assert len(kept.examples) == 120
    counts = Counter((example.split, example.label) for example in kept.examples)
    assert counts == {(split, label): count for split in SPLITS for label, count in (("a", 30), ("b", 10))}
    assert limit_examples(task, 5000, 0) is task
    found = [Candidate(f"{i}", "ab"[i % 2], "train", "be") for i in range(40)]
    assert Counter(c.label for c in limit_per_key(found, 3, 0, "p")) == {"a": 3, "b": 3}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([], "fewer than two labels"),
        ([Candidate("t", "past", split, "t") for split in SPLITS], "all examples have the label 'past'"),
        ([Candidate("t", "past" if split == "train" else "present", split, "t") for split in SPLITS], "all training examples have the label 'past'"),
        ([Candidate("t", label, split, "t") for label in "ab" for split in ("train", "dev")], "no examples for test"),
    ],
)  # fmt: skip
def test_tasks_without_two_labels_or_a_split_are_unusable(found: list[Candidate], reason: str) -> None:
    with pytest.raises(UnusableTaskError, match=reason):
        make_task("tense", "semantics", found)
