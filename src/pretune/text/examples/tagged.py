"""Read tagged words: CoNLL columns, CoNLL-U, .jsonl or .parquet with lists of words and tags, and character offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.progress import log_info
from pretune.text.corpus.documents import NESTED_FORMATS, read_rows
from pretune.text.corpus.files import Errors, check_is_file, check_text, file_format, file_suffix, read_lines
from pretune.text.examples.annotated_spans import (
    ANNOTATIONS,
    MARK,
    brat_documents,
    brat_rows,
    is_span_list,
    read_span_list,
    split_words,
    tag_words,
    without_overlaps,
)
from pretune.text.examples.examples import Examples
from pretune.text.examples.labeled import Row, TableChunk, advise_options, list_first
from pretune.text.packing.token_rows import TokenRows
from pretune.text.tokenizers.tokenizer import Tokenizer

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
WORDS = ("words", "tokens", "form", "sentence", "text", "1")
TAGS = ("tags", "ner_tags", "labels", "label", "pos_tags", "upos", "pos", "ner")
TEXT_FIELDS = ("text", "data", "sentence", "content")  # usual names of texts with annotated spans
SPAN_FIELDS = ("entities", "spans", "label", "labels", "annotations", "tags", "ner")  # usual names of annotated spans
BRAT = ("file", "text", "entities")  # fields of rows made from brat documents
NO_PREDICATE = ("-", "_", "O", "0")  # values that mark words other than the predicate
DOCUMENT = "-DOCSTART-"
WordSplitting = Literal["spaces", "punctuation"]  # what separates the words of a text


class SplitText(NamedTuple):
    """A text, and the start and end of each of its words."""

    text: str
    bounds: list[tuple[int, int]]

    @property
    def words(self) -> list[str]:
        """The words of the text, as strings."""
        return [self.text[start:end] for start, end in self.bounds]


@dataclass
class TaggedSentences(Examples):
    """The sentences of a file, in order: their words, and one tag per word if the tags are known.

    `predicates` has the index of the predicate of each sentence, for semantic role labeling; `originals` has each
    sentence as it was before its words were split at punctuation.
    """

    words: list[list[str]] = field(default_factory=list)
    tags: list[list[str]] | None = None
    predicates: list[int] | None = None  # index of each sentence's predicate, for semantic role labeling
    originals: list[SplitText] = field(default_factory=list)  # each sentence before it was split at punctuation

    def __len__(self) -> int:
        return len(self.words)

    @property
    def texts(self) -> list[str]:
        """Return each sentence as a text, with spaces between words."""
        return [" ".join(words) for words in self.words]

    def duplicate_key(self, row: int) -> str:
        """Return a key that is equal for sentences with the same words and predicate, to detect duplicates."""
        predicate = "" if self.predicates is None else f"\0{self.predicates[row]}"
        return f"{' '.join(self.words[row])}{predicate}".casefold()

    def inputs(self, row: int) -> dict[str, Any]:
        """Return the text of a sentence and its predicate, if there is one, for reports."""
        predicate = {} if self.predicates is None else {"predicate": self.words[row][self.predicates[row]]}
        return {"text": " ".join(self.words[row]), **predicate}

    def tokenize(self, tokenizer: Tokenizer) -> TokenWords:
        """Tokenize the sentences, and return which word each token belongs to.

        Each predicate, if there are any, is surrounded by two separator tokens.
        """
        counts = np.array([len(words) for words in self.words], dtype=np.int64)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        ids, lengths, offsets = tokenizer.encode_with_offsets(self.texts)
        sizes = np.zeros(bounds[-1], dtype=np.int64)  # tokens of each word
        stop = 0
        for row, words in enumerate(self.words):
            start, stop = stop, stop + int(lengths[row])
            ends = np.cumsum([len(word) + 1 for word in words], dtype=np.int64) - 1
            # The space before a word belongs to the word.
            owner = np.searchsorted(ends, offsets[start:stop, 0], side="right")
            sizes[bounds[row] : bounds[row + 1]] = np.bincount(owner.clip(max=len(words) - 1), minlength=len(words))
        units = np.concatenate([[0], np.cumsum(sizes)])
        first, marked = units[:-1].copy(), None
        if self.predicates is not None:
            chosen = bounds[:-1] + np.array(self.predicates, dtype=np.int64)
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
        if self.predicates is None:  # the separators shift the tokens
            rows.keep_unknown_characters(self.texts, begins[:-1], tokenizer)
        return TokenWords(rows, word, units, bounds, marked)


@dataclass
class TokenWords:
    """The token ids of all sentences, concatenated, and the word that each token belongs to.

    `word` (tokens,) is the index of the word that begins at a token, -1 inside words; `units` (words + 1,) is the first
    token of each word, `bounds` (sentences + 1,) the first word of each sentence, and `predicates` (sentences, 2) the
    first token and the number of tokens of each predicate.
    """

    rows: TokenRows  # one row per sentence
    word: Array  # (n,) index of the word that begins at this token; -1 inside words
    units: Array  # (words + 1,) first token of each word
    bounds: Array  # (sentences + 1,) first word of each sentence
    predicates: Array | None = None  # (sentences, 2) first token and number of tokens of each predicate

    def windows(self, max_lengths: Array, overlap: int) -> tuple[Array, Array, Array, int]:
        """Cut long sentences into windows; return the sentence index, first token and length of each window.

        The fourth value is the number of sentences in which a word had to be cut. Windows of a sentence have at most
        `max_lengths[sentence]` tokens and end between words, unless a single word is longer than that. Consecutive
        windows overlap by about `overlap` tokens. Sentences without tokens have no window.
        """
        lengths = self.rows.lengths[:, 0]
        fits = np.flatnonzero((lengths > 0) & (lengths <= max_lengths))
        windows = [np.stack([fits, self.rows.starts[fits, 0], lengths[fits]], 1)]
        cut = 0
        for sentence in np.flatnonzero(lengths > max_lengths):
            edges = np.unique(self.units[self.bounds[sentence] : self.bounds[sentence + 1] + 1])
            room = int(max_lengths[sentence])
            spans = _windows(edges, room, min(overlap, room // 2))
            windows.append(np.array([(sentence, begin, size) for begin, size in spans], dtype=np.int64))
            cut += bool((np.diff(edges) > room).any())
        table = np.concatenate(windows)
        table = table[np.argsort(table[:, 0], kind="stable")]
        return table[:, 0], table[:, 1], table[:, 2], cut


def _windows(edges: Array, max_length: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of overlapping windows of at most `max_length` tokens over a sentence.

    Windows are cut at word boundaries, whose token indices are in `edges`, and overlap by about `overlap` tokens.
    """
    first, count = 0, len(edges) - 1
    while True:
        stop = int(np.searchsorted(edges, edges[first] + max_length, side="right")) - 1
        stop = max(stop, first + 1)
        yield int(edges[first]), min(int(edges[stop] - edges[first]), max_length)
        if stop == count:
            return
        # Step back by the overlap, but not so far that the next unit does not fit.
        back = max(int(edges[stop]) - overlap, int(edges[stop + 1]) - max_length)
        first = min(stop, max(first + 1, int(np.searchsorted(edges, back))))


