"""Read extractive question answering data: SQuAD's .json, or rows with a question, a passage and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, quote, suggest
from pretune.runtime.progress import log_info
from pretune.text.corpus.files import check_is_file, check_text, file_format, file_suffix, open_stream
from pretune.text.examples.examples import Examples
from pretune.text.examples.labeled import FORMATS, ROLES, Row, TableChunk, advise_options, drop_or_raise, table_rows
from pretune.text.packing.token_rows import TokenRows
from pretune.text.tokenizers.tokenizer import Tokenizer

QUESTIONS = ("question", "query", "text")
PASSAGES = ("passage", "context", "paragraph", "document")
ANSWERS = ("answers", "answer", "label")
NO_ANSWER, NO_TOKENS = -1, -2
SQUAD = '{"data": [{"paragraphs": [{"context": "…", "qas": [{"question": "…", "answers": […]}]}]}]}'


class AnswerSpan(NamedTuple):
    """An answer to a question: its text, and the index of its first character in the passage."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Return the index of the first character after the answer in its passage."""
        return self.start + len(self.text)


@dataclass
class Questions(Examples):
    """The questions of a file, in order, with their passages and answers; unanswerable questions have no answer.

    `places` has the line or id of each question, for error messages; `identities` has the ids of the questions.
    """

    questions: list[str] = field(default_factory=list)
    passages: list[str] = field(default_factory=list)
    answers: list[list[AnswerSpan]] | None = None
    places: list[str] = field(default_factory=list)  # such as "line 3" or "question 56be4db0acb8001400a502ec"
    identities: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.questions)

    def duplicate_key(self, row: int) -> str:
        """Return a key that is equal for rows with the same question and passage, to detect duplicates."""
        return f"{self.questions[row]}\0{self.passages[row]}".casefold()

    def inputs(self, row: int) -> dict[str, Any]:
        """Return the text of a question and its passage, for reports."""
        return {"question": self.questions[row], "passage": self.passages[row]}

    def location(self, row: int) -> str:
        """Return the file and line (or id) of a question, for error messages."""
        return f"{self.file}, {self.places[row]}"

    def tokenize(self, tokenizer: Tokenizer) -> TokenPassages:
        """Return the tokens of all questions and distinct passages, with the character offsets of passage tokens."""
        distinct = {passage: number for number, passage in enumerate(dict.fromkeys(self.passages))}
        question_ids, sizes = tokenizer.encode_many(self.questions)
        ids, lengths, offsets = tokenizer.encode_with_offsets(list(distinct))
        which = np.array([distinct[passage] for passage in self.passages], dtype=np.int64)
        starts = np.stack([np.cumsum(sizes) - sizes, len(question_ids) + (np.cumsum(lengths) - lengths)[which]], 1)
        flat = np.concatenate([question_ids, ids])
        begins, ends = (np.concatenate([np.zeros(len(question_ids), dtype=np.int64), side]) for side in offsets.T)
        rows = TokenRows(flat, tokenizer.word_starts(flat), starts, np.stack([sizes, lengths[which]], 1))
        counts = np.concatenate([sizes, lengths])
        rows.keep_unknown_characters([*self.questions, *distinct], np.cumsum(counts) - counts, tokenizer)
        return TokenPassages(rows, begins, ends)


@dataclass
class TokenPassages:
    """The token ids of all questions, followed by those of all distinct passages, with character offsets.

    `rows` has the tokens of the question and the passage of each example; `begins` and `ends` have the start and end character of
    each token.
    """

    rows: TokenRows  # one row per question, with its passage
    begins: Array  # (n,) start of each token in its passage, in characters; 0 in questions
    ends: Array  # (n,) end of each token, exclusive

    def spans(self, answers: Sequence[Sequence[AnswerSpan]]) -> Array:
        """Return the indices of the first and last token of the first answer to each question, (questions, 2).

        A question without answers has NO_ANSWER in both columns, and one whose answer contains no token has NO_TOKENS.
        """
        tokens = np.full((len(answers), 2), NO_ANSWER, dtype=np.int64)
        for row, spans in enumerate(answers):
            if spans:
                start, length = self.rows.starts[row, 1], self.rows.lengths[row, 1]
                first = np.searchsorted(self.ends[start : start + length], spans[0].start, side="right")
                last = np.searchsorted(self.begins[start : start + length], spans[0].end, side="left") - 1
                tokens[row] = (first, last) if first <= last else NO_TOKENS
        return tokens


