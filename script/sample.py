"""Write text and labeled rows that every Python installation has: its manual, and docstrings of functions.

Usage: script/sample.py FOLDER

manual.txt            the language reference, paragraphs separated by blank lines
train.csv, dev.csv    first sentences of docstrings, and the module they are from
"""

from __future__ import annotations

import csv
import importlib
import inspect
import random
import sys
from pathlib import Path
from pydoc_data.topics import topics


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manual.txt").write_text(
        "\n\n".join(text.strip() for _, text in sorted(topics.items())), encoding="utf-8"
    )
    rows = set()
    for module in ("math", "os", "random"):
        for _, thing in inspect.getmembers(importlib.import_module(module)):
            line = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
            if 20 < len(line) < 300:
                rows.add((line, module))
    shuffled = sorted(rows)
    random.Random(0).shuffle(shuffled)
    for name, part in (("train.csv", shuffled[60:]), ("dev.csv", shuffled[:60])):
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *part])


if __name__ == "__main__":
    main()
