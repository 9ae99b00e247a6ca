"""Edge probing (Tenney et al., 2019): the label of a span, or of two spans, of a sentence.

Treebanks give parts of speech, dependencies and constituents; columns of tagged words give entities; semantic roles, coreference and
others are read from JSON Lines in the format of edge probing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pretune.probing.probing_task import ProbingTask, Span, Split
from pretune.probing.suites.candidates import (
    Candidate,
    UnusableTaskError,
    drop_rare_labels,
    make_task,
    separate,
    settle_splits,
)
from pretune.probing.suites.data_files import (
    CONLLU_SUFFIXES,
    TREE_SUFFIXES,
    detect_format,
    find_data,
    name_without_split,
    split_of_name,
)
from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.progress import log_info
from pretune.text.corpus.documents import read_jsonl
from pretune.text.examples.bracketed_trees import read_bracketed
from pretune.text.examples.conllu import ROOT, read_conllu
from pretune.text.examples.tag_schemes import TaggedSpan, detect_scheme, parse_tags
from pretune.text.examples.tagged import read_tagged

COLUMN_SUFFIXES = (".conll", ".bio", ".iob", ".iob2", ".ner", ".train", ".dev", ".test", ".testa", ".testb")
SUFFIXES = (*CONLLU_SUFFIXES, *TREE_SUFFIXES, *COLUMN_SUFFIXES, ".jsonl", ".json")
GROUPS = {"pos": "morphology", "tags": "morphology", "dependencies": "syntax", "constituents": "syntax"}
SEMANTICS = "semantics"  # the group of all other tasks
SPANS = ("span1", "span2")


class Edge(NamedTuple):
    """A labeled example of edge probing: a text, one or two spans in it, a label, and the name of its task."""

    task: str
    text: str
    spans: tuple[Span, ...]
    label: str


def load_edges(data: Path | None, seed: int) -> list[ProbingTask]:
    """Read files of annotated sentences and return the edge probing tasks that their annotations define.

    The format of each file is detected from its contents.
    """
    found: dict[str, list[tuple[Edge, Split | None]]] = defaultdict(list)
    sources: dict[str, str] = {}
    for file in find_data(data, SUFFIXES, "edges"):
        format = detect_format(file)
        for edge in READERS[format](file):
            if sources.setdefault(edge.task, format) != format:
                raise PretuneError(
                    f"{data}: files of different formats have labels for the task {edge.task!r}; give files of one format only"
                )
            found[edge.task].append((edge, split_of_name(file)))
    tasks = []
    for name, edges in found.items():
        splits = settle_splits([split for _, split in edges], f"{data}: {name}")
        candidates = [
            Candidate(edge.text, edge.label, split, edge.text.casefold(), edge.spans)
            for (edge, _), split in zip(edges, splits, strict=True)
        ]
        candidates = separate(list(dict.fromkeys(candidates)), seed, name)
        if sources[name] in ("conllu", "brackets"):
            candidates = drop_rare_labels(candidates)
        try:
            tasks.append(make_task(name, GROUPS.get(name, SEMANTICS), candidates))
        except UnusableTaskError as error:
            if len(found) == 1:
                raise PretuneError(
                    f"{data}: the task {name!r} cannot be probed, because {error}; give more data"
                ) from None
            log_info(f"{data}: the task {name} is left out, because {error}")
    return tasks


def dependency_edges(file: Path) -> Iterator[Edge]:
    """Yield each word with its part of speech, and each pair of a word and its head with the relation."""
    for tree in read_conllu(file):
        for word in tree.words:
            span = (word.begin, word.end)
            if word.upos:
                yield Edge("pos", tree.text, (span,), word.upos)
            head = tree.words[word.head]
            if word.head != ROOT and word.deprel and (head.begin, head.end) != span:
                yield Edge("dependencies", tree.text, (span, (head.begin, head.end)), word.deprel)


def constituent_edges(file: Path) -> Iterator[Edge]:
    """Yield labeled spans from bracketed trees: words with parts of speech, and phrases with categories."""
    for tree in read_bracketed(file):
        for node in tree.root.nodes():
            if node is not tree.root:
                yield Edge(
                    "constituents" if node.children else "pos",
                    tree.text,
                    (tree.span(node.begin, node.end),),
                    node.category,
                )


def tagged_edges(file: Path) -> Iterator[Edge]:
    """Yield the entities in a file of words and tags or, if tags have no B- or I-, each word with its tag."""
    sentences = read_tagged(file)
    assert sentences.tags is not None
    plain = detect_scheme(sentences.tags) == "plain"
    for words, tags in zip(sentences.words, sentences.tags, strict=True):
        begins = [0]
        for word in words:
            begins.append(begins[-1] + len(word) + 1)
        spans = [TaggedSpan(tag, i, i) for i, tag in enumerate(tags)] if plain else parse_tags(tags)
        for kind, first, last in spans:
            span = (begins[first], begins[last] + len(words[last]))
            yield Edge("tags" if plain else "entities", " ".join(words), (span,), kind)


def read_edge_targets(file: str | Path) -> Iterator[Edge]:
    """Yield the targets of a file in the format of edge probing, JSON Lines with spans as indices of words.

    A line is {"text": "the cat sat", "targets": [{"span1": [0, 2], "span2": [2, 3], "label": "agent"}]}; words are
    separated by spaces, the end of a span is exclusive, and tasks of one span have no "span2".
    """
    path = Path(file)
    name = name_without_split(path)
    spans_of_task = 0
    for number, row in read_jsonl(path):
        place = f"{path}, line {number}"
        text, targets = row.get("text"), row.get("targets")
        if not isinstance(text, str) or not isinstance(targets, list):
            raise PretuneError(
                f'{place}: expected a "text" and a list of "targets"; write a line like '
                '{"text": "the cat sat", "targets": [{"span1": [0, 2], "label": "NP"}]}'
            )
        words = [match.span() for match in re.finditer(r"\S+", text)]
        for target in targets:
            if not isinstance(target, dict):
                raise PretuneError(
                    f'{place}: the target {quote(target)} is not an object; write it like {{"span1": [0, 2], "label": "NP"}}'
                )
            spans = tuple(
                _read_span(target, key, words, place) for key in SPANS if key == "span1" or target.get(key) is not None
            )
            if spans_of_task and len(spans) != spans_of_task:
                raise PretuneError(
                    f"{place}: a target has {len(spans)} spans, but earlier targets have {spans_of_task}; put each task "
                    "into a file of its own"
                )
            spans_of_task = len(spans)
            yield Edge(name, text, spans, _read_label(target, place))


def _read_span(target: dict[str, Any], key: str, words: list[Span], place: str) -> Span:
    """Return the start and end character of a span of a target, which is given as word indices.

    `key` is the key of the span, span1 or span2; `words` has the start and end character of each word; `place` is the
    file and line for error messages.
    """
    match target.get(key):
        case [int() as begin, int() as end] if 0 <= begin < end <= len(words):
            return words[begin][0], words[end - 1][1]
        case value:
            raise PretuneError(
                f"{place}: {quote(key)} is {quote(value)}, but must be [begin, end] with indices of the {len(words)} words; "
                "the end is exclusive"
            )


def _read_label(target: dict[str, Any], place: str) -> str:
    """Return the label of an edge probing target; a list with one label is accepted, too."""
    label = target.get("label")
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    if isinstance(label, int):
        label = str(label)
    if not isinstance(label, str) or not label.strip():
        raise PretuneError(
            f"{place}: the label is {quote(label)}, but must be one text; make one task per label if there are several"
        )
    return label


READERS = {
    "conllu": dependency_edges,
    "brackets": constituent_edges,
    "columns": tagged_edges,
    "json": read_edge_targets,
}
