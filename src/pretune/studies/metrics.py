"""The metrics of studies: which values are better, and how they are shown."""

from __future__ import annotations

from collections.abc import Sequence

LOWER_IS_BETTER = (
    "bits_per_byte",
    "perplexity",
    "pseudo_perplexity",
    "latency_ms",
    "megabytes",
    "mse",
    "rmse",
    "mae",
    "ter",
    "tokens_per_word",
    "unknown",
)


def lower_is_better(name: str) -> bool:
    """Return whether lower values of a metric are better.

    >>> lower_is_better("text.bits_per_byte"), lower_is_better("task.accuracy")
    (True, False)
    """
    return name.rsplit(".", 1)[-1] in LOWER_IS_BETTER


def is_better(name: str, first: float, second: float) -> bool:
    """Return whether the value `first` of the metric `name` is better than the value `second`."""
    return first < second if lower_is_better(name) else first > second


def display_factor(name: str, values: Sequence[float]) -> float:
    """Return the factor by which values of a metric are multiplied for display.

    Fractions of 1, such as accuracies, are shown as percentage points.

    >>> display_factor("task.accuracy", [0.5, 0.7]), display_factor("task.bleu", [31.0]), display_factor("t.bits_per_byte", [0.9])
    (100.0, 1.0, 1.0)
    """
    return 1.0 if lower_is_better(name) or any(abs(value) > 1 for value in values) else 100.0


def unit_name(factor: float) -> str:
    """Return the name of the unit in which differences of a metric with the display factor `factor` are given."""
    return "points" if factor != 1.0 else ""
