"""The base class of objectives that learn from pairs of a text and an image, whose regions have features of a detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pretune.nn.attention.patterns import Pattern, full
from pretune.objectives.objective import Data, LearnsFromRows
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.files import Errors
from pretune.text.examples.image_texts import read_image_text_files
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.region_sequences import RegionSequences
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, plan_epoch
from pretune.text.packing.token_rows import arrange_rows


class ImageText(LearnsFromRows):
    """Base class of objectives that learn from tables with a text and an image per row."""

    pattern: ClassVar[Pattern | None] = full
    owns_arrangement: ClassVar[bool] = True

    @property
    def arrangement(self) -> str:
        """Return the name of the arrangement, which all objectives on texts and images share."""
        return "texts and images"

    def read_rows(self, files: Sequence[str | Path], errors: Errors = "strict") -> LabeledRows:
        """Read texts and the images that belong to them from tables."""
        return read_image_text_files(files, errors)

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Return one sequence per text, with the regions of its image as the second side."""
        if not isinstance(data.rows, LabeledRows) or "image" not in data.rows.extra:
            raise PretuneError(
                "this objective learns from pairs of a text and an image; give it a table with the columns text and image"
            )
        return plan_epoch(arrange_images(data, packing.length), packing, draws)


def arrange_images(data: Data, length: int, labels: Mapping[str, Array] | None = None) -> Arrangement:
    """Return one sequence of at most `length` tokens per row, with the regions of its image as the second side.

    `labels` has arrays with one value per row.
    """
    rows = data.rows
    arrangement = arrange_rows(data.token_rows, data.tokenizer, data.template, length, labels or {})
    # Rows for training and held-out rows have one cache.
    arrangement.second = data.cached(
        (RegionSequences, length, id(rows)), lambda: RegionSequences.make(rows.extra["image"], length)
    )
    return arrangement
