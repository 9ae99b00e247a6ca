"""Turn candidates for examples into a task: separate splits, balance labels, and check that there is something to learn."""

from __future__ import annotations

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from pretune.probing.probing_task import ProbingExample, ProbingTask, Span, Split
from pretune.runtime.errors import quote
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import permutation

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
HELD_OUT_SHARE = 0.1  # of the examples, for each of dev and test, if the files do not separate them
FEWEST = {
    "train": 10,
    "dev": 2,
    "test": 2,
}  # examples of a label in each split; rarer labels of derived tasks are left out
FEWEST_OF_MANY = {"train": 20, "dev": 2, "test": 2}  # the same for tasks that choose among many labels

Item = TypeVar("Item")


@dataclass(frozen=True)
class Candidate:
    """A possible example of a task; its `key`, such as the text or a lemma, must not occur in two splits.

    The split is None if the files do not separate training, validation and test examples, until one is drawn at random.
    """

    text: str
    label: str
    split: Split | None
    key: str
    spans: tuple[Span, ...] = ()
    pair: str | None = None


class UnusableTaskError(Exception):
    """Raised if the examples of a probing task have fewer than two labels, or if a split has no examples."""


def shuffled(items: Sequence[Item], seed: int, purpose: str) -> list[Item]:
    """Return the items in a random order, which is a function of the seed and the purpose."""
    return [items[i] for i in permutation(len(items), seed, purpose)]


