"""The ten tasks of SentEval, derived from a treebank with dependency or constituency trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pretune.probing.probing_task import ProbingTask, Split
from pretune.probing.suites.candidates import Candidate, UnusableTaskError, make_task, settle_splits, unique
from pretune.probing.suites.constituency_sentences import from_constituents
from pretune.probing.suites.data_files import (
    CONLLU_SUFFIXES,
    TREE_SUFFIXES,
    detect_format,
    find_data,
    refuse_format,
    split_of_name,
)
from pretune.probing.suites.dependency_sentences import from_dependencies
from pretune.probing.suites.parsed_sentence import ParsedSentence
from pretune.probing.suites.sentence_changes import bigram_shift, coordination_inversion, odd_man_out
from pretune.probing.suites.sentence_properties import (
    LENGTHS,
    obj_number,
    past_present,
    sentence_length,
    subj_number,
    top_constituents,
    tree_depth,
    word_content,
)
from pretune.runtime.progress import log_info
from pretune.text.examples.bracketed_trees import ConstituencyTree, read_bracketed
from pretune.text.examples.conllu import DependencyTree, read_conllu

Derivation = Callable[[Sequence[ParsedSentence], int], list[Candidate]]
TASKS: dict[str, tuple[str, Derivation]] = {
    "sentence_length": ("surface", sentence_length),
    "word_content": ("surface", word_content),
    "tree_depth": ("syntax", tree_depth),
    "top_constituents": ("syntax", top_constituents),
    "bigram_shift": ("syntax", bigram_shift),
    "past_present": ("semantics", past_present),
    "subj_number": ("semantics", subj_number),
    "obj_number": ("semantics", obj_number),
    "odd_man_out": ("semantics", odd_man_out),
    "coordination_inversion": ("semantics", coordination_inversion),
}


def read_trees(
    data: Path | None, suite: str, *, heads: bool = True
) -> list[tuple[DependencyTree | ConstituencyTree, Split | None]]:
    """Return the trees of a treebank with their splits (None if they must be drawn), without repeated texts.

    The format of each file is detected from its contents. `suite` names the suite in messages; without `heads`, the
    heads of words in CoNLL-U files are not read.
    """
    files = find_data(data, (*CONLLU_SUFFIXES, *TREE_SUFFIXES), suite)
    found: list[tuple[DependencyTree | ConstituencyTree, Split | None]] = []
    for file in files:
        found += [(tree, split_of_name(file)) for tree in _read_file(file, suite, heads)]
    found = unique(found, lambda pair: pair[0].text.casefold())
    splits = settle_splits([split for _, split in found], str(data))
    return [(tree, split) for (tree, _), split in zip(found, splits, strict=True)]


def _read_file(file: Path, suite: str, heads: bool) -> Iterator[DependencyTree | ConstituencyTree]:
    """Yield the trees of a file that is in CoNLL-U or has bracketed trees; raise an error for other formats."""
    match detect_format(file):
        case "conllu":
            yield from read_conllu(file, heads=heads)
        case "brackets":
            yield from read_bracketed(file)
        case _:
            raise refuse_format(file, suite, "treebanks in CoNLL-U or with bracketed trees")


def parsed_sentences(data: Path | None) -> list[ParsedSentence]:
    """Read the sentences of a treebank that have 5 to 28 tokens, as in the published tasks."""
    sentences = [
        from_dependencies(tree, split) if isinstance(tree, DependencyTree) else from_constituents(tree, split)
        for tree, split in read_trees(data, "treebank")
    ]
    return [sentence for sentence in sentences if LENGTHS[0][0] <= len(sentence.tokens) <= LENGTHS[-1][1]]


def load_treebank(data: Path | None, seed: int) -> list[ProbingTask]:
    """Derive the ten tasks of SentEval from a treebank; tasks for which it has too few sentences are left out."""
    sentences = parsed_sentences(data)
    tasks = []
    for name, (group, derive) in TASKS.items():
        try:
            tasks.append(make_task(name, group, derive(sentences, seed)))
        except UnusableTaskError as error:
            log_info(f"{data}: the task {name} is left out, because {error}")
    return tasks
