"""The base class of `tlm` and `trtd`, which read a text and its translation as one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.nn.attention.big_bird import BlockSparseAttention
from pretune.nn.attention.multi_head import GlobalAttention, RelativeAttention, SelfAttention
from pretune.nn.attention.patterns import Pattern, full
from pretune.objectives.objective import Data, LearnsFromRows
from pretune.objectives.pretraining.arrangements import resample_groups
from pretune.objectives.seq2seq.source_target import check_languages, report_dropped_pairs
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.files import Errors
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.parallel import read_parallel_languages
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizers.template import Template


class ParallelText(LearnsFromRows):
    """Base class of objectives that read a text and its translation as one sequence.

    Each of the two texts has its own special tokens. `text` and `pair` are columns of a table; `language_pair`, such as
    en-fr, is needed unless the names of files or columns give it.
    """

    pattern: ClassVar[Pattern | None] = full
    owns_arrangement: ClassVar[bool] = True
    corrupts: ClassVar[bool] = True
    language_pair: str
    text: str
    pair: str

    def __post_init__(self) -> None:
        check_languages(self.name, self.language_pair)

    def read_rows(self, files: Sequence[str | Path], errors: Errors = "strict") -> LabeledRows:
        """Read pairs of texts from tables with two text columns, or from pairs of files with aligned lines."""
        return read_parallel_languages(
            files, {"text": str(self.text), "pair": str(self.pair)}, self.language_pair, errors
        )

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Return one sequence per pair of texts; drop pairs that are too long or have an empty text.

        The column `side` of the sequences is 0 for the tokens of the first text and 1 for the tokens of the second
        text.
        """
        if not isinstance(data.rows, LabeledRows) or data.rows.pairs is None:
            raise PretuneError(
                f"the objective {self.name!r} learns from pairs of texts; give it a table of pairs, or two aligned .txt files"
            )
        rows = data.token_rows
        single = (*data.template.single, *data.template.last)
        twice = tuple("B" if item == "A" else item for item in single)
        template = Template(single, twice, segments=data.template.segments)
        fits = (rows.lengths > 0).all(1) & (
            rows.lengths.sum(1) + template.num_special_tokens(pair=True) <= packing.length
        )
        report_dropped_pairs(data.rows, fits, packing, draws)
        columns = {"side": np.broadcast_to([0, 1], rows.starts.shape)}
        groups = np.zeros(len(fits), dtype=np.int64)
        if data.rows.labels is not None:
            known, groups = np.unique(data.rows.labels, return_inverse=True)
            if data.languages:
                numbers = np.array([[data.languages[name] for name in pair.split()] for pair in known])
                columns["language"] = numbers[groups]
        made = Arrangement(rows, data.tokenizer, template, rows.starts, rows.lengths, columns=columns)
        chosen = np.flatnonzero(fits)
        return plan_epoch(
            made.choose(chosen[resample_groups(groups[chosen], data.language_alpha, draws)]), packing, draws
        )


def restart_positions(sequences: Sequences) -> Sequences:
    """Restart the positions in the second text of each sequence at 0, and return the sequences."""
    second = np.bincount(sequences.owner, weights=sequences.columns["side"] == 0).astype(np.int64)
    sequences.positions = sequences.index_in_sequence - sequences.columns["side"] * second[sequences.owner]
    return sequences


def check_attention(name: str, backbone: Backbone) -> None:
    """Raise an error if a model has an attention pattern other than full attention.

    The objective `name` reads pairs of texts, and restarts the positions in the second text at 0; other attention
    patterns need positions that increase.
    """
    modules = backbone.modules() if isinstance(backbone, nn.Module) else ()
    for module in modules:
        if (
            isinstance(module, SelfAttention | GlobalAttention | RelativeAttention | BlockSparseAttention)
            and module.pattern != full
        ):
            raise PretuneError(
                f"the objective {name!r} needs a model with full attention, and the attention pattern of this one is "
                f"{module.pattern.name}; choose an encoder such as bert"
            )
