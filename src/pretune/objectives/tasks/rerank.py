"""Re-ranking of a recommender's list of candidates by a Transformer over the whole list (PRM).

Source: Pei et al., 2019, *Personalized Re-ranking for Recommendation*, arXiv:1904.06813.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.per_example import ScoredAnswer
from pretune.metrics.ranking import list_metrics
from pretune.nn.embedding.feature_embedding import FeatureEmbedding
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.output_heads import TokenHead
from pretune.objectives.objective import Data, Loss
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, Task, fitted
from pretune.objectives.tasks.candidates import group_loss, group_targets
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.candidate_lists import CandidateLists, list_rows, read_candidate_lists
from pretune.text.examples.labeled import Row, TableChunk, advise_options
from pretune.text.packing.sequences import Arrangement, Sequences, add_global_starts
from pretune.text.packing.token_rows import arrange_rows
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_task
@dataclass(frozen=True)
class Rerank(Task):
    """Re-ranking of a list of candidates, such as a recommender's, by a Transformer over the list (PRM).

    A candidate is a token: its item's embedding plus a linear map of its numeric features plus the embedding of its
    position in the initial order. The loss is the cross-entropy of a softmax over the list, with targets in proportion
    to relevance. `features` are the columns with features, separated by commas, by default all numeric ones, and
    `request` is the column that says which candidates belong together.
    """

    features: str = ""
    request: str | None = None
    dropout: float = 0.1
    max_candidates: int = fitted(0)  # of a request
    means: Sequence[float] = fitted(())  # of the features
    deviations: Sequence[float] = fitted(())

    name: ClassVar[str] = "rerank"
    output_per: ClassVar[Literal["sequence", "token", "text"]] = "token"
    combinable: ClassVar[bool] = True
    primary_metric: ClassVar[str] = "ndcg@10"
    purpose: ClassVar[tuple[str, str]] = ("It re-ranks lists of recommended items", "text-ranking")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the columns with features, in order."""
        return tuple(name.strip() for name in self.features.split(",") if name.strip())

    def rows(self, file: Path) -> Iterator[tuple[int, Row]]:
        """Yield the requests of a file with their line numbers."""
        return list_rows(file, self.request)

    def read(
        self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True
    ) -> CandidateLists:
        """Read requests with their candidates and, if `answered`, the relevance of each candidate."""
        return read_candidate_lists(file, columns, request=self.request, features=self.feature_names, labels=answered)

    def fit(self, examples: CandidateLists) -> Self:
        """Return a copy of the task with the features, their means and deviations, and the size of the longest list."""
        assert examples.relevances is not None
        found = sum(bool(relevances.any()) for relevances in examples.relevances)
        if not found:
            raise PretuneError(
                f"{examples.file}: no candidate is relevant, so there is nothing to learn; check the labels"
            )
        most = max(map(len, examples.items))
        if most == 1:
            raise PretuneError(
                f"{examples.file}: every request has only one candidate, so there is nothing to rank"
                f"{advise_options('choose another column of requests', ['request'])}"
            )
        if found < len(examples):
            log_info(
                f"{examples.file}: {len(examples) - found} of {len(examples)} requests have no relevant candidate and are not used"
            )
        values = np.concatenate(examples.features)
        deviations = values.std(0)
        return replace(
            self,
            features=",".join(examples.names),
            request=examples.columns.get("request"),
            max_candidates=most,
            means=tuple(values.mean(0).tolist()),
            deviations=tuple(np.where(deviations > 0, deviations, 1.0).tolist()),
        )

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence of at most `length` tokens per request: its candidates in their initial order."""
        lists = data.rows
        if not isinstance(lists, CandidateLists):
            raise PretuneError("the task 'rerank' needs lists of candidates; give a table with one row per candidate")
        tokens = data.token_rows
        sizes = np.array([len(items) for items in lists.items])
        if (wrong := np.flatnonzero(tokens.lengths[:, 0] != sizes)).size:
            raise PretuneError(
                f"{lists.location(wrong[0])}: the model's tokenizer splits the {sizes[wrong[0]]} items into "
                f"{tokens.lengths[wrong[0], 0]} tokens; re-ranking needs one token per item: choose a model with a tokenizer of the kind `items`"
            )
        arrangement = arrange_rows(tokens, data.tokenizer, data.template, length, {"example": np.arange(len(lists))})

        def per_token(values: Sequence[Array]) -> Array:
            pairs = zip(values, lists.orders, strict=True)
            return np.concatenate([rows[order] for rows, order in pairs]).astype(np.float32)

        arrangement.tokens = {"features": per_token(lists.features)} if lists.names else {}
        if lists.relevances is not None:
            arrangement.tokens["relevance"] = per_token(lists.relevances)
        return arrangement

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set one target per request: the probability of each candidate. The tokens stay unchanged."""
        sequences = add_global_starts(sequences)
        if "relevance" in sequences.columns:
            candidates = np.flatnonzero(~sequences.columns["special"])
            relevances = sequences.columns["relevance"][candidates]
            at, share = group_targets(sequences.owner[candidates], relevances, self.max_candidates)
            sequences.targets[self.name] = (np.where(at < 0, -1, candidates[at]), share)
        return sequences

    def head(self, backbone: Backbone) -> nn.Module:
        """Build a head that embeds the features of candidates and computes one score per token."""
        return RerankHead(backbone, len(self.feature_names), self.means, self.deviations, self.dropout)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the score of each token in a batch, (tokens,)."""
        scores: Tensor = head(backbone, batch)
        return scores

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of a softmax over the candidates of each request in a batch."""
        return group_loss(self.name, self.outputs(head, backbone, batch), batch.targets[self.name])

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: CandidateLists) -> list[Answer]:
        """Return the items of each request, best first, and the score of each candidate in the order of the file.

        Candidates beyond the maximum length stay behind the others, in their initial order.
        """
        lead = arrangement.template.single.index("A")
        found = []
        for row, (logits, span) in enumerate(zip(outputs, arrangement.spans[:, 0], strict=True)):
            order = examples.orders[row]
            scores = np.empty(len(order))
            known = np.asarray(logits[lead : lead + span], dtype=np.float64)
            scores[order] = np.concatenate([known, known.min() - 1.0 - np.arange(len(order) - span)])
            found.append(self._answer(examples, row, scores))
        return found

    def _answer(self, examples: CandidateLists, row: int, scores: Array) -> Answer:
        """Return the answer to request `row`, given the scores of its candidates in the order of the file."""
        best = rank_candidates(scores, examples.orders[row])
        return {"ranking": [examples.items[row][i] for i in best], "scores": scores.tolist()}

    def combine(self, answers: Sequence[Answer], examples: CandidateLists, row: int) -> Answer:
        """Return an ensemble's answer to request `row`: the ranking by the mean score over models."""
        return self._answer(examples, row, np.mean([answer["scores"] for answer in answers], 0))

    def metric_sums(self, answers: Sequence[Answer], examples: CandidateLists) -> AdditiveMetrics:
        """Return precision, MAP and nDCG, averaged over the requests that have a relevant candidate."""
        return list_metrics(ranked_relevances(answers, examples))

    def judge(self, answers: Sequence[Answer], examples: CandidateLists) -> list[ScoredAnswer]:
        """Score each request with a relevant candidate by the nDCG of its ranking."""
        assert examples.relevances is not None
        scored = []
        for row, ranked in enumerate(ranked_relevances(answers, examples)):
            if ranked.any():
                items, relevances = examples.items[row], examples.relevances[row]
                score = list_metrics([ranked]).compute()["ndcg@10"]
                scored.append(ScoredAnswer(row, items[relevances.argmax()], answers[row]["ranking"][0], score))
        return scored

    def majority_answers(self, learned: CandidateLists, judged: CandidateLists) -> tuple[str, list[Answer]]:
        """Return the name and the answers of a baseline that keeps the initial order of the candidates."""
        answers = [self._answer(judged, row, -np.argsort(order)) for row, order in enumerate(judged.orders)]
        return "the initial order", answers

    def simple_baselines(self, learned: CandidateLists, judged: CandidateLists) -> dict[str, list[Answer]]:
        """Return the answers of a pointwise baseline to the requests `judged`, by baseline.

        The baseline is a logistic regression on features and initial positions, fitted to the requests `learned`.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        assert learned.relevances is not None
        clicked = np.concatenate(learned.relevances) > 0
        if clicked.all() or not clicked.any():
            return {}
        inputs = [with_positions(lists) for lists in (learned, judged)]
        regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        regression.fit(np.concatenate(inputs[0]), clicked)
        answers = [self._answer(judged, row, regression.decision_function(rows)) for row, rows in enumerate(inputs[1])]
        return {"point-wise logistic regression": answers}

    def demonstration(self) -> CandidateLists:
        """Return an example of the task: three candidates, of which the second one was clicked."""
        items = [["film-7", "film-2", "film-4"]]
        order, clicked = np.arange(3), np.array([0.0, 1.0, 0.0])
        return CandidateLists(Path("example"), {}, ["1"], items, [order], [np.zeros((3, 0))], [clicked])

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return the target probabilities of candidates as text, such as "0 / 1", for `pretune show objectives`."""
        return ", ".join(" / ".join(f"{share:g}" for share in row) for row in target)