def read_tagged(
    file: str | Path | TableChunk,
    columns: Mapping[str, str] | None = None,
    *,
    tags: bool = True,
    predicate: str | None = None,
    splitting: WordSplitting = "spaces",
    errors: Errors = "strict",
) -> TaggedSentences:
    """Read sentences of tagged words from a CoNLL, CoNLL-U, .jsonl or .parquet file, or from a brat folder.

    `columns` names the columns for `text` (words) and `label` (tags): by number for CoNLL (by default the first and the
    last column), by number or name for CoNLL-U (by default form and upos), and by name for .jsonl and .parquet.
    `predicate` names a column with the index of the predicate, or with a mark at the predicate. Texts that are not
    given as lists of words are split as `splitting` says; texts with annotated spans are always split at spaces,
    punctuation and the ends of spans.
    """
    chunk = isinstance(file, TableChunk)
    path, rows = (file.file, file.rows) if isinstance(file, TableChunk) else (Path(file), tagged_rows(file, errors))
    for role, name in (columns or {}).items():
        if name and role not in ("text", "label"):
            raise PretuneError(
                f"{path}: tagged data has only the columns 'text' and 'label'; remove the option that sets {role!r}"
            )
    requested = {role: str(name) for role, name in (columns or {}).items() if name and (tags or role != "label")}
    names: dict[str, str] = {}
    sentences = TaggedSentences(path, requested)
    sentences.tags, sentences.predicates = [] if tags else None, [] if predicate is not None else None
    annotated, spans, overlapping = False, 0, 0
    for line, row in rows:
        if not names:
            names = find_span_columns(row, requested)
            annotated = bool(names)
            if not annotated:
                names = _find_columns(path, row, requested, tags, predicate, quiet=chunk)
            elif predicate is not None:
                raise PretuneError(
                    f"{path}: annotated spans have no predicates, which semantic roles need; use lists of words or CoNLL columns"
                )
            elif tuple(row) != BRAT and requested.keys() != names.keys():
                log_info(
                    f"{path}: using the texts in {names['text']!r} with the spans in {names['label']!r}"
                    f"{advise_options('override', ('text', 'label'))}"
                )
            if not _is_conll(row) and tuple(row) != BRAT:
                kept = [role for role in names if role != "predicate" and (tags or role != "label")]
                sentences.columns = {role: names[role] for role in kept}
        place = f"{path}, line {line}"
        if annotated:
            text = _text(row, names["text"], place)
            found = read_span_list(row.get(names["label"]) or [], text, f"{place}: {names['label']!r}")
            separate = without_overlaps(found)
            spans, overlapping = spans + len(found), overlapping + len(found) - len(separate)
            bounds, word_tags = tag_words(text, separate)
            sentences.originals.append(SplitText(text, bounds))
            words = sentences.originals[-1].words
        else:
            if splitting == "punctuation" and isinstance(row.get(names["text"]), str):
                text = _text(row, names["text"], place)
                sentences.originals.append(SplitText(text, split_words(text)))
                words = sentences.originals[-1].words
            else:
                words = _list(row, names["text"], place)
            word_tags = [] if sentences.tags is None else _list(row, names["label"], place)
        if sentences.tags is not None:
            if len(word_tags) != len(words):
                counts = f"{len(words)} words in {names['text']!r}, but {len(word_tags)} tags in {names['label']!r}"
                raise PretuneError(f"{place}: {counts}; every word needs one tag, so add or remove tags")
            if "" in word_tags:
                raise PretuneError(
                    f"{place}: the tag of word {word_tags.index('') + 1} in {names['label']!r} is empty; write a tag, such as O"
                )
            sentences.tags.append(word_tags)
        if sentences.predicates is not None:
            sentences.predicates.append(_predicate(row, names["predicate"], len(words), place))
        sentences.words.append(words)
        sentences.lines.append(line)
    if not sentences.words:
        raise PretuneError(f"{path}: the file contains no sentences; pass a file with sentences")
    if len(sentences.originals) < len(sentences):
        sentences.originals = []  # some rows are lists of words
    if overlapping and not chunk:
        log_info(
            f"{path}: {overlapping} of {spans} spans overlap a longer one and are left out, because each word has one tag"
        )
    return sentences


