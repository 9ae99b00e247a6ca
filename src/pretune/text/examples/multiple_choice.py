"""Read examples with several candidate answers each: multiple choice, or entities for a placeholder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import Errors, check_text
from pretune.text.examples.column_roles import LABELS
from pretune.text.examples.examples import Examples
from pretune.text.examples.labeled import LabeledTable, Row, TableChunk

ROLES: dict[str, Sequence[str]] = {
    "text": ("premise", "sent1", "article", "passage", "context", "ctx", "goal", "story", "paragraph", "text", "sentence"),
    "question": ("question", "sent2", "query"),
    "choices": ("choices", "options", "endings", "candidates", "alternatives"),
    "label": (*LABELS, "answer", "answerkey", "gold", "correct"),
}  # fmt: skip
NUMBERED = re.compile(r"(choice|ending|option|answer|alternative|solution|sol)[ _-]?\d+", re.IGNORECASE)


@dataclass(frozen=True)
class ChoiceExample:
    """A multiple-choice example: its candidates, and the text or pair of texts to encode for each candidate.

    `names`, `texts` and `pairs` have one entry per candidate; `correct` has the indices of the correct candidates.
    `gold_answers` are the correct answers as text, which need not be candidates; `display_text` is the input shown in
    reports.
    """

    names: tuple[str, ...]  # the candidates
    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None = None
    correct: tuple[int, ...] = ()  # indices of the correct candidates
    gold_answers: tuple[str, ...] = ()  # correct answers as text, which need not be candidates
    display_text: str = ""  # the input, for reports


@dataclass
class ChoiceExamples(Examples):
    """The multiple-choice examples of a file, in order.

    `groups` has the examples with their candidates; `answered` says whether the correct answers are known, and `nested`
    whether a row of the file may contain several examples. `texts` and `pairs` concatenate the texts of the candidates
    of all examples.
    """

    groups: list[ChoiceExample] = field(default_factory=list)
    answered: bool = True  # whether the correct answers are known
    nested: bool = False  # whether a row may contain several examples

    def __len__(self) -> int:
        return len(self.groups)

    def duplicate_key(self, row: int) -> str:
        """Return a key that is equal for examples with the same texts and choices, to detect duplicates."""
        group = self.groups[row]
        return "\0".join([*group.texts, *(group.pairs or ())]).casefold().strip()

    def inputs(self, row: int) -> dict[str, Any]:
        """Return the input text of an example, for reports."""
        return {"text": self.groups[row].display_text}

    @property
    def texts(self) -> list[str]:
        """Return the first text of each candidate of all examples."""
        return [text for group in self.groups for text in group.texts]

    @property
    def pairs(self) -> list[str] | None:
        """Return the second text of each candidate of all examples; None if candidates have a single text."""
        return [pair for group in self.groups for pair in group.pairs or ()] or None

    @cached_property
    def sizes(self) -> Array:
        """Return the number of candidates of each example, (examples,)."""
        return np.array([len(group.names) for group in self.groups], dtype=np.int64)

    @property
    def owner(self) -> Array:
        """Return the index of the example that each candidate belongs to, (candidates,)."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def target_probabilities(self) -> Array:
        """Return the target probability of each candidate, (candidates,).

        The correct candidates of an example share a probability of 1 equally.
        """
        candidates = ((i, group.correct) for group in self.groups for i in range(len(group.names)))
        return np.array([(i in correct) / max(1, len(correct)) for i, correct in candidates], dtype=np.float32)


