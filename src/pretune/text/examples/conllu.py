"""Read dependency treebanks in CoNLL-U: words with lemmas, tags, features and heads, located in the text of their sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NoReturn

from pretune.runtime.errors import PretuneError, quote
from pretune.text.corpus.files import Errors, check_is_file, read_lines
from pretune.text.examples.annotated_spans import MARK
from pretune.text.examples.tagged import CONLLU

ROOT = -1  # the head of the root
_WORD, _RANGE, _EMPTY = (
    re.compile(r"[1-9][0-9]{0,5}"),
    re.compile(r"([0-9]{1,6})-([0-9]{1,6})"),
    re.compile(r"[0-9]+\.[0-9]+"),
)
_HEAD = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True)
class Word:
    """A syntactic word of a sentence, with its annotations and its character offsets `begin` and `end` in the text.

    `head` is the index of the word that it depends on, or -1 for the root. Missing annotations ("_") are empty. A
    multiword token such as French "du" (de + le) consists of several words: words that are not substrings of the token
    have the offsets of the whole token.
    """

    form: str
    lemma: str
    upos: str
    xpos: str
    feats: Mapping[str, str]
    head: int
    deprel: str
    begin: int
    end: int

    @property
    def relation(self) -> str:
        """The universal part of the dependency relation: "nsubj" for "nsubj:pass"."""
        return self.deprel.partition(":")[0]


@dataclass(frozen=True)
class SurfaceToken:
    """A token as written in the text, which comprises the words from the index `first` to `last` (inclusive).

    It comprises several words if it is a multiword token such as French "du" (de + le).
    """

    form: str
    first: int
    last: int
    space_after: bool


@dataclass(frozen=True)
class DependencyTree:
    """A sentence of a dependency treebank: its text, its syntactic words, and the tokens as written in the text."""

    file: Path
    line: int
    sent_id: str
    text: str
    words: tuple[Word, ...]
    tokens: tuple[SurfaceToken, ...]

    @cached_property
    def children(self) -> list[list[int]]:
        """The dependents of each word, as a list of lists of word indices."""
        children: list[list[int]] = [[] for _ in self.words]
        for index, word in enumerate(self.words):
            if word.head != ROOT:
                children[word.head].append(index)
        return children

    @cached_property
    def root(self) -> int:
        """The index of the word that is the root of the tree."""
        return next(index for index, word in enumerate(self.words) if word.head == ROOT)

    @cached_property
    def depths(self) -> list[int]:
        """The number of words on the path from the root to each word: 1 for the root, 2 for its dependents."""
        depths = [0] * len(self.words)
        pending = [(self.root, 1)]
        while pending:
            index, depths[index] = pending.pop()
            pending += [(child, depths[index] + 1) for child in self.children[index]]
        return depths

    def subtree(self, index: int) -> set[int]:
        """Return the indices of a word and of all its direct and indirect dependents."""
        found, pending = set[int](), [index]
        while pending:
            found.add(top := pending.pop())
            pending += self.children[top]
        return found


@dataclass
class _Row:
    """A line of a CoNLL-U file: its number and its ten cells."""

    line: int
    cells: Sequence[str]


def read_conllu(file: str | Path, *, heads: bool = True, errors: Errors = "strict") -> Iterator[DependencyTree]:
    """Yield the sentences of a CoNLL-U file; multiword tokens are resolved into words, and empty nodes are left out.

    An invalid line raises an error with the line number, as does a sentence whose heads do not form a tree with one
    root. With `heads=False`, for treebanks with tags only, heads are not read, and every word is a root.
    """
    path = check_is_file(file)
    comments: dict[str, str] = {}
    rows: list[_Row] = []
    ranges: list[tuple[int, int, _Row]] = []
    found = False
    for number, line in chain(read_lines(path, errors), [(0, "")]):
        line = line.lstrip(MARK) if number == 1 else line
        if not line.strip():
            if rows:
                found = True
                yield _tree(path, comments, rows, ranges, heads)
            elif ranges:
                _fail(path, ranges[0][2].line, "the multiword token has no words; add a line for each of its words")
            comments, rows, ranges = {}, [], []
        elif line.startswith("#") and not rows and not ranges:
            name, _, value = line[1:].partition("=")
            comments.setdefault(name.strip(), value.strip())
        else:
            row = _Row(number, _cells(path, number, line))
            if match := _RANGE.fullmatch(row.cells[0]):
                ranges.append((int(match[1]), int(match[2]), row))
            elif not _EMPTY.fullmatch(row.cells[0]):
                if row.cells[0] != str(len(rows) + 1) or not _WORD.fullmatch(row.cells[0]):
                    _fail(
                        path,
                        number,
                        f"the ID is {quote(row.cells[0])}, but must be {len(rows) + 1}; number the words from 1",
                    )
                rows.append(row)
    if not found:
        raise PretuneError(
            f"{path}: the file contains no sentences; expected lines with the {len(CONLLU)} columns of CoNLL-U"
        )


def _fail(path: Path, line: int, problem: str) -> NoReturn:
    raise PretuneError(f"{path}, line {line}: {problem}")


def _cells(path: Path, number: int, line: str) -> list[str]:
    """Split a line at tabs into the ten columns of CoNLL-U."""
    cells = line.split("\t")
    if len(cells) != len(CONLLU):
        _fail(
            path, number, f"expected {len(CONLLU)} columns separated by tabs, but found {len(cells)}; correct the line"
        )
    for place, cell in enumerate(cells):
        if not cell.strip():
            _fail(path, number, f"column {place + 1} ({CONLLU[place].upper()}) is empty; write _ for a missing value")
    return cells


def _tree(
    path: Path, comments: Mapping[str, str], rows: Sequence[_Row], ranges: Sequence[tuple[int, int, _Row]], heads: bool
) -> DependencyTree:
    """Build the tree of a sentence from the lines of a CoNLL-U file.

    `comments` maps the names of its comments to their values, `rows` are the lines of its words, and `ranges` has
    (first ID, last ID, line) for each multiword token. Without `heads`, every word is a root.
    """
    surface = _surface_rows(path, rows, ranges)
    forms = [row.cells[1] for row, _, _ in surface]
    no_space = ["SpaceAfter=No" in row.cells[9].split("|") for row, _, _ in surface]
    text, begins = _locate(forms, no_space, comments.get("text", ""))
    ends = [begin + len(form) for begin, form in zip(begins, forms, strict=True)]
    tokens = tuple(
        SurfaceToken(row.cells[1], first, last, text[end : end + 1].isspace())
        for (row, first, last), end in zip(surface, ends, strict=True)
    )
    places: list[tuple[int, int]] = []
    for (row, first, last), begin, end in zip(surface, begins, ends, strict=True):
        parts = [rows[i].cells[1] for i in range(first, last + 1)]
        if "".join(parts) != row.cells[1]:
            places += [(begin, end)] * len(parts)
            continue
        for part in parts:
            places.append((begin, begin + len(part)))
            begin += len(part)
    words = tuple(
        Word(
            form=row.cells[1],
            lemma="_" if row.cells[1] == "_" else _value(row.cells[2]),
            upos=_value(row.cells[3]),
            xpos=_value(row.cells[4]),
            feats=_features(path, row),
            head=_head(path, row, len(rows)) if heads else ROOT,
            deprel=_value(row.cells[7]),
            begin=places[index][0],
            end=places[index][1],
        )
        for index, row in enumerate(rows)
    )
    if heads:
        _check_tree(path, rows, words)
    return DependencyTree(path, rows[0].line, comments.get("sent_id", ""), text, words, tokens)


def _surface_rows(
    path: Path, rows: Sequence[_Row], ranges: Sequence[tuple[int, int, _Row]]
) -> list[tuple[_Row, int, int]]:
    """Return (line, first word, last word) for each token as written in the text.

    A token is a multiword token, or a word that does not belong to a multiword token. Word indices start at 0.
    """
    surface: list[tuple[_Row, int, int]] = []
    done = 0  # words
    for first, last, row in ranges:
        if not done < first < last <= len(rows):
            problem = f"the multiword token {row.cells[0]} does not range over two or more words that follow it"
            _fail(path, row.line, f"{problem}; correct the ID")
        surface += [(rows[i], i, i) for i in range(done, first - 1)]
        surface.append((row, first - 1, last - 1))
        done = last
    return surface + [(rows[i], i, i) for i in range(done, len(rows))]


def _value(cell: str) -> str:
    """Return the value of a CoNLL-U cell; "" for a missing value, which is written as _."""
    return "" if cell == "_" else cell


def _locate(forms: Sequence[str], no_space: Sequence[bool], text: str) -> tuple[str, list[int]]:
    """Return the text of a sentence and the character index at which each token begins.

    `forms` are the tokens, and `no_space` says after which of them there is no space. If these tokens do not occur in
    `text`, in order, the text is built by joining them.
    """
    begins, stop = [], 0
    for form in forms:
        stop += len(text[stop:]) - len(text[stop:].lstrip())
        if not text.startswith(form, stop):
            break
        begins.append(stop)
        stop += len(form)
    if len(begins) == len(forms) and not text[stop:].strip():
        return text, begins
    joined, begins = "", []
    for form, close in zip(forms, no_space, strict=True):
        begins.append(len(joined))
        joined += form if close else f"{form} "
    return joined.rstrip(), begins


def _features(path: Path, row: _Row) -> dict[str, str]:
    """Return the morphological features of a word, such as {"Case": "Nom"}."""
    if row.cells[5] == "_":
        return {}
    features: dict[str, str] = {}
    for feature in row.cells[5].split("|"):
        name, equals, value = feature.partition("=")
        if not (name and equals and value) or name in features:
            _fail(path, row.line, f"the feature {quote(feature)} is not a single Name=Value; correct column 6 (FEATS)")
        features[name] = value
    return features


def _head(path: Path, row: _Row, count: int) -> int:
    """Return the index of the head of a word, -1 for the root; `count` is the number of words of the sentence."""
    cell = row.cells[6]
    if cell == "_":
        _fail(path, row.line, f"the word {quote(row.cells[1])} has no head in column 7 (HEAD); use a parsed treebank")
    if not _HEAD.fullmatch(cell) or int(cell) > count:
        _fail(
            path, row.line, f"the head {quote(cell)} is not a word of the sentence; expected a number from 0 to {count}"
        )
    return int(cell) - 1


def _check_tree(path: Path, rows: Sequence[_Row], words: Sequence[Word]) -> None:
    """Raise an error if the heads of a sentence are not a tree with one root."""
    roots = [row.line for row, word in zip(rows, words, strict=True) if word.head == ROOT]
    if len(roots) > 1:
        _fail(
            path,
            roots[1],
            f"the sentence has a second root (the first is on line {roots[0]}); only one word may have the head 0",
        )
    reaches = [0] * len(words)  # 0: unknown, 1: on the current path, 2: reaches the root
    for start in range(len(words)):
        trail, index = [], start
        while index != ROOT and not reaches[index]:
            reaches[index] = 1
            trail.append(index)
            index = words[index].head
        if index != ROOT and reaches[index] == 1:
            _fail(
                path, rows[index].line, f"the heads of {quote(words[index].form)} form a cycle; correct column 7 (HEAD)"
            )
        for passed in trail:
            reaches[passed] = 2
