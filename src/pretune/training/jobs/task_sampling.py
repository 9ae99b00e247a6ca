"""Task sampling in multitask training, by the number of examples of each task.

proportional      in proportion to the examples
uniform           equally often
temperature(2)    by the number of examples to the power of 1/2; 1 is proportional, ∞ uniform (Raffel et al., 2020)
annealed(0.2)     proportional at first, to the power of 0.2 at the end (Stickland and Murray, 2019)

The shares are multiplied by the weights in the objective (0.5*…).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pretune.runtime.errors import PretuneError, suggest

_EXPRESSION = re.compile(r"\s*(?P<name>\w+)\s*(?:\(\s*(?P<value>[\d.]+)\s*\))?\s*")
DEFAULTS = {"proportional": 1.0, "uniform": 0.0, "temperature": 2.0, "annealed": 0.2}
POINTS = 64  # at which changing shares are integrated


@dataclass(frozen=True)
class TaskSampling:
    """Sampling of tasks in proportion to (number of examples)^power, with a power that moves from `first` to `last`.

    >>> parse_sampling("temperature(2)").shares([900, 100], [1, 1]).tolist()
    [0.75, 0.25]
    """

    first: float
    last: float

    def shares(self, sizes: Sequence[int], weights: Sequence[float], progress: float = 0.0) -> np.ndarray:  # type: ignore[type-arg]
        """Return the sampling share of each task, (tasks,), at a training progress of 0 to 1.

        `sizes` are the numbers of examples of the tasks, and `weights` their weights in the objective.
        """
        power = self.first + (self.last - self.first) * progress
        shares = np.asarray(weights) * np.asarray(sizes, dtype=np.float64) ** power
        return np.asarray(shares / shares.sum())

    def until(self, sizes: Sequence[int], weights: Sequence[float], progress: float) -> np.ndarray:  # type: ignore[type-arg]
        """Return each task's share of all batches from the start of training to a progress of 0 to 1, (tasks,).

        `sizes` are the numbers of examples of the tasks, and `weights` their weights in the objective.
        """
        if self.first == self.last or progress <= 0:
            return self.shares(sizes, weights)
        times = (np.arange(POINTS) + 0.5) / POINTS * min(progress, 1.0)
        return np.asarray(np.mean([self.shares(sizes, weights, time) for time in times], axis=0))


def parse_sampling(text: str) -> TaskSampling:
    """Return the task sampling that an expression such as "temperature(5)" describes."""
    match = _EXPRESSION.fullmatch(text)
    if match is None or match["name"] not in DEFAULTS:
        raise PretuneError(
            f"--task-sampling {text}: unknown method; {suggest(match['name'] if match else text, DEFAULTS)}"
        )
    name, value = match["name"], float(match["value"]) if match["value"] else DEFAULTS[match["name"]]
    if match["value"] and name in ("proportional", "uniform"):
        raise PretuneError(f"--task-sampling {text}: {name} takes no number; remove the number")
    if name == "temperature" and not value > 0:
        raise PretuneError(f"--task-sampling {text}: the temperature must be above 0, as in temperature(2)")
    last = 1 / value if name == "temperature" else value
    return TaskSampling(1.0 if name == "annealed" else last, last)
