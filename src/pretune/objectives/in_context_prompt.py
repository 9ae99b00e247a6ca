"""The contract of prompts for in-context learning: how a task asks a language model that was not trained for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

Row = Mapping[str, Any]  # the fields of an example by role, such as text, pair and label


@dataclass(frozen=True)
class InContextPrompt:
    """Base class of prompt formats for in-context learning, one for each kind of task, such as classification.

    A subclass defines the candidate answers, the gold answer, and how the model's output becomes an answer. The model
    ranks the candidates by likelihood; without candidates, it generates at most `max_tokens` tokens.
    """

    max_tokens: int = 32
    per_token: ClassVar[bool] = False  # whether to rank by the likelihood per token, which is fair to long candidates
    per_class: ClassVar[bool] = False  # whether the number of examples in the prompt is per class rather than in total

    def slots(self, row: Row) -> dict[str, str]:
        """Return the values of those placeholders of the prompt template that are not fields of the example `row`."""
        return {}

    def candidates(self, row: Row) -> Sequence[str]:
        """Return the candidate answers to the example `row`; () if the model generates the answer."""
        return ()

    def gold(self, row: Row) -> str:
        """Return the gold answer to the example `row`, spelled as in the prompt."""
        raise NotImplementedError

    def answer(self, row: Row, output: Any) -> dict[str, Any]:
        """Return the answer to the example `row`, given the model's `output` for it.

        `output` has the log-likelihoods of the candidates or, if there are none, is the generated text.
        """
        raise NotImplementedError
