"""Zero-shot classification without a language model: by entailment, or by the similarity of embeddings.

An entailment classifier reads each text with a hypothesis per label, "This text is about sports.", and the probabilities of
entailment are compared (Yin et al., 2019, arXiv:1909.00161). Any other encoder compares the embedding of a text with those of
the names of the labels, or of a few examples of each label (Snell et al., 2017, arXiv:1703.05175, prototypical networks).
Language models are prompted instead (inference/ask.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pretune.inference.embed import embed_texts
from pretune.inference.predict import Predictor
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference
from pretune.objectives.task import Answer
from pretune.objectives.tasks.classify import class_answer
from pretune.runtime.arrays import Array, softmax
from pretune.runtime.errors import PretuneError
from pretune.text.examples.cloze_templates import TEXT, Cloze
from pretune.text.examples.labeled import LabeledRows

HYPOTHESIS = "This text is about [MASK]."
SIMILARITY_SCALE = 20.0  # of cosines in a softmax, as in contrastive training


def entailment_label(labels: Sequence[str]) -> str | None:
    """Return the label of a classifier that means entailment, or None if it has no such label.

    >>> entailment_label(["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]), entailment_label(["good", "bad"])
    ('ENTAILMENT', None)
    """
    return next((label for label in labels if label.casefold().startswith("entail")), None)


def entailment_task(reference: ModelReference) -> Any:
    """Return the task of a model that classifies pairs of texts as entailment or not, or None if it has no such task."""
    stored = stored_objectives(reference)
    tasks: list[Any] = [part for part in (stored.objectives if stored else ()) if part.kind == "classify"]
    return next((task for task in tasks if entailment_label(task.labels)), None)


def fill_hypothesis(template: str, word: str) -> str:
    """Return the hypothesis for an entailment model: the cloze template without {text}, and `word` at [MASK].

    >>> fill_hypothesis("{text} This text is about [MASK].", "sports")
    'This text is about sports.'
    """
    pieces = tuple(piece for piece in Cloze.parse(template).pieces if piece.strip() != TEXT)
    return Cloze(pieces).fill(LabeledRows(Path("hypothesis"), {}, [""]), 0, word).strip()


class EntailmentPredictor:
    """An entailment classifier that chooses, for each text, the label whose hypothesis it most probably entails."""

    def __init__(self, model: Model, task: Any, template: str, labels: Sequence[str], words: Sequence[str]) -> None:
        self.model, self.task, self.labels = model, task, labels
        self.hypotheses = [fill_hypothesis(template or HYPOTHESIS, word) for word in words]

    def __call__(self, rows: LabeledRows) -> list[Answer]:
        """Return one answer per row: the most probable label, and the probabilities of all labels."""
        if rows.pairs is not None:
            raise PretuneError(
                f"{rows.file}: an entailment classifier answers about one text, not about pairs; give rows without a "
                "second text"
            )
        count = len(self.hypotheses)
        premises = [text for text in rows.texts for _ in range(count)]
        pairs = LabeledRows(rows.file, {}, premises, self.hypotheses * len(rows))
        entailed = entailment_label(self.task.labels)
        answers = Predictor(self.model, self.task, pairs).report_truncated()()
        shares = np.array([answer["probabilities"][entailed] for answer in answers]).reshape(-1, count)
        shares = np.maximum(shares, np.finfo(np.float64).tiny)  # none is exactly 0, so that the sum is not
        return [class_answer(row, self.labels) for row in shares / shares.sum(1, keepdims=True)]


class EmbeddingPredictor:
    """An encoder that chooses the label whose name or examples have the embedding most similar to that of a text."""

    def __init__(
        self,
        reference: ModelReference,
        labels: Sequence[str],
        words: Sequence[str],
        shown: LabeledRows | None = None,
        ignore_mismatched: bool = False,
    ) -> None:
        self.reference, self.labels, self.ignore_mismatched = reference, labels, ignore_mismatched
        names = dict(zip(labels, self.embed(words), strict=True))
        if shown is not None:
            vectors, marks = self.embed(shown.texts), np.array(shown.labels)
            names |= {label: unit_norm(vectors[marks == label].mean(0)) for label in labels if (marks == label).any()}
        self.prototypes = np.stack([names[label] for label in labels])  # (labels, width)

    def embed(self, texts: Sequence[str]) -> Array:
        """Return the embeddings of texts, (texts, width), scaled to length 1."""
        return unit_norm(embed_texts(self.reference, texts, ignore_mismatched=self.ignore_mismatched))

    def __call__(self, rows: LabeledRows) -> list[Answer]:
        """Return one answer per row: the label with the most similar embedding, and the probabilities of all labels."""
        if rows.pairs is not None:
            raise PretuneError(
                f"{rows.file}: embeddings are compared for one text, not for pairs; give rows without a second text"
            )
        similarities = self.embed(rows.texts) @ self.prototypes.T
        return [class_answer(row, self.labels) for row in softmax(SIMILARITY_SCALE * similarities)]


def unit_norm(vectors: Array) -> Array:
    """Return vectors, (…, width), scaled to length 1; zero vectors stay zero.

    >>> unit_norm(np.array([3.0, 4.0])).tolist()
    [0.6, 0.8]
    """
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
