"""Read tables that pair texts with images, whose regions are in files of `text.corpus.region_files`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import Errors, find_files
from pretune.text.corpus.region_files import RegionFiles, split_reference
from pretune.text.examples.labeled import FORMATS, LabeledRows, TableChunk, column_names, read_labeled

IMAGE_COLUMNS = ("image", "image_file", "image_path", "img", "image_id", "img_id")
# The usual names of columns, besides those of any text and label.
USUAL_COLUMNS = {"text": ("caption", "question"), "label": ("answers", "answer")}


def read_image_texts(
    file: str | Path | TableChunk,
    columns: Mapping[str, str] | None = None,
    *,
    labels: bool = False,
    label: Callable[[Any], Any] | None = None,
    errors: Errors = "strict",
) -> LabeledRows:
    """Read rows with a text, an image and, if `labels`, a label; `extra["image"]` has the path of each image.

    `label` converts a cell to a label. Relative paths of images become paths relative to the working directory.
    """
    known = list(file.first) if isinstance(file, TableChunk) else column_names(find_files(file, FORMATS)[0], errors)
    usual = {role: name for role, names in USUAL_COLUMNS.items() for name in reversed(names) if name in known}
    chosen = {**{role: name for role, name in usual.items() if labels or role != "label"}, **(columns or {})}
    rows = read_labeled(
        file, chosen, errors=errors, labels=labels, label=label, roles={"image": IMAGE_COLUMNS}, pairs=False
    )
    if "image" not in rows.extra:
        raise PretuneError(f"{rows.file}: no column has the images; add a column 'image' with FILE.tsv#ID or FILE.npy")
    images = []
    for row, cell in enumerate(rows.extra["image"]):
        if not isinstance(cell, str) or not cell.strip():
            raise PretuneError(f"{rows.location(row)}: the row has no image; write FILE.tsv#ID or FILE.npy")
        try:
            split_reference(cell.strip())
        except PretuneError as error:
            raise PretuneError(f"{rows.location(row)}: {error}") from error
        images.append(str(rows.file.parent / cell.strip()))
    return replace(rows, extra={**rows.extra, "image": images})


def read_image_text_files(files: Sequence[str | Path], errors: Errors) -> LabeledRows:
    """Read rows with a text and an image from several tables, as rows of the first one."""
    parts = [read_image_texts(path, errors=errors) for file in files for path in find_files(file, FORMATS)]
    if not parts:
        raise PretuneError("there are no rows to train on; give a table with the columns text and image")
    return LabeledRows(
        parts[0].file,
        parts[0].columns,
        list(chain.from_iterable(part.texts for part in parts)),
        extra={"image": list(chain.from_iterable(part.extra["image"] for part in parts))},
        lines=parts[0].lines if len(parts) == 1 else [],
    )


def region_sizes(rows: Any) -> tuple[int, int | None] | None:
    """Return the width of the features of regions and the number of detector classes, if known, of the first image.

    Return None if the rows have no images.
    """
    if not isinstance(rows, LabeledRows) or "image" not in rows.extra:
        return None
    regions = RegionFiles().read(rows.extra["image"][0])
    return regions.features.shape[1], None if regions.classes is None else regions.classes.shape[1]
