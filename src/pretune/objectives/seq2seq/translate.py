"""Translation (Vaswani et al., 2017), or any other rewriting: the decoder writes the second text of a pair from the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern
from pretune.objectives.objective import Data, LearnsFromRows, Loss, TwoSided, token_loss
from pretune.objectives.registry import register_objective
from pretune.objectives.seq2seq.source_target import (
    PairEpoch,
    check_fits,
    check_share,
    in_language,
    shapes,
    shift,
    writing_template,
)
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.corpus.files import Errors
from pretune.text.corpus.parallel import read_pairs
from pretune.text.examples.labeled import Labeled
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, Template, plan_lengths
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@register_objective
@dataclass(frozen=True)
class Translate(TwoSided, LearnsFromRows):
    """From `text` to `pair`, and with `both` the other way too. Wanted probabilities are smoothed by `smoothing`.

    `languages`, say en-fr, are those of text and pair: the tokenizer's tokens for them stand where the template has a
    language (mBART), else the decoder starts from the one it shall write. `text` and `pair` are columns of a table.
    """

    smoothing: float = 0.1
    both: bool = False
    languages: str = ""
    text: str = ""
    pair: str = ""

    name: ClassVar[str] = "translate"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_share(self.name, "smoothing", self.smoothing)
        if self.languages and len(self.languages.split("-")) != 2:
            raise PretuneError(f"translate(languages={self.languages}): name two, as in languages=en-fr")

    def read_rows(self, files: Sequence[str | Path], errors: Errors = "strict") -> Labeled:
        """A table of pairs, or two files whose lines belong together."""
        # A number names a column too.
        return read_pairs(files, {"text": str(self.text), "pair": str(self.pair)}, errors)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """A row to a pair of sequences, or to two; a row that is too long, or has an empty side, is left out."""
        if not isinstance(data.rows, Labeled) or data.rows.pairs is None:
            raise PretuneError(
                "translate learns from pairs of texts; give it a table of them, or two aligned .txt files"
            )
        templates = self.templates(data.template)
        around = np.array([templates[0].overhead(pair=False), templates[1].overhead(pair=False) - 1])
        rows = data.token_rows
        starts, lengths = rows.starts, rows.lengths
        if self.both:
            starts, lengths = (np.concatenate([x, x[:, ::-1]]) for x in (starts, lengths))
        fits = ((lengths + around <= packing.length) & (lengths > 0)).all(1)
        check_fits(data.rows, fits, packing, draws)
        # Which language is which changes places with the texts.
        backward = np.flatnonzero(fits) >= len(rows.starts)
        starts, lengths = starts[fits], lengths[fits]
        source, target = (
            Arrangement(rows, data.tokenizer, template, starts[:, [side]], lengths[:, [side]], {"backward": backward})
            for side, template in enumerate(templates)
        )
        return PairEpoch(source, target, plan_lengths((lengths + around).max(1), packing, draws))

    def templates(self, template: Template) -> tuple[Template, Template]:
        """What the first and the second text of a pair stand in."""
        template = writing_template(template)
        target = template.target
        if not self.languages:
            return Template(template.single, ()), Template(target, ())
        first, second = self.languages.split("-")
        if "language" not in target:
            target = ("language", *target[1:])
        return Template(in_language(template.single, first), ()), Template(in_language(target, second), ())

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Nothing to hide. Where a pair is read backward, so are its languages."""
        assert sequences.second is not None
        if self.languages:
            pair = [tokenizer.role(f"language {name}") for name in self.languages.split("-")]
            for side in (sequences, sequences.second):
                turned = side.labels["backward"][side.owner]
                side.ids[turned] = swap(side.ids[turned], *pair)
        return shift(self.name, sequences)

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """Packs are planned by the longer side of each pair."""
        whole = (packing.tokens, packing.length)
        return shapes(packing, whole, whole)

    def room(self, packing: Packing) -> dict[str, int]:
        """Everything that is written."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of what is written, smoothed."""
        return token_loss(self.name, head, backbone, batch, self.smoothing)


def swap(ids: Array, one: int, other: int) -> Array:
    """Every `one` becomes the `other`, and the other way around."""
    return np.where(ids == one, other, np.where(ids == other, one, ids))
