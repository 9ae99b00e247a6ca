"""Control tasks give every occurrence of a word or text the same random label, with the frequencies of the task."""

from __future__ import annotations

from collections import Counter

import numpy as np

from pretune.probing.probes.control_tasks import control_targets, input_type
from pretune.probing.probing_task import ProbingExample, ProbingTask
from tests.support.probing import random_task


def test_word_types_keep_their_label_in_all_contexts() -> None:
    texts = ["The Cat sat", "a cat ran", "the dog sat", "one dog ran"]
    examples = [
        ProbingExample(text, label, split, spans=((text.lower().index(text.lower().split()[1]), text.index(" ", 4)),))  # type: ignore[arg-type]
        for text, label in zip(texts, "xyxy", strict=True)
        for split in ("train", "test")
    ]
    task = ProbingTask("words", "syntax", examples)
    drawn = control_targets(task, seed=3)
    by_type: dict[tuple[str, ...], set[int]] = {}
    for split in ("train", "test"):
        for example, target in zip(task.part(split), drawn[split], strict=True):  # type: ignore[arg-type,index]
            by_type.setdefault(input_type(example), set()).add(int(target))
    assert set(by_type) == {("cat",), ("dog",)} and all(len(found) == 1 for found in by_type.values())


def test_labels_are_as_frequent_as_those_of_the_task_and_differ_by_seed() -> None:
    task = random_task(count=1000, labels="xxxy")
    drawn = control_targets(task, seed=0)["train"]
    shares = Counter(drawn.tolist())
    assert abs(shares[0] / len(drawn) - 0.75) < 0.08
    assert not np.array_equal(drawn, control_targets(task, seed=1)["train"])
    assert np.array_equal(drawn, control_targets(task, seed=0)["train"])