def read_choices(
    file: str | Path | TableChunk,
    columns: Mapping[str, str] | None = None,
    *,
    errors: Errors = "strict",
    labels: bool = True,
) -> ChoiceExamples:
    """Read multiple-choice examples with a list of choices and optionally a text and a question.

    The role `choices` is a column of lists, or several columns (choice1, choice2, …; set by an option as NAME,NAME), of
    which some may be empty. The `label` is the index of the correct choice, its letter, or the choice itself. Indices
    count from 1 if no label is 0 and some label equals the number of choices, else from 0.
    """
    table = LabeledTable.open(file, columns or {}, ROLES, errors)
    found = table.find_columns({role: names for role, names in ROLES.items() if labels or role != "label"})
    if "choices" not in found and (numbered := numbered_columns(table.first)):
        found["choices"] = ",".join(numbered)
    table.check_columns(found, needed=("choices", "label") if labels else ("choices",))
    examples = ChoiceExamples(table.path, found, answered=labels)
    rows = [(line, row, read_row_choices(table, row, line, found["choices"])) for line, row in table.rows()]
    base = label_base([(row.get(found["label"]), len(names)) for _, row, names in rows]) if labels else 0
    for line, row, names in rows:
        texts = [table.text(row, found[role], line) for role in ("text", "question") if role in found]
        correct: tuple[int, ...] = ()
        if labels:
            label = row.get(found["label"])
            if (at := find_choice(label, names, base)) is None:
                where, column = f"{table.path}, line {line}", found["label"]
                problem = f"the label {label!r} in {column!r} is none of the {len(names)} choices"
                raise PretuneError(f"{where}: {problem}; give the number, letter or text of a choice")
            correct = (sum(name is not None for name in names[:at]),)  # its index among the choices that are not empty
        choices = tuple(name for name in names if name is not None)
        examples.groups.append(
            ChoiceExample(
                choices,
                texts=(texts[0],) * len(choices) if texts else choices,
                pairs=tuple(" ".join([*texts[1:], choice]) for choice in choices) if texts else None,
                correct=correct,
                display_text=" ".join(texts),
            )
        )
        examples.lines.append(line)
    return examples


def numbered_columns(row: Row) -> list[str]:
    """Return the columns choice1, choice2, … (or ending1, option1, …) of a row in order; [] for fewer than two."""
    kinds: dict[str, list[str]] = {}
    for name in row:
        if match := NUMBERED.fullmatch(name):
            kinds.setdefault(match[1].lower(), []).append(name)
    best = max(kinds.values(), key=len, default=[])
    return sorted(best, key=lambda name: int(re.findall(r"\d+", name)[-1])) if len(best) > 1 else []


def read_row_choices(table: LabeledTable, row: Row, line: int, column: str) -> list[str | None]:
    """Return the choices of a row; None for a choice whose cell is empty.

    `column` is a column of lists, or the names of several columns, separated by commas. `line` is the line number, for
    errors.
    """
    columns, place = table.split_names(column), f"{table.path}, line {line}"
    cells = row.get(columns[0])
    if len(columns) > 1:
        cells = [None if row.get(name) == "" else row.get(name) for name in columns]
    if not isinstance(cells, list):
        raise PretuneError(f'{place}: expected a list of choices in {column!r}, such as ["red", "blue"]')
    if sum(cell is not None for cell in cells) < 2:
        raise PretuneError(f"{place}: expected at least two choices in {column!r}; add choices, or remove the row")
    return [None if cell is None else check_text(str(cell), f"{place}: {column!r}") for cell in cells]


def label_base(labels: Sequence[tuple[Any, int]]) -> int:
    """Return the number of the first choice, 0 or 1, given the (label, number of choices) of each example.

    It is 1 if no label is 0 and some label equals the number of choices of its example.
    """
    numbers = [(int(label), count) for label, count in labels if re.fullmatch(r"\d+", str(label))]
    return int(bool(numbers) and min(numbers)[0] > 0 and any(number == count for number, count in numbers))


def choice_number(label: Any) -> str:
    """Return the number of a choice, counted from 0, as a string, given its letter; return other labels unchanged.

    >>> choice_number("B")
    '1'
    """
    text = str(label).strip()
    return str(ord(text.upper()) - ord("A")) if len(text) == 1 and text.isalpha() else text


def find_choice(label: Any, names: Sequence[str | None], base: int) -> int | None:
    """Return the index, from 0, of the choice that a label refers to; None if it refers to none.

    A label is the text of a choice in `names`, its letter, or its number, where the first choice has the number `base`.

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
