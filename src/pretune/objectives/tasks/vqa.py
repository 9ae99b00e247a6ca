"""Visual question answering: choose the answer to a question about an image (Antol et al., 2015, arXiv:1505.00468).

The head is that of ViLBERT (Lu et al., 2019): a classifier over frequent answers reads the product of the pooled question and the
pooled image. Several people have answered each question, and an answer is right if three of them have given it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.backbones.two_streams import PairPooler, TwoStreamOutput, require_two_streams
from pretune.metrics.additive import AdditiveMetrics, mean_metrics
from pretune.metrics.per_example import ScoredAnswer
from pretune.nn.dropout import Dropout
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm, OutputLinear
from pretune.nn.output_heads import DenseTransform
from pretune.objectives.objective import Data, Loss
from pretune.objectives.pretraining.image_text import arrange_images
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, Task, fitted
from pretune.objectives.word_baselines import classify_pairs
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.region_files import ImageRegions
from pretune.text.examples.column_roles import MissingLabel
from pretune.text.examples.image_texts import read_image_texts
from pretune.text.examples.labeled import LabeledRows, TableChunk, parse_label
from pretune.text.packing.sequences import Arrangement, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

AGREEING = 3  # people who must give an answer so that it is right
SHOWN = 5  # answers with their probabilities in a prediction


class AnswerHead(nn.Module):
    """A head that computes one logit per answer from the product of the pooled question and the pooled image."""

    def __init__(self, pooler: PairPooler, answers: int, dropout: float) -> None:
        super().__init__()
        width = 2 * pooler.width
        self.pooler, self.dropout = pooler, Dropout(dropout)
        self.transform = initialize(DenseTransform(pooler.width, F.gelu, LayerNorm(width, 1e-12), outputs=width))
        self.output = initialize(OutputLinear(width, answers))

    def forward(self, states: TwoStreamOutput, batch: Batch) -> Tensor:
        """Return logits, (sequences, answers), from the hidden states of questions and images."""
        logits: Tensor = self.output(self.transform(self.dropout(self.pooler(states, *batch.packed))))
        return logits


@register_task
@dataclass(frozen=True)
class VQA(Task):
    """Visual question answering: choose one of the answers in the training data to a question about an image.

    The target of an answer is its VQA accuracy, min(n / 3, 1), where n people have given it. Answers that are right for
    fewer than `min_count` training questions are not learned.
    """

    labels: Sequence[str] = fitted(())
    dropout: float = 0.1
    min_count: int = 1

    name: ClassVar[str] = "vqa"
    combinable: ClassVar[bool] = True
    primary_metric: ClassVar[str] = "vqa_accuracy"
    purpose: ClassVar[tuple[str, str]] = ("It answers questions about images", "visual-question-answering")

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> LabeledRows:
        """Read questions, images and, if `answered`, the answers that people have given."""
        return read_image_texts(file, columns, labels=answered, label=parse_answers)

    def fit(self, examples: LabeledRows) -> Self:
        """Return a copy of the task with the answers of the training questions, sorted."""
        assert examples.labels is not None
        counts = Counter(answer for given in examples.labels for answer in answer_scores(given))
        known = sorted(answer for answer, count in counts.items() if count >= self.min_count)
        if len(known) < 2:
            raise PretuneError(
                f"{examples.file}: {len(known)} of {len(counts)} answers occur in min_count={self.min_count} or more questions; "
                "lower min_count, or give questions with two different answers at least"
            )
        return replace(self, labels=tuple(known))

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence of at most `length` tokens per question, with the regions of its image."""
        if not isinstance(data.rows, LabeledRows) or "image" not in data.rows.extra:
            raise PretuneError("the task 'vqa' needs images; give a table with the columns text and image")
        return arrange_images(data, length, {"example": np.arange(len(data.rows))} | self._targets(data.rows))

    def _targets(self, rows: LabeledRows) -> dict[str, Array]:
        """Return the VQA accuracy of each answer to each question, (rows, answers), if the answers are known."""
        if rows.labels is None:
            return {}
        number = {answer: place for place, answer in enumerate(self.labels)}
        targets = np.zeros((len(rows), len(number)), dtype=np.float32)
        for row, given in enumerate(rows.labels):
            for answer, accuracy in answer_scores(given).items():
                if answer in number:
                    targets[row, number[answer]] = accuracy
        return {self.name: targets}

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the VQA accuracy of each answer as the target of a question. Texts and images stay unchanged."""
        if self.name in sequences.labels:
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), sequences.labels[self.name])
        return sequences

    def head(self, backbone: Backbone) -> nn.Module:
        """Build a head with one logit per answer; raise an error for a model that reads no images."""
        return AnswerHead(require_two_streams(self.name, backbone).pair_pooler(), len(self.labels), self.dropout)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """Return one logit per answer for each question in a batch, (sequences, answers)."""
        logits: Tensor = head(backbone(*batch.packed), batch)
        return logits

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the binary cross-entropy between the probability of each answer and its VQA accuracy, summed."""
        targets = batch.targets[self.name]
        logits = self.outputs(head, backbone, batch)[targets.at].float()
        losses = F.binary_cross_entropy_with_logits(logits, targets.target, reduction="none").sum(-1)
        best = targets.target.gather(1, logits.argmax(-1, keepdim=True))[:, 0]
        logs = {f"{self.name}/accuracy": (best * targets.weight).sum().detach()}
        return Loss(sums={self.name: (losses * targets.weight).sum()}, logs=logs)

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: Any) -> list[Answer]:
        """Return the most probable answer to each question, its probability, and those of the five most probable ones."""
        shares = torch.from_numpy(np.stack(outputs)).double().sigmoid().numpy()
        return [self._answer(dict(zip(self.labels, row.tolist(), strict=True))) for row in shares]

    def _answer(self, probabilities: Mapping[str, float]) -> Answer:
        """Return the answer to a question, given the probabilities of answers."""
        best = sorted(probabilities.items(), key=lambda pair: -pair[1])[:SHOWN]
        return {"answer": best[0][0], "probability": best[0][1], "probabilities": dict(best)}

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """Return an ensemble's answer to question `row`: that with the highest mean probability over models.

        Answers that are not among the most probable ones of a model count as 0 there.
        """
        known = dict.fromkeys(label for answer in answers for label in answer["probabilities"])
        means = {
            label: float(np.mean([answer["probabilities"].get(label, 0.0) for answer in answers])) for label in known
        }
        return self._answer(means)

    def metric_sums(self, answers: Sequence[Answer], examples: LabeledRows) -> AdditiveMetrics:
        """Return the VQA accuracy, and the share of questions whose most frequent answer was given."""
        rows = [(one.score, float(one.answer == one.expected)) for one in self.judge(answers, examples)]
        return mean_metrics(rows, "vqa_accuracy", "exact_match")

    def judge(self, answers: Sequence[Answer], examples: LabeledRows) -> list[ScoredAnswer]:
        """Score each answer by its VQA accuracy, beside the answer that most people have given."""
        assert examples.labels is not None
        return [
            ScoredAnswer(row, usual_answer(given), answer["answer"], answer_scores(given).get(answer["answer"], 0.0), answer.get("probability"))
            for row, (given, answer) in enumerate(zip(examples.labels, answers, strict=True))
        ]  # fmt: skip

    def majority_answers(self, learned: LabeledRows, judged: LabeledRows) -> tuple[str, list[Answer]]:
        """Return the most frequent training answer, and an answer with it for each question in `judged`."""
        usual = usual_answer([usual_answer(given) for given in learned.labels or ()])
        return repr(usual), [{"answer": usual}] * len(judged)

    def simple_baselines(self, learned: LabeledRows, judged: LabeledRows) -> dict[str, list[Answer]]:
        """Return the answers of a baseline that reads the words of the questions, but not the images."""
        labels = [usual_answer(given) for given in learned.labels or ()]
        found = classify_pairs(replace(learned, labels=labels), judged)
        return {"words of the question": [{"answer": label} for label in found]}

    def demonstration(self) -> LabeledRows:
        """Return examples of the task: two questions about the same two regions, with the answers of three people."""
        locations = np.array([[0.0, 0.0, 0.5, 0.5, 0.25], [0.5, 0.5, 1.0, 1.0, 0.25]], dtype=np.float32)
        image = ImageRegions(np.zeros((2, 2048), dtype=np.float32), locations)
        answers: list[Any] = [("red", "red", "orange"), ("2", "2", "2")]
        return LabeledRows(
            Path("example"),
            {},
            ["what color is the circle", "how many circles are there"],
            labels=answers,
            extra={"image": [image, image]},
        )

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return the answers with their VQA accuracies as text, such as "red 0.67, orange 0.33"."""
        pairs = (zip(self.labels, row, strict=True) for row in target)
        return " / ".join(", ".join(f"{label} {share:.2g}" for label, share in row if share) for row in pairs)


def answer_scores(given: Sequence[str]) -> dict[str, float]:
    """Return the VQA accuracy of each answer that people have given to a question.

    It is min(n / 3, 1) if n people have given an answer; if fewer than three were asked, all of them must agree.

    >>> answer_scores(["red", "red", "red", "pink"]), answer_scores(["two"])
    ({'red': 1.0, 'pink': 0.3333333333333333}, {'two': 1.0})
    """
    needed = min(AGREEING, len(given))
    return {answer: min(count / needed, 1.0) for answer, count in Counter(given).items()}


def usual_answer(given: Sequence[str]) -> str:
    """Return the most frequent answer; of several, the first one in alphabetical order.

    >>> usual_answer(["b", "a", "b", "a"])
    'a'
    """
    return min(Counter(given).items(), key=lambda pair: (-pair[1], pair[0]))[0]


def parse_answers(value: Any) -> tuple[str, ...]:
    """Convert a cell to the answers of all people to a question, in lowercase; repeated answers are kept.

    A cell is a list of answers, a list of objects with the key `answer` (VQA 2.0), or a text with semicolons.

    >>> parse_answers("Red; red;pink"), parse_answers([{"answer": "two"}])
    (('red', 'red', 'pink'), ('two',))
    """
    parts = value if isinstance(value, list) else parse_label(value).split(";")
    answers = [part.get("answer") if isinstance(part, Mapping) else part for part in parts]
    found = tuple(parse_label(answer).lower() for answer in answers if answer is not None and str(answer).strip())
    if not found:
        raise MissingLabel("no answer")
    return found
