"""Check labeled rows before training: missing texts, missing labels, and labels that are not classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.progress import log_info
from pretune.text.examples.labeled import MISSING_VALUES, LabeledRows, drop_or_raise, list_first, missing_spellings

FEWEST = 10  # rows below which any number of classes is accepted
DISTINCT = 0.9  # distinct labels per row above which labels are not classes
NUMBERS = 10  # numeric classes above which labels may be quantities


def check_texts(rows: LabeledRows) -> None:
    """Raise an error if any row has no text; log the rows whose text just spells a missing value, such as NaN."""
    column = repr(rows.columns["text"])
    if empty := rows.empty():
        problem = f"{rows.file}: {len(empty)} of {len(rows)} rows have no text in {column}"
        most = 2 * len(empty) > len(rows)
        other = if_option("text", "; choose another column with --text") if most else ""
        drop_or_raise(problem, [rows.line(row) for row in empty], drop=False, otherwise=other)
    if spelled := rows.spelled_missing():
        lines = list_first(rows.line(row) for row in spelled)
        log_info(
            f"{rows.file}: {len(spelled)} of {len(rows)} texts in {column} are words for a missing value, such as "
            f"{rows.texts[spelled[0]]!r} ({lines}); these rows are kept{if_option('drop-invalid', '; leave them out with --drop-invalid')}"
        )


def check_classes(rows: LabeledRows) -> None:
    """Raise an error if nearly all labels differ, so that they cannot be classes.

    Also log labels that are probably numbers to predict (regression), missing values or mistakes.
    """
    labels: Sequence[str] = rows.labels or ()
    counts, column = Counter(labels), rows.columns.get("label", "label")
    numbers = all(map(is_number, counts))
    other = if_option("label", "; choose another column with --label")
    regress = if_option("objective", "; to predict numbers, use --objective regress") if numbers else ""
    if numbers and 1 < len(counts) == len(labels) and (len(labels) >= FEWEST or any(map(is_fraction, counts))):
        raise PretuneError(
            f"{rows.file}: every label in {column!r} is a different number, so the labels cannot be classes{regress}{other}"
        )
    if len(labels) >= FEWEST and len(counts) > DISTINCT * len(labels):
        share = f"{len(labels)} rows have {len(counts)} distinct labels"
        raise PretuneError(f"{rows.file}: {share} in {column!r}, which is too many for classes{regress}{other}")
    if numbers and len(counts) > NUMBERS:
        log_info(
            f"{rows.file}: the {len(counts)} classes in {column!r} are all numbers; if they are quantities"
            f"{if_option('objective', ', use --objective regress')}, which takes the size of errors into account"
        )
    for label in sorted(missing_spellings(labels)):
        lines = list_first(rows.line(row) for row, given in enumerate(labels) if given == label)
        log_info(
            f"{rows.file}: {counts[label]} of {len(labels)} labels are {label!r} ({lines}), which is treated as a class"
            f"{if_option('drop-invalid', '; if it stands for a missing label, leave these rows out with --drop-invalid')}"
        )
    single = sorted(label for label, count in counts.items() if count == 1)
    if single:
        verb, names = "have" if len(single) > 1 else "has", list_first(map(repr, single))
        share = f"{len(single)} of {len(counts)} classes {verb}"
        log_info(f"{rows.file}: {share} a single row ({names}), which cannot be in both training and validation")


def is_number(label: str) -> bool:
    """Return whether a label can be read as a number."""
    try:
        float(label)
    except ValueError:
        return False
    return label.casefold() not in MISSING_VALUES


def is_fraction(label: str) -> bool:
    """Return whether a label that can be read as a number is not an integer."""
    return not float(label).is_integer()
