"""Cloze-style reading comprehension: choose which entity of a passage fills the gap of a query.

Sources: Zhang et al., 2018, arXiv:1810.12885 (ReCoRD); Fenogenova et al., 2020, arXiv:2010.15925 (RuCoS, in Russian SuperGLUE).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.per_example import ScoredAnswer, score_entities
from pretune.metrics.question_answering import entity_cloze_metrics
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.candidates import CandidateTask
from pretune.objectives.tasks.classify import Pooling
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.text.examples.cloze_entities import read_entity_clozes
from pretune.text.examples.labeled import TableChunk
from pretune.text.examples.multiple_choice import ChoiceExample, ChoiceExamples


@register_task
@dataclass(frozen=True)
class Entity(CandidateTask):
    """A choice among the entities of a passage.

    A sequence is the passage and the query with one entity in its gap; `pooling` turns its states into one vector.
    """

    pooling: Pooling = "start"
    dropout: float = 0.1
    most: int = fitted(0)  # entities of a passage

    name: ClassVar[str] = "entity"
    shared_head: ClassVar[str] = "choose"
    primary_metric: ClassVar[str] = "f1"

    def read(
        self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True
    ) -> ChoiceExamples:
        """Return passages, queries with a gap, and entities."""
        return read_entity_clozes(file, columns, labels=answered)

    def fit(self, examples: ChoiceExamples) -> Self:
        """Return the task with the largest number of entities set; report queries whose answer is not an entity."""
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
        return replace(self, most=int(examples.sizes.max()))

    def metric_sums(self, answers: Sequence[Answer], examples: Any) -> AdditiveMetrics:
        """Return exact match and F1, the best over the right answers of each query."""
        return entity_cloze_metrics(answers, examples, self)

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Return the F1 of the words of each answer."""
        return score_entities(answers, examples, self)

    def demonstration(self) -> ChoiceExamples:
        """Return a passage with two entities and a query."""
        names, passage = ("Paris", "the Seine"), ("Paris lies on the Seine.",) * 2
        filled = ("Paris is a river.", "the Seine is a river.")
        return ChoiceExamples(
            Path("example"), {}, [ChoiceExample(names, passage, filled, (1,), ("the Seine",))], lines=[1]
        )
