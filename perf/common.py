"""Share what the benchmarks need: synthetic text with the statistics of real text, and a description of the machine."""

from __future__ import annotations

import json
import os
import platform
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from pydoc_data import topics
from statistics import stdev
from typing import Any


def generate_text(path: Path, size: int, new_words: float = 0.0, seed: int = 0) -> None:
    """Write documents of shuffled sentences from Python's manual, one per line, about `size` bytes in all.

    `new_words` is the fraction of words replaced by random ones that hardly ever repeat.
    """
    chance = random.Random(seed)
    paragraphs = (" ".join(part.split()) for text in topics.topics.values() for part in text.split("\n\n"))
    sentences = [s.strip() + "." for part in paragraphs for s in part.split(". ") if 20 < len(s) < 300]
    letters = "eeeettaaooiinnsshhrrddlucmfwygpbvk"
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            lines = []
            for _ in range(200):
                document = " ".join(chance.choices(sentences, k=12))
                if new_words:
                    document = " ".join(
                        "".join(chance.choices(letters, k=chance.randint(5, 12))) if chance.random() < new_words else w
                        for w in document.split()
                    )
                lines.append(document)
            file.write("\n".join(lines) + "\n")


def read_results(files: Iterable[str | Path]) -> list[dict[str, Any]]:
    """Return all lines of some .jsonl files."""
    return [json.loads(line) for file in files for line in Path(file).read_text(encoding="utf-8").splitlines()]


def add_result(file: Path, line: Mapping[str, Any]) -> None:
    """Append a line to a .jsonl file."""
    with file.open("a", encoding="utf-8") as results:
        results.write(json.dumps(line) + "\n")


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation, or 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0


def machine() -> dict[str, str]:
    """Describe the machine and the versions of a measurement."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    import torch

    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {cores} cores",
        **gpu,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "tokenizers")},
    }
