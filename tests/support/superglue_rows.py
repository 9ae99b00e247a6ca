"""Rows of the SuperGLUE tasks in the format of their official files."""

from __future__ import annotations

import json
from typing import Any

WORDS = ["red", "blue", "green", "yellow", "stone", "water"]

SUPERGLUE = {
    "COPA": [
        {"premise": "red stone", "choice1": "good", "choice2": "bad", "question": "cause", "label": i % 2, "idx": i}
        for i in range(8)
    ],
    "WiC": [
        {"sentence1": f"red {WORDS[i]} fire", "sentence2": "blue red", "start1": 0, "end1": 3, "start2": 5, "end2": 8,
         "word": "red", "label": i % 2 == 0, "idx": i}
        for i in range(6)
    ],
    "WSC": [
        {"text": "red stone water", "target": {"span1_text": "red", "span1_index": 0, "span2_text": "water",
                                               "span2_index": 2}, "label": i % 2 == 0, "idx": i}
        for i in range(6)
    ],
    "MultiRC": [
        {"idx": i, "passage": {"text": "red stone", "questions": [{"question": "stone", "idx": i, "answers": [
            {"text": "red", "idx": 2 * i, "label": 1}, {"text": "blue", "idx": 2 * i + 1, "label": 0}]}]}}
        for i in range(6)
    ],
    "ReCoRD": [
        {"passage": {"text": "red met blue", "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 11}]}, "idx": i,
         "qas": [{"query": "@placeholder met", "idx": i, "answers": [{"text": "red", "start": 0, "end": 2}]}]}
        for i in range(6)
    ],
}  # fmt: skip


def lines(rows: list[dict[str, Any]], hide: bool = False) -> str:
    """Return one JSON object per line; `hide` removes the labels, as in official test files."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return text if not hide else "".join(json.dumps(hidden(json.loads(line))) + "\n" for line in text.splitlines())


def hidden(value: Any) -> Any:
    """Return a value without its labels."""
    if isinstance(value, list):
        return [hidden(item) for item in value]
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key != "label"}
        if "query" in kept:
            kept.pop("answers")
        return {key: hidden(item) for key, item in kept.items()}
    return value
