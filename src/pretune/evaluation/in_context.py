"""In-context learning on the tasks of a suite: zero, one or a few examples before each question (Brown et al., 2020, GPT-3).

The `prompt` of a task in its suite has a `cloze` template, in which {text} and other roles stand for the fields of a row and [MASK] for
the answer, `words` for its labels, an instruction `before` all examples, and the word for `nothing` if questions may be unanswerable.
Labels, numbers, choices and entities are ranked by their likelihood; other answers are generated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from pretune.evaluation.suites.declaration import ANSWERS, EXTRA, Row, SuiteRows, SuiteTask
from pretune.evaluation.suites.official_metrics import choice_number
from pretune.inference.ask import (
    ClozePredictor,
    ClozeQuestion,
    is_masked_language_model,
    load_text_generator,
)
from pretune.inference.contextual_calibration import label_answer, to_probabilities
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.seq2seq_generation import Seq2SeqGenerator
from pretune.metrics.question_answering import normalize
from pretune.objectives import parse_objective
from pretune.objectives.task import Answer
from pretune.objectives.tasks.generate import Generate
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import permutation
from pretune.text.examples.cloze_entities import GAP
from pretune.text.examples.few_shot import sample_rows_per_class
from pretune.text.examples.labeled import LabeledRows

KEYS = ("before", "cloze", "words", "nothing")
NOTHING = "unanswerable"
MOST = 32  # tokens of an answer by default


class PromptKind(Protocol):
    """How a kind of task is put into a prompt, and how its answer is read from the model's output."""

    each_token: ClassVar[bool]  # whether answers are ranked by likelihood per token, to be fair to long ones
    classes: ClassVar[bool]  # whether the number of examples is per class or in total

    def slots(self, row: Row) -> dict[str, str]:
        """Return the values of the template's placeholders."""

    def options(self, row: Row) -> Sequence[str]:
        """Return the candidate answers; none if the answer is generated."""

    def right(self, row: Row) -> str:
        """Return the gold answer as it appears in an example."""

    def answer(self, row: Row, said: Any) -> Answer:
        """Return the answer, given the likelihood of each candidate or the generated text."""


def texts_of(row: Row) -> dict[str, str]:
    """Return the fields of a row that are texts or numbers."""
    return {
        role: str(cell)
        for role, cell in row.items()
        if role not in (*EXTRA, *ANSWERS) and isinstance(cell, str | int | float)
    }


@dataclass(frozen=True)
class LabelPrompt:
    """Labels, for `classify` and `match`; the marked words of `match` are {word1} and {word2}."""

    words: Mapping[str, str]  # by label
    each_token: ClassVar[bool] = False
    classes: ClassVar[bool] = True

    def slots(self, row: Row) -> dict[str, str]:
        """Return the texts and the two marked words."""
        sides = {"1": row.get("text", ""), "2": row.get("pair", row.get("text", ""))}
        marked = {
            f"word{n}": str(side)[int(row[f"start{n}"]) : int(row[f"end{n}"])]
            for n, side in sides.items()
            if f"start{n}" in row
        }
        return {**marked, **texts_of(row)}

    def options(self, row: Row) -> Sequence[str]:
        """Return the words of the labels."""
        return list(self.words.values())

    def right(self, row: Row) -> str:
        """Return the word of the gold label."""
        if (label := str(row["label"])) not in self.words:
            raise PretuneError(
                f"the prompt has no word for the label {label!r}; it has words for {', '.join(self.words)}"
            )
        return self.words[label]

    def answer(self, row: Row, said: Any) -> Answer:
        """Return the most likely label."""
        return label_answer(list(self.words), to_probabilities(said))


@dataclass(frozen=True)
class NumberPrompt:
    """Numbers, for `regress` and `rank`: the expected value over some numbers, weighted by their likelihood."""

    name: str
    words: Mapping[float, str]
    each_token: ClassVar[bool] = False
    classes: ClassVar[bool] = False

    slots = staticmethod(texts_of)

    def options(self, row: Row) -> Sequence[str]:
        """Return the words of the numbers."""
        return list(self.words.values())

    def right(self, row: Row) -> str:
        """Return the word of the number nearest to the gold value."""
        return self.words[min(self.words, key=lambda value: abs(value - float(row["label"])))]

    def answer(self, row: Row, said: Any) -> Answer:
        """Return the expected value."""
        return {self.name: float(to_probabilities(said) @ list(self.words))}