class RerankHead(nn.Module):
    """The parameters of a re-ranker: an embedding of the numeric features, if there are any, and a score per token."""

    def __init__(
        self, backbone: Backbone, features: int, means: Sequence[float], deviations: Sequence[float], dropout: float
    ) -> None:
        super().__init__()
        self.features: FeatureEmbedding | None = None
        if features:
            embed = backbone.embed
            if not isinstance(embed, Embeddings):
                raise PretuneError(
                    "the task 'rerank' adds numeric features to token embeddings, but this model does not embed tokens with a "
                    "single matrix; choose a model that does, such as bert-tiny"
                )
            self.features = FeatureEmbedding(features, embed.tokens.shape[1], means, deviations)
        self.score = TokenHead(backbone.width, 1, backbone.tagger(), dropout)

    def forward(self, backbone: Backbone, batch: Batch) -> Tensor:
        """Run the backbone on a batch with the features of its candidates, and return one score per token, (tokens,)."""
        packed = batch.packed if self.features is None else (*batch.packed[:-1], self.features(batch.packed[-1]))
        scores: Tensor = self.score(backbone(*packed).last)[:, 0]
        return scores


def rank_candidates(scores: Array, order: Array) -> Array:
    """Return the indices of candidates by score, best first; candidates with equal scores keep their initial `order`.

    >>> rank_candidates(np.array([1.0, 2.0, 1.0]), np.array([2, 1, 0])).tolist()
    [1, 2, 0]
    """
    return np.asarray(order[np.argsort(-scores[order], kind="stable")])


def ranked_relevances(answers: Sequence[Answer], examples: CandidateLists) -> list[Array]:
    """Return, for each request, the relevances of its candidates in the order of their scores, best first."""
    assert examples.relevances is not None
    lists = zip(answers, examples.orders, examples.relevances, strict=True)
    return [relevances[rank_candidates(np.asarray(answer["scores"]), order)] for answer, order, relevances in lists]


def with_positions(examples: CandidateLists) -> list[Array]:
    """Return the features of each request's candidates and, as a last column, their initial position."""
    pairs = zip(examples.features, examples.orders, strict=True)
    return [np.column_stack([values, np.argsort(order)]) for values, order in pairs]