def unique(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[Item]:
    """Return the items without duplicates: of items with the same key, only the first."""
    kept: dict[Hashable, Item] = {}
    for item in items:
        kept.setdefault(key(item), item)
    return list(kept.values())


def settle_splits(given: Sequence[Split | None], source: str) -> list[Split | None]:
    """Return the final split of each example or file, given the split in the file name (None if the name has none).

    If there are no training files or no held-out files, the result is None for all, and the splits must be drawn at
    random. If there is either a dev or a test file, but not both, it becomes the test set, and the dev set must be
    drawn from the training set with `fill_dev`. `source` names the data in log messages.
    """
    found = {split for split in given if split is not None}
    if "train" not in found or found == {"train"}:
        if found:
            log_info(f"{source}: files for {' and '.join(sorted(found))} only; the splits are drawn from all examples")
        return [None] * len(given)
    if None in given:
        log_info(f"{source}: files without a split in their names are used for training")
    if "test" not in found:
        log_info(
            f"{source}: no test file; the dev file is the test set, and the dev set is drawn from the training set"
        )
    elif "dev" not in found:
        log_info(f"{source}: no dev file; the dev set is drawn from the training set")
    only = found - {"train"}
    return [split if split in ("train", None) or len(only) == 2 else "test" for split in (s or "train" for s in given)]


def draw_splits(keys: Mapping[str, tuple[str, int]], seed: int, purpose: str) -> dict[str, Split]:
    """Assign a random split to each key, stratified by label; `keys` maps a key to its label and number of examples.

    >>> drawn = draw_splits({f"word {i}": ("a", 1) for i in range(20)}, 0, "words")
    >>> sorted(Counter(drawn.values()).items())
    [('dev', 2), ('test', 2), ('train', 16)]
    """
    by_label: dict[str, list[str]] = defaultdict(list)
    for key in sorted(keys, key=lambda key: (zlib.crc32(key.encode()), key)):
        by_label[keys[key][0]].append(key)
    drawn: dict[str, Split] = {}
    for label in sorted(by_label):
        members = shuffled(by_label[label], seed, f"{purpose} {label}")
        share = HELD_OUT_SHARE * sum(keys[key][1] for key in members)
        room = {"test": share, "dev": share}
        # The most frequent keys are for training, so that one of them does not fill the test set.
        for key in members:
            count = keys[key][1]
            split: Split = next((s for s in ("test", "dev") if room[s] > 0 and count <= max(share, 1)), "train")
            if split != "train":
                room[split] -= count
            drawn[key] = split
    return drawn


def separate(candidates: Sequence[Candidate], seed: int, purpose: str) -> list[Candidate]:
    """Return the candidates with a split for each, such that no key, such as a lemma, occurs in two splits.

    If all candidates have a split from their file, each key is kept only in the split in which it is most frequent,
    relative to the size of the split; its candidates in other splits are removed. Otherwise the split of each key is
    drawn at random.
    """
    if any(candidate.split is None for candidate in candidates):
        labels: dict[str, Counter[str]] = defaultdict(Counter)
        for candidate in candidates:
            labels[candidate.key][candidate.label] += 1
        counts = {key: (min(found, key=lambda s: (-found[s], s)), found.total()) for key, found in labels.items()}
        drawn = draw_splits(counts, seed, purpose)
        return [replace(candidate, split=drawn[candidate.key]) for candidate in candidates]
    sizes = Counter(candidate.split for candidate in candidates)
    places: dict[str, Counter[Split | None]] = defaultdict(Counter)
    for candidate in candidates:
        places[candidate.key][candidate.split] += 1
    home = {
        key: max(SPLITS, key=lambda split: (found[split] / max(sizes[split], 1), split))
        for key, found in places.items()
    }
    kept = [candidate for candidate in candidates if candidate.split == home[candidate.key]]
    return fill_dev(kept, seed, purpose)


def fill_dev(candidates: Sequence[Candidate], seed: int, purpose: str) -> list[Candidate]:
    """Move some training candidates to the dev set if the dev set is empty."""
    if any(candidate.split == "dev" for candidate in candidates):
        return list(candidates)
    training = [candidate for candidate in candidates if candidate.split == "train"]
    counts = Counter(candidate.key for candidate in training)
    drawn = draw_splits({c.key: (c.label, counts[c.key]) for c in training}, seed, f"{purpose} dev")
    return [
        replace(candidate, split="dev") if candidate.split == "train" and drawn[candidate.key] == "dev" else candidate
        for candidate in candidates
    ]


def limit_per_key(candidates: Sequence[Candidate], most: int, seed: int, purpose: str) -> list[Candidate]:
    """Return at most `most` randomly chosen candidates for each pair of key and label, in their original order."""
    counts: Counter[tuple[str, str]] = Counter()
    kept = []
    for index in permutation(len(candidates), seed, purpose).tolist():
        candidate = candidates[index]
        counts[candidate.key, candidate.label] += 1
        if counts[candidate.key, candidate.label] <= most:
            kept.append(index)
    return [candidates[index] for index in sorted(kept)]


def frequent_labels(candidates: Sequence[Candidate], fewest: Mapping[str, int] = FEWEST) -> list[str]:
    """Return the labels that have enough examples in each split, the most frequent labels first.

    `fewest` gives the minimum number of examples of a label for each split.
    """
    counts = Counter((candidate.label, candidate.split) for candidate in candidates)
    labels = {candidate.label for candidate in candidates}
    kept = [label for label in labels if all(counts[label, split] >= fewest[split] for split in SPLITS)]
    sizes = Counter(candidate.split for candidate in candidates)
    shares = {label: min(counts[label, split] / sizes[split] for split in SPLITS) for label in kept}
    return sorted(kept, key=lambda label: (-shares[label], label))


def balance(candidates: Sequence[Candidate], seed: int, purpose: str, *, choose: bool = False) -> list[Candidate]:
    """Return the same number of random candidates for each label within each split; rare labels are left out.

    With `choose`, only the k most frequent labels are kept, where k maximizes the number of examples times log k: more
    labels make a harder task, but leave fewer examples per label.
    """
    labels = frequent_labels(candidates, FEWEST_OF_MANY if choose else FEWEST)
    groups: dict[tuple[str, Split | None], list[int]] = defaultdict(list)
    for index in permutation(len(candidates), seed, purpose).tolist():
        groups[candidates[index].label, candidates[index].split].append(index)

    def sizes(count: int) -> dict[Split, int]:
        return {split: min(len(groups[label, split]) for label in labels[:count]) for split in SPLITS}

    count = len(labels)
    if choose and count > 2:
        gains = [sum(sizes(k).values()) * k * math.log(k) for k in range(2, count + 1)]
        count = int(np.argmax(gains)) + 2
    if count < 2:
        return []
    room = sizes(count)
    chosen = sorted(i for label in labels[:count] for split in SPLITS for i in groups[label, split][: room[split]])
    return [candidates[index] for index in chosen]


def drop_rare_labels(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates whose labels have enough examples in every split."""
    kept = set(frequent_labels(candidates))
    return [candidate for candidate in candidates if candidate.label in kept]


def make_task(name: str, group: str, candidates: Sequence[Candidate]) -> ProbingTask:
    """Return a probing task with the given candidates as its examples.

    Raise UnusableTaskError if there are fewer than two labels, or if a split is empty.
    """
    examples = [ProbingExample(c.text, c.label, c.split, c.spans, c.pair) for c in candidates if c.split]
    task = ProbingTask(name, group, examples)
    if not examples:
        raise UnusableTaskError("fewer than two labels have enough examples in every split, but a probe needs two")
    if len(task.labels) == 1:
        raise UnusableTaskError(f"all examples have the label {quote(task.labels[0])}, but a probe needs two labels")
    if empty := [split for split in SPLITS if not task.part(split)]:
        raise UnusableTaskError(
            f"there are no examples for {' and '.join(empty)}, but a probe needs examples in every split"
        )
    if len(labels := {example.label for example in task.part("train")}) == 1:
        raise UnusableTaskError(
            f"all training examples have the label {quote(labels.pop())}, but a probe needs two labels"
        )
    return task


def limit_examples(task: ProbingTask, most: int | None, seed: int) -> ProbingTask:
    """Return the task with at most `most` random examples, which keep the proportions of splits and labels."""
    if most is None or len(task.examples) <= most:
        return task
    strata: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index in permutation(len(task.examples), seed, f"limit {task.name}").tolist():
        strata[task.examples[index].split, task.examples[index].label].append(index)
    # The first examples of all strata, in proportion to their sizes.
    ranked = sorted(
        ((rank + 0.5) / len(members), index) for members in strata.values() for rank, index in enumerate(members)
    )
    chosen = sorted(index for _, index in ranked[:most])
    return replace(task, examples=[task.examples[index] for index in chosen])


def describe_counts(task: ProbingTask) -> str:
    """Return the numbers of labels and examples of a task as text for a log message.

    >>> describe_counts(ProbingTask("tense", "semantics", [ProbingExample("I ran", "past", "train")]))
    'tense: 1 label, 1 train, 0 dev and 0 test examples'
    """
    counts = Counter(example.split for example in task.examples)
    labels = len(task.labels)
    parts = f"{counts['train']:,} train, {counts['dev']:,} dev and {counts['test']:,} test examples"
    return f"{task.name}: {labels:,} label{'s' * (labels != 1)}, {parts}"
