"""Checks of labeled rows before anything learns from them: texts and labels that are missing, and labels that are no classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.progress import say
from pretune.text.examples.labeled import LISTED, NOTHING, Labeled

FEWEST = 10  # rows, below which any number of classes is a try
DISTINCT = 0.9  # classes per row, above which labels name rows and not classes
NUMBERS = 10  # classes that are all numbers, above which they may be amounts


def check_texts(rows: Labeled) -> None:
    """Report rows without a text; refuse them where they are more than half."""
    empty = rows.empty()
    if not empty:
        return
    what = f"{rows.file}: {len(empty)} of {len(rows)} rows have no text in {rows.columns['text']!r}"
    where = listed(f"line {rows.lines[row]}" for row in empty)
    if 2 * len(empty) > len(rows):
        column = if_option("text", "; choose another column with --text")
        raise PretuneError(f"{what} ({where}){column}{if_option('drop-bad', ', or leave them out with --drop-bad')}")
    say(f"{what} ({where}); they are kept{if_option('drop-bad', ', or left out with --drop-bad')}")


def check_classes(rows: Labeled) -> None:
    """Refuse labels that are nearly all different; report those that may be numbers, missing values or mistakes."""
    labels: Sequence[str] = rows.labels or ()
    counts, column = Counter(labels), rows.columns.get("label", "label")
    numbers = all(map(is_number, counts))
    if len(labels) >= FEWEST and len(counts) > DISTINCT * len(labels):
        regress = if_option("objective", "; for numbers use --objective regress") if numbers else ""
        raise PretuneError(
            f"{rows.file}: {len(labels)} rows have {len(counts)} different labels in {column!r}, too many to be classes{regress}"
            f"{if_option('label', '; choose another column with --label')}"
        )
    if numbers and len(counts) > NUMBERS:
        say(
            f"{rows.file}: the {len(counts)} classes in {column!r} are all numbers; if they are amounts"
            f"{if_option('objective', ', use --objective regress')}, so that near misses count for something"
        )
    for label in (label for label in counts if label.casefold() in NOTHING):
        say(
            f"{rows.file}: {counts[label]} of {len(labels)} labels are {label!r}, which is a class like any other; if it stands for "
            f"a missing label, leave these cells empty{if_option('drop-bad', ', and the rows out with --drop-bad')}"
        )
    single = sorted(label for label, count in counts.items() if count == 1)
    if single:
        say(
            f"{rows.file}: {len(single)} of {len(counts)} classes {'have' if len(single) > 1 else 'has'} a single row ({listed(map(repr, single))}), too little to "
            "both learn a class and judge it"
        )


def is_number(label: str) -> bool:
    """Return whether a label reads as a number."""
    try:
        float(label)
    except ValueError:
        return False
    return label.casefold() not in NOTHING


def listed(names: Iterable[str]) -> str:
    """Return the first few names.

    >>> listed("abcde")
    'a, b, c …'
    """
    known = list(names)
    return ", ".join(known[:LISTED]) + (" …" if len(known) > LISTED else "")
