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
from pretune.text.corpus.documents import read_jsonl, read_parquet
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
    """A list of dialogues, with the turns of all of them concatenated."""

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
        """Return an integer per turn, (turns,), that is equal for turns with equal text."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(text, len(numbers)) for text in self.texts])

    def take(self, rows: Iterable[int]) -> Dialogues:
        """Return the dialogues at the given indices."""
        chosen = list(rows)
        ends = np.cumsum(self.counts, dtype=np.int64).tolist()
        turns = [turn for row in chosen for turn in range(ends[row] - self.counts[row], ends[row])]
        return Dialogues(
            self.file,
            [self.texts[turn] for turn in turns],
            [self.roles[turn] for turn in turns],
            [self.counts[row] for row in chosen],
            [self.files[row] for row in chosen] if self.files else [],
        )


def read_dialogues(files: Sequence[str | Path] | str | Path, errors: Errors = "strict") -> Dialogues:
    """Read dialogues from .jsonl or .parquet files.
    Turns that are plain strings alternate between query and response; turns that are objects name their role.

    >>> read_dialogues("chats.jsonl").roles[:3]  # doctest: +SKIP
    [0, 1, 0]
    """
    given = [files] if isinstance(files, str | Path) else list(files)
    if not given:
        raise PretuneError(f"No dialogue files were given; pass {EXPECTED}")
    paths = [path for name in given for path in find_files(name)]
    found = Dialogues(paths[0])
    for number, path in enumerate(paths):
        if file_format(path) not in (".jsonl", ".parquet"):
            raise PretuneError(f"{path}: this file format cannot hold dialogues; pass {EXPECTED}")
        for line, row in read_jsonl(path, errors) if file_format(path) == ".jsonl" else read_parquet(path):
            turns = _turns(row, f"{path}, line {line}")
            found.texts += [text for _, text in turns]
            found.roles += [role for role, _ in turns]
            found.counts.append(len(turns))
            found.files.append(number)
    if not found.counts:
        raise PretuneError(f"{paths[0]}: the file contains no dialogues; pass {EXPECTED}")
    return found


def _turns(row: dict[str, Any], place: str) -> list[tuple[int, str]]:
    name = next((key for key in FIELDS if key in row), None)
    turns = row.get(name) if name else None
    if not isinstance(turns, list) or not turns:
        fields = ", ".join(map(repr, row))
        raise PretuneError(f"{place}: no list of turns in the fields {fields}; pass {EXPECTED}")
    plain = isinstance(turns[0], str)
    return [_turn(turn, number, plain, f"{place}, turn {number + 1}") for number, turn in enumerate(turns)]


def _turn(turn: Any, number: int, plain: bool, place: str) -> tuple[int, str]:
    if isinstance(turn, str) != plain or not isinstance(turn, str | dict):
        raise PretuneError(
            f'{place}: the turns of a dialogue must be all plain strings, or all objects with a "role" and a "text".'
        )
    if isinstance(turn, str):
        return number % 2, turn
    if turn.get("role") is None:
        raise PretuneError(
            f'{place}: the turn has no "role"; set it to Q (query) or R (response), or use plain strings for alternating turns'
        )
    role, text = ROLES.get(str(turn["role"]).lower()), turn.get("text", turn.get("content"))
    if role is None:
        raise PretuneError(f"{place}: unknown role {turn['role']!r}; use Q (query) or R (response)")
    if not isinstance(text, str):
        raise PretuneError(f'{place}: the turn has no "text" that is a string')
    return role, text
