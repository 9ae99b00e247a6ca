"""Sample data that are part of the package and were written for it.

messages_train.csv   400 customer messages, 100 per class: praise, complaint, question, request
messages_test.csv    200 more, 50 per class
clozes.csv           20 sentences with a gap, and the words that fit

`python -m pretune.sample_data FOLDER` writes a copy to work with.
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path


def example(name: str) -> Path:
    """Return the path of a file of sample data that is part of the package, such as messages_train.csv.

    >>> example("messages_train.csv").exists()
    True
    """
    return Path(__file__).parent / name


def clozes() -> list[tuple[str, set[str]]]:
    """Return sentences with a [MASK] token, each with the set of words that fit.

    >>> clozes()[0]
    ('He opened the [MASK] and walked into the room.', {'door'})
    """
    with example("clozes.csv").open(encoding="utf-8", newline="") as file:
        return [(row["text"], set(row["answers"].split("|"))) for row in csv.DictReader(file)]


def write_sample_data(folder: str | Path) -> list[Path]:
    """Write labeled messages and running text to try pretune with into a folder, and return the paths of the files.

    train.csv     400 customer messages with a label: praise, complaint, question, request
    dev.csv       200 more
    messages.txt  the messages of dev.csv, one per line
    manual.txt    Python's language reference, which every Python installation has; topics separated by blank lines

    >>> import tempfile
    >>> [path.name for path in write_sample_data(tempfile.mkdtemp())]
    ['train.csv', 'dev.csv', 'messages.txt', 'manual.txt']
    """
    from pydoc_data.topics import topics

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    train, dev, messages, manual = (folder / name for name in ("train.csv", "dev.csv", "messages.txt", "manual.txt"))
    shutil.copyfile(example("messages_train.csv"), train)
    shutil.copyfile(example("messages_test.csv"), dev)
    with dev.open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    messages.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    manual.write_text("\n\n".join(text.strip() for _, text in sorted(topics.items())) + "\n", encoding="utf-8")
    return [train, dev, messages, manual]
