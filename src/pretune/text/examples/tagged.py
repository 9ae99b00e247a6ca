"""Files of tagged words: CoNLL's columns, CoNLL-U, and .jsonl or .parquet with lists of words and of tags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.errors import PretuneError, nearest
from pretune.runtime.progress import say
from pretune.text.corpus.documents import read_jsonl, read_parquet
from pretune.text.corpus.files import Errors, checked, ending, file_format, read_lines
from pretune.text.examples.labeled import Excerpt, Row, with_options
from pretune.text.examples.row_source import TokenRows
from pretune.text.tokenizers.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
WORDS = ("words", "tokens", "form", "sentence", "text", "1")
TAGS = ("tags", "ner_tags", "labels", "label", "pos_tags", "upos", "pos", "ner")
NO_PREDICATE = ("-", "_", "O", "0")  # what stands in a column of predicates beside all other words
DOCUMENT = "-DOCSTART-"


@dataclass
class Tagged:
    """The sentences of a file, in order: words, and a tag for each where they are known."""

    file: Path
    columns: dict[str, str]  # role → column; of CoNLL's those that were asked for
    words: list[list[str]] = field(default_factory=list)
    tags: list[list[str]] | None = None
    predicates: list[int] | None = None  # in each sentence the word whose roles the tags are
    lines: list[int] = field(default_factory=list)  # where each sentence begins in the file

    def __len__(self) -> int:
        return len(self.words)

    @property
    def texts(self) -> list[str]:
        """The sentences, for people."""
        return [" ".join(words) for words in self.words]

    def take(self, rows: Iterable[int]) -> Tagged:
        """Some of the sentences."""
        chosen = list(rows)
        tags = None if self.tags is None else [self.tags[row] for row in chosen]
        predicates = None if self.predicates is None else [self.predicates[row] for row in chosen]
        words, lines = [self.words[row] for row in chosen], [self.lines[row] for row in chosen]
        return Tagged(self.file, self.columns, words, tags, predicates, lines)

    def asked(self, row: int) -> str:
        """What a sentence asks, whatever its tags: two that ask the same are one."""
        about = "" if self.predicates is None else f"\0{self.predicates[row]}"
        return f"{' '.join(self.words[row])}{about}".casefold()

    def show(self, row: int) -> dict[str, Any]:
        """What of a sentence stands beside its answer."""
        about = {} if self.predicates is None else {"predicate": self.words[row][self.predicates[row]]}
        return {"text": " ".join(self.words[row]), **about}

    def place(self, row: int) -> str:
        """Where a sentence begins, for messages."""
        return f"{self.file}, line {self.lines[row]}"

    def tokenize(self, tokenizer: Tokenizer) -> TokenWords:
        """Every word as the ids it has in running text."""
        return TokenWords.make(self, tokenizer)


@dataclass
class TokenWords:
    """The ids of all words end to end, and which word each is of."""

    rows: TokenRows  # a sentence a row
    word: Array  # (n,) the number of the word that begins with this token, among all words; -1: inside a word
    units: Array  # (words + 1,) where each word begins among the tokens, and the end
    bounds: Array  # (sentences + 1,) where each sentence begins among the words
    predicates: Array | None = None  # (sentences, 2) first token of each predicate, and how many it has

    @classmethod
    def make(cls, tagged: Tagged, tokenizer: Tokenizer) -> TokenWords:
        """Sentences are tokenized whole, a space between two words; an id is of the word in which it begins.

        A predicate stands between two separators.
        """
        counts = np.array([len(words) for words in tagged.words], dtype=np.int64)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        ids, lengths, places = tokenizer.encode_with_offsets(tagged.texts)
        sizes = np.zeros(bounds[-1], dtype=np.int64)  # tokens of each word
        stop = 0
        for row, words in enumerate(tagged.words):
            start, stop = stop, stop + int(lengths[row])
            ends = np.cumsum([len(word) + 1 for word in words], dtype=np.int64) - 1
            owner = np.searchsorted(ends, places[start:stop, 0], side="right")  # the space before a word is the word's
            sizes[bounds[row] : bounds[row + 1]] = np.bincount(owner.clip(max=len(words) - 1), minlength=len(words))
        units = np.concatenate([[0], np.cumsum(sizes)])
        first, marked = units[:-1].copy(), None
        if tagged.predicates is not None:
            chosen = bounds[:-1] + np.array(tagged.predicates, dtype=np.int64)
            around = np.stack([units[chosen], units[chosen + 1]], 1).ravel()
            ids = np.insert(ids, around, tokenizer.role("separator"))
            marked = np.stack([units[chosen] + 2 * np.arange(len(chosen)) + 1, sizes[chosen]], 1)
            sizes[chosen] += 2
            units = np.concatenate([[0], np.cumsum(sizes)])
            first = units[:-1].copy()
            first[chosen] += 1
            sizes[chosen] -= 2
        word = np.full(len(ids), -1, dtype=np.int64)
        word[first[sizes > 0]] = np.flatnonzero(sizes)
        begins = units[bounds]
        rows = TokenRows(ids, word >= 0, begins[:-1, None], np.diff(begins)[:, None])
        if tagged.predicates is None:  # which have tokens of their own among the text's
            rows.spell_unknown(tagged.texts, begins[:-1], tokenizer)
        return cls(rows, word, units, bounds, marked)

    def windows(self, rooms: Array, overlap: int) -> tuple[Array, Array, Array, int]:
        """Windows of whole words, at most `rooms` (sentences,) tokens each: sentence, first token and tokens of each.

        Where a sentence takes several, they have about `overlap` tokens in common with the one before. Sentences without
        tokens have none. A word that is longer than a window is cut; how many sentences have such comes last.
        """
        lengths = self.rows.lengths[:, 0]
        fits = np.flatnonzero((lengths > 0) & (lengths <= rooms))
        found = [np.stack([fits, self.rows.starts[fits, 0], lengths[fits]], 1)]
        cut = 0
        for sentence in np.flatnonzero(lengths > rooms):
            edges = np.unique(self.units[self.bounds[sentence] : self.bounds[sentence + 1] + 1])
            room = int(rooms[sentence])
            pieces = list(_windows(edges, room, min(overlap, room // 2)))
            found.append(np.array([(sentence, begin, size) for begin, size in pieces], dtype=np.int64))
            cut += bool((np.diff(edges) > room).any())
        table = np.concatenate(found)
        table = table[np.argsort(table[:, 0], kind="stable")]
        return table[:, 0], table[:, 1], table[:, 2], cut


def _windows(edges: Array, room: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Begin and size of windows over units with these edges, each as far as it goes, and no two that end alike."""
    first, count = 0, len(edges) - 1
    while True:
        stop = int(np.searchsorted(edges, edges[first] + room, side="right")) - 1
        stop = max(stop, first + 1)
        yield int(edges[first]), min(int(edges[stop] - edges[first]), room)
        if stop == count:
            return
        # Back by the overlap, but not so far that the next unit does not fit.
        back = max(int(edges[stop]) - overlap, int(edges[stop + 1]) - room)
        first = min(stop, max(first + 1, int(np.searchsorted(edges, back))))


