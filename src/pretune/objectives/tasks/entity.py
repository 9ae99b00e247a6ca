"""Cloze-style reading comprehension: choose which entity of a passage fills the gap of a query.

Sources: Zhang et al., 2018, arXiv:1810.12885 (ReCoRD); Fenogenova et al., 2020, arXiv:2010.15925 (RuCoS).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.per_example import ScoredAnswer, score_entities
from pretune.metrics.question_answering import entity_cloze_metrics
from pretune.objectives.in_context_prompt import InContextPrompt, Row
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.candidates import CandidateTask
from pretune.objectives.tasks.classify import Pooling
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.text.examples.cloze_entities import GAP, read_entity_clozes
from pretune.text.examples.labeled import TableChunk
from pretune.text.examples.multiple_choice import ChoiceExample, ChoiceExamples


class EntityPrompt(InContextPrompt):
    """An in-context prompt that ends at the gap of a query.

    A candidate answer is an entity, followed by the text of the query after the gap.
    """

    per_token: ClassVar[bool] = True

    def slots(self, row: Row) -> dict[str, str]:
        """Return the query of an example up to its gap, as the value of the prompt's placeholder {query}."""
        return {"query": row["query"].partition(GAP)[0].rstrip()}

    def candidates(self, row: Row) -> Sequence[str]:
        """Return one candidate per entity of an example: the entity in the gap, and the rest of the query."""
        return [self.filled(row, entity) for entity in row["entities"]]

    def gold(self, row: Row) -> str:
        """Return the gold answer: the first correct entity in the gap, and the rest of the query."""
        return self.filled(row, row["answers"][0])

    def filled(self, row: Row, entity: str) -> str:
        """Return the query of an example from its gap to its end, with `entity` in the gap.

        A space before the gap is part of the result.
        """
        before, _, after = row["query"].partition(GAP)
        return before[len(before.rstrip()) :] + entity + after

    def answer(self, row: Row, output: Array) -> Answer:
        """Return the entity that makes the query most likely; `output` has the log-likelihood of each entity."""
        return {"answer": row["entities"][int(np.argmax(output))]}


@register_task
@dataclass(frozen=True)
class Entity(CandidateTask):
    """Cloze-style reading comprehension: choose which entity of a passage fills the gap of a query."""

    pooling: Pooling = "cls"
    dropout: float = 0.1
    max_candidates: int = fitted(0)  # entities of a passage

    name: ClassVar[str] = "entity"
    shared_head: ClassVar[str] = "choose"
    primary_metric: ClassVar[str] = "f1"
    in_context_template: ClassVar[str] = "{text}\n{query}[MASK]"

    def read(
        self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True
    ) -> ChoiceExamples:
        """Read passages with their entities, queries with a gap and, if `answered`, the gold answers."""
        return read_entity_clozes(file, columns, labels=answered)

    def fit(self, examples: ChoiceExamples) -> Self:
        """Return a copy of the task, with `max_candidates` set to the largest number of entities of an example.

        Log how many queries have no correct answer among their entities.
        """
        lost = sum(not group.correct for group in examples.groups)
        if lost == len(examples):
            raise PretuneError(
                f"{examples.file}: no answer is among the entities of its passage, so there is nothing to learn; check "
                "the columns of entities and answers"
            )
        if lost:
            log_info(
                f"{examples.file}: {lost} of {len(examples)} queries have no answer among their entities and are not used"
            )
        return replace(self, max_candidates=int(examples.sizes.max()))

    def metric_sums(self, answers: Sequence[Answer], examples: Any) -> AdditiveMetrics:
        """Return exact match and word F1 of the predicted entities as sums over queries (AdditiveMetrics).

        For a query with several gold answers, the highest value counts.
        """
        return entity_cloze_metrics(answers, examples, self)

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Score each predicted entity by its word F1 with the gold answers of the query."""
        return score_entities(answers, examples, self)

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return the answers of two baselines to the queries `judged`, by baseline.

        One answers with the first entity of the passage, the other with the entity that it mentions most often.
        """
        first = [group.names[0] for group in judged.groups]
        usual = [max(group.names, key=group.texts[0].count) for group in judged.groups]
        found = {"the first entity": first, "the most frequent entity": usual}
        return {name: [{"answer": entity} for entity in entities] for name, entities in found.items()}

    def in_context_prompt(self, rows: Sequence[Row], settings: Mapping[str, Any]) -> EntityPrompt:
        """Return an in-context prompt that ranks the entities by the likelihood per token of the filled query."""
        return EntityPrompt()

    def demonstration(self) -> ChoiceExamples:
        """Return an example of the task: a passage with two entities, and a query."""
        names, passage = ("Paris", "the Seine"), ("Paris lies on the Seine.",) * 2
        filled = ("Paris is a river.", "the Seine is a river.")
        return ChoiceExamples(
            Path("example"), {}, [ChoiceExample(names, passage, filled, (1,), ("the Seine",))], lines=[1]
        )
