"""Splits: which examples are for learning and which for judging, made where nobody made them; and leaks between the two."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pretune.runtime.progress import say
from pretune.runtime.randomness import Draws

SHARE = 0.2  # of the examples, for judging
FEWEST = 50  # examples, below which none are taken away


def split(examples: Any, share: float = SHARE, seed: int = 0) -> tuple[list[int], list[int]]:
    """Rows for learning and rows for judging: of every label about the same share, and no text on both sides.

    >>> from pretune.text.examples.labeled import Labeled
    >>> rows = Labeled("x.csv", {}, [f"text {i % 8}" for i in range(10)], labels=list("ab" * 5))
    >>> learn, judge = split(rows, 0.4)
    >>> {rows.texts[i] for i in learn} & {rows.texts[i] for i in judge}
    set()
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for row in range(len(examples)):
        groups[examples.asked(row)].append(row)
    by_label: dict[str, list[list[int]]] = defaultdict(list)
    for members in groups.values():
        by_label[stratum(examples, members[0])].append(members)
    judged: list[int] = []
    draws = Draws(seed)
    for kinds in by_label.values():
        order = sorted(range(len(kinds)), key=lambda i: float(draws.uniform("split", kinds[i][0])))
        wanted = share * sum(map(len, kinds))
        taken = 0
        for number in order[:-1]:  # of every label, something to learn from stays
            if taken >= wanted:
                break
            judged += kinds[number]
            taken += len(kinds[number])
    chosen = set(judged)
    return [row for row in range(len(examples)) if row not in chosen], sorted(judged)


def stratum(examples: Any, row: int) -> str:
    """What an example shares with others of its kind: its label, of several the first; numbers are all of one kind."""
    label = examples.labels[row] if getattr(examples, "labels", None) else ""
    label = next(iter(label), "") if isinstance(label, tuple) else label
    return label if isinstance(label, str) else ""


def warn_of_leaks(learn: Any, judge: Any) -> int:
    """How many examples for judging were there for learning too; said where there are any."""
    known = {learn.asked(row) for row in range(len(learn))}
    leaked = [row for row in range(len(judge)) if judge.asked(row) in known]
    if leaked:
        places = ", ".join(judge.place(row) for row in leaked[:3])
        say(
            f"{len(leaked)} of {len(judge)} examples of {judge.file} are in {learn.file} too ({places} …): scores flatter"
        )
    return len(leaked)
