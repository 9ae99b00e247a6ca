"""Translation language modeling (Lample and Conneau, 2019, XLM): hidden tokens of a text and of its translation, from both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.big_bird import BlockSparseAttention
from pretune.nn.attention.multi_head import Attention, GlobalAttention, ScoredAttention
from pretune.nn.attention.patterns import Pattern, full
from pretune.objectives.objective import Data, LearnsFromRows, Loss, token_loss
from pretune.objectives.pretraining.arrangements import smoothed
from pretune.objectives.pretraining.masking import check_share, choose, hide
from pretune.objectives.registry import register_objective
from pretune.objectives.seq2seq.source_target import check_fits
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.corpus.files import Errors
from pretune.text.corpus.parallel import read_languages
from pretune.text.examples.labeled import Labeled
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, Template, plan_epoch
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@register_objective
@dataclass(frozen=True)
class TLM(LearnsFromRows):
    """A text and its translation in one sequence, each in a template of its own, positions counted anew in the second.

    Tokens of both are hidden as `mlm` does it. `languages`, say en-fr, are those of all pairs, where the names of columns or
    files do not tell; `text` and `pair` are columns of a table.
    """

    rate: float = 0.15
    masked: float = 0.8
    swapped: float = 0.1
    languages: str = ""
    text: str = ""
    pair: str = ""

    name: ClassVar[str] = "tlm"
    pattern: ClassVar[Pattern | None] = full
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    corrupts: ClassVar[bool] = True
    head_of: ClassVar[str] = "mlm"  # one way to the vocabulary for both

    def __post_init__(self) -> None:
        check_share(self.name, rate=self.rate)
        if self.masked + self.swapped > 1 + 1e-9:
            raise PretuneError(f"{self.name}: masked={self.masked:g} and swapped={self.swapped:g} are more than all")
        check_languages(self.name, self.languages)

    def read_rows(self, files: Sequence[str | Path], errors: Errors = "strict") -> Labeled:
        """Tables of pairs, or files in twos whose lines belong together."""
        return read_languages(files, {"text": str(self.text), "pair": str(self.pair)}, self.languages, errors)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """A pair to a sequence; one that is too long, or has an empty side, is left out. Small languages come more often."""
        return pairs_epoch(self.name, data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Hide tokens of both sides; targets are the originals. The second side begins at position 0 again."""
        at = choose(sequences, self.rate, draws)
        original = hide(sequences, at, tokenizer, draws, masked=self.masked, swapped=self.swapped)
        sequences.targets[self.name] = (at, original)
        return begin_anew(sequences)

    def room(self, packing: Packing) -> dict[str, int]:
        """round(rate · length) of each sequence can add half a target each."""
        sequences = min(packing.sequences, packing.tokens)
        return {self.name: min(packing.tokens, int(self.rate * packing.tokens) + sequences // 2 + 1)}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        check_attention(self.name, backbone)
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy at the hidden tokens."""
        return token_loss(self.name, head, backbone, batch)


def pairs_epoch(name: str, data: Data, packing: Packing, draws: Draws) -> Epoch:
    """Pairs of texts that fit, one to a sequence, each text in a template of its own; column `side` tells them apart."""
    if not isinstance(data.rows, Labeled) or data.rows.pairs is None:
        raise PretuneError(f"{name} learns from pairs of texts; give it a table of them, or two aligned .txt files")
    rows = data.token_rows
    single = (*data.template.single, *data.template.last)
    twice = tuple("B" if item == "A" else item for item in single)
    template = Template(single, twice, segments=data.template.segments)
    fits = (rows.lengths > 0).all(1) & (rows.lengths.sum(1) + template.overhead(pair=True) <= packing.length)
    check_fits(data.rows, fits, packing, draws)
    columns = {"side": np.broadcast_to([0, 1], rows.starts.shape)}
    groups = np.zeros(len(fits), dtype=np.int64)
    if data.rows.labels is not None:
        known, groups = np.unique(data.rows.labels, return_inverse=True)
        if data.languages:
            numbers = np.array([[data.languages[name] for name in pair.split()] for pair in known])
            columns["language"] = numbers[groups]
    made = Arrangement(rows, data.tokenizer, template, rows.starts, rows.lengths, columns=columns)
    chosen = np.flatnonzero(fits)
    return plan_epoch(made.choose(chosen[smoothed(groups[chosen], data.exponent, draws)]), packing, draws)


def begin_anew(sequences: Sequences) -> Sequences:
    """Positions count from 0 again on the second side."""
    second = np.bincount(sequences.owner, weights=sequences.columns["side"] == 0).astype(np.int64)
    sequences.positions = sequences.place - sequences.columns["side"] * second[sequences.owner]
    return sequences


def check_languages(name: str, languages: str) -> None:
    """Refuse what does not name the languages of a pair."""
    if languages and len(languages.split("-")) != 2:
        raise PretuneError(f"{name}(languages={languages}): name two, as in languages=en-fr")


def check_attention(name: str, backbone: Backbone) -> None:
    """Where positions begin anew, attention that goes by positions would be wrong, or see what it has to predict."""
    modules = backbone.modules() if isinstance(backbone, nn.Module) else ()
    for module in modules:
        if (
            isinstance(module, Attention | GlobalAttention | ScoredAttention | BlockSparseAttention)
            and module.pattern != full
        ):
            raise PretuneError(
                f"{name} needs a model whose tokens see each other; attention of this one is {module.pattern.name}"
            )
