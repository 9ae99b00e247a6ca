"""Control tasks (Hewitt and Liang, 2019): the same inputs with random labels, which only memorization can predict.

Each type of input, a word in tasks on spans and a text in tasks on texts, has one random label wherever it occurs. Selectivity is the
accuracy of a probe minus its accuracy on the control task.
"""

from __future__ import annotations

import numpy as np

from pretune.probing.probing_task import ProbingExample, ProbingTask, Split
from pretune.probing.representations import SPLITS, example_passages
from pretune.runtime.arrays import Array


def input_type(example: ProbingExample) -> tuple[str, ...]:
    """Return the input that gets one random label in a control task: the words in the example's spans, in lowercase.

    For an example without spans, the input is its text or texts.

    >>> input_type(ProbingExample("The cat sat", "NN", "train", spans=((4, 7),)))
    ('cat',)
    """
    passages = example_passages(example)
    return tuple(text if span is None else text[slice(*span)].casefold() for text, span in passages)


def control_targets(task: ProbingTask, seed: int) -> dict[Split, Array]:
    """Draw a random class for each example of a control task, per split; equal inputs get the same class.

    Classes are drawn with the frequencies that they have in the task itself.

    >>> examples = [ProbingExample("a", "x", "train"), ProbingExample("b", "y", "train"), ProbingExample("a", "y", "test")]
    >>> drawn = control_targets(ProbingTask("t", "surface", examples), seed=0)
    >>> bool(drawn["train"][0] == drawn["test"][0])
    True
    """
    labels = task.labels
    train = [example.label for example in task.part("train")]
    shares = np.array([train.count(label) for label in labels], dtype=np.float64)
    types = sorted({input_type(example) for example in task.examples})
    drawn = np.random.default_rng(seed).choice(len(labels), size=len(types), p=shares / shares.sum())
    number = dict(zip(types, drawn.tolist(), strict=True))
    return {
        split: np.array([number[input_type(example)] for example in task.part(split)], dtype=np.int64)
        for split in SPLITS
    }
