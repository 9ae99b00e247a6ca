"""Classification by filling a gap: the word that a masked language model puts there is the label (Schick and Schütze, 2021, PET).

A delightful film. It was [MASK].    good → positive, bad → negative
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from pretune.nn.attention.packed_layout import side_of
from pretune.nn.attention.patterns import Pattern
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.classify import Classify, find_labels, need_rows
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.examples.clozes import Cloze, name_words, one_token
from pretune.text.examples.labeled import Excerpt, Labeled, read_labeled
from pretune.text.packing.sequence_parts import compose
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Prompt:
    """`cloze` is a text with a [MASK], `words` are what stands there for each label: good/bad, or yes:good/no:bad.

    `drop_bad`: rows without a label or a text are left out.
    """

    cloze: str = "It was [MASK]."
    words: str = ""
    labels: Sequence[str] = fitted(())
    ids: tuple[int, ...] = fitted(())  # the words' tokens
    mask: int = fitted(-1)
    drop_bad: bool = False

    name: ClassVar[str] = "prompt"
    head_of: ClassVar[str] = "mlm"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    each: ClassVar[Literal["sequence"]] = "sequence"
    decides: ClassVar[str] = "accuracy"

    @property
    def classes(self) -> Classify:
        """The same labels, for what classifiers have in common."""
        return Classify(labels=self.labels)

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Labeled:
        """Rows of a table: a text or two, and a label."""
        return read_labeled(file, columns, labels=answered, drop_bad=self.drop_bad)

    def fit(self, examples: Labeled) -> Self:
        """With the labels of some rows."""
        labels = tuple(find_labels(examples.file, examples.labels or ()))
        name_words(self.words, labels)
        return replace(self, labels=labels)

    def knowing(self, tokenizer: Tokenizer) -> Self:
        """With the tokens of its words."""
        space = Cloze.parse(self.cloze, pair="{pair}" in self.cloze).space
        ids = tuple(one_token(word, tokenizer, space) for word in name_words(self.words, self.labels))
        if len(set(ids)) < len(ids):
            raise PretuneError(f"prompt(words={self.words}): two labels have the same word to this tokenizer")
        return replace(self, ids=ids, mask=tokenizer.role("mask"))

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """A row to a sequence with a gap; too long texts are cut. Label `gap` is where it stands."""
        rows, template = need_rows(self.name, data), data.template
        if template.target:
            raise PretuneError(
                "prompt is for masked language models; for an encoder-decoder take generate(closed=true)"
            )
        parts = Cloze.parse(self.cloze, rows.pairs is not None).parts(rows, data.tokenizer)
        laid = compose(parts, data.tokenizer, template.single, length)
        gap = parts.index((data.tokenizer.role("mask"),))
        laid.labels["gap"] = template.single.index("A") + laid.spans[:, :gap].sum(1)
        if rows.labels is not None:
            laid.labels["prompt"] = self.classes.encode_labels(rows)
        return laid

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Rows in any order."""
        laid = data.once((self.name, packing.length), lambda: self.lay_out(data, packing.length))
        return plan_epoch(laid, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The label is the target of the gap, which nobody else shall fill."""
        at = sequences.offsets[:-1] + sequences.labels["gap"]
        sequences.columns["special"][at] = True
        if "prompt" in sequences.labels:
            sequences.targets[self.name] = (at, sequences.labels["prompt"])
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """One target a sequence."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(sequences, classes) logits of the words in the gaps."""
        packed = batch.packed[-1]
        tokens = packed.ids.shape[0]  # not len(packed), which a traced graph would keep for all batches
        places = torch.arange(tokens, device=packed.ids.device) * (packed.ids == self.mask)
        first = packed.offsets[:-1].long().clamp(max=tokens - 1)
        at = first.scatter_reduce(0, side_of(packed).sequence.long(), places, "amax")
        return self._words(head, backbone, batch, at)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy over the words alone."""
        targets = batch.targets[self.name]
        return classification_loss(self.name, self._words(head, backbone, batch, targets.at), targets)

    def _words(self, head: nn.Module, backbone: Backbone, batch: Batch, at: Tensor) -> Tensor:
        logits = head(backbone(*batch.packed).last[at], backbone.embed.tokens)
        return torch.stack([logits[:, word] for word in self.ids], -1)

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Labeled) -> list[Answer]:
        """The likeliest label, and how likely each is."""
        return self.classes.answers(outputs, laid, examples)

    def combine(self, answers: Sequence[Answer], examples: Labeled, row: int) -> Answer:
        """The answer of several models to one example: the mean of their probabilities."""
        return self.classes.combine(answers, examples, row)
