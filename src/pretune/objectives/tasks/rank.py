"""Ranking: how well candidates answer a query, each read together with it (a cross-encoder).

Sources: Nogueira and Cho, 2019, arXiv:1901.04085 (each pair alone); Cao et al., 2007, *Learning to Rank: From Pairwise Approach to
Listwise Approach* (a softmax over the candidates of a query).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.patterns import Pattern
from pretune.objectives.objective import Data, Loss
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.candidates import group_loss, group_targets
from pretune.objectives.tasks.classify import ClassifyHead, Pooling, check_pooling, need_rows
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import say
from pretune.runtime.randomness import Draws
from pretune.text.examples.labeled import Excerpt, Labeled, number, read_labeled, with_options
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch, with_global_starts
from pretune.text.packing.token_rows import arrange_rows
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]
ROLES = {"group": ("group", "qid", "query_id", "question_id", "topic_id", "topic")}


@dataclass(frozen=True)
class Rank:
    """`over=query`: a softmax over a query's candidates, each right in proportion to its relevance. `over=row`: each row
    alone, relevant or not. `pooling` is what stands for a sequence. `drop_bad`: rows without a relevance or a text are left
    out.
    """

    over: Literal["query", "row"] = "query"
    pooling: Pooling = "start"
    dropout: float = 0.1
    drop_bad: bool = False
    most: int = fitted(0)  # candidates of a query
    highest: float = fitted(1.0)  # relevance

    name: ClassVar[str] = "rank"
    head_of: ClassVar[str] = "classify"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    each: ClassVar[Literal["sequence", "token"]] = "sequence"
    decides: ClassVar[str] = "ndcg@10"

    def __post_init__(self) -> None:
        check_pooling(self.name, self.pooling)
        if self.over not in ("query", "row"):
            raise PretuneError(f"rank: over={self.over} is not known; there are query and row")

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Labeled:
        """Rows with a query, a candidate and a relevance; those of one `group`, else of one query's text, belong together."""
        rows = read_labeled(file, columns, labels=answered, label=relevance, roles=ROLES, drop_bad=self.drop_bad)
        need_pairs(self.name, rows)
        rows.more.setdefault("group", rows.texts)
        return rows

    def fit(self, examples: Labeled) -> Self:
        """With room for all candidates of a query."""
        assert examples.labels is not None
        groups, relevances = examples.queries, np.array(examples.labels)
        sizes, found = np.bincount(groups), np.bincount(groups, relevances)
        if not relevances.any():
            raise PretuneError(f"{examples.file}: no candidate is relevant; there is nothing to learn")
        if self.over == "query" and sizes.max() == 1:
            raise PretuneError(
                f"{examples.file}: every query has one candidate{with_options('name the column of query ids', ['group'])}; "
                "or learn from each row alone: rank(over=row)"
            )
        if self.over == "query" and (found == 0).any():
            say(
                f"{examples.file}: {int((found == 0).sum())} of {len(sizes)} queries have no relevant candidate, and teach nothing"
            )
        return replace(self, most=int(sizes.max()), highest=float(relevances.max()))

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """A row to a sequence; of too long ones the longer text is cut."""
        rows = need_rows(self.name, data)
        need_pairs(self.name, rows)
        check_pooling(self.name, self.pooling, data.template)
        labels = {"group": rows.queries} if self.over == "query" else {}
        labels |= {} if rows.labels is None else {self.name: np.array(rows.labels, dtype=np.float32)}
        return arrange_rows(data.token_rows, data.tokenizer, data.template, length, labels)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Queries in any order, their candidates together; or rows in any order."""
        return plan_epoch(self.lay_out(data, packing.length), packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Relevances are the target of a query, or of a row."""
        sequences = with_global_starts(sequences)
        labels = sequences.labels
        if self.name in labels and self.over == "query":
            sequences.targets[self.name] = group_targets(labels["group"], labels[self.name], self.most)
        elif self.name in labels:
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), labels[self.name] / self.highest)
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """One target a query, or a row."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Pooler, dropout, one score."""
        return ClassifyHead(backbone, 1, self.pooling, self.dropout)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(sequences,) scores."""
        scores: Tensor = head(backbone(*batch.packed).last, batch.packed[-1])[:, 0]
        return scores

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Labeled) -> list[Answer]:
        """A score a row, to be compared with those of the same query."""
        return [{"score": float(score)} for score in outputs]

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """The answer of several models to one row: the mean."""
        return {"score": float(np.mean([answer["score"] for answer in answers]))}

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy over the candidates of each query, or of each row."""
        targets, scores = batch.targets[self.name], self.outputs(head, backbone, batch)
        if self.over == "query":
            return group_loss(self.name, scores, targets)
        logits = scores.float()[targets.at]
        losses = F.binary_cross_entropy_with_logits(logits, targets.target, reduction="none")
        return Loss(sums={self.name: (losses * targets.weight).sum()})


def relevance(value: Any) -> float:
    """A cell with a relevance."""
    found = number(value)
    if found < 0:
        raise ValueError(f"{value!r} is below 0, where relevance begins,")
    return found


def need_pairs(name: str, rows: Labeled) -> None:
    """Refuse rows of single texts."""
    if rows.pairs is None:
        raise PretuneError(
            f"{rows.file}: {name} takes pairs of texts{with_options('name the columns', ('text', 'pair'))}"
        )
