"""Read constituency treebanks with bracketed trees, the format of the Penn Treebank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pretune.runtime.errors import PretuneError, quote
from pretune.text.corpus.files import Errors, check_is_file, read_lines

TRACE = "-NONE-"
DEEPEST = 400  # levels of brackets; far more than any sentence has
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
_PIECE = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True)
class Constituent:
    """A node of a constituency tree: a phrase or, without children, the part-of-speech tag of a word.

    It spans the words from the index `begin` up to `end` (exclusive).
    """

    label: str
    begin: int
    end: int
    children: tuple[Constituent, ...] = ()

    @property
    def category(self) -> str:
        """The label without function tags and indices, such as "NP" for "NP-SBJ-1"."""
        return self.label if self.label.startswith("-") else re.split(r"[-=|]", self.label)[0] or self.label

    @property
    def functions(self) -> list[str]:
        """The function tags of the label, without indices, such as ["SBJ"] for "NP-SBJ-1"."""
        return [] if self.label.startswith("-") else re.findall(r"-([^-=|]*[^-=|0-9][^-=|]*)", self.label)

    def nodes(self) -> Iterator[Constituent]:
        """Yield this constituent and all constituents below it in preorder: parents first, then left to right."""
        pending = [self]
        while pending:
            yield (node := pending.pop())
            pending += reversed(node.children)


@dataclass(frozen=True)
class ConstituencyTree:
    """A sentence of a constituency treebank: its words, and the tree of phrases that they form (`root`)."""

    file: Path
    line: int
    words: tuple[str, ...]
    root: Constituent

    @property
    def text(self) -> str:
        """The words, joined by spaces; the treebank does not say where the original text has spaces."""
        return " ".join(self.words)

    @property
    def tags(self) -> list[Constituent]:
        """The part-of-speech tag of each word, as a constituent without children."""
        return [node for node in self.root.nodes() if not node.children]

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """Return the start and end character, in the text, of the words from the index `begin` up to `end` (exclusive).

        >>> tag = Constituent("NN", 0, 1)
        >>> ConstituencyTree(Path("x"), 1, ("a", "cat"), tag).span(1, 2)
        (2, 5)
        """
        start = sum(len(word) + 1 for word in self.words[:begin])
        return start, start + sum(len(word) + 1 for word in self.words[begin:end]) - 1


@dataclass
class _Open:
    """An opening bracket of a tree that is being parsed, whose closing bracket has not been read yet."""

    line: int
    label: str = ""
    word: str = ""
    children: list[Constituent] = field(default_factory=list)
    empty: bool = False  # a trace was removed below it
    begin: int = 0


def read_bracketed(file: str | Path, *, errors: Errors = "strict") -> Iterator[ConstituencyTree]:
    """Yield the trees of a file with any number of bracketed trees; traces (-NONE-) are removed.

    Brackets that do not match, words without a tag and text between trees raise an error with the line number. Escaped
    brackets and quotes become ordinary ones: -LRB- is read as (.
    """
    path = check_is_file(file)
    stack: list[_Open] = []
    words: list[str] = []
    found = False
    for number, line in read_lines(path, errors):
        place = f"{path}, line {number}"
        for piece in _PIECE.findall(line):
            if piece == "(":
                if stack and stack[-1].word:
                    raise PretuneError(
                        f"{place}: the word {quote(stack[-1].word)} is followed by a bracket; close the bracket of its tag first"
                    )
                if len(stack) == DEEPEST:
                    raise PretuneError(
                        f"{place}: brackets are nested more than {DEEPEST} levels deep; correct the tree"
                    )
                stack.append(_Open(number, begin=len(words)))
            elif not stack:
                problem = (
                    "a closing bracket without an opening one"
                    if piece == ")"
                    else f"{quote(piece)} is outside of brackets"
                )
                raise PretuneError(f"{place}: {problem}; correct the tree")
            elif piece != ")":
                _add_text(stack[-1], piece, place)
            else:
                closed = stack.pop()
                node = _close(closed, words, place)
                if stack:
                    stack[-1].empty |= node is None
                    stack[-1].children += [node] if node else []
                    continue
                if node is not None:
                    found = True
                    yield ConstituencyTree(path, closed.line, tuple(words), _unwrap(node))
                words = []
    if stack:
        raise PretuneError(
            f"{path}, line {stack[0].line}: the tree that begins here is not closed; add the missing brackets"
        )
    if not found:
        raise PretuneError(
            f"{path}: the file contains no trees; expected bracketed trees such as (S (NP (NN rain)) (VP (VBZ falls)))"
        )


def _add_text(node: _Open, piece: str, place: str) -> None:
    """Add a label or a word (`piece`) to an open bracket; `place` is the file and line for errors."""
    if node.children or node.empty or node.word:
        raise PretuneError(f"{place}: the word {quote(piece)} has no tag of its own; write each word as (TAG word)")
    if node.label:
        node.word = piece
    else:
        node.label = piece


def _close(node: _Open, words: list[str], place: str) -> Constituent | None:
    """Return the constituent of a bracket that has just been closed, or None if it contains only traces.

    If the constituent is the tag of a word, append the word to `words`. `place` is the file and line for errors.
    """
    if node.word:
        if node.label == TRACE:
            return None
        words.append(ESCAPES.get(node.word, node.word.replace("\\/", "/").replace("\\*", "*")))
        return Constituent(node.label, node.begin, len(words))
    if not node.children:
        if node.empty:
            return None
        problem = f"contain only the label {quote(node.label)} and no word" if node.label else "are empty"
        raise PretuneError(f"{place}: the brackets {problem}; correct the tree")
    return Constituent(node.label, node.begin, len(words), tuple(node.children))


def _unwrap(node: Constituent) -> Constituent:
    """Return a tree without outer brackets that have no label or only name the root, such as (ROOT (S …))."""
    while node.label in ("", "ROOT", "TOP") and len(node.children) == 1:
        node = node.children[0]
    return node
