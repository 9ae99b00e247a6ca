"""Text embeddings: learn similar vectors for matching texts, with in-batch negatives or from similarity scores.

Sources: Reimers and Gurevych, 2019, arXiv:1908.10084 (mean pooling, regression of cosines on scores); Henderson et al.,
2017, arXiv:1705.00652 (in-batch negatives); Gao et al., 2021, arXiv:2104.08821 (the temperature).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch.nn.functional as F
from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.metrics.per_example import ScoredAnswer, score_similarities
from pretune.metrics.regression import similarity_metrics
from pretune.nn.sentence_embedding import PROMPT_COLUMN, TextEmbedding, TextEmbeddingHead
from pretune.objectives.in_batch_contrast import in_batch_contrastive_loss
from pretune.objectives.objective import Data, Loss
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, Task, fitted
from pretune.objectives.tasks.candidates import group_targets
from pretune.objectives.tasks.classify import require_labeled, require_pairs
from pretune.objectives.word_baselines import tfidf_cosines
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.column_roles import MissingLabel
from pretune.text.examples.labeled import (
    LabeledRows,
    TableChunk,
    drop_missing,
    drop_or_raise,
    parse_number,
    read_labeled,
)
from pretune.text.packing.sequences import Arrangement, Packing, Sequences
from pretune.text.packing.token_rows import TokenRows
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

ROLES = {"score": ("score", "similarity", "label", "is_duplicate")}
MEAN = TextEmbedding()
BLOCK = 1024  # texts among which the pair of a text is ranked


@register_task
@dataclass(frozen=True)
class Contrast(Task):
    """Contrastive learning of text embeddings from pairs of texts, with or without similarity scores.

    Without scores, the loss is the cross-entropy of finding each text's pair in the batch, in both directions, with
    cosines divided by `temperature`; with scores, it is the squared error of the cosines. `embedding` describes the
    pooling of the given model; `embedding_pooling`, such as mean or cls+max, replaces it. `normalize` scales vectors to
    length 1.
    """

    embedding_pooling: str = ""
    temperature: float = 0.05
    normalize: bool = False
    drop_invalid: bool = False  # whether to leave out rows without a text, or without a score if others have one
    scored: bool = fitted(False)
    lowest: float = fitted(0.0)  # the score that corresponds to a cosine of 0
    highest: float = fitted(1.0)  # the score that corresponds to a cosine of 1
    embedding: TextEmbedding = fitted(MEAN)  # noqa: RUF009 (immutable)

    name: ClassVar[str] = "contrast"
    purpose: ClassVar[tuple[str, str]] = (
        "It maps texts to vectors, so that similar texts get similar vectors",
        "sentence-similarity",
    )
    demonstration_sequences: ClassVar[int] = 4

    def __post_init__(self) -> None:
        _ = self.described  # refuses unknown poolings

    @property
    def described(self) -> TextEmbedding:
        """Return how text vectors are pooled and normalized: as in the given model, unless user options differ."""
        return self.embedding.with_options(self.embedding_pooling, self.normalize)

    @property
    def primary_metric(self) -> str:
        """Return the name of the metric by which models are compared."""
        return "spearman" if self.scored else "accuracy"

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> LabeledRows:
        """Read pairs of texts and, if `answered` and the file has them, their similarity scores."""
        rows = read_labeled(file, columns, labels=False, roles=ROLES if answered else {"score": ()})
        require_pairs(self.name, rows)
        rows = drop_missing(rows) if answered and self.drop_invalid else rows
        scores, column = rows.extra.pop("score", None), rows.columns.get("score")
        if not answered or scores is None:
            return rows
        found: list[float | None] = []
        for row, score in enumerate(scores):
            try:
                found.append(parse_number(score))
            except MissingLabel:
                found.append(None)
            except ValueError as error:
                raise PretuneError(f"{rows.location(row)}: {error} in {column!r}; correct this score") from error
        if missing := [row for row, score in enumerate(found) if score is None]:
            problem = f"{rows.file}: {len(missing)} of {len(rows)} rows have no score in {column!r}"
            drop_or_raise(problem, [rows.line(row) for row in missing], self.drop_invalid)
            if len(missing) == len(rows):
                raise PretuneError(f"{rows.file}: no row has both texts and a score; add such rows")
            rows = rows.take(row for row, score in enumerate(found) if score is not None)
        rows.labels = [score for score in found if score is not None]
        return rows

    def fit(self, examples: LabeledRows) -> Self:
        """Return a copy of the task with the range of the training scores; scores within [-1, 1] count as cosines."""
        if examples.labels is None:
            if len(set(examples.pairs or ())) < 2:
                raise PretuneError(
                    f"{examples.file}: the task 'contrast' needs at least two different pairs of texts; add rows"
                )
            return self
        lowest, highest = min(examples.labels), max(examples.labels)
        if lowest == highest:
            raise PretuneError(
                f"{examples.file}: every row has the score {lowest:g}, so there is nothing to learn; check the scores"
            )
        if lowest >= -1 and highest <= 1:
            return replace(self, scored=True)
        log_info(f"{examples.file}: scores from {lowest:g} to {highest:g} are mapped to cosines from 0 to 1")
        return replace(self, scored=True, lowest=lowest, highest=highest)

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return two sequences of at most `length` tokens per row, one for each text; longer texts are truncated."""
        rows, prompt = require_labeled(self.name, data), self.embedding.prompt
        require_pairs(self.name, rows)
        assert rows.pairs is not None
        if self.embedding.similarity != "cosine":
            raise PretuneError(
                f"the vectors of this model are compared by {self.embedding.similarity}, but the task 'contrast' learns cosines; "
                "to use cosines anyway, set similarity_fn_name to cosine in the model's config_sentence_transformers.json"
            )
        tokens = data.token_rows
        if prompt:
            texts, pairs = ([prompt + text for text in column] for column in (rows.texts, rows.pairs))
            tokens = data.cached(
                PROMPT_COLUMN, lambda: TokenRows.make(replace(rows, texts=texts, pairs=pairs), data.tokenizer)
            )
        lengths = tokens.lengths.reshape(-1, 1)
        room = length - data.template.num_special_tokens(pair=False)
        example = np.repeat(np.arange(len(rows)), 2)
        both = np.array([rows.texts, rows.pairs], dtype=object).T.ravel()
        labels = {"example": example, "group": example, "text": np.unique(both, return_inverse=True)[1]}
        if rows.labels is not None:
            labels["score"] = np.repeat(np.array(rows.labels, dtype=np.float32), 2)
        before = prompt_tokens(prompt, data.tokenizer, data.template, length)
        if not self.embedding.include_prompt:
            labels[PROMPT_COLUMN] = np.full(len(both), before)
        cut = int((lengths > room).sum())
        starts, spans = tokens.starts.reshape(-1, 1), np.minimum(lengths, room)
        return Arrangement(tokens, data.tokenizer, data.template, starts, spans, labels, truncated=cut)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set one target per pair of texts: its similarity score, or the ids of both texts. Tokens stay unchanged."""
        labels = sequences.labels
        if PROMPT_COLUMN in labels:
            sequences = mark_prompts(sequences, labels[PROMPT_COLUMN])
        at, _ = group_targets(labels["group"], np.ones(len(sequences.lengths)), most=2)
        target = labels["text"][at]
        if self.scored and "score" in labels:
            target = (labels["score"][at[:, 0]] - self.lowest) / (self.highest - self.lowest)
        sequences.targets[self.name] = (at, target)
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return an upper bound on the number of targets per batch: half the number of sequences, which form pairs."""
        return {self.name: min(packing.sequences, packing.tokens) // 2}

    def head(self, backbone: Backbone) -> nn.Module:
        """Build the head, which pools a text's hidden states into one vector and applies layers after the pooling."""
        return TextEmbeddingHead(self.described, backbone.width)

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: LabeledRows) -> list[Answer]:
        """Return the cosine similarity of each pair, and the rank of its second text among other pairs' second texts.

        A rank is computed among up to 1024 pairs; rank 1 is the most similar text.
        """
        vectors = np.stack(outputs).astype(np.float64)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        first, second, text = vectors[::2], vectors[1::2], arrangement.labels["text"][1::2]
        found: list[Answer] = []
        for start in range(0, len(first), BLOCK):
            part = slice(start, start + BLOCK)
            cosines = first[part] @ second[part].T
            own = np.diagonal(cosines)
            nearer = (cosines >= own[:, None]) & (text[part][:, None] != text[part][None])
            places = 1 + nearer.sum(1)
            found += [{"similarity": float(x), "place": int(place)} for x, place in zip(own, places, strict=True)]
        return found

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of finding each text's pair or, with scores, the squared error of the cosines."""
        targets = batch.targets[self.name]
        vectors = F.normalize(self.outputs(head, backbone, batch).float(), dim=-1)
        first, second = vectors[targets.at[:, 0]], vectors[targets.at[:, 1]]
        if self.scored:
            errors = (first * second).sum(-1) - targets.target
            return Loss(sums={self.name: (errors.square() * targets.weight).sum()})
        return in_batch_contrastive_loss(self.name, first @ second.T / self.temperature, targets)

    def metrics(self, answers: Sequence[Answer], examples: Any) -> dict[str, float]:
        """Return the correlations with gold scores or, without scores, accuracy and MRR of finding each text's pair."""
        return similarity_metrics(answers, examples, self)

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Score each pair by the error of its similarity or, if no gold scores exist, by its second text's rank."""
        return score_similarities(answers, examples, self)

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return the answers of a baseline to the pairs `judged`: the cosines of their TF-IDF vectors."""
        found: list[Answer] = []
        for start in range(0, len(judged), BLOCK):
            texts, pairs = (column[start : start + BLOCK] for column in (judged.texts, judged.pairs))
            cosines = tfidf_cosines(texts, pairs)
            own = np.diagonal(cosines)
            same = np.array(pairs, dtype=object)
            places = 1 + ((cosines >= own[:, None]) & (same[:, None] != same[None])).sum(1)
            found += [{"similarity": float(x), "place": int(place)} for x, place in zip(own, places, strict=True)]
        return {"TF-IDF cosines": found}

    def demonstration(self) -> LabeledRows:
        """Return examples of the task: two pairs of sentences."""
        first, second = ["a plane takes off", "a man sings"], ["an air plane is taking off", "a dog barks"]
        return LabeledRows(Path("example"), {}, first, second, None)

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return text that says which sequences form pairs, such as "1 with 2", for `pretune show objectives`."""
        return ", ".join(f"{first + 1} with {second + 1}" for first, second in sorted(at.tolist()))


def prompt_tokens(prompt: str, tokenizer: Tokenizer, template: Template, length: int) -> int:
    """Return the length of a prompt in tokens, together with the special tokens before it.

    Raise an error if the prompt leaves no room for text in sequences of `length` tokens.
    """
    tokens = len(tokenizer.encode(prompt)) if prompt else 0
    if tokens >= length - template.num_special_tokens(pair=False):
        raise PretuneError(
            f"the prompt {prompt!r} has {tokens} tokens, which leaves no room for text in sequences of {length}; shorten the "
            "prompt, or increase the maximum length"
        )
    return tokens + template.single.index("A") if prompt else 0


def mark_prompts(sequences: Sequences, tokens: Array) -> Sequences:
    """Mark the first tokens[i] tokens of each sequence i as its prompt, which pooling can leave out."""
    sequences.columns[PROMPT_COLUMN] = sequences.index_in_sequence < np.repeat(tokens, sequences.lengths)
    return sequences
