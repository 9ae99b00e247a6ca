"""Ranking with a cross-encoder: score how well candidates answer a query, each read together with the query.

Sources: Nogueira and Cho, 2019, arXiv:1901.04085 (each pair alone); Cao et al., 2007, *Learning to Rank: From Pairwise
Approach to Listwise Approach* (a softmax over the candidates of a query).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch.nn.functional as F
from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.per_example import ScoredAnswer, score_rankings
from pretune.metrics.ranking import rank_metrics
from pretune.objectives.in_context_prompt import Row
from pretune.objectives.objective import Data, Loss
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.candidates import CandidateTask, group_loss
from pretune.objectives.tasks.classify import Pooling, check_pooling, input_template, require_labeled, require_pairs
from pretune.objectives.tasks.regress import NumberPrompt
from pretune.objectives.word_baselines import bm25_scores
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows, TableChunk, advise_options, parse_number, read_labeled
from pretune.text.packing.sequences import Arrangement, Sequences, add_global_starts
from pretune.text.packing.token_rows import arrange_rows
from pretune.text.tokenizers.tokenizer import Tokenizer

ROLES = {"group": ("group", "qid", "query_id", "question_id", "topic_id", "topic")}


@register_task
@dataclass(frozen=True)
class Rank(CandidateTask):
    """Ranking of the candidates of a query with a cross-encoder.

    With `ranking_loss=listwise`, the loss is the cross-entropy of a softmax over a query's candidates, with targets in
    proportion to relevance; with `pointwise`, it is the binary cross-entropy of each row.
    """

    ranking_loss: Literal["listwise", "pointwise"] = "listwise"
    pooling: Pooling = "cls"
    dropout: float = 0.1
    drop_invalid: bool = False  # whether to leave out rows without a relevance or a text
    max_candidates: int = fitted(0)  # candidates of a query
    highest: float = fitted(1.0)  # relevance

    name: ClassVar[str] = "rank"
    shared_head: ClassVar[str] = "classify"
    primary_metric: ClassVar[str] = "ndcg@10"
    purpose: ClassVar[tuple[str, str]] = ("It scores how well texts answer a query", "text-ranking")
    in_context_template: ClassVar[str] = "{text}\nScore: [MASK]"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranking_loss not in ("listwise", "pointwise"):
            raise PretuneError(
                f"rank: unknown ranking_loss={self.ranking_loss}; {suggest(self.ranking_loss, ('listwise', 'pointwise'))}"
            )

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> LabeledRows:
        """Read a query, a candidate and, if `answered`, a relevance per row; rows of one query are grouped."""
        rows = read_labeled(
            file, columns, labels=answered, label=relevance, roles=ROLES, drop_invalid=self.drop_invalid
        )
        require_pairs(self.name, rows)
        rows.extra.setdefault("group", rows.texts)
        return rows

    def fit(self, examples: LabeledRows) -> Self:
        """Return a copy of the task with the training examples' highest relevance and largest number of candidates."""
        assert examples.labels is not None
        groups, relevances = examples.queries, np.array(examples.labels)
        sizes, found = np.bincount(groups), np.bincount(groups, relevances)
        if not relevances.any():
            raise PretuneError(
                f"{examples.file}: no candidate is relevant, so there is nothing to learn; check the labels"
            )
        if self.ranking_loss == "listwise" and sizes.max() == 1:
            raise PretuneError(
                f"{examples.file}: every query has only one candidate, so there is nothing to rank; use "
                f"rank(ranking_loss=pointwise){advise_options('or name the column of query ids', ['group'])}"
            )
        if self.ranking_loss == "listwise" and (found == 0).any():
            log_info(
                f"{examples.file}: {int((found == 0).sum())} of {len(sizes)} queries have no relevant candidate and are "
                "not used"
            )
        return replace(self, max_candidates=int(sizes.max()), highest=float(relevances.max()))

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence of at most `length` tokens per row; the longer of its two texts is truncated."""
        rows = require_labeled(self.name, data)
        require_pairs(self.name, rows)
        check_pooling(self.name, self.pooling, data.template)
        labels = {"group": rows.queries} if self.ranking_loss == "listwise" else {}
        labels |= {} if rows.labels is None else {self.name: np.array(rows.labels, dtype=np.float32)}
        template = input_template(self.name, self.pooling, data.template)
        return arrange_rows(data.token_rows, data.tokenizer, template, length, labels)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the relevances as targets: one target per query or, with the pointwise loss, one per row."""
        sequences = add_global_starts(sequences)
        if self.ranking_loss == "listwise":
            return self.set_targets(sequences, self.name)
        if self.name in sequences.labels:
            relevances = sequences.labels[self.name] / self.highest
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), relevances)
        return sequences

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: LabeledRows) -> list[Answer]:
        """Return the score of each row, comparable only with the scores of other candidates for the same query."""
        return [{"score": float(score)} for score in outputs]

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """Return an ensemble's answer for row number `row`: the mean of the scores in its models' `answers`."""
        return {"score": float(np.mean([answer["score"] for answer in answers]))}

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy over each query's candidates or, if pointwise, the binary cross-entropy of rows."""
        targets, scores = batch.targets[self.name], self.outputs(head, backbone, batch)
        if self.ranking_loss == "listwise":
            return group_loss(self.name, scores, targets)
        logits = scores.float()[targets.at]
        losses = F.binary_cross_entropy_with_logits(logits, targets.target, reduction="none")
        return Loss(sums={self.name: (losses * targets.weight).sum()})

    def metric_sums(self, answers: Sequence[Answer], examples: Any) -> AdditiveMetrics:
        """Return MRR, nDCG and MAP, averaged over queries."""
        return rank_metrics(answers, examples, self)

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Score each query by the nDCG of its ranking."""
        return score_rankings(answers, examples, self)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]]:
        """Return the name and the answers of a baseline that gives every candidate in `judged` the same score."""
        return "the same score", [{"score": 0.0}] * len(judged)

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return the answers of a baseline to the rows `judged`: the BM25 score of each candidate."""
        return {"BM25": [{"score": score} for score in bm25_scores(judged.texts, judged.pairs)]}

    def in_context_prompt(self, rows: Sequence[Row], settings: Mapping[str, Any]) -> NumberPrompt:
        """Return an in-context prompt that asks for the relevance of a candidate as a number."""
        return NumberPrompt.make("score", rows, settings)

    def demonstration(self) -> LabeledRows:
        """Return an example of the task: a query with a relevant and an irrelevant candidate."""
        candidates = ["an air plane is taking off", "a dog barks"]
        return LabeledRows(Path("example"), {}, ["a plane takes off"] * 2, candidates, [1.0, 0.0])

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return the targets as text for `pretune show objectives`, separated by commas.

        They are the probabilities of a query's candidates, such as "1 / 0", or the relevance of each row.
        """
        return super().describe_target(at, target if target.ndim > 1 else target[:, None], ids, spell)


def relevance(value: Any) -> float:
    """Return the relevance in a table cell as a number; raise an error if it is negative."""
    found = parse_number(value)
    if found < 0:
        raise ValueError(f"expected a relevance of 0 or more, but found {value!r}")
    return found