def read_tagged(
    file: str | Path | Excerpt,
    columns: Mapping[str, str] | None = None,
    *,
    tags: bool = True,
    predicate: str | None = None,
    errors: Errors = "strict",
) -> Tagged:
    """Read tagged words.

    `columns` says which column is the `text` (words) and which the `label` (tags): of CoNLL's by number, the first and the
    last by default; of CoNLL-U's by number or name, form and upos; of .jsonl's and .parquet's by name. `predicate` is a column
    with the number of a word, or with a mark beside one.

    >>> read_tagged("train.conllu", {"label": "xpos"}).tags[0]  # doctest: +SKIP
    ['DT', 'NN']
    """
    path, rows = (file.file, iter(file.rows)) if isinstance(file, Excerpt) else (Path(file), tagged_rows(file, errors))
    given = {role: str(name) for role, name in (columns or {}).items() if name}
    for role in given:
        if role not in ("text", "label"):
            raise PretuneError(f"{path}: tagged words have a text and a label for each, and no {role!r}")
    asked = {role: name for role, name in given.items() if tags or role != "label"}
    names: dict[str, str] = {}
    found = Tagged(path, asked, tags=[] if tags else None, predicates=[] if predicate is not None else None)
    for line, row in rows:
        if not names:
            names = _names(path, row, asked, tags, predicate, quiet=isinstance(file, Excerpt))
            if not _in_columns(row):
                found.columns = {role: name for role, name in names.items() if role != "predicate"}
        place = f"{path}, line {line}"
        words = _list(row, names["text"], place)
        if found.tags is not None:
            said = _list(row, names["label"], place)
            if len(said) != len(words):
                raise PretuneError(
                    f"{place}: {len(words)} words in {names['text']!r}, but {len(said)} tags in {names['label']!r}; "
                    "each word has one"
                )
            if "" in said:
                raise PretuneError(f"{place}: the tag of word {said.index('') + 1} in {names['label']!r} is empty")
            found.tags.append(said)
        if found.predicates is not None:
            found.predicates.append(_predicate(row, names["predicate"], len(words), place))
        found.words.append(words)
        found.lines.append(line)
    if not found.words:
        raise PretuneError(f"{path}: no sentences in it")
    return found


def tagged_rows(file: str | Path, errors: Errors = "strict") -> Iterator[tuple[int, Row]]:
    """Sentences with the line each begins on, as rows: .jsonl's and .parquet's own, or a list for each of CoNLL's columns.

    These are called 1, 2, 3 …, or as CoNLL-U has it id, form, lemma …
    """
    path = Path(file)
    if path.is_dir() or not path.exists():
        raise PretuneError(f"{path}: {'a folder, not a file' if path.is_dir() else 'no such file'}")
    match file_format(path):
        case ".jsonl":
            return read_jsonl(path, errors)
        case ".parquet":
            return read_parquet(path)
        case _:
            return _sentences(path, errors)


