"""A suite's tasks, asked of a model that learned none of them: with no example, one, or a few before each question.

A task's `prompt` in its suite says how: `cloze`, where {text} and other roles stand for a row's and [MASK] for the answer, `words`
for its labels, what is said `before` all examples, and the word for `nothing` where a question may have no answer. Answers that are
labels, numbers, choices or entities are ranked by how likely the model finds them, others are written (Brown et al., 2020, GPT-3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from pretune.evaluation.suite import ANSWERS, EXTRA, Row, SuiteRows, SuiteTask
from pretune.evaluation.suite_metrics import choice_number
from pretune.inference.ask import Asker, Question, as_answer, is_masked, load_writer, shares_of
from pretune.inference.generation.generate import Writer
from pretune.inference.generation.seq2seq_generation import Rewriter
from pretune.metrics.question_answering import normalize
from pretune.objectives import parse_objective
from pretune.objectives.task import Answer
from pretune.objectives.tasks.generate import Generate
from pretune.runtime.errors import PretuneError, nearest
from pretune.runtime.progress import say
from pretune.runtime.randomness import permutation
from pretune.text.examples.cloze_entities import GAP
from pretune.text.examples.few_shot import draw_labels
from pretune.text.examples.labeled import Labeled

Array = np.ndarray[Any, np.dtype[Any]]
KEYS = ("before", "cloze", "words", "nothing")
NOTHING = "unanswerable"
MOST = 32  # tokens of an answer, where the task does not say


class Kind(Protocol):
    """What a kind of task asks for."""

    each_token: ClassVar[bool]  # whether answers compete by their mean likelihood a token, so that long ones may win
    classes: ClassVar[bool]  # whether so many examples of each class are shown, or so many in all

    def slots(self, row: Row) -> dict[str, str]:
        """What may stand in the cloze."""

    def options(self, row: Row) -> Sequence[str]:
        """What to choose from; nothing: the answer is written."""

    def right(self, row: Row) -> str:
        """The right answer, as it is shown."""

    def answer(self, row: Row, said: Any) -> Answer:
        """The answer from what was said: how likely each option is, or a text."""


def texts_of(row: Row) -> dict[str, str]:
    """Everything in a row that is a text or a number."""
    return {
        role: str(cell)
        for role, cell in row.items()
        if role not in (*EXTRA, *ANSWERS) and isinstance(cell, str | int | float)
    }


@dataclass(frozen=True)
class Labels:
    """A label: `classify`, and `match`, whose two places are {word1} and {word2}."""

    words: Mapping[str, str]  # by label
    each_token: ClassVar[bool] = False
    classes: ClassVar[bool] = True

    def slots(self, row: Row) -> dict[str, str]:
        """Texts, and what stands in both places."""
        sides = {"1": row.get("text", ""), "2": row.get("pair", row.get("text", ""))}
        marked = {
            f"word{n}": str(side)[int(row[f"start{n}"]) : int(row[f"end{n}"])]
            for n, side in sides.items()
            if f"start{n}" in row
        }
        return {**marked, **texts_of(row)}

    def options(self, row: Row) -> Sequence[str]:
        """The labels' words."""
        return list(self.words.values())

    def right(self, row: Row) -> str:
        """The label's word."""
        if (label := str(row["label"])) not in self.words:
            raise PretuneError(f"its prompt has no word for the label {label!r}; it has {', '.join(self.words)}")
        return self.words[label]

    def answer(self, row: Row, said: Any) -> Answer:
        """The likeliest label."""
        return as_answer(list(self.words), shares_of(said))


@dataclass(frozen=True)
class Numbers:
    """A number: `regress` and `rank`. It is what is to be expected, by how likely some numbers are."""

    name: str
    words: Mapping[float, str]
    each_token: ClassVar[bool] = False
    classes: ClassVar[bool] = False

    slots = staticmethod(texts_of)

    def options(self, row: Row) -> Sequence[str]:
        """The numbers' words."""
        return list(self.words.values())

    def right(self, row: Row) -> str:
        """The word of the nearest number."""
        return self.words[min(self.words, key=lambda value: abs(value - float(row["label"])))]

    def answer(self, row: Row, said: Any) -> Answer:
        """The expected number."""
        return {self.name: float(shares_of(said) @ list(self.words))}


