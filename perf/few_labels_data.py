"""Read the public labeled sets of the few-labels benchmark, and draw training rows from them.

Each set is a pool of training rows and a fixed test sample, in one compressed file, so that another machine needs only this file.
A row has `text`, perhaps `pair`, and `label`; for tagging `words` and `tags`.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
POOL, TEST = 2000, 1000  # maximum rows of a training pool and of a test sample
METRICS = {"classify": "accuracy", "regress": "Spearman", "tag": "entity F1"}  # by kind of task
CHARACTERS = 600  # longer texts are cut, so that long reviews do not dominate size and time


@dataclass(frozen=True)
class LabeledSet:
    """The training pool and test sample of one labeled set; `kind` is classify, regress, or tag."""

    kind: str
    pool: list[Row]
    test: list[Row]

    def draw(self, size: int, seed: int) -> list[Row]:
        """Return `size` rows of the pool, sampled at random; of a class that is missing, one row replaces a row of the largest class.

        A larger draw with the same seed contains a smaller one, except for such replacements.
        """
        order = random.Random(seed).sample(self.pool, len(self.pool))
        chosen = order[:size]
        if self.kind == "classify":
            for name in sorted({row["label"] for row in self.pool} - {row["label"] for row in chosen}):
                largest = Counter(row["label"] for row in chosen).most_common(1)[0][0]
                at = max(i for i, row in enumerate(chosen) if row["label"] == largest)
                chosen[at] = next(row for row in order[size:] if row["label"] == name)
        return chosen


def read_delimited(
    text: int, label: int, pair: int | None = None, header: bool = True, delimiter: str = "\t", quoted: bool = False
) -> Callable[[str], list[Row]]:
    """Return a reader of tables with the given columns; fields are split at every delimiter unless they are quoted."""

    def read(content: str) -> list[Row]:
        if quoted:
            lines = list(csv.reader(io.StringIO(content), delimiter=delimiter))
        else:
            lines = [line.split(delimiter) for line in content.split("\n")]
        needed = max(text, label, pair or 0)
        rows = [line for line in lines[header:] if len(line) > needed]
        roles = {"text": text, "pair": pair, "label": label}
        return [{role: line[at].strip() for role, at in roles.items() if at is not None} for line in rows]

    return read


def read_labels_first(content: str) -> list[Row]:
    """Read lines that consist of a label, a space, and a text."""
    parts = [line.partition(" ") for line in content.split("\n") if line.strip()]
    return [{"text": text.strip(), "label": label} for label, _, text in parts]


def read_questions(content: str) -> list[Row]:
    """Read TREC's questions with their coarse classes."""
    return [row | {"label": row["label"].partition(":")[0]} for row in read_labels_first(content)]


def read_json_pairs(content: str) -> list[Row]:
    """Read premises and hypotheses from JSON lines."""
    rows = [json.loads(line) for line in content.split("\n") if line]
    return [{"text": row["premise"], "pair": row["hypothesis"], "label": row["label"]} for row in rows]


def read_tags(content: str) -> list[Row]:
    """Read sentences in CoNLL columns: the word first, the tag last, with a blank line after each sentence."""
    rows: list[Row] = []
    words: list[str] = []
    tags: list[str] = []
    for line in [*content.split("\n"), ""]:
        if line.strip() and not line.startswith("-DOCSTART-"):
            parts = line.split()
            words.append(parts[0])
            tags.append(parts[-1])
        elif words:
            rows.append({"words": words, "tags": tags})
            words, tags = [], []
    return rows


@dataclass(frozen=True)
class Source:
    """The files of a set below the folder of data, and how they are read."""

    train: str
    test: str | None  # None: the test sample is held out of `train`
    read: Callable[[str], list[Row]]
    kind: str = "classify"
    read_test: Callable[[str], list[Row]] | None = None  # by default like `train`
    encoding: str = "utf-8-sig"


NEWS = {"1": "World", "2": "Sports", "3": "Business", "4": "Sci/Tech"}


def read_news(content: str) -> list[Row]:
    """Read AG News's official test file: the class, the title, and the description."""
    return [{"text": text, "label": NEWS[label]} for label, _, text in csv.reader(io.StringIO(content))]


