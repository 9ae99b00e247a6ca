"""Classification of two marked spans: whether a word has the same sense twice, or two phrases are coreferent.

Sources: Pilehvar and Camacho-Collados, 2019, arXiv:1808.09121 (WiC); Levesque et al., 2012, *The Winograd Schema
Challenge* (WSC); trained as in SuperGLUE (Wang et al., 2019, arXiv:1905.00537).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.nn.attention.query_key_layout import token_layout
from pretune.nn.dropout import Dropout
from pretune.nn.linear import OutputLinear
from pretune.nn.pooling import pool
from pretune.objectives.objective import Data
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.classify import LabelTask, sorted_labels
from pretune.objectives.word_baselines import classify_pairs
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows, TableChunk
from pretune.text.examples.span_pairs import read_span_pairs, truncate_around_spans
from pretune.text.packing.sequences import Arrangement, Sequences, add_global_starts
from pretune.text.packing.token_rows import arrange_rows
from pretune.text.tokenizers.tokenizer import Tokenizer


class MatchHead(nn.Module):
    """A head that computes one logit per class from the pooled sequence and the mean state of each of two spans."""

    def __init__(self, backbone: Backbone, classes: int, pooling: str, dropout: float) -> None:
        super().__init__()
        self.pooling = pooling
        self.dropout = Dropout(dropout)
        self.output = OutputLinear(3 * backbone.width, classes)

    def forward(self, states: Tensor, packed: Packed) -> Tensor:
        """Return logits (sequences, classes) for the hidden states (tokens, width) of packed sequences."""
        span, owner = packed.columns["span"], token_layout(packed).sequence.long()
        whole = pool(states, packed, self.pooling)
        vectors = [whole]
        for bit in (1, 2):
            inside = ((span & bit) > 0).to(states.dtype)[:, None]
            total = torch.zeros_like(whole).index_add(0, owner, states * inside)
            count = whole.new_zeros(len(whole), 1).index_add(0, owner, inside)
            vectors.append(total / count.clamp(min=1))
        logits: Tensor = self.output(self.dropout(torch.cat(vectors, -1)))
        return logits


@register_task
@dataclass(frozen=True)
class Match(LabelTask):
    """Classification of two marked spans into `labels`, from their mean states and the sequence pooled by `pooling`."""

    labels: Sequence[str] = fitted(())
    pooling: Literal["cls", "mean", "max", "last"] = "cls"
    dropout: float = 0.1
    drop_invalid: bool = False  # whether to leave out rows without a label, or whose spans are not in their texts

    name: ClassVar[str] = "match"
    reads_spans: ClassVar[bool] = True
    in_context_template: ClassVar[str] = "{text}\nLabel: [MASK]"

    def read(self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True) -> LabeledRows:
        """Read one or two texts with two marked spans and, if `answered`, a label per row."""
        return read_span_pairs(file, columns, labels=answered, drop_invalid=self.drop_invalid)

    def fit(self, examples: LabeledRows) -> Self:
        """Return a copy of the task with the labels of the training rows."""
        return replace(self, labels=tuple(sorted_labels(examples.file, examples.labels or ())))

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence of at most `length` tokens per row; longer texts are truncated around their spans."""
        if not isinstance(data.rows, LabeledRows) or "spans" not in data.rows.extra:
            raise PretuneError(
                "the task 'match' needs rows with two marked spans; give a file with the columns start1, end1, start2 and end2"
            )
        if data.template.target:
            raise PretuneError(
                "the task 'match' needs an encoder, because it marks tokens of its input; choose an encoder instead of an encoder-decoder"
            )
        labels = {} if data.rows.labels is None else {self.name: self.encode_labels(data.rows)}
        arrangement = arrange_rows(data.token_rows, data.tokenizer, data.template, length, labels)
        return truncate_around_spans(arrangement, data.rows, length)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the label of each sequence as its target. The tokens stay unchanged."""
        sequences = add_global_starts(sequences)
        sequences.columns["span"] = sequences.columns["span"].clip(min=0)
        if self.name in sequences.labels:
            sequences.targets[self.name] = (np.arange(len(sequences.lengths)), sequences.labels[self.name])
        return sequences

    def head(self, backbone: Backbone) -> nn.Module:
        """Build a head that classifies from three vectors: the pooled sequence and the mean state of each span."""
        return MatchHead(backbone, len(self.labels), self.pooling, self.dropout)

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return the answers of a baseline to the rows `judged`: a linear classifier on words and their overlap.

        The classifier is fitted to `learned`, and reads the words of the two marked spans.
        """
        labels = classify_pairs(marked_spans(learned), marked_spans(judged))
        return {"word overlap of the spans": [{"label": label} for label in labels]}

    def demonstration(self) -> LabeledRows:
        """Return examples of the task: pairs of phrases that use a word in different senses, or in the same sense."""
        first, second = ["the river bank", "a bank"], ["a bank lends money", "the bank"]
        spans = [((10, 14), (2, 6)), ((2, 6), (4, 8))]
        return LabeledRows(Path("example"), {}, first, second, ["other", "same"], extra={"spans": spans})


def marked_spans(rows: LabeledRows) -> LabeledRows:
    """Return copies of rows in which the two marked spans of each row are its pair of texts; labels stay the same."""
    seconds = rows.texts if rows.pairs is None else rows.pairs
    spans = rows.extra["spans"]
    firsts = [text[start:end] for text, ((start, end), _) in zip(rows.texts, spans, strict=True)]
    others = [text[start:end] for text, (_, (start, end)) in zip(seconds, spans, strict=True)]
    return LabeledRows(rows.file, {}, firsts, others, rows.labels)
