"""Examples of several candidates each: choices for a text, or names for a gap."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import Errors, checked
from pretune.text.examples.labeled import LABELS, Excerpt, Row, Table

Array = np.ndarray[Any, np.dtype[Any]]

ROLES: dict[str, Sequence[str]] = {
    "text": ("premise", "sent1", "article", "passage", "context", "ctx", "goal", "story", "paragraph", "text", "sentence"),
    "question": ("question", "sent2", "query"),
    "choices": ("choices", "options", "endings", "candidates", "alternatives"),
    "label": (*LABELS, "answer", "answerkey", "gold", "correct"),
}  # fmt: skip
NUMBERED = re.compile(r"(choice|ending|option|answer|alternative|solution|sol)[ _-]?\d+", re.IGNORECASE)


@dataclass(frozen=True)
class Candidates:
    """One example: candidates, and the text or two in which each of them is read."""

    names: tuple[str, ...]
    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None = None
    right: tuple[int, ...] = ()  # candidates
    golds: tuple[str, ...] = ()  # right answers in words, which need not be candidates
    shown: str = ""  # what stands beside the answer


@dataclass
class Grouped:
    """The examples of a file, in order. `texts` and `pairs` are those of all candidates, example after example."""

    file: Path
    columns: dict[str, str]
    groups: list[Candidates] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    answered: bool = True  # whether the right answers are known
    nested: bool = False  # whether a row may have several examples

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, rows: Iterable[int]) -> Grouped:
        """Some of the examples."""
        chosen = list(rows)
        groups, lines = [self.groups[row] for row in chosen], [self.lines[row] for row in chosen]
        return Grouped(self.file, self.columns, groups, lines, self.answered, self.nested)

    def asked(self, row: int) -> str:
        """What an example asks, whatever the answer: two that ask the same are one."""
        group = self.groups[row]
        return "\0".join([*group.texts, *(group.pairs or ())]).casefold().strip()

    def place(self, row: int) -> str:
        """Where an example stands, for messages."""
        return f"{self.file}, line {self.lines[row]}"

    def show(self, row: int) -> dict[str, Any]:
        """What of an example stands beside its answer."""
        return {"text": self.groups[row].shown}

    @property
    def texts(self) -> list[str]:
        """What is read for each candidate."""
        return [text for group in self.groups for text in group.texts]

    @property
    def pairs(self) -> list[str] | None:
        """And what beside it."""
        pairs = [pair for group in self.groups for pair in group.pairs or ()]
        return pairs or None

    @cached_property
    def sizes(self) -> Array:
        """(examples,) how many candidates each has."""
        return np.array([len(group.names) for group in self.groups], dtype=np.int64)

    @property
    def owner(self) -> Array:
        """(candidates,) the example of each."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def right(self) -> Array:
        """(candidates,) the share of each in the right answer of its example."""
        shares = [
            [(i in group.right) / max(1, len(group.right)) for i in range(len(group.names))] for group in self.groups
        ]
        return np.array([share for group in shares for share in group], dtype=np.float32)


def read_choices(
    file: str | Path | Excerpt,
    columns: Mapping[str, str] | None = None,
    *,
    errors: Errors = "strict",
    labels: bool = True,
) -> Grouped:
    """Multiple choice: `choices` is a column of lists, or several (choice1, choice2 …; as an option: NAME,NAME), of which
    some may be empty; `text` and `question` are optional. `label` is the number of the right choice, from 0, or from 1 where
    no label is 0 and one is as many as there are choices; or its letter, or the choice itself.

    The model reads the text and, as a pair, the question with the choice at its end.
    """
    table = Table.open(file, columns or {}, ROLES, errors)
    found = table.named(
        {role: ROLES[role] for role in ("text", "question", "choices", "label") if labels or role != "label"}
    )
    if "choices" not in found and (numbered := numbered_columns(table.first)):
        found["choices"] = ",".join(numbered)
    table.settle(found, needed=("choices", "label") if labels else ("choices",))
    made = Grouped(table.path, found, answered=labels)
    rows = [(line, row, read_names(table, row, line, found["choices"])) for line, row in table.rows()]
    base = first_number([(row.get(found["label"]), len(names)) for _, row, names in rows]) if labels else 0
    for line, row, names in rows:
        texts = [table.text(row, found[role], line) for role in ("text", "question") if role in found]
        right: tuple[int, ...] = ()
        if labels:
            at = find_choice(row.get(found["label"]), names, base)
            if at is None:
                label = row.get(found["label"])
                raise PretuneError(
                    f"{table.path}, line {line}: {label!r} in {found['label']!r} is none of the {len(names)} choices"
                )
            right = ([number for number, name in enumerate(names) if name is not None].index(at),)
        choices = tuple(name for name in names if name is not None)
        made.groups.append(
            Candidates(
                choices,
                texts=(texts[0],) * len(choices) if texts else choices,
                pairs=tuple(" ".join([*texts[1:], choice]) for choice in choices) if texts else None,
                right=right,
                shown=" ".join(texts),
            )
        )
        made.lines.append(line)
    return made


def numbered_columns(row: Row) -> list[str]:
    """The columns choice1, choice2 … or whatever they are called, by their numbers; none if there is but one."""
    kinds: dict[str, list[str]] = {}
    for name in row:
        if match := NUMBERED.fullmatch(name):
            kinds.setdefault(match[1].lower(), []).append(name)
    best = max(kinds.values(), key=len, default=[])
    return sorted(best, key=lambda name: int(re.findall(r"\d+", name)[-1])) if len(best) > 1 else []


def read_names(table: Table, row: Row, line: int, column: str) -> list[str | None]:
    """The choices of a row, None where a column has none."""
    columns = table.several(column)
    cells = row.get(columns[0])
    if len(columns) > 1:
        cells = [None if row.get(name) == "" else row.get(name) for name in columns]
    if not isinstance(cells, list):
        raise PretuneError(f"{table.path}, line {line}: no list of choices in {column!r}")
    if sum(cell is not None for cell in cells) < 2:
        raise PretuneError(f"{table.path}, line {line}: fewer than two choices in {column!r}")
    place = f"{table.path}, line {line}: {column!r}"
    return [None if cell is None else checked(str(cell), place) for cell in cells]


def first_number(labels: Sequence[tuple[Any, int]]) -> int:
    """What the first choice is called, 0 or 1, given labels and how many choices each has."""
    numbers = [(int(label), count) for label, count in labels if re.fullmatch(r"\d+", str(label))]
    return int(bool(numbers) and min(numbers)[0] > 0 and any(number == count for number, count in numbers))


def find_choice(label: Any, names: Sequence[str | None], base: int) -> int | None:
    """The number of the choice that a label means; None if there is no such.

    >>> find_choice("B", ["red", "blue"], 0), find_choice("red", ["red", "blue"], 0), find_choice(2, ["red", "blue"], 1)
    (1, 0, 1)
    """
    text = str(label).strip()
    at = -1
    if re.fullmatch(r"\d+", text):
        at = int(text) - base
    elif re.fullmatch(r"[A-Za-z]", text) and text not in names:
        at = ord(text.upper()) - ord("A")
    if not 0 <= at < len(names):
        at = names.index(text) if text in names else -1
    return at if at >= 0 and names[at] is not None else None
