"""Find the files of a suite, and read the split from their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pretune.probing.probing_task import Split
from pretune.runtime.errors import PretuneError, quote
from pretune.text.corpus.files import COMPRESSIONS, file_suffix, read_lines
from pretune.text.examples.annotated_spans import MARK
from pretune.text.examples.tagged import CONLLU

Format = Literal["conllu", "brackets", "json", "columns"]
SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training", "tr"), "train"),
    **dict.fromkeys(("dev", "devel", "development", "val", "valid", "validation", "va", "testa"), "dev"),
    **dict.fromkeys(("test", "testing", "te", "testb"), "test"),
}
CONLLU_SUFFIXES = (".conllu",)
TREE_SUFFIXES = (".mrg", ".ptb", ".psd", ".tree", ".trees", ".parse", ".brackets")


def find_data(data: Path | None, suffixes: Sequence[str], suite: str) -> list[Path]:
    """Return the given file or, for a folder, its files whose names end with one of `suffixes`, sorted."""
    if data is None:
        raise PretuneError(
            f"the suite {suite!r} reads data files, but none were given; give a file or a folder as its data"
        )
    if data.is_file():
        return [data]
    if not data.is_dir():
        raise PretuneError(f"{data}: no such file or folder; give the data of the suite {suite!r}")
    inside = (path for path in data.rglob("*") if path.is_file() and file_suffix(path) in suffixes)
    files = sorted(path for path in inside if not any(part.startswith(".") for part in path.relative_to(data).parts))
    if not files:
        raise PretuneError(
            f"{data}: the folder contains no files that the suite {suite!r} reads ({', '.join(suffixes)}); check the path"
        )
    return files


def split_of_name(path: Path) -> Split | None:
    """Return the split that is part of the name of a file or else of its folder; None if neither name contains one.

    >>> split_of_name(Path("en_ewt-ud-dev.conllu")), split_of_name(Path("train/wsj_0001.mrg")), split_of_name(Path("a.mrg"))
    ('dev', 'train', None)
    """
    for name in (path.name, path.parent.name):
        for word in re.split(r"[^a-z]+", name.lower()):
            if word in SPLIT_NAMES:
                return SPLIT_NAMES[word]
    return None


def name_without_split(path: Path) -> str:
    """Return the name of a file without its suffix and split, or the name of its folder if nothing else is left.

    >>> name_without_split(Path("srl.train.jsonl")), name_without_split(Path("coref/test.jsonl"))
    ('srl', 'coref')
    """
    stem = path.name
    while Path(stem).suffix.lower() in (*COMPRESSIONS, ".json", ".jsonl", ".txt", ".tsv", ".csv"):
        stem = Path(stem).stem
    words = [word for word in re.split(r"([^A-Za-z0-9]+)", stem) if word.lower() not in SPLIT_NAMES]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", "".join(words)) or path.resolve().parent.name


def detect_format(path: Path) -> Format:
    """Return the format of a file of annotated sentences, according to its first lines."""
    if file_suffix(path) in CONLLU_SUFFIXES:
        return "conllu"
    for _, line in read_lines(path):
        line = line.lstrip(MARK)
        if not line.strip() or line.startswith("#"):
            continue
        if line.lstrip().startswith("("):
            return "brackets"
        if line.lstrip().startswith("{"):
            return "json"
        return "conllu" if len(line.split("\t")) == len(CONLLU) else "columns"
    raise PretuneError(f"{path}: the file contains no sentences; give a treebank, or columns of tagged words")


def refuse_format(path: Path, suite: str, expected: str) -> PretuneError:
    """Return the error for a file of a format that a suite does not read."""
    return PretuneError(f"{path}: the suite {quote(suite)} reads only {expected}; give a file of this kind")
