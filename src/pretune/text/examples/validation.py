"""Check labeled rows before training: missing texts, missing labels, and labels that are not classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.progress import log_info
from pretune.text.examples.labeled import MISSING_VALUES, LabeledRows, list_first

FEWEST = 10  # rows below which any number of classes is accepted
DISTINCT = 0.9  # distinct labels per row above which labels are not classes
NUMBERS = 10  # numeric classes above which labels may be quantities


def check_texts(rows: LabeledRows) -> None:
    """Log how many rows have no text; raise an error if they are more than half of all rows."""
    empty = rows.empty()
    if not empty:
        return
    what = f"{rows.file}: {len(empty)} of {len(rows)} rows"
    where = f"in {rows.columns['text']!r} ({list_first(f'line {rows.lines[row]}' for row in empty)})"
    if 2 * len(empty) > len(rows):
        column = if_option("text", "; choose another column with --text")
        raise PretuneError(
            f"{what} have no text {where}{column}{if_option('drop-invalid', ', or leave them out with --drop-invalid')}"
        )
    advice = if_option("drop-invalid", "; leave them out with --drop-invalid")
    log_info(f"{what} have no text {where}; these rows are kept{advice}")


def check_classes(rows: LabeledRows) -> None:
    """Raise an error if nearly all labels are distinct; log labels that may be quantities, missing values or mistakes."""
    labels: Sequence[str] = rows.labels or ()
    counts, column = Counter(labels), rows.columns.get("label", "label")
    numbers = all(map(is_number, counts))
    if len(labels) >= FEWEST and len(counts) > DISTINCT * len(labels):
        regress = if_option("objective", "; for regression use --objective regress") if numbers else ""
        share = f"{len(labels)} rows have {len(counts)} distinct labels"
        advice = if_option("label", "; choose another column with --label")
        raise PretuneError(f"{rows.file}: {share} in {column!r}, too many for classes{regress}{advice}")
    if numbers and len(counts) > NUMBERS:
        log_info(
            f"{rows.file}: the {len(counts)} classes in {column!r} are all numbers; if they are quantities"
            f"{if_option('objective', ', use --objective regress')}, which takes the size of errors into account"
        )
    for label in (label for label in counts if label.casefold() in MISSING_VALUES):
        log_info(
            f"{rows.file}: {counts[label]} of {len(labels)} labels are {label!r}, which is treated as a class; if it stands for "
            f"a missing label, leave these cells empty{if_option('drop-invalid', ' and drop the rows with --drop-invalid')}"
        )
    single = sorted(label for label, count in counts.items() if count == 1)
    if single:
        verb, names = "have" if len(single) > 1 else "has", list_first(map(repr, single))
        share = f"{len(single)} of {len(counts)} classes {verb}"
        log_info(f"{rows.file}: {share} a single row ({names}), which cannot be in both training and validation")


def is_number(label: str) -> bool:
    """Return whether a label reads as a number."""
    try:
        float(label)
    except ValueError:
        return False
    return label.casefold() not in MISSING_VALUES