class Choices:
    """One of a row's choices."""

    each_token: ClassVar[bool] = True
    classes: ClassVar[bool] = False

    slots = staticmethod(texts_of)

    def options(self, row: Row) -> Sequence[str]:
        """The choices."""
        return [str(choice) for choice in row["choices"]]

    def right(self, row: Row) -> str:
        """The right choice."""
        return self.options(row)[int(choice_number(row["label"]))]

    def answer(self, row: Row, said: Any) -> Answer:
        """The number of the likeliest."""
        return {"choice": int(np.argmax(said)), "probability": float(shares_of(said).max())}


class Entities:
    """One of a passage's entities, in the gap of a query: what follows the gap has its say too. {query} is what is before it."""

    each_token: ClassVar[bool] = True
    classes: ClassVar[bool] = False

    def slots(self, row: Row) -> dict[str, str]:
        """The passage, and the query up to its gap."""
        return {**texts_of(row), "query": row["query"].partition(GAP)[0].rstrip()}

    def options(self, row: Row) -> Sequence[str]:
        """The query from its gap on, with each entity in it."""
        return [self.filled(row, entity) for entity in row["entities"]]

    def right(self, row: Row) -> str:
        """The query with the first right entity."""
        return self.filled(row, row["answers"][0])

    def filled(self, row: Row, entity: str) -> str:
        """The space before the gap, an entity, and what follows."""
        before, _, after = row["query"].partition(GAP)
        return before[len(before.rstrip()) :] + entity + after

    def answer(self, row: Row, said: Any) -> Answer:
        """The entity with which the query is likeliest."""
        return {"answer": row["entities"][int(np.argmax(said))]}


@dataclass(frozen=True)
class Texts:
    """A text: `generate`; of a passage, or none: `answer`."""

    nothing: str = ""  # what is written where there is no answer
    each_token: ClassVar[bool] = False
    classes: ClassVar[bool] = False

    slots = staticmethod(texts_of)

    def options(self, row: Row) -> Sequence[str]:
        """Any."""
        return ()

    def right(self, row: Row) -> str:
        """The text, or the first of several."""
        spans = row["label"]
        return spans if isinstance(spans, str) else spans[0]["text"] if spans else self.nothing

    def answer(self, row: Row, said: Any) -> Answer:
        """As it was written."""
        return {"answer": "" if normalize(said) == normalize(self.nothing) else said}


def _labels(task: SuiteTask, rows: Sequence[Row]) -> Labels:
    known = task.prompt.get("words") or {label: label for label in sorted({str(row["label"]) for row in rows})}
    return Labels({str(label): str(word) for label, word in known.items()})


def _numbers(name: str) -> Callable[[SuiteTask, Sequence[Row]], Numbers]:
    def make(task: SuiteTask, rows: Sequence[Row]) -> Numbers:
        known = task.prompt.get("words")
        if not known:
            values = [float(row["label"]) for row in rows]
            known = {value: value for value in range(int(np.floor(min(values))), int(np.ceil(max(values))) + 1)}
        return Numbers(name, {float(value): str(word) for value, word in known.items()})

    return make


KINDS: dict[str, tuple[Callable[[SuiteTask, Sequence[Row]], Kind], str]] = {  # with the cloze of a task that has none
    "classify": (_labels, "{text}\nLabel: [MASK]"),
    "match": (_labels, "{text}\nLabel: [MASK]"),
    "regress": (_numbers("value"), "{text}\nScore: [MASK]"),
    "rank": (_numbers("score"), "{text}\nScore: [MASK]"),
    "choose": (lambda task, rows: Choices(), "{text} {question} [MASK]"),
    "entity": (lambda task, rows: Entities(), "{text}\n{query}[MASK]"),
    "answer": (lambda task, rows: Texts(task.prompt.get("nothing", NOTHING)), "{pair}\n\nQ: {text}\n\nA: [MASK]"),
    "generate": (lambda task, rows: Texts(), "{text}\n[MASK]"),
}


