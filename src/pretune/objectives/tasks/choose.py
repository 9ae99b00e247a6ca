"""Multiple choice: which of several texts goes best with a text, or a question.

Sources: Roemmele et al., 2011, *Choice of Plausible Alternatives* (COPA); Zellers et al., 2018, arXiv:1808.05326 (SWAG); Lai et
al., 2017, arXiv:1704.04683 (RACE); learned as Devlin et al., 2019, arXiv:1810.04805, learn SWAG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from torch import Tensor, nn

from pretune.nn.attention.patterns import Pattern
from pretune.objectives.objective import Data, Loss
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.candidates import (
    arrange_candidates,
    combine_candidates,
    group_loss,
    group_targets,
    list_candidates,
    split_groups,
)
from pretune.objectives.tasks.classify import ClassifyHead, Pooling, check_pooling
from pretune.packed import Batch
from pretune.runtime.randomness import Draws
from pretune.text.examples.labeled import Excerpt
from pretune.text.examples.multiple_choice import Grouped, read_choices
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Choose:
    """`pooling` is what stands for a sequence; examples may have different numbers of choices."""

    pooling: Pooling = "start"
    dropout: float = 0.1
    most: int = fitted(0)  # choices of an example

    name: ClassVar[str] = "choose"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    each: ClassVar[Literal["sequence", "token"]] = "sequence"
    decides: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        check_pooling(self.name, self.pooling)

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Grouped:
        """Rows with choices."""
        return read_choices(file, columns, labels=answered)

    def fit(self, examples: Grouped) -> Self:
        """With room for all choices."""
        return replace(self, most=int(examples.sizes.max()))

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """A choice to a sequence, with the text before it; of too long ones the longer text is cut."""
        check_pooling(self.name, self.pooling, data.template)
        return arrange_candidates(self.name, data, length)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Examples in any order, their choices together."""
        return plan_epoch(self.lay_out(data, packing.length), packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The right choice is the target of an example."""
        sequences.columns["global"] = in_choice(sequences)
        if "right" in sequences.labels:
            labels = sequences.labels
            sequences.targets[self.name] = group_targets(labels["group"], labels["right"], self.most)
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """One target an example, which has a sequence at least."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Pooler, dropout, one score."""
        pooler, output = backbone.choice_pooler, backbone.choice_output
        return ClassifyHead(backbone, 1, self.pooling, self.dropout, pooler=pooler, output=output)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(sequences,) scores."""
        scores: Tensor = head(backbone(*batch.packed).last, batch.packed[-1])[:, 0]
        return scores

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Grouped) -> list[Answer]:
        """The likeliest choice, counted from 0, and how likely each is."""
        return [
            {
                "choice": int(shares.argmax()),
                "answer": group.names[int(shares.argmax())],
                "probability": float(shares.max()),
                "candidates": list_candidates(group, shares),
            }
            for group, shares in zip(examples.groups, split_groups(outputs, examples), strict=True)
        ]

    def combine(self, answers: Sequence[Answer], examples: Any, row: int) -> Answer:
        """The answer of several models to one example: the mean of their probabilities."""
        best, combined = combine_candidates(answers)
        return {"choice": best, **combined}

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy over the choices of each example."""
        return group_loss(self.name, self.outputs(head, backbone, batch), batch.targets[self.name])


def in_choice(sequences: Sequences) -> Array:
    """Return which tokens see all of their sequence and are seen by all of it (Longformer), (n,) booleans.

    They are those after the two separators between a text and its choice, as in `transformers`; in a sequence of one text, the
    first token.
    """
    separators = np.concatenate([[0], np.cumsum(sequences.columns["special"] & (sequences.place > 0))])
    before = separators[:-1] - np.repeat(separators[sequences.offsets[:-1]], sequences.lengths)  # in the same sequence
    chosen = before >= 2
    has_choice = np.zeros(len(sequences.lengths), dtype=bool)
    has_choice[sequences.owner[chosen]] = True
    return np.where(has_choice[sequences.owner], chosen, sequences.place == 0)