class ChoicePrompt:
    """One of several choices, for `choose`."""

    each_token: ClassVar[bool] = True
    classes: ClassVar[bool] = False

    slots = staticmethod(texts_of)

    def options(self, row: Row) -> Sequence[str]:
        """Return the choices."""
        return [str(choice) for choice in row["choices"]]

    def right(self, row: Row) -> str:
        """Return the correct choice."""
        return self.options(row)[int(choice_number(row["label"]))]

    def answer(self, row: Row, said: Any) -> Answer:
        """Return the number of the most likely choice."""
        return {"choice": int(np.argmax(said)), "probability": float(to_probabilities(said).max())}


class EntityPrompt:
    """An entity for the gap of a query, for `entity`: {query} is the text before the gap, and the text after it is scored, too."""

    each_token: ClassVar[bool] = True
    classes: ClassVar[bool] = False

    def slots(self, row: Row) -> dict[str, str]:
        """Return the passage, and the query up to its gap."""
        return {**texts_of(row), "query": row["query"].partition(GAP)[0].rstrip()}

    def options(self, row: Row) -> Sequence[str]:
        """Return the rest of the query from its gap on, filled with each entity."""
        return [self.filled(row, entity) for entity in row["entities"]]

    def right(self, row: Row) -> str:
        """Return the rest of the query, filled with the first correct entity."""
        return self.filled(row, row["answers"][0])

    def filled(self, row: Row, entity: str) -> str:
        """Return the space before the gap, an entity, and the text after the gap."""
        before, _, after = row["query"].partition(GAP)
        return before[len(before.rstrip()) :] + entity + after

    def answer(self, row: Row, said: Any) -> Answer:
        """Return the entity with which the query is most likely."""
        return {"answer": row["entities"][int(np.argmax(said))]}


@dataclass(frozen=True)
class TextPrompt:
    """Generated text, for `generate` and `answer`."""

    nothing: str = ""  # the text that stands for "no answer"
    each_token: ClassVar[bool] = False
    classes: ClassVar[bool] = False

    slots = staticmethod(texts_of)

    def options(self, row: Row) -> Sequence[str]:
        """Return nothing: the answer is generated."""
        return ()

    def right(self, row: Row) -> str:
        """Return the gold text, or the first of several."""
        spans = row["label"]
        return spans if isinstance(spans, str) else spans[0]["text"] if spans else self.nothing

    def answer(self, row: Row, said: Any) -> Answer:
        """Return the generated text, or "" if it says that there is no answer."""
        return {"answer": "" if normalize(said) == normalize(self.nothing) else said}


def _labels(task: SuiteTask, rows: Sequence[Row]) -> LabelPrompt:
    known = task.prompt.get("words") or {label: label for label in sorted({str(row["label"]) for row in rows})}
    return LabelPrompt({str(label): str(word) for label, word in known.items()})


def _numbers(name: str) -> Callable[[SuiteTask, Sequence[Row]], NumberPrompt]:
    def make(task: SuiteTask, rows: Sequence[Row]) -> NumberPrompt:
        known = task.prompt.get("words")
        if not known:
            values = [float(row["label"]) for row in rows]
            known = {value: value for value in range(int(np.floor(min(values))), int(np.ceil(max(values))) + 1)}
        return NumberPrompt(name, {float(value): str(word) for value, word in known.items()})

    return make


KINDS: dict[str, tuple[Callable[[SuiteTask, Sequence[Row]], PromptKind], str]] = {  # with the default template
    "classify": (_labels, "{text}\nLabel: [MASK]"),
    "match": (_labels, "{text}\nLabel: [MASK]"),
    "regress": (_numbers("value"), "{text}\nScore: [MASK]"),
    "rank": (_numbers("score"), "{text}\nScore: [MASK]"),
    "choose": (lambda task, rows: ChoicePrompt(), "{text} {question} [MASK]"),
    "entity": (lambda task, rows: EntityPrompt(), "{text}\n{query}[MASK]"),
    "answer": (lambda task, rows: TextPrompt(task.prompt.get("nothing", NOTHING)), "{pair}\n\nQ: {text}\n\nA: [MASK]"),
    "generate": (lambda task, rows: TextPrompt(), "{text}\n[MASK]"),
}


