"""Translation (Vaswani et al., 2017) or any other text-to-text pairs: write the second text of a pair from the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from pretune.objectives.objective import Data, LearnsFromRows
from pretune.objectives.registry import register_objective
from pretune.objectives.seq2seq.source_target import (
    Seq2Seq,
    SourceTargetEpoch,
    check_fraction,
    check_languages,
    report_dropped_pairs,
    shift_targets,
    with_language,
    with_target_side,
)
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.files import Errors
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.parallel import read_parallel
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_lengths
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class Translate(Seq2Seq, LearnsFromRows):
    """Translation of `text` into `pair` (columns of a table) and, with `bidirectional`, also in the other direction.

    The tokens of the languages `language_pair`, such as en-fr, replace the placeholders of the template (mBART);
    without placeholders, the decoder starts from the token of the target language.
    """

    label_smoothing: float = 0.1
    bidirectional: bool = False
    language_pair: str = ""
    text: str = ""
    pair: str = ""

    name: ClassVar[str] = "translate"
    purpose: ClassVar[tuple[str, str]] = ("It translates texts", "translation")

    def __post_init__(self) -> None:
        check_fraction(self.name, "label_smoothing", self.label_smoothing)
        check_languages(self.name, self.language_pair)

    def read_rows(self, files: Sequence[str | Path], errors: Errors = "strict") -> LabeledRows:
        """Read pairs of texts from a table, or from two files with aligned lines."""
        # The name of a column may have been parsed as a number.
        return read_parallel(files, {"text": str(self.text), "pair": str(self.pair)}, errors)

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Return a source and a target sequence per pair of texts; drop pairs that are too long or incomplete."""
        if not isinstance(data.rows, LabeledRows) or data.rows.pairs is None:
            raise PretuneError(
                "the objective 'translate' learns from pairs of texts; give it a table of pairs, or two aligned .txt files"
            )
        templates = self.templates(data.template)
        around = np.array([template.num_special_tokens(pair=False) for template in templates]) - [0, 1]
        rows = data.token_rows
        starts, lengths = rows.starts, rows.lengths
        if self.bidirectional:
            starts, lengths = (np.concatenate([x, x[:, ::-1]]) for x in (starts, lengths))
        fits = ((lengths + around <= packing.length) & (lengths > 0)).all(1)
        report_dropped_pairs(data.rows, fits, packing, draws)
        # Where the texts are exchanged, their languages are too.
        backward = np.flatnonzero(fits) >= len(rows.starts)
        starts, lengths = starts[fits], lengths[fits]
        source, target = (
            Arrangement(rows, data.tokenizer, template, starts[:, [side]], lengths[:, [side]], {"backward": backward})
            for side, template in enumerate(templates)
        )
        return SourceTargetEpoch(source, plan_lengths((lengths + around).max(1), packing, draws), target)

    def templates(self, template: Template) -> tuple[Template, Template]:
        """Return the templates of source and target, given the template of the model family."""
        template = with_target_side(template)
        target = template.target
        if not self.language_pair:
            return Template(template.single, ()), Template(target, ())
        first, second = self.language_pair.split("-")
        if "language" not in target:
            target = ("language", *target[1:])
        return Template(with_language(template.single, first), ()), Template(with_language(target, second), ())

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set up teacher forcing by shifting the targets.

        In pairs that are translated in the reverse direction, the language tokens of source and target are exchanged.
        """
        assert sequences.second is not None
        if self.language_pair:
            pair = [tokenizer.role(f"language {name}") for name in self.language_pair.split("-")]
            for side in (sequences, sequences.second):
                reversed_ = side.labels["backward"][side.owner]
                ids = side.ids[reversed_]
                side.ids[reversed_] = np.where(ids == pair[0], pair[1], np.where(ids == pair[1], pair[0], ids))
        return shift_targets(self.name, sequences)