def tagged_rows(file: str | Path, errors: Errors = "strict") -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) for each tagged sentence; a sentence of several lines has the number of the first one.

    Rows of CoNLL files have one list per column, with the column numbers 1, 2, 3, … as keys.
    """
    if documents := brat_documents(Path(file)):
        return brat_rows(documents, errors)
    if Path(file).is_dir():
        raise PretuneError(
            f"{file}: the folder contains no {ANNOTATIONS} files of brat; pass a file, or a folder of .txt and .ann files"
        )
    path = check_is_file(file)
    return read_rows(path, errors) if file_format(path) in NESTED_FORMATS else _conll_rows(path, errors)


def find_span_columns(row: Row, requested: Mapping[str, str]) -> dict[str, str]:
    """Return the fields with a text (role text) and its annotated spans (role label); {} if there are no such fields.

    `requested` has the fields that the user has set, by role.

    >>> find_span_columns({"id": 1, "text": "in Paris", "label": [[3, 8, "LOC"]], "Comments": []}, {})
    {'text': 'text', 'label': 'label'}
    """
    texts = [name for name in (requested.get("text"), *TEXT_FIELDS) if name and isinstance(row.get(name), str)]
    spans = [name for name in (requested.get("label"), *SPAN_FIELDS) if name and is_span_list(row.get(name))]
    has_words = any(name in row and is_word_list(row[name]) for name in WORDS) and any(
        name in row and is_word_list(row[name]) and row[name] for name in TAGS
    )
    if not texts or not spans or has_words:
        return {}
    found = {"text": texts[0], "label": spans[0]}
    return found if all(found[role] == name for role, name in requested.items()) else {}


def is_word_list(value: Any) -> bool:
    """Return whether a field contains a list of words or tags."""
    return isinstance(value, list) and {type(item) for item in value} <= {str, int, bool}


def _is_conll(row: Row) -> bool:
    return "1" in row or tuple(row) == CONLLU


def _find_columns(
    path: Path, row: Row, requested: Mapping[str, str], tags: bool, predicate: str | None, quiet: bool
) -> dict[str, str]:
    """Return the column of each of the roles text, label (if `tags`) and predicate (if it is not None).

    These are the columns in `requested` (role → column), else usual columns, which are logged unless `quiet`.
    """
    usual = {"text": next((name for name in WORDS if name in row), WORDS[0])}
    if tags:
        usual["label"] = str(len(row)) if "1" in row else next((name for name in TAGS if name in row), TAGS[0])
    names = {**usual, **requested, **({} if predicate is None else {"predicate": str(predicate)})}
    if tuple(row) == CONLLU:
        numbers = {str(number): name for number, name in enumerate(CONLLU, 1)}
        names = {role: numbers.get(name, name) for role, name in names.items()}
    if _is_conll(row):
        for role, name in names.items():
            if name not in row:
                known = f"1 to {len(row)}" if "1" in row else f"{', '.join(CONLLU)} or 1 to {len(CONLLU)}"
                raise PretuneError(f"{path}: no column {name!r} for the {role}; choose {known}")
        if tags and len(row) == 1:
            raise PretuneError(
                f"{path}: the file has a single column; expected a column of words and a column of tags, separated by tabs or spaces"
            )
        if tags and "label" not in requested and not quiet:
            log_info(f"{path}: the tags are in column {names['label']}{advise_options('override', ['label'])}")
    elif usual.keys() - requested.keys():
        listed = ", ".join(f"{role} = {name!r}" for role, name in names.items())
        log_info(f"{path}: using the fields {listed}{advise_options('override', ('text', 'label'))}")
    return names


def _text(row: Row, name: str, place: str) -> str:
    """Return the text in the field `name` of a row; raise an error that begins with `place` if there is none."""
    if not isinstance(value := row.get(name), str):
        raise PretuneError(f"{place}: expected a text in {name!r}; correct or remove this row")
    return check_text(value, f"{place}: {name!r}")


def _list(row: Row, name: str, place: str) -> list[str]:
    """Return the words or tags in the field `name` of a row: a list, or a string that is split at spaces.

    `place` is the file and line of the row, for errors.
    """
    if name not in row:
        known = ", ".join(map(repr, row)) or "none"
        raise PretuneError(f"{place}: no field {name!r}; the fields are {known}; {suggest(name, row)}")
    value = row[name]
    if isinstance(value, str):
        value = value.split()
    if not is_word_list(value):
        raise PretuneError(f'{place}: expected a list of words in {name!r}, such as ["New", "York"]')
    words = list(map(str, value))
    check_text(" ".join(words), f"{place}: {name!r}")
    return words


def _predicate(row: Row, name: str, words: int, place: str) -> int:
    """Return the index of the predicate of a sentence of `words` words.

    The field `name` contains the index itself, or a list with a mark at one word. `place` names the row in errors.
    """
    value = row.get(name)
    if isinstance(value, list):
        marked = [number for number, mark in enumerate(value) if mark not in NO_PREDICATE]
        if len(marked) != 1:
            advice = "mark exactly one, and repeat the sentence for each further predicate"
            raise PretuneError(f"{place}: {len(marked)} predicates are marked in column {name}; {advice}")
        return marked[0]
    if not isinstance(value, int) or not 0 <= value < words:
        raise PretuneError(f"{place}: {name!r} is {value!r}, but must be the index of a word, 0 to {words - 1}")
    return value


def _conll_rows(path: Path, errors: Errors) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) for each sentence of a CoNLL file; the line is the first one of the sentence.

    A row has one list per column.
    """
    universal = file_suffix(path) in (".conllu", ".conllup")
    width = len(CONLLU) if universal else _width(path, errors)
    names = CONLLU if universal else [str(number + 1) for number in range(width)]
    rows: list[list[str]] = []
    start = sentences = 0
    wrong: PretuneError | None = None  # an error at a line that may be the last one
    marks = []  # lines with a byte order mark
    for number, line in chain(read_lines(path, errors), [(0, "")]):
        if line.startswith(MARK):
            marks.append(f"line {number}")
        cells = _cells(line.lstrip(MARK), universal)
        if not cells:
            if rows:
                sentences += 1
                yield start, dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
            rows = []
            continue
        if wrong is not None:
            raise wrong
        if cells[0] == DOCUMENT or (not rows and cells[0].startswith("#") and (universal or _is_comment(cells, width))):
            continue
        if len(cells) != width:
            wrong = PretuneError(f"{path}, line {number}: expected {width} columns, but found {len(cells)}; correct it")
            continue
        if universal and not cells[0].isdigit():  # a multiword token or an empty node
            continue
        start = start if rows else number
        rows.append(cells)
    if marks:
        log_info(f"{path}: byte order marks within the file are skipped: {list_first(marks)}")
    if wrong is not None:
        if not sentences:
            raise wrong
        log_info(f"{wrong}; this last line is skipped")


def _cells(line: str, universal: bool) -> list[str]:
    """Split a line of a CoNLL file at spaces and tabs; if `universal` (CoNLL-U), only at tabs.

    Other whitespace characters may be part of words.
    """
    line = line.strip(" \t")
    return [] if not line else line.split("\t") if universal and "\t" in line else re.split(r"[ \t]+", line)


def _width(path: Path, errors: Errors) -> int:
    """Return the number of columns of a CoNLL file, taken from its first line that is certainly not a comment."""
    doubtful = 0
    for _, line in read_lines(path, errors):
        cells = _cells(line.lstrip(MARK), False)
        if cells and cells[0] != DOCUMENT:
            if not cells[0].startswith("#"):
                return len(cells)
            doubtful = doubtful or len(cells)
    return doubtful


def _is_comment(cells: list[str], width: int) -> bool:
    """Return whether a line of a CoNLL file that begins with # is a comment rather than a word.

    `cells` are the columns of the line, and `width` is the number of columns of the file.
    """
    return len(cells) != width or cells[2:3] == ["="]