def kind_of(task: SuiteTask) -> str:
    """Return the name of the task's objective without its options."""
    return task.kind.split("(")[0]


@dataclass
class InContextLearning:
    """In-context learning of a task with a generative model; examples are sampled from the training rows."""

    writer: TextGenerator | Seq2SeqGenerator
    task: SuiteTask
    rows: Mapping[str, SuiteRows]
    shots: int

    def __post_init__(self) -> None:
        for key in self.task.prompt.keys() - set(KEYS):
            raise PretuneError(f"{self.task.title}: a prompt has no key {key!r}; {suggest(str(key), KEYS)}")
        judged = self.rows.get("train") or next(rows for rows in self.rows.values() if rows.answered)
        self.kind = KINDS[kind_of(self.task)][0](self.task, judged.rows)
        self.model, self.device = self.writer.model, self.writer.device

    def learn(self, seed: int, folder: Path) -> bool:
        """Do nothing: in-context learning does not train."""
        return True

    def asker(self, seed: int, like: LabeledRows) -> ClozePredictor:
        """Return the prompt builder for rows with these fields, with the examples of a seed."""
        (objective,) = parse_objective(self.task.kind).objectives
        tokens = objective.tokens if isinstance(objective, Generate) else MOST
        prompt = self.task.prompt
        cloze = prompt.get("cloze") or self.usual(like)
        for name in re.findall(r"{(\w+)}", cloze):
            if name not in (known := ["text", *(["pair"] if like.pairs else []), *like.extra]):
                raise PretuneError(
                    f"{self.task.title}: the prompt has {{{name}}}, but rows have no such field; {suggest(name, known)}"
                )
        shown = self.shown(seed) if self.shots else None
        return ClozePredictor(
            self.writer, ClozeQuestion(cloze, shown=shown, tokens=tokens, before=prompt.get("before", ""))
        )

    def usual(self, like: LabeledRows) -> str:
        """Return the default template of the task."""
        cloze = KINDS[kind_of(self.task)][1]
        if like.pairs is not None and "{pair}" not in cloze:
            cloze = cloze.replace("{text}", "{text}\n{pair}")
        return cloze if "question" in like.extra else cloze.replace(" {question}", "")

    def shown(self, seed: int) -> LabeledRows:
        """Return the examples of a seed, in the order of the seed."""
        rows = self.rows["train"]
        if self.kind.classes:
            drawn = sample_rows_per_class([row["label"] for row in rows.rows], self.shots, seed)
        else:
            drawn = permutation(len(rows), seed, "some")[: self.shots].tolist()
        order = [drawn[place] for place in permutation(len(drawn), seed, "shown")]
        log_info(f"{rows.file}: examples for seed {seed} are rows {', '.join(str(row + 1) for row in order)}")
        found = self.labeled([rows.rows[row] for row in order])
        found.labels = [self.kind.right(rows.rows[row]) for row in order]
        return found

    def labeled(self, rows: Sequence[Row]) -> LabeledRows:
        """Return the placeholders' values of all rows."""
        slots = [self.kind.slots(row) for row in rows]
        more = {role: [slot.get(role, "") for slot in slots] for role in slots[0] if role not in ("text", "pair")}
        pairs = [slot["pair"] for slot in slots] if "pair" in slots[0] else None
        return LabeledRows(Path(self.task.title), {}, [slot["text"] for slot in slots], pairs, extra=more)

    def ready(self, folder: Path, task: SuiteTask, rows: SuiteRows) -> Callable[[], list[Answer]]:
        """Return a function that answers some rows; the name of the folder is the seed."""
        asked = self.labeled(rows.rows)
        asker = self.asker(int(folder.name), asked)
        self.prompt = asker.prompt(asked)

        def answer() -> list[Answer]:
            options = [self.kind.options(row) for row in rows.rows]
            said: Sequence[Any] = asker.rank(asked, options, self.kind.each_token) if options[0] else asker.write(asked)
            return [self.kind.answer(row, found) for row, found in zip(rows.rows, said, strict=True)]

        return answer


def load_generative_model(reference: str, device: str | None, partial: bool) -> TextGenerator | Seq2SeqGenerator:
    """Load a generative model."""
    if is_masked_language_model(reference):
        raise PretuneError(f"{reference}: a masked language model cannot generate; remove --shots to fine-tune it")
    return load_text_generator(reference, device, partial)
