"""Prompt-based classification: a masked language model fills a gap with a label's word (Schick and Schütze, 2021).

A delightful film. It was [MASK].    good → positive, bad → negative
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.nn.attention.query_key_layout import token_layout
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.objectives.registry import register_task
from pretune.objectives.task import fitted
from pretune.objectives.tasks.classify import LabelTask, require_labeled, sorted_labels
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.cloze_templates import Cloze, single_token, verbalizer_words
from pretune.text.examples.labeled import LabeledRows, TableChunk, read_labeled
from pretune.text.packing.sequence_parts import compose_sequences
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_task
@dataclass(frozen=True)
class Prompt(LabelTask):
    """Classification by the word at [MASK] in `template`; `verbalizer` has one word per label, such as good/bad."""

    template: str = "It was [MASK]."
    verbalizer: str = ""
    labels: Sequence[str] = fitted(())
    ids: tuple[int, ...] = fitted(())  # the tokens of the words
    mask: int = fitted(-1)
    drop_invalid: bool = False  # whether to leave out rows without a label or a text

    name: ClassVar[str] = "prompt"
    shared_head: ClassVar[str] = "mlm"
    distillable: ClassVar[bool] = True
    classifies_texts: ClassVar[bool] = True

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> LabeledRows:
        """Read one or two texts and, if `answered`, a label per row; `columns` maps roles such as text to columns."""
        return read_labeled(file, columns, labels=answered, drop_invalid=self.drop_invalid)

    def fit(self, examples: LabeledRows) -> Self:
        """Return a copy of the task with the labels of the training rows."""
        labels = tuple(sorted_labels(examples.file, examples.labels or ()))
        verbalizer_words(self.verbalizer, labels)
        return replace(self, labels=labels)

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """Return a copy of the task with the token ids of the words that stand for its labels."""
        space = Cloze.parse(self.template, pair="{pair}" in self.template).space
        ids = tuple(single_token(word, tokenizer, space) for word in verbalizer_words(self.verbalizer, self.labels))
        if len(set(ids)) < len(ids):
            raise PretuneError(
                f"prompt(verbalizer={self.verbalizer}): two labels have words with the same token; choose words whose tokens differ"
            )
        return replace(self, ids=ids, mask=tokenizer.role("mask"))

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return each row's filled template as a sequence of at most `length` tokens, with the index of its [MASK]."""
        rows, template = require_labeled(self.name, data), data.template
        if template.target:
            raise PretuneError(
                "the task 'prompt' needs a masked language model; with an encoder-decoder, use generate(constrained=true)"
            )
        parts = Cloze.parse(self.template, rows.pairs is not None).parts(rows, data.tokenizer)
        arrangement = compose_sequences(parts, data.tokenizer, template.single, length)
        gap = parts.index((data.tokenizer.role("mask"),))
        arrangement.labels["gap"] = template.single.index("A") + arrangement.spans[:, :gap].sum(1)
        if rows.labels is not None:
            arrangement.labels["prompt"] = self.encode_labels(rows)
        return arrangement

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Return the sequences of all rows in shuffled batches; rows are tokenized once and cached."""
        arrangement = data.cached((self.name, packing.length), lambda: self.tokenize_examples(data, packing.length))
        return plan_epoch(arrangement, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set each label as the target at its [MASK].

        The [MASK] is marked as a special token, so that no other objective changes it.
        """
        at = sequences.offsets[:-1] + sequences.labels["gap"]
        sequences.columns["special"][at] = True
        if "prompt" in sequences.labels:
            sequences.targets[self.name] = (at, sequences.labels["prompt"])
        return sequences

    def head(self, backbone: Backbone) -> nn.Module:
        """Build the model family's output layer over the vocabulary."""
        return backbone.vocabulary_head()

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the logits of the labels' words at the [MASK] of each sequence, (sequences, classes)."""
        packed = batch.packed[-1]
        tokens = packed.ids.shape[0]  # len(packed) would become a constant in a traced graph
        places = torch.arange(tokens, device=packed.ids.device) * (packed.ids == self.mask)
        first = packed.offsets[:-1].long().clamp(max=tokens - 1)
        at = first.scatter_reduce(0, token_layout(packed).sequence.long(), places, "amax")
        return self._words(head, backbone, batch, at)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of the label at each [MASK], over the words that stand for the labels."""
        targets = batch.targets[self.name]
        return classification_loss(self.name, self._words(head, backbone, batch, targets.at), targets)

    def _words(self, head: nn.Module, backbone: Backbone, batch: Batch, at: Tensor) -> Tensor:
        """Return the logits of the words that stand for the labels at token positions `at`, (positions, classes)."""
        logits = head(backbone(*batch.packed).last_at(at), backbone.embed.tokens)
        return torch.stack([logits[:, word] for word in self.ids], -1)
