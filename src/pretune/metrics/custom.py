"""Register custom metrics: functions of the gold and the predicted answers, under a name.

    @register_metric("cost")
    def cost(gold, predicted):
        return -sum(5.0 * (g == "spam") + (g == "ham") for g, p in zip(gold, predicted) if g != p)

A package outside declares its functions as entry points of the group `pretune.metrics`; they then need no decorator:

    [project.entry-points."pretune.metrics"]
    cost = "my_package.metrics:cost"

A larger number must be better. What the lists contain depends on the task: labels (of multi-label classification, sequences of
labels), numbers, sequences of tags, indices of choices, or texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pretune.metrics.classification import classification_metrics, confusion
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.plugins import entry_point_objects

Metric = Callable[[Sequence[Any], Sequence[Any]], float]
M = TypeVar("M", bound=Metric)
PLUGINS = "pretune.metrics"  # group of entry points
LOWER_IS_BETTER = ("mse",)  # metrics of tasks by which models cannot be chosen, because larger numbers are worse

_registered: dict[str, Metric] = {}


def register_metric(name: str) -> Callable[[M], M]:
    """Return a decorator that registers a function `(gold, predicted) -> float` as the metric `name`.

    Examples
    --------
    >>> @register_metric("share_of_spam")
    ... def share_of_spam(gold, predicted):
    ...     return sum(label == "spam" for label in predicted) / len(predicted)
    >>> find_metrics(["share_of_spam"])["share_of_spam"](["ham"], ["spam"])
    1.0
    """

    def register(function: M) -> M:
        known = _registered.get(name, function)
        # A module that is loaded again defines the same function anew.
        if (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
            raise PretuneError(
                f"{known.__module__} and {function.__module__} both register a metric {name!r}; rename one of them."
            )
        _registered[name] = function
        return function

    return register


def registered_metrics() -> dict[str, Metric]:
    """Return the metrics that are registered by decorators and by the entry points of installed packages, by name."""
    plugins: dict[str, Any] = entry_point_objects(PLUGINS)
    return {**_registered, **plugins}


def find_metrics(given: Mapping[str, Metric] | Sequence[str]) -> dict[str, Metric]:
    """Return custom metrics by name, given functions by name or a list of names of registered metrics."""
    if isinstance(given, Mapping):
        for name, function in given.items():
            if not callable(function):
                raise PretuneError(f"The metric {name!r} is not a function; give a function of (gold, predicted).")
        return dict(given)
    known = registered_metrics()
    for name in given:
        if name not in known:
            raise PretuneError(
                f"There is no registered metric {name!r}; {suggest(name, known)}. Register it with pretune.register_metric, or "
                f"as an entry point of the group {PLUGINS}."
            )
    return {name: known[name] for name in given}


def compute_metric(name: str, function: Metric, gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Return the value of the custom metric `name`, computed by `function` from gold and predicted answers.

    If the function fails, raise an error that names the metric.

    >>> compute_metric("matches", lambda gold, predicted: sum(g == p for g, p in zip(gold, predicted)), "ab", "ac")
    1.0
    """
    try:
        return float(function(gold, predicted))
    except Exception as error:  # it is the user's code, so anything can go wrong
        raise PretuneError(
            f"The metric {name!r} failed ({type(error).__name__}: {error}); correct its function, which gets the gold and the "
            "predicted answers as two lists and returns a number."
        ) from error


# -- further metrics of classification ----------------------------------------------------------------------------------


def class_f1(gold: Sequence[str], predicted: Sequence[str]) -> tuple[Array, Array]:
    """Return two arrays with a value per class that occurs: its F1, and its number of gold examples."""
    counts = confusion(gold, predicted, ())
    return 2 * np.diag(counts) / np.maximum(1, counts.sum(0) + counts.sum(1)), counts.sum(1)


@register_metric("macro_f1")
def macro_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the unweighted mean of the F1 of all classes that occur in the gold or the predicted labels.

    >>> macro_f1(["a", "a", "b"], ["a", "b", "b"])
    0.6666666666666666
    """
    return float(class_f1(gold, predicted)[0].mean())


@register_metric("weighted_f1")
def weighted_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the mean of the F1 of all classes, weighted by the number of gold examples of each class.

    >>> weighted_f1(["a", "a", "a", "b"], ["a", "a", "a", "a"])
    0.6428571428571428
    """
    f1, examples = class_f1(gold, predicted)
    return float((f1 * examples).sum() / max(1, examples.sum()))


@register_metric("balanced_accuracy")
def balanced_accuracy(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the mean of the recall of all classes that occur in the gold labels.

    >>> balanced_accuracy(["a", "a", "a", "b"], ["a", "a", "a", "a"])
    0.5
    """
    counts = confusion(gold, predicted, ())
    examples = counts.sum(1)
    return float((np.diag(counts)[examples > 0] / examples[examples > 0]).mean())


@register_metric("mcc")
def mcc(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the Matthews correlation coefficient of gold and predicted labels, which `classify` reports as `matthews`.

    >>> round(mcc(["a", "b"], ["a", "b"]), 6)
    1.0
    """
    return classification_metrics(gold, predicted, sorted({*gold, *predicted}))["matthews"]
