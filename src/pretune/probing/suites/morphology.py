"""Morphological tasks from any treebank in CoNLL-U: the value of each feature of a word in its context (as LINSPECTOR)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pretune.probing.probing_task import ProbingTask, Split
from pretune.probing.suites.candidates import (
    Candidate,
    UnusableTaskError,
    draw_splits,
    drop_rare_labels,
    limit_per_key,
    make_task,
    separate,
)
from pretune.probing.suites.data_files import refuse_format
from pretune.probing.suites.treebank import read_trees
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.text.examples.conllu import DependencyTree, Word

PART_OF_SPEECH = "UPOS"
MOST_PER_FORM = 5  # occurrences of a word form with the same label, so that frequent words do not make up a task


def load_morphology(data: Path | None, seed: int) -> list[ProbingTask]:
    """Derive one task for the part of speech and one for each feature, such as Case, whose values are the labels.

    An example is a word in its sentence. No word form and no sentence occurs in two splits.
    """
    found: dict[str, list[Candidate]] = defaultdict(list)
    for tree, split in _sentences(data, seed):
        for word in tree.words:
            for name, value in _annotations(word):
                span = (word.begin, word.end)
                found[name].append(Candidate(tree.text, value, split, word.form.casefold(), (span,)))
    if not found:
        raise PretuneError(
            f"{data}: no word has a part of speech or features; give a treebank whose columns 4 (UPOS) and 6 (FEATS) are "
            "filled in"
        )
    tasks, reasons = [], []
    for name in sorted(found, key=lambda name: (name != PART_OF_SPEECH, name)):
        try:
            limited = limit_per_key(found[name], MOST_PER_FORM, seed, name)
            tasks.append(make_task(name, "morphology", drop_rare_labels(separate(limited, seed, name))))
        except UnusableTaskError as error:
            reasons.append(name)
            log_info(f"{data}: the task {name} is left out, because {error}")
    if not tasks:
        raise PretuneError(f"{data}: no feature can be probed ({', '.join(reasons)}); give a larger treebank")
    return tasks


def _sentences(data: Path | None, seed: int) -> list[tuple[DependencyTree, Split | None]]:
    """Return the sentences of a treebank with their splits, drawn at random if the file names have none."""
    sentences: list[tuple[DependencyTree, Split | None]] = []
    for tree, split in read_trees(data, "morphology", heads=False):
        if not isinstance(tree, DependencyTree):
            raise refuse_format(tree.file, "morphology", "treebanks in CoNLL-U")
        sentences.append((tree, split))
    if all(split is not None for _, split in sentences):
        return sentences
    drawn = draw_splits({tree.text: ("", 1) for tree, _ in sentences}, seed, "sentences")
    return [(tree, drawn[tree.text]) for tree, _ in sentences]


def _annotations(word: Word) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each annotation of a word: part of speech and features; none for punctuation."""
    if word.upos in ("PUNCT", "SYM"):
        return
    if word.upos and word.upos != "X":
        yield PART_OF_SPEECH, word.upos
    yield from word.feats.items()
