"""Sample data that are part of the package and were written for it.

messages_train.csv   400 customer messages, 100 per class: praise, complaint, question, request
messages_test.csv    200 more, 50 per class
clozes.csv           20 sentences with a gap, and the words that fit
"""

from __future__ import annotations

import csv
from pathlib import Path


def example(name: str) -> Path:
    """Return the path of a file of sample data that is part of the package, such as messages_train.csv.

    >>> example("messages_train.csv").exists()
    True
    """
    return Path(__file__).parent / name


def clozes() -> list[tuple[str, set[str]]]:
    """Return sentences with a [MASK] token, each with the set of words that fit.

    >>> clozes()[0]
    ('He opened the [MASK] and walked into the room.', {'door'})
    """
    with example("clozes.csv").open(encoding="utf-8", newline="") as file:
        return [(row["text"], set(row["answers"].split("|"))) for row in csv.DictReader(file)]
