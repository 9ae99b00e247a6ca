"""Read the learning curves and the report in a model's folder, and detect changes of its files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.models.name_resolution import find_folder
from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import read_json_lines, read_text
from pretune.training.metrics_log import METRICS

REPORT = "report.html"
LARGEST_REPORT = 20 << 20  # bytes
MAX_POINTS = 1000  # of a curve
MODEL_FILES = (".json", ".safetensors", ".bin", ".onnx", ".txt", ".model")  # extensions
Signature = frozenset[tuple[str, int, int]]


@dataclass(frozen=True)
class RunFiles:
    """The learning curves and the report of a run; both are empty if a model's folder is not a run folder."""

    curves: Mapping[str, list[list[float]]]  # by the name of the metric, as [step, value]
    report: str | None

    @classmethod
    def read(cls, reference: str) -> RunFiles:
        """Read the learning curves and the report in a model's folder; files that cannot be read are ignored."""
        folder = Path(reference)
        try:
            lines = list(read_json_lines(folder / METRICS, torn=True)) if (folder / METRICS).is_file() else []
            report = read_text(folder / REPORT, LARGEST_REPORT) if (folder / REPORT).is_file() else None
        except PretuneError:
            return cls({}, None)
        return cls(curves_of(lines), report)


def curves_of(lines: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """Return the metrics in the lines of metrics.jsonl by name, as lists of [step, value].

    Of a long list, only some evenly spaced points are kept.

    >>> curves_of([{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0, "dev/accuracy": 0.5}])
    {'loss': [[1, 2.5], [2, 2.0]], 'dev/accuracy': [[2, 0.5]]}
    """
    found: dict[str, list[list[float]]] = {}
    for line in lines:
        for name, value in line.items():
            if name != "step" and "step" in line and is_finite(value):
                found.setdefault(name, []).append([line["step"], value])
    return {name: points[:: max(1, math.ceil(len(points) / MAX_POINTS))] for name, points in found.items()}


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def model_signature(reference: str) -> Signature:
    """Return the names, modification times, and sizes of a model's files, to detect when the files change."""
    try:
        files = [path for path in find_folder(reference).rglob("*") if path.suffix in MODEL_FILES]
        facts = [(path, path.stat()) for path in files]
    except (PretuneError, OSError):  # the folder is being replaced
        return frozenset()
    return frozenset((str(path), stat.st_mtime_ns, stat.st_size) for path, stat in facts)
