"""Store the results of the few-labels benchmark in a .csv file, one row per run, so that parts from several machines accumulate."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "measurements" / "few-labels.csv"
VERSIONS = ("python", "torch", "transformers", "tokenizers", "setfit")
INTEGERS = ("n", "draw", "test_rows", "cores", "setfit_max_steps")
NUMBERS = ("score", "majority", "seconds", "cpu_seconds", "predict_seconds")
COLUMNS = (
    "set", "kind", "model", "n", "draw", "method", "score", "majority", "test_rows", "seconds", "cpu_seconds",
    "predict_seconds", "setfit_max_steps", "error", "date", "cpu", "device", "gpu", "cores", *VERSIONS,
)  # fmt: skip


def add_row(file: Path, row: Mapping[str, Any]) -> None:
    """Append the result of a run to a .csv file, which gets a header if it is new; values of other columns are left out."""
    new = not file.exists()
    with file.open("a", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, COLUMNS, extrasaction="ignore", lineterminator="\n")
        if new:
            table.writeheader()
        table.writerow(row)


def read_rows(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the results in some .csv files; empty values are left out."""
    rows = []
    for file in files:
        with file.open(encoding="utf-8", newline="") as stream:
            rows += [
                {key: convert(key, value) for key, value in row.items() if value} for row in csv.DictReader(stream)
            ]
    return rows


def convert(column: str, value: str) -> Any:
    """Return a value of a column with its type.

    >>> convert("n", "25"), convert("torch", "2.11")
    (25, '2.11')
    """
    if column in INTEGERS:
        return int(value)
    return float(value) if column in NUMBERS else value
