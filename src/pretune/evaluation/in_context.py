"""In-context learning on the tasks of a suite: zero, one or a few examples before each question (Brown et al., 2020, GPT-3).

The `prompt` of a task in its suite has a `template`, in which {text} and other roles stand for the fields of a row and [MASK] for the
answer; a `verbalizer` with a word per label; an `instruction` before all examples; and the word for `no_answer` if questions may be
unanswerable. Each task of `pretune.objectives.tasks` has a default template and defines the candidate answers, which are ranked by their
likelihood; answers without candidates are generated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.evaluation.suites.declaration import ANSWERS, EXTRA, Row, SuiteRows, SuiteTask
from pretune.inference.ask import ClozePredictor, ClozeQuestion, is_masked_language_model, load_text_generator
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.seq2seq_generation import Seq2SeqGenerator
from pretune.objectives import parse_objective
from pretune.objectives.task import Answer
from pretune.runtime.errors import PretuneError, if_option, suggest
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import permutation
from pretune.text.examples.few_shot import sample_rows_per_class
from pretune.text.examples.labeled import LabeledRows

KEYS = ("instruction", "template", "verbalizer", "no_answer")  # of the prompt of a task in a suite


@dataclass
class InContextLearning:
    """A generative model that solves a benchmark task in context, with `shots` training examples in each prompt.

    `rows` has the rows of the task by split.
    """

    generator: TextGenerator | Seq2SeqGenerator
    task: SuiteTask
    rows: Mapping[str, SuiteRows]
    shots: int

    def __post_init__(self) -> None:
        for key in self.task.prompt.keys() - set(KEYS):
            raise PretuneError(f"{self.task.title}: the prompt has the unknown key {key!r}; {suggest(str(key), KEYS)}")
        labeled = self.rows.get("train") or next(rows for rows in self.rows.values() if rows.answered)
        objective: Any = parse_objective(self.task.kind).objectives[0]
        self.template = objective.in_context_template
        self.task_prompt = objective.in_context_prompt(labeled.rows, self.task.prompt)
        self.model, self.device = self.generator.model, self.generator.device

    def train(self, seed: int, folder: Path) -> bool:
        """Return True without doing anything, because in-context learning needs no training."""
        return True

    def predictor(self, seed: int, rows: LabeledRows) -> ClozePredictor:
        """Return a predictor for the task, with a prompt template that fits the fields of `rows`.

        The examples in the prompt are sampled by `seed`.
        """
        cloze = self.task.prompt.get("template") or self.default_cloze(rows)
        for name in re.findall(r"{(\w+)}", cloze):
            if name not in (known := ["text", *(["pair"] if rows.pairs else []), *rows.extra]):
                raise PretuneError(
                    f"{self.task.title}: the prompt has the placeholder {{{name}}}, but the rows have no such field; {suggest(name, known)}"
                )
        shown = self.sample_examples(seed) if self.shots else None
        before, tokens = self.task.prompt.get("instruction", ""), self.task_prompt.max_tokens
        return ClozePredictor(self.generator, ClozeQuestion(cloze, shown=shown, max_new_tokens=tokens, before=before))

    def default_cloze(self, rows: LabeledRows) -> str:
        """Return the task's default prompt template, adapted to the fields of `rows`.

        A second text is added if the rows have one, and the placeholder {question} is removed if they have no question.
        """
        cloze: str = self.template
        if rows.pairs is not None and "{pair}" not in cloze:
            cloze = cloze.replace("{text}", "{text}\n{pair}")
        return cloze if "question" in rows.extra else cloze.replace(" {question}", "")

    def sample_examples(self, seed: int) -> LabeledRows:
        """Return the training examples to show in the prompt, sampled by `seed`, with their gold answers as labels."""
        rows = self.rows["train"]
        if self.task_prompt.per_class:
            drawn = sample_rows_per_class([row["label"] for row in rows.rows], self.shots, seed)
        else:
            drawn = permutation(len(rows), seed, "some")[: self.shots].tolist()
        order = [drawn[place] for place in permutation(len(drawn), seed, "shown")]
        log_info(f"{rows.file}: the prompt for seed {seed} shows rows {', '.join(str(row + 1) for row in order)}")
        examples = self.fill_slots([rows.rows[row] for row in order])
        examples.labels = [self.task_prompt.gold(rows.rows[row]) for row in order]
        return examples

    def fill_slots(self, rows: Sequence[Row]) -> LabeledRows:
        """Return, for each row, the values of the prompt's placeholders: its fields, and values that the task adds."""
        slots = [{**texts_of(row), **self.task_prompt.slots(row)} for row in rows]
        more = {role: [slot.get(role, "") for slot in slots] for role in slots[0] if role not in ("text", "pair")}
        pairs = [slot["pair"] for slot in slots] if "pair" in slots[0] else None
        return LabeledRows(Path(self.task.title), {}, [slot["text"] for slot in slots], pairs, extra=more)

    def prepare(self, folder: Path, task: SuiteTask, rows: SuiteRows) -> Callable[[], list[Answer]]:
        """Return a function that answers the rows of a task by in-context learning.

        The name of `folder` is the seed by which the examples in the prompt are sampled.
        """
        slots = self.fill_slots(rows.rows)
        predictor = self.predictor(int(folder.name), slots)
        self.prompt = predictor.prompt(slots)

        def answer() -> list[Answer]:
            candidates = [self.task_prompt.candidates(row) for row in rows.rows]
            outputs: Sequence[Any] = (
                predictor.rank(slots, candidates, self.task_prompt.per_token)
                if candidates[0]
                else predictor.generate(slots)
            )
            return [self.task_prompt.answer(row, output) for row, output in zip(rows.rows, outputs, strict=True)]

        return answer


def texts_of(row: Row) -> dict[str, str]:
    """Return the fields of a row that are texts or numbers, without its gold answers."""
    return {
        role: str(cell)
        for role, cell in row.items()
        if role not in (*EXTRA, *ANSWERS) and isinstance(cell, str | int | float)
    }


def load_generative_model(
    reference: str, device: str | None, ignore_mismatched: bool
) -> TextGenerator | Seq2SeqGenerator:
    """Load a decoder or encoder-decoder, given its name or folder (`reference`).

    Raise an error for a masked language model, which cannot generate text. With `ignore_mismatched`, a checkpoint that
    does not match the model exactly is loaded, too.
    """
    if is_masked_language_model(reference):
        advice = if_option("shots", "; remove --shots to fine-tune it")
        raise PretuneError(f"{reference}: a masked language model cannot generate text{advice}")
    return load_text_generator(reference, device, ignore_mismatched)
