"""Read cloze questions whose placeholder an entity of the passage fills (ReCoRD, RuCoS)."""

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
    """Read examples with one passage and its queries (`qas`) per line, as published, or with one query per line.

    In the second format, the columns are `text`, `query`, `entities` and `answers`, of which the last two are lists. An
    entity is a text, an object with a `text`, or an object with `start` and `end` in the passage (the end is inclusive,
    as published).
    """
    table = LabeledTable.open(file, columns or {}, ROLES, errors)
    found = table.named(ROLES)
    nested = "qas" in found and "query" not in table.given
    unused = ("query", "answers") if nested else ("qas",)
    found = {role: name for role, name in found.items() if role not in unused and (labels or role != "answers")}
    table.check_columns(
        found, needed=("text", "entities", *(("qas",) if nested else ("query", "answers") if labels else ("query",)))
    )
    made = ChoiceExamples(table.path, found, answered=labels, nested=nested)
    for line, row in table.rows():
        text = table.text(row, found["text"], line)
        names = _names(table, row, line, found["entities"], text)
        if nested:
            queries = _list(table, row, line, found["qas"])
        else:
            queries = [{"query": row.get(found["query"]), "answers": row.get(found.get("answers", ""))}]
        for item in queries:
            place = f"{table.path}, line {line}"
            query = item.get("query") if isinstance(item, dict) else None
            if not isinstance(query, str) or GAP not in query:
                raise PretuneError(
                    f"{place}: the query {query!r} in {found['qas' if nested else 'query']!r} does not contain {GAP}"
                )
            query = check_text(query, f"{place}: {found['qas' if nested else 'query']!r}")
            golds = _golds(table, item, line, found["qas" if nested else "answers"], text) if labels else ()
            same = {gold.casefold() for gold in golds}
            right = tuple(number for number, name in enumerate(names) if name.casefold() in same)
            pairs = tuple(query.replace(GAP, name) for name in names)
            made.groups.append(ChoiceExample(names, (text,) * len(names), pairs, right, golds, shown=query))
            made.lines.append(line)
    return made


def _golds(table: LabeledTable, item: Mapping[str, Any], line: int, column: str, text: str) -> tuple[str, ...]:
    answers = item.get("answers")
    return _names(table, {column: [answers] if isinstance(answers, str) else answers}, line, column, text)


def _names(table: LabeledTable, row: Row, line: int, column: str, text: str) -> tuple[str, ...]:
    """Return the distinct entities in a list column, by name."""
    names = []
    for entity in _list(table, row, line, column):
        if isinstance(entity, dict):
            start, end = entity.get("start"), entity.get("end")
            inside = isinstance(start, int) and isinstance(end, int) and 0 <= start <= end < len(text)
            entity = entity.get("text") or (text[start : end + 1] if inside else None)  # type: ignore[operator]
        if not isinstance(entity, str) or not entity.strip():
            raise PretuneError(
                f"{table.path}, line {line}: an entity in {column!r} has neither a text nor a valid position in its passage"
            )
        names.append(check_text(entity.strip(), f"{table.path}, line {line}: {column!r}"))
    return tuple(dict.fromkeys(names))


def _list(table: LabeledTable, row: Row, line: int, column: str) -> list[Any]:
    cells = row.get(column)
    if not isinstance(cells, list) or not cells:
        raise PretuneError(f"{table.path}, line {line}: expected a list that is not empty in {column!r}")
    return cells
