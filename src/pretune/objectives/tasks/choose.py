"""Multiple choice: choose which of several texts goes best with a text or a question.

Sources: Roemmele et al., 2011, *Choice of Plausible Alternatives* (COPA); Zellers et al., 2018, arXiv:1808.05326
(SWAG); Lai et al., 2017, arXiv:1704.04683 (RACE); trained as in Devlin et al., 2019, arXiv:1810.04805, for SWAG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.classification import most_frequent
from pretune.metrics.multiple_choice import choice_metrics
from pretune.metrics.per_example import ScoredAnswer, score_choices
from pretune.objectives.in_context_prompt import InContextPrompt, Row
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.candidates import CandidateTask, combine_candidates
from pretune.objectives.tasks.classify import ClassifyHead, Pooling
from pretune.objectives.word_baselines import overlap
from pretune.runtime.arrays import Array, softmax
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import TableChunk
from pretune.text.examples.multiple_choice import ChoiceExample, ChoiceExamples, choice_number, read_choices
from pretune.text.packing.sequences import Arrangement, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


class ChoicePrompt(InContextPrompt):
    """An in-context prompt whose candidate answers are the choices of a multiple-choice example."""

    per_token: ClassVar[bool] = True

    def candidates(self, row: Row) -> Sequence[str]:
        """Return the text of each choice of a multiple-choice example."""
        return [str(choice) for choice in row["choices"]]

    def gold(self, row: Row) -> str:
        """Return the text of the correct choice of a multiple-choice example."""
        return self.candidates(row)[int(choice_number(row["label"]))]

    def answer(self, row: Row, output: Array) -> Answer:
        """Return the index and the probability of the most likely choice.

        `output` has the log-likelihood of each choice.
        """
        return {"choice": int(np.argmax(output)), "probability": float(softmax(output).max())}


@register_task
@dataclass(frozen=True)
class Choose(CandidateTask):
    """Multiple choice with any number of choices; `pooling` turns the hidden states of a sequence into one vector."""

    pooling: Pooling = "cls"
    dropout: float = 0.1
    max_candidates: int = fitted(0)  # choices of an example

    name: ClassVar[str] = "choose"
    primary_metric: ClassVar[str] = "accuracy"
    purpose: ClassVar[tuple[str, str]] = ("It chooses the best of several candidates", "multiple-choice")
    in_context_template: ClassVar[str] = "{text} {question} [MASK]"

    def read(
        self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True
    ) -> ChoiceExamples:
        """Read multiple-choice examples: a text or question, its choices and, if `answered`, the correct choice."""
        return read_choices(file, columns, labels=answered)

    def fit(self, examples: ChoiceExamples) -> Self:
        """Return a copy of the task, with `max_candidates` set to the largest number of choices of a training example."""
        return replace(self, max_candidates=int(examples.sizes.max()))

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the correct choice of each example as its target. The tokens stay unchanged."""
        sequences.columns["global"] = choice_tokens(sequences)
        return self.set_targets(sequences, "right")

    def head(self, backbone: Backbone) -> nn.Module:
        """Build the model family's head for multiple choice, which computes one score per sequence."""
        pooler, output = backbone.choice_pooler, backbone.choice_output
        return ClassifyHead(backbone, 1, self.pooling, self.dropout, pooler=pooler, output=output)

    def answers(self, outputs: Sequence[Array], arrangement: Arrangement, examples: ChoiceExamples) -> list[Answer]:
        """Return the most probable choice of each example, as an index from 0, and the probabilities of all choices."""
        found = super().answers(outputs, arrangement, examples)
        best = [int(np.argmax([one["probability"] for one in answer["candidates"]])) for answer in found]
        return [{"choice": choice, **answer} for choice, answer in zip(best, found, strict=True)]

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """Return an ensemble's answer to example `row`: the choice with the highest mean probability over models.

        `answers` are the answers of the models.
        """
        best, combined = combine_candidates(answers)
        return {"choice": best, **combined}

    def metric_sums(self, answers: Sequence[Answer], examples: Any) -> AdditiveMetrics:
        """Return the accuracy of the predicted choices as sums over examples (AdditiveMetrics)."""
        return choice_metrics(answers, examples, self)

    def gold_and_predicted(self, answers: Sequence[Answer], examples: Any) -> tuple[list[Any], list[Any]]:
        """Return two lists: the indices of the correct choices, and the indices of the predicted choices."""
        return [int(group.correct[0]) for group in examples.groups], [answer["choice"] for answer in answers]

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Score each predicted choice: 1 if it is correct, else 0."""
        return score_choices(answers, examples, self)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]]:
        """Return the name of a baseline, and its answers to the examples `judged`.

        The baseline always chooses the position that is most often correct in the training examples, `learned`.
        """
        usual = most_frequent(str(group.correct[0]) for group in learned.groups)
        return f"choice {usual}", [{"choice": min(int(usual), len(group.names) - 1)} for group in judged.groups]

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return the answers of two baselines to the examples `judged`, by baseline.

        One chooses the longest choice, the other the choice with the largest word overlap.
        """
        longest = [int(np.argmax([len(name) for name in group.names])) for group in judged.groups]
        closest = [
            int(np.argmax([overlap(group.display_text or group.texts[0], name) for name in group.names]))
            for group in judged.groups
        ]
        found = {"the longest choice": longest, "the choice with the most word overlap": closest}
        return {name: [{"choice": choice} for choice in choices] for name, choices in found.items()}

    def in_context_prompt(self, rows: Sequence[Row], settings: Mapping[str, Any]) -> ChoicePrompt:
        """Return an in-context prompt that ranks the choices by their likelihood per token."""
        return ChoicePrompt()

    def demonstration(self) -> ChoiceExamples:
        """Return an example of the task: a question of cause and effect with two choices."""
        choices = ("The sink was full.", "Water flowed.")
        return ChoiceExamples(
            Path("example"), {}, [ChoiceExample(choices, ("He opened the tap.",) * 2, choices, (1,))], lines=[1]
        )


def choice_tokens(sequences: Sequences) -> Array:
    """Return a mask of the tokens with Longformer's global attention: the choice or, without one, the first token.

    The mask is (tokens,).
    """
    separators = np.concatenate([[0], np.cumsum(sequences.columns["special"] & (sequences.index_in_sequence > 0))])
    before = separators[:-1] - np.repeat(separators[sequences.offsets[:-1]], sequences.lengths)  # in the same sequence
    chosen = before >= 2
    has_choice = np.zeros(len(sequences.lengths), dtype=bool)
    has_choice[sequences.owner[chosen]] = True
    return np.where(has_choice[sequences.owner], chosen, sequences.index_in_sequence == 0)
