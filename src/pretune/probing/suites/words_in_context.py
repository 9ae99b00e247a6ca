"""Words in context: whether a word has the same meaning in two sentences (WiC, RUSSE)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pretune.probing.probing_task import ProbingTask, Split
from pretune.probing.suites.candidates import Candidate, UnusableTaskError, make_task, separate, settle_splits
from pretune.probing.suites.data_files import find_data, split_of_name
from pretune.runtime.errors import PretuneError, quote
from pretune.text.corpus.files import check_is_file, file_suffix, read_lines
from pretune.text.examples.span_pairs import read_span_pairs

NAME = "words_in_context"
SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet", ".txt")
DATA, GOLD = ".data.txt", ".gold.txt"  # the ends of the names of the original files of WiC
LABELS = {"T": "true", "F": "false"}


def load_words_in_context(data: Path | None, seed: int) -> list[ProbingTask]:
    """Read pairs of sentences that share a word, as in SuperGLUE (.jsonl) or in the original files of WiC (.data.txt)."""
    given: list[tuple[Candidate, Split | None]] = []
    for file in find_data(data, SUFFIXES, "words-in-context"):
        if file_suffix(file) != ".txt":
            given += [(candidate, split_of_name(file)) for candidate in _read_rows(file)]
        elif not file.name.endswith(GOLD) and (file.name.endswith(DATA) or file == data):
            given += [(candidate, split_of_name(file)) for candidate in read_wic(file)]
    if not given:
        raise PretuneError(
            f"{data}: the folder contains neither tables nor files that end with {DATA}; give the files of WiC"
        )
    splits = settle_splits([split for _, split in given], str(data))
    candidates = [
        Candidate(c.text, c.label, split, c.key, c.spans, c.pair) for (c, _), split in zip(given, splits, strict=True)
    ]
    try:
        return [make_task(NAME, "semantics", separate(list(dict.fromkeys(candidates)), seed, NAME))]
    except UnusableTaskError as error:
        raise PretuneError(f"{data}: the task {NAME!r} cannot be probed, because {error}; give more data") from None


def _read_rows(file: Path) -> Iterator[Candidate]:
    """Yield the pairs of sentences in a table, such as a .jsonl file of SuperGLUE."""
    rows = read_span_pairs(file, drop_invalid=True)
    if rows.pairs is None or rows.labels is None:
        raise PretuneError(
            f"{file}: expected two texts and a label per row, such as the columns sentence1, sentence2 and label"
        )
    for text, pair, label, spans in zip(rows.texts, rows.pairs, rows.labels, rows.extra["spans"], strict=True):
        yield Candidate(text, str(label), None, f"{text}\0{pair}", tuple(spans), pair)


def read_wic(file: str | Path) -> Iterator[Candidate]:
    """Yield the pairs of an original file of WiC, whose labels are in the file NAME.gold.txt beside NAME.data.txt.

    A line has the word, its part of speech, the indices of the word in the two sentences ("2-5") and the sentences,
    separated by tabs; the words of the sentences are separated by spaces.
    """
    path = check_is_file(file)
    gold = path.with_name(path.name.removesuffix(DATA).removesuffix(".txt") + GOLD)
    lines = [(number, line) for number, line in read_lines(path) if line.strip()]
    labels = [(number, line.strip()) for number, line in read_lines(check_is_file(gold)) if line.strip()]
    if len(lines) != len(labels):
        raise PretuneError(
            f"{gold}: {len(labels)} labels for the {len(lines)} pairs in {path.name}; give files with "
            "one label per pair"
        )
    for (number, line), (place, label) in zip(lines, labels, strict=True):
        if label not in LABELS:
            raise PretuneError(f"{gold}, line {place}: the label is {quote(label)}, but must be T or F")
        cells = line.split("\t")
        indices = re.fullmatch(r"(\d{1,5})-(\d{1,5})", cells[2].strip(), re.ASCII) if len(cells) == 5 else None
        if indices is None:
            problem = "expected word, part of speech, two indices such as 2-5 and two sentences, separated by tabs"
            raise PretuneError(f"{path}, line {number}: {problem}, but found {quote(line)}")
        spans = []
        for index, text in zip(map(int, indices.groups()), cells[3:], strict=True):
            words = [match.span() for match in re.finditer(r"\S+", text)]
            if index >= len(words):
                raise PretuneError(
                    f"{path}, line {number}: the index {index} is not one of the {len(words)} words of {quote(text)}; count words from 0"
                )
            spans.append(words[index])
        yield Candidate(cells[3], LABELS[label], None, f"{cells[3]}\0{cells[4]}", tuple(spans), cells[4])
