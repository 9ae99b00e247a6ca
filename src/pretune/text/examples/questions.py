"""Questions about passages, whose answers are spans of these: SQuAD's .json, or rows with a question, a passage and answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pretune.runtime.errors import PretuneError, nearest, quote
from pretune.runtime.progress import say
from pretune.text.corpus.files import checked, ending, file_format, open_stream
from pretune.text.examples.labeled import FORMATS, ROLES, Excerpt, Row, drop_or_refuse, table_rows, with_options
from pretune.text.examples.row_source import TokenRows
from pretune.text.tokenizers.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]
QUESTIONS = ("question", "query", "text")
PASSAGES = ("passage", "context", "paragraph", "document")
ANSWERS = ("answers", "answer", "label")
NO_ANSWER, NO_TOKENS = -1, -2
SQUAD = '{"data": [{"paragraphs": [{"context": "…", "qas": [{"question": "…", "answers": […]}]}]}]}'


class Span(NamedTuple):
    """An answer: its text, and where it begins in the passage."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + len(self.text)


@dataclass
class Questions:
    """The questions of a file, in order, with their passages and what answers them: no span where nothing does."""

    file: Path
    columns: dict[str, str]
    questions: list[str] = field(default_factory=list)
    passages: list[str] = field(default_factory=list)
    answers: list[list[Span]] | None = None
    places: list[str] = field(default_factory=list)  # line 3, question 56be4db0acb8001400a502ec …
    identities: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.questions)

    def take(self, rows: Iterable[int]) -> Questions:
        """Some of the questions."""
        chosen = list(rows)
        answers = None if self.answers is None else [self.answers[row] for row in chosen]
        sides = (self.questions, self.passages, self.places, self.identities)
        questions, passages, places, identities = ([side[row] for row in chosen] for side in sides)
        return Questions(self.file, self.columns, questions, passages, answers, places, identities)

    def asked(self, row: int) -> str:
        """What a question asks, whatever its answer: two that ask the same are one."""
        return f"{self.questions[row]}\0{self.passages[row]}".casefold()

    def show(self, row: int) -> dict[str, Any]:
        """What of a question stands beside its answer."""
        return {"question": self.questions[row], "passage": self.passages[row]}

    def place(self, row: int) -> str:
        """Where a question stands, for messages."""
        return f"{self.file}, {self.places[row]}"

    def tokenize(self, tokenizer: Tokenizer) -> TokenPassages:
        """Ids, and the places of those of passages."""
        return TokenPassages.make(self, tokenizer)


@dataclass
class TokenPassages:
    """The ids of all questions, then of all passages, each of these once."""

    rows: TokenRows  # a question a row, with its passage
    begins: Array  # (n,) the character of its passage with which each token begins; 0 in questions
    ends: Array  # (n,) and that after its last one

    @classmethod
    def make(cls, questions: Questions, tokenizer: Tokenizer) -> TokenPassages:
        """Tokenize."""
        distinct = {passage: number for number, passage in enumerate(dict.fromkeys(questions.passages))}
        asked, sizes = tokenizer.encode_many(questions.questions)
        ids, lengths, offsets = tokenizer.encode_with_offsets(list(distinct))
        which = np.array([distinct[passage] for passage in questions.passages], dtype=np.int64)
        starts = np.stack([np.cumsum(sizes) - sizes, len(asked) + (np.cumsum(lengths) - lengths)[which]], 1)
        flat = np.concatenate([asked, ids])
        begins, ends = (np.concatenate([np.zeros(len(asked), dtype=np.int64), side]) for side in offsets.T)
        rows = TokenRows(flat, tokenizer.word_starts(flat), starts, np.stack([sizes, lengths[which]], 1))
        counts = np.concatenate([sizes, lengths])
        rows.spell_unknown([*questions.questions, *distinct], np.cumsum(counts) - counts, tokenizer)
        return cls(rows, begins, ends)

    def spans(self, answers: Sequence[Sequence[Span]]) -> Array:
        """(questions, 2) the first and the last token of the first answer to each, counted from its passage's first one.

        NO_ANSWER where there is none, NO_TOKENS where it has none.
        """
        found = np.full((len(answers), 2), NO_ANSWER, dtype=np.int64)
        for row, spans in enumerate(answers):
            if spans:
                start, length = self.rows.starts[row, 1], self.rows.lengths[row, 1]
                first = np.searchsorted(self.ends[start : start + length], spans[0].start, side="right")
                last = np.searchsorted(self.begins[start : start + length], spans[0].end, side="left") - 1
                found[row] = (first, last) if first <= last else NO_TOKENS
        return found