def _in_columns(row: Row) -> bool:
    """Whether a row was made of CoNLL's columns."""
    return "1" in row or tuple(row) == CONLLU


def _names(
    path: Path, row: Row, given: Mapping[str, str], tags: bool, predicate: str | None, quiet: bool
) -> dict[str, str]:
    """Role → column: what is given, then what is usual."""
    usual = {"text": next((name for name in WORDS if name in row), WORDS[0])}
    if tags:
        usual["label"] = str(len(row)) if "1" in row else next((name for name in TAGS if name in row), TAGS[0])
    names = {**usual, **given, **({} if predicate is None else {"predicate": str(predicate)})}
    if tuple(row) == CONLLU:
        numbers = {str(number): name for number, name in enumerate(CONLLU, 1)}
        names = {role: numbers.get(name, name) for role, name in names.items()}
    if _in_columns(row):
        for role, name in names.items():
            if name not in row:
                known = f"1 to {len(row)}" if "1" in row else f"{', '.join(CONLLU)} or 1 to {len(CONLLU)}"
                raise PretuneError(f"{path}: no column {name!r} for the {role}; give {known}")
        if tags and len(row) == 1:
            raise PretuneError(f"{path}: a single column; tagged words have a tag beside each")
        if tags and "label" not in given and not quiet:
            say(f"{path}: tags are column {names['label']}{with_options('override', ['label'])}")
    elif usual.keys() - given.keys():
        listed = ", ".join(f"{role} = {name!r}" for role, name in names.items())
        say(f"{path}: {listed}{with_options('override', ('text', 'label'))}")
    return names


def _list(row: Row, name: str, place: str) -> list[str]:
    if name not in row:
        known = ", ".join(map(repr, row)) or "none"
        raise PretuneError(f"{place}: no field {name!r} among {known}; {nearest(name, row)}")
    value = row[name]
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list) or not {type(item) for item in value} <= {str, int, bool}:
        raise PretuneError(f"{place}: {name!r} is no list of words")
    words = list(map(str, value))
    checked(" ".join(words), f"{place}: {name!r}")
    return words


def _predicate(row: Row, name: str, words: int, place: str) -> int:
    """The word that is marked, or has the number that is given."""
    value = row.get(name)
    if isinstance(value, list):
        marked = [number for number, mark in enumerate(value) if mark not in NO_PREDICATE]
        if len(marked) != 1:
            raise PretuneError(
                f"{place}: {len(marked)} predicates marked in column {name}; "
                "a sentence has one, and is there again for another"
            )
        return marked[0]
    if not isinstance(value, int) or not 0 <= value < words:
        raise PretuneError(f"{place}: {name!r} is {value!r}, not the number of a word, 0 to {words - 1}")
    return value


def _sentences(path: Path, errors: Errors) -> Iterator[tuple[int, Row]]:
    """The sentences of a file in CoNLL's columns."""
    universal = ending(path) in (".conllu", ".conllup")
    width = len(CONLLU) if universal else _width(path, errors)
    names = CONLLU if universal else [str(number + 1) for number in range(width)]
    rows: list[list[str]] = []
    start = 0
    for number, line in chain(read_lines(path, errors), [(0, "")]):
        cells = _cells(line, universal)
        if not cells:
            if rows:
                yield start, dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
            rows = []
            continue
        if cells[0] == DOCUMENT or (not rows and cells[0].startswith("#") and (universal or _is_comment(cells, width))):
            continue
        if len(cells) != width:
            raise PretuneError(f"{path}, line {number}: {len(cells)} columns where there should be {width}")
        if universal and not cells[0].isdigit():  # a word that is written as one with others, or not at all
            continue
        start = start if rows else number
        rows.append(cells)


def _cells(line: str, universal: bool) -> list[str]:
    """Other white space than blanks and tabs can be words."""
    line = line.strip(" \t")
    return [] if not line else line.split("\t") if universal and "\t" in line else re.split(r"[ \t]+", line)


def _width(path: Path, errors: Errors) -> int:
    """How many columns there are, from the first line that is certainly no comment."""
    doubtful = 0
    for _, line in read_lines(path, errors):
        cells = _cells(line, False)
        if cells and cells[0] != DOCUMENT:
            if not cells[0].startswith("#"):
                return len(cells)
            doubtful = doubtful or len(cells)
    return doubtful


def _is_comment(cells: list[str], width: int) -> bool:
    """Of a line that begins with #: a # can be a word, with as many columns as others, but not in `# text = …`."""
    return len(cells) != width or cells[2:3] == ["="]
