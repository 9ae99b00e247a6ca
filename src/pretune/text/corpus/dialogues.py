"""Read dialogues: ordered turns, each with the role of its speaker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.text.corpus.documents import NESTED_FORMATS, read_rows
from pretune.text.corpus.files import Errors, file_format, find_files

QUERY, RESPONSE = 0, 1
ROLES = {
    **dict.fromkeys(("q", "query", "question", "user", "human"), QUERY),
    **dict.fromkeys(("r", "response", "a", "answer", "assistant", "bot"), RESPONSE),
}
FIELDS = ("turns", "dialogue", "dialog", "messages", "conversation")
EXPECTED = 'a .jsonl or .parquet file with one dialogue per row: {"turns": [{"role": "Q", "text": "…"}, {"role": "R", "text": "…"}]}'


@dataclass
class Dialogues:
    """A list of dialogues, stored as the concatenation of the turns of all dialogues.

    `texts` and `roles` (0 for a query, 1 for a response) have one entry per turn; `counts` has the number of turns of
    each dialogue; `files` has the index of the file of each dialogue, or is empty if there is only one file. `pairs` is
    always None; lists of text pairs have their second texts in an attribute of this name.
    """

    file: Path
    texts: list[str] = field(default_factory=list)  # one per turn
    roles: list[int] = field(default_factory=list)  # one per turn: 0 query, 1 response
    counts: list[int] = field(default_factory=list)  # number of turns per dialogue
    files: list[int] = field(default_factory=list)  # file index per dialogue; empty if all come from one file

    pairs: None = None  # turns are single texts, not pairs

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def distinct(self) -> Array:
        """Return an integer per turn of all dialogues, (turns,); turns with the same text have the same integer."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(text, len(numbers)) for text in self.texts])

    def take(self, rows: Iterable[int]) -> Dialogues:
        """Return the dialogues at the given indices."""
        chosen = list(rows)
        ends = np.cumsum(self.counts, dtype=np.int64).tolist()
        turns = [turn for row in chosen for turn in range(ends[row] - self.counts[row], ends[row])]
        texts, roles = [self.texts[turn] for turn in turns], [self.roles[turn] for turn in turns]
        files = [self.files[row] for row in chosen] if self.files else []
        return Dialogues(self.file, texts, roles, [self.counts[row] for row in chosen], files)


def read_dialogues(files: Sequence[str | Path] | str | Path, errors: Errors = "strict") -> Dialogues:
    """Read dialogues from .jsonl or .parquet files, with one dialogue per row.

    If turns have no roles, they alternate between query and response, beginning with a query.
    """
    names = [files] if isinstance(files, str | Path) else list(files)
    if not names:
        raise PretuneError(f"no dialogue files were given; pass {EXPECTED}")
    paths = [path for name in names for path in find_files(name)]
    dialogues = Dialogues(paths[0])
    for number, path in enumerate(paths):
        if file_format(path) not in NESTED_FORMATS:
            raise PretuneError(f"{path}: this file format cannot hold dialogues; pass {EXPECTED}")
        for line, row in read_rows(path, errors):
            turns = _read_turns(row, f"{path}, line {line}")
            dialogues.texts += [text for _, text in turns]
            dialogues.roles += [role for role, _ in turns]
            dialogues.counts.append(len(turns))
            dialogues.files.append(number)
    if not dialogues.counts:
        raise PretuneError(f"{paths[0]}: the file contains no dialogues; pass {EXPECTED}")
    return dialogues


def _read_turns(row: dict[str, Any], place: str) -> list[tuple[int, str]]:
    """Return the turns of a dialogue as (role, text), given its row in a file; `place` names the row in errors."""
    turns = next((row[name] for name in FIELDS if name in row), None)
    if not isinstance(turns, list) or not turns:
        fields = ", ".join(map(repr, row))
        raise PretuneError(f"{place}: no list of turns in the fields {fields}; pass {EXPECTED}")
    plain = isinstance(turns[0], str)
    return [_read_turn(turn, number, plain, f"{place}, turn {number + 1}") for number, turn in enumerate(turns)]


def _read_turn(turn: Any, number: int, plain: bool, place: str) -> tuple[int, str]:
    """Return the turn with the index `number` in a dialogue as (role, text); `place` names its row in errors.

    If `plain`, all turns are strings, and queries and responses alternate; else each turn is an object with "role" and
    "text".
    """
    if isinstance(turn, str) != plain or not isinstance(turn, str | dict):
        expected = 'all plain strings, or all objects with "role" and "text"'
        raise PretuneError(f"{place}: the turns of a dialogue must be {expected}")
    if isinstance(turn, str):
        return number % 2, turn
    role, text = ROLES.get(str(turn.get("role")).lower()), turn.get("text", turn.get("content"))
    if role is None:
        problem = 'the turn has no "role"' if turn.get("role") is None else f"unknown role {turn['role']!r}"
        raise PretuneError(f"{place}: {problem}; set it to Q (query) or R (response), or use plain strings as turns")
    if not isinstance(text, str):
        raise PretuneError(f'{place}: the turn has no "text"; add its text as a string')
    return role, text