def read_questions(
    file: str | Path | Excerpt,
    columns: Mapping[str, str] | None = None,
    *,
    answers: bool = True,
    drop_bad: bool = False,
) -> Questions:
    """Read questions. `columns` says which field is the `text` (question), the `pair` (passage) and the `label` (answers).

    Answers that do not stand in their passage where they should are refused with a list; with `drop_bad`, questions that
    have no other answer are left out.

    >>> read_questions("dev-v2.0.json").answers[0][0].text  # doctest: +SKIP
    'France'
    """
    path, rows = (file.file, iter(file.rows)) if isinstance(file, Excerpt) else (Path(file), question_rows(file))
    squad = ending(path) == ".json"
    given = {role: str(name) for role, name in (columns or {}).items() if name and not squad}
    names: dict[str, str] = {}
    found, bad = Questions(path, given, answers=[] if answers else None), list[str]()
    for line, row in rows:
        if not names:
            names = _names(path, row, given, answers, quiet=squad)
            found.columns = {} if squad else names
        place = _place(line, row) if squad else f"line {line}"
        where = f"{path}, {place}"
        question, passage = (_text(row, names[role], where) for role in ("text", "pair"))
        spans = [] if not answers else _spans(row, names["label"], where)
        kept = []
        for text, start in spans:
            start = passage.find(text) if start is None else start
            if text and start >= 0 and passage.startswith(text, start):
                kept.append(Span(text, start))
            else:
                bad.append(f"{place} ({text[:40]!r} at {start})")
        if spans and not kept:
            continue
        found.questions.append(question)
        found.passages.append(passage)
        found.places.append(place)
        found.identities.append(str(row.get("id", "")))
        if found.answers is not None:
            found.answers.append(kept)
    if bad:
        what = f"{path}: {len(bad)} answers in {names['label']!r} do not stand in their passage where they should"
        drop_or_refuse(what, bad, drop_bad)
    if not found.questions:
        raise PretuneError(f"{path}: no questions in it")
    return found


def question_rows(file: str | Path) -> Iterator[tuple[int, Row]]:
    """Questions with the line each stands on, as rows; of SQuAD's .json with its number, and its passage as `context`."""
    path = Path(file)
    if path.is_dir() or not path.exists():
        raise PretuneError(f"{path}: {'a folder, not a file' if path.is_dir() else 'no such file'}")
    if ending(path) == ".json":
        return enumerate(_squad(path), 1)
    if file_format(path) not in FORMATS:
        raise PretuneError(f"{path}: unknown kind of file; questions are in SQuAD's .json, or {', '.join(FORMATS)}")
    return table_rows(path)


def _squad(path: Path) -> Iterator[Row]:
    """SQuAD 1.1 (Rajpurkar et al., 2016) and 2.0 (2018)."""
    with open_stream(path) as stream:
        raw = b"".join(iter(lambda: stream.read(1 << 20), b""))
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise PretuneError(f"{path}: not valid JSON ({error}); questions a line each go into a .jsonl file") from error
    here = "at the top"
    try:
        for number, article in enumerate(content["data"]):
            for p, paragraph in enumerate(article["paragraphs"]):
                here = f"data[{number}].paragraphs[{p}]"
                for row in paragraph["qas"]:
                    yield {**row, "context": paragraph["context"]}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PretuneError(f"{path}: not in SQuAD's layout, {SQUAD} ({here}: {error!r})") from error


def _place(number: int, row: Row) -> str:
    return f"question {row['id']}" if row.get("id") else f"question number {number}"


def _names(path: Path, row: Row, given: Mapping[str, str], answers: bool, quiet: bool) -> dict[str, str]:
    """Role → field: what is given, then what is usual."""
    roles = {"text": QUESTIONS, "pair": PASSAGES} | ({"label": ANSWERS} if answers else {})
    names = {role: given.get(role) or next((n for n in usual if n in row), usual[0]) for role, usual in roles.items()}
    if names.keys() - given.keys() and not quiet:
        listed = ", ".join(f"{role} = {name!r}" for role, name in names.items())
        say(f"{path}: {listed}{with_options('override', ROLES)}")
    return names


def _text(row: Row, name: str, place: str) -> str:
    if not isinstance(value := row.get(name), str):
        if name in row:
            raise PretuneError(f"{place}: no text in {name!r}, but {quote(value)}")
        known = ", ".join(map(repr, row)) or "none"
        hint = nearest(name, row) if row else ""
        raise PretuneError(f"{place}: no text {name!r} among {known}; {hint}")
    return checked(value, f"{place}: {name!r}")


def _spans(row: Row, name: str, place: str) -> list[tuple[str, int | None]]:
    """A text, or several, each alone or with its place; null and an empty list are no answer."""
    if name not in row:
        known = ", ".join(map(repr, row)) or "none"
        raise PretuneError(f"{place}: no field {name!r} among {known}; a question that nothing answers has []")
    value = row[name]
    if value is None or value == "" or row.get("is_impossible"):
        return []
    if not isinstance(value, str | list) and not (isinstance(value, Mapping) and "text" in value):
        raise PretuneError(f"{place}: no answers in {name!r}, but {quote(value)}")
    if isinstance(value, Mapping):  # as Hugging Face's datasets have it, or a single one
        texts, starts = value["text"], value.get("answer_start", value.get("start"))
        if isinstance(texts, str):
            value = [value]
        else:
            pairs = zip(texts, starts if starts is not None else [None] * len(texts), strict=True)
            value = [{"text": text, "start": start} for text, start in pairs]
    found: list[tuple[str, int | None]] = []
    for answer in [value] if isinstance(value, str) else value:
        whole = answer if isinstance(answer, Mapping) else {"text": answer}
        text, start = whole.get("text"), whole.get("answer_start", whole.get("start"))
        if not isinstance(text, str) or not isinstance(start, int | None):
            raise PretuneError(f'{place}: an answer is a text, or {{"text": "…", "start": 17}}, not {quote(answer)}')
        found.append((text, start))
    return found