SOURCES = {
    "SST-2": Source("tasks-en/SST-2/train.tsv", "tasks-en/SST-2/dev.tsv", read_delimited(0, 1)),
    "MR": Source("tasks-en/SentEval-downstream/rt-polarity.all", None, read_labels_first, encoding="latin-1"),
    "IMDb": Source("tasks-en/IMDb/train.tsv", "tasks-en/IMDb/test.tsv", read_delimited(3, 2)),
    "SST-5": Source("tasks-en/SST-5/stsa.fine.train", "tasks-en/SST-5/stsa.fine.test", read_labels_first),
    "AG News": Source(
        "tasks-en/AGNews/train.subset10k.tsv", "tasks-en/AGNews/test.csv", read_delimited(0, 1), read_test=read_news
    ),
    "TREC-6": Source("tasks-en/TREC/train.txt", "tasks-en/TREC/test.txt", read_questions, encoding="latin-1"),
    "Subj": Source("tasks-en/SentEval-downstream/subj.all", None, read_labels_first, encoding="latin-1"),
    "CoLA": Source("tasks-en/CoLA/train.tsv", "tasks-en/CoLA/dev.tsv", read_delimited(3, 1, header=False)),
    "MRPC": Source("tasks-en/MRPC/train.tsv", "tasks-en/MRPC/msr_paraphrase_test-gold.txt", read_delimited(3, 0, 4)),
    "RTE": Source("tasks-en/RTE/train.tsv", "tasks-en/RTE/dev.tsv", read_delimited(1, 3, 2)),
    "SNLI": Source("tasks-en/SNLI/train.tsv", "tasks-en/SNLI/test.sample1000.tsv", read_delimited(0, 2, 1)),
    "STS-B": Source(
        "tasks-en/STS-B/train.tsv", "tasks-en/STS-B/sts-test-gold.tsv", read_delimited(7, 9, 8), "regress",
        read_test=read_delimited(5, 4, 6, header=False),
    ),
    "TERRa (ru)": Source("tasks-ml/TERRa/train.jsonl", "tasks-ml/TERRa/val.jsonl", read_json_pairs),
    "NSMC (ko)": Source(
        "tasks-ml/NSMC-resplit/ratings_train.txt", "tasks-ml/NSMC-resplit/ratings_test.txt", read_delimited(1, 2)
    ),
    "CoNLL-2003": Source("tasks-en/CoNLL-2003/eng.train", "tasks-en/CoNLL-2003/eng.testb", read_tags, "tag"),
    "PAN-X (ru)": Source("tasks-ml/PANX/train-ru.tsv", "tasks-ml/PANX/dev-ru.tsv", read_tags, "tag"),
}  # fmt: skip


def read_source(folder: Path, source: Source) -> LabeledSet:
    """Read a set from its official files and sample its pool and test rows."""
    chance = random.Random(0)
    train = clean(source.read((folder / source.train).read_text(source.encoding)))
    if source.test is None:
        mixed = chance.sample(train, len(train))
        return LabeledSet(source.kind, mixed[TEST : TEST + POOL], mixed[:TEST])
    test = clean((source.read_test or source.read)((folder / source.test).read_text(source.encoding)))
    known = {identity(row) for row in test}
    train = [row for row in train if identity(row) not in known]
    pool, sample = (chance.sample(rows, min(most, len(rows))) for rows, most in ((train, POOL), (test, TEST)))
    return LabeledSet(source.kind, pool, sample)


def identity(row: Row) -> str:
    """Return what makes two rows the same: everything but the label."""
    return json.dumps([row.get(key) for key in ("text", "pair", "words")])


def clean(rows: list[Row]) -> list[Row]:
    """Return the rows with a text and a label, without repetitions; long texts are cut at a space."""
    kept: dict[str, Row] = {}
    for row in rows:
        row = {key: cut(value) if isinstance(value, str) else value for key, value in row.items()}
        if all(row.values()):
            kept.setdefault(identity(row), row)
    return list(kept.values())


def cut(text: str) -> str:
    """Return a text of at most CHARACTERS characters, without the word that would be cut in two."""
    text = text.replace("<br />", " ")
    return text if len(text) <= CHARACTERS else text[:CHARACTERS].rpartition(" ")[0]


def pack(folder: Path, file: Path) -> dict[str, LabeledSet]:
    """Read all sets from a folder of official files, write them into one compressed file, and return them."""
    sets = {name: read_source(folder, source) for name, source in SOURCES.items()}
    content = {name: {"kind": one.kind, "pool": one.pool, "test": one.test} for name, one in sets.items()}
    file.write_bytes(lzma.compress(json.dumps(content, ensure_ascii=False).encode(), preset=9))
    return sets


def unpack(file: Path) -> dict[str, LabeledSet]:
    """Read the sets that `pack` wrote."""
    content = json.loads(lzma.decompress(file.read_bytes()))
    return {name: LabeledSet(one["kind"], one["pool"], one["test"]) for name, one in content.items()}