def read_questions(
    file: str | Path | TableChunk,
    columns: Mapping[str, str] | None = None,
    *,
    answers: bool = True,
    drop_invalid: bool = False,
) -> Questions:
    """Read questions, passages and, with `answers`, their answers from a .json file in SQuAD's format or from a table.

    `columns` names the fields for `text` (question), `pair` (passage) and `label` (answers). Answers that do not occur
    at their position in the passage raise an error; with `drop_invalid`, questions without a valid answer are left out.
    """
    path, rows = (file.file, iter(file.rows)) if isinstance(file, TableChunk) else (Path(file), question_rows(file))
    squad = file_suffix(path) == ".json"
    requested = {role: str(name) for role, name in (columns or {}).items() if name and not squad}
    names: dict[str, str] = {}
    questions, bad = Questions(path, requested, answers=[] if answers else None), list[str]()
    for line, row in rows:
        if not names:
            names = _find_fields(path, row, requested, answers, quiet=squad)
            questions.columns = {} if squad else names
        place = f"line {line}"
        if squad:
            place = f"question {row['id']}" if row.get("id") else f"question number {line}"
        where = f"{path}, {place}"
        question, passage = (_text(row, names[role], where) for role in ("text", "pair"))
        spans = [] if not answers else _spans(row, names["label"], where)
        kept = []
        for text, start in spans:
            start = passage.find(text) if start is None else start
            if text and start >= 0 and passage.startswith(text, start):
                kept.append(AnswerSpan(text, start))
            else:
                bad.append(f"{place} ({text[:40]!r} at {start})")
        if spans and not kept:
            continue
        questions.questions.append(question)
        questions.passages.append(passage)
        questions.places.append(place)
        questions.identities.append(str(row.get("id", "")))
        if questions.answers is not None:
            questions.answers.append(kept)
    if bad:
        problem = f"{path}: {len(bad)} answers in {names['label']!r} are not at the given position of their passage"
        drop_or_raise(problem, bad, drop_invalid)
    if not questions.questions:
        raise PretuneError(f"{path}: the file contains no questions; pass a file with questions")
    return questions


def question_rows(file: str | Path) -> Iterator[tuple[int, Row]]:
    """Return an iterator over (line number, row) of a file of questions.

    In SQuAD's .json format, the number of the question takes the place of the line number.
    """
    path = check_is_file(file)
    if file_suffix(path) == ".json":
        return enumerate(_squad(path), 1)
    if file_format(path) not in FORMATS:
        raise PretuneError(f"{path}: unsupported file format; expected SQuAD's .json, or {', '.join(FORMATS)}")
    return table_rows(path)


def _squad(path: Path) -> Iterator[Row]:
    """Yield the questions of a SQuAD 1.1 (Rajpurkar et al., 2016) or 2.0 (2018) file, each with its passage (`context`)."""
    with open_stream(path) as stream:
        raw = b"".join(iter(lambda: stream.read(1 << 20), b""))
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        advice = "if the file has one question per line, rename it to .jsonl"
        raise PretuneError(f"{path}: not valid JSON ({error}); {advice}") from error
    here = "at the top"
    try:
        for number, article in enumerate(content["data"]):
            for p, paragraph in enumerate(article["paragraphs"]):
                here = f"data[{number}].paragraphs[{p}]"
                for row in paragraph["qas"]:
                    yield {**row, "context": paragraph["context"]}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PretuneError(f"{path}: not in SQuAD's format, {SQUAD} ({here}: {error!r}); convert the file") from error


def _find_fields(path: Path, row: Row, requested: Mapping[str, str], answers: bool, quiet: bool) -> dict[str, str]:
    """Return the field of a row for each of the roles text, pair and label (only if `answers`).

    These are the fields in `requested` (role → field), else fields with usual names, which are logged unless `quiet`.
    """
    roles = {"text": QUESTIONS, "pair": PASSAGES} | ({"label": ANSWERS} if answers else {})
    usual = {role: next((name for name in names if name in row), names[0]) for role, names in roles.items()}
    names = {role: requested.get(role) or name for role, name in usual.items()}
    if names.keys() - requested.keys() and not quiet:
        listed = ", ".join(f"{role} = {name!r}" for role, name in names.items())
        log_info(f"{path}: using the fields {listed}{advise_options('override', ROLES)}")
    return names


def _text(row: Row, name: str, place: str) -> str:
    """Return the text in the field `name` of a row; raise an error that begins with `place` if there is none."""
    if not isinstance(value := row.get(name), str):
        if name in row:
            raise PretuneError(f"{place}: expected text in {name!r}, but found {quote(value)}; correct the field")
        known = ", ".join(map(repr, row)) or "none"
        hint = suggest(name, row) if row else ""
        raise PretuneError(f"{place}: no field {name!r}; the fields are {known}; {hint}")
    return check_text(value, f"{place}: {name!r}")


def _spans(row: Row, name: str, place: str) -> list[tuple[str, int | None]]:
    """Return the answers in the field `name` of a row as (text, start character or None).

    The result is empty for an unanswerable question, whose field is null or an empty list.
    """
    if name not in row:
        known = ", ".join(map(repr, row)) or "none"
        raise PretuneError(
            f"{place}: no field {name!r}; the fields are {known}; add the field, with [] as the answers to an unanswerable question"
        )
    value = row[name]
    if value is None or value == "" or row.get("is_impossible"):
        return []
    if not isinstance(value, str | list) and not (isinstance(value, Mapping) and "text" in value):
        raise PretuneError(
            f"{place}: expected a text or a list of answers in {name!r}, but found {quote(value)}; correct the field"
        )
    if isinstance(value, Mapping):  # as in Hugging Face datasets, or a single answer
        texts, starts = value["text"], value.get("answer_start", value.get("start"))
        if isinstance(texts, str):
            value = [value]
        else:
            pairs = zip(texts, starts if starts is not None else [None] * len(texts), strict=True)
            value = [{"text": text, "start": start} for text, start in pairs]
    answers: list[tuple[str, int | None]] = []
    for answer in [value] if isinstance(value, str) else value:
        entry = answer if isinstance(answer, Mapping) else {"text": answer}
        text, start = entry.get("text"), entry.get("answer_start", entry.get("start"))
        if not isinstance(text, str) or not isinstance(start, int | None):
            expected = 'a text or {"text": "…", "start": 17}'
            raise PretuneError(f"{place}: an answer must be {expected}, not {quote(answer)}")
        answers.append((text, start))
    return answers
