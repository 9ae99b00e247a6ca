"""Read cloze questions whose answer, an entity of a passage, replaces a placeholder (ReCoRD, RuCoS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import Errors, check_text
from pretune.text.examples.labeled import LabeledTable, Row, TableChunk
from pretune.text.examples.multiple_choice import ChoiceExample, ChoiceExamples

GAP = "@placeholder"
ROLES: dict[str, Sequence[str]] = {
    "text": ("passage.text", "passage", "text", "context"),
    "entities": ("passage.entities", "entities", "candidates"),
    "qas": ("qas",),
    "query": ("query", "question"),
    "answers": ("answers", "answer"),
}


def read_entity_clozes(
    file: str | Path | TableChunk,
    columns: Mapping[str, str] | None = None,
    *,
    errors: Errors = "strict",
    labels: bool = True,
) -> ChoiceExamples:
    """Read cloze questions about passages, with a list of queries per row (`qas`, as in ReCoRD) or a single query.

    Rows with a single query have the columns `text`, `query`, `entities` (a list) and `answers` (a list). An entity is
    a string, or an object with a `text` or with `start` and `end` in the passage (inclusive, as in ReCoRD).
    """
    table = LabeledTable.open(file, columns or {}, ROLES, errors)
    found = table.find_columns(ROLES)
    nested = "qas" in found and "query" not in table.requested
    used = ("text", "entities", *(("qas",) if nested else ("query", "answers") if labels else ("query",)))
    found = {role: found[role] for role in used if role in found}
    table.check_columns(found, needed=used)
    query_column, answer_column = (found["qas"],) * 2 if nested else (found["query"], found.get("answers", ""))
    examples = ChoiceExamples(table.path, found, answered=labels, nested=nested)
    for line, row in table.rows():
        text = table.text(row, found["text"], line)
        names = _entity_names(table, row, line, found["entities"], text)
        if nested:
            queries = _list(table, row, line, query_column)
        else:
            queries = [{"query": row.get(query_column), "answers": row.get(answer_column)}]
        for item in queries:
            place = f"{table.path}, line {line}"
            query = item.get("query") if isinstance(item, dict) else None
            if not isinstance(query, str) or GAP not in query:
                raise PretuneError(
                    f"{place}: the query {query!r} in {query_column!r} lacks the placeholder {GAP}; write it where the answer belongs"
                )
            query = check_text(query, f"{place}: {query_column!r}")
            golds: tuple[str, ...] = ()
            if labels:
                answers = item.get("answers")
                cells = {answer_column: [answers] if isinstance(answers, str) else answers}
                golds = _entity_names(table, cells, line, answer_column, text)
            same = {gold.casefold() for gold in golds}
            correct = tuple(number for number, name in enumerate(names) if name.casefold() in same)
            pairs = tuple(query.replace(GAP, name) for name in names)
            group = ChoiceExample(names, (text,) * len(names), pairs, correct, golds, display_text=query)
            examples.groups.append(group)
            examples.lines.append(line)
    return examples


def _entity_names(table: LabeledTable, row: Row, line: int, column: str, text: str) -> tuple[str, ...]:
    """Return the distinct names of the entities that a column of a row lists.

    Each entity is a string, an object with a `text`, or an object with its `start` and `end` in the passage `text`.
    """
    names = []
    for entity in _list(table, row, line, column):
        if isinstance(entity, dict):
            start, end = entity.get("start"), entity.get("end")
            inside = isinstance(start, int) and isinstance(end, int) and 0 <= start <= end < len(text)
            entity = entity.get("text") or (text[start : end + 1] if inside else None)  # type: ignore[operator]
        if not isinstance(entity, str) or not entity.strip():
            place = f"{table.path}, line {line}"
            raise PretuneError(
                f"{place}: an entity in {column!r} has neither a text nor a valid position in its passage; correct the entity"
            )
        names.append(check_text(entity.strip(), f"{table.path}, line {line}: {column!r}"))
    return tuple(dict.fromkeys(names))


def _list(table: LabeledTable, row: Row, line: int, column: str) -> list[Any]:
    cells = row.get(column)
    if not isinstance(cells, list) or not cells:
        raise PretuneError(
            f"{table.path}, line {line}: expected a non-empty list in {column!r}; correct or remove this row"
        )
    return cells