def kind_of(task: SuiteTask) -> str:
    """The kind of a task, without options."""
    return task.kind.split("(")[0]


@dataclass
class Asking:
    """A task put to a model that writes; the examples that are shown are of its training rows."""

    writer: Writer | Rewriter
    task: SuiteTask
    rows: Mapping[str, SuiteRows]
    shots: int

    def __post_init__(self) -> None:
        for key in self.task.prompt.keys() - set(KEYS):
            raise PretuneError(f"{self.task.title}: a prompt has no {key!r}; {nearest(str(key), KEYS)}")
        judged = self.rows.get("train") or next(rows for rows in self.rows.values() if rows.answered)
        self.kind = KINDS[kind_of(self.task)][0](self.task, judged.rows)
        self.model, self.device = self.writer.model, self.writer.device

    def learn(self, seed: int, folder: Path) -> bool:
        """Nothing."""
        return True

    def asker(self, seed: int, like: Labeled) -> Asker:
        """The question for rows that look like these."""
        (objective,) = parse_objective(self.task.kind).objectives
        tokens = objective.tokens if isinstance(objective, Generate) else MOST
        prompt = self.task.prompt
        cloze = prompt.get("cloze") or self.usual(like)
        for name in re.findall(r"{(\w+)}", cloze):
            if name not in (known := ["text", *(["pair"] if like.pairs else []), *like.more]):
                raise PretuneError(f"{self.task.title}: its prompt has {{{name}}}, a row not; {nearest(name, known)}")
        shown = self.shown(seed) if self.shots else None
        return Asker(self.writer, Question(cloze, shown=shown, tokens=tokens, before=prompt.get("before", "")))

    def usual(self, like: Labeled) -> str:
        """The cloze of a task that declares none."""
        cloze = KINDS[kind_of(self.task)][1]
        if like.pairs is not None and "{pair}" not in cloze:
            cloze = cloze.replace("{text}", "{text}\n{pair}")
        return cloze if "question" in like.more else cloze.replace(" {question}", "")

    def shown(self, seed: int) -> Labeled:
        """The examples of a seed, in its order."""
        rows = self.rows["train"]
        if self.kind.classes:
            drawn = draw_labels([row["label"] for row in rows.rows], self.shots, seed)
        else:
            drawn = permutation(len(rows), seed, "some")[: self.shots].tolist()
        order = [drawn[place] for place in permutation(len(drawn), seed, "shown")]
        say(f"{rows.file}: shown are rows {', '.join(str(row + 1) for row in order)} by seed {seed}")
        found = self.labeled([rows.rows[row] for row in order])
        found.labels = [self.kind.right(rows.rows[row]) for row in order]
        return found

    def labeled(self, rows: Sequence[Row]) -> Labeled:
        """What may stand in the cloze, of all rows."""
        slots = [self.kind.slots(row) for row in rows]
        more = {role: [slot.get(role, "") for slot in slots] for role in slots[0] if role not in ("text", "pair")}
        pairs = [slot["pair"] for slot in slots] if "pair" in slots[0] else None
        return Labeled(Path(self.task.title), {}, [slot["text"] for slot in slots], pairs, more=more)

    def ready(self, folder: Path, task: SuiteTask, rows: SuiteRows) -> Callable[[], list[Answer]]:
        """What answers some rows; the seed is the name of the folder."""
        asked = self.labeled(rows.rows)
        asker = self.asker(int(folder.name), asked)
        self.prompt = asker.prompt(asked)

        def answer() -> list[Answer]:
            options = [self.kind.options(row) for row in rows.rows]
            said: Sequence[Any] = asker.rank(asked, options, self.kind.each_token) if options[0] else asker.write(asked)
            return [self.kind.answer(row, found) for row, found in zip(rows.rows, said, strict=True)]

        return answer


def load_asked(reference: str, device: str | None, partial: bool) -> Writer | Rewriter:
    """The model that is asked."""
    if is_masked(reference):
        raise PretuneError(f"{reference}: a masked language model does not write; leave out --shots to fine-tune it")
    return load_writer(reference, device, partial)
