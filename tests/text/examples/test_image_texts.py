"""Tables that pair texts with images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune import PretuneError
from pretune.text.corpus.region_files import ImageRegions
from pretune.text.examples.image_texts import read_image_text_files, read_image_texts, region_sizes
from tests.support.drawn_shapes import CLASSES, FEATURES, write_captions, write_rows


def test_tables_name_images_relative_to_their_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    files = [write_captions(tmp_path / "a", 3), write_captions(tmp_path, 2, npy=True, name="b")]
    rows = read_image_text_files(files, "strict")
    assert len(rows) == 5 and rows.extra["image"][0] == str(tmp_path / "a" / "captions-regions.tsv#0")
    assert rows.extra["image"][-1] == str(tmp_path / "b-1.npy")
    assert region_sizes(rows) == (FEATURES, len(CLASSES)) and rows.take([4]).extra["image"] == rows.extra["image"][4:]
    assert region_sizes(None) is None
    # The same text with another image is not a duplicate.
    rows.texts[1] = rows.texts[0]
    assert rows.duplicate_key(0) != rows.duplicate_key(1)
    assert (
        rows.inputs(0)["image"].endswith("#0") and str(ImageRegions(np.zeros((2, 1)), np.zeros((2, 5)))) == "2 regions"
    )


def test_usual_columns_are_found(tmp_path: Path) -> None:
    table = tmp_path / "q.jsonl"
    write_rows(table, [{"id": 5, "question": "what ?", "image_id": "a.npy", "answers": ["x"], "caption": "no"}] * 3)
    rows = read_image_texts(table, labels=True, label=lambda cell: tuple(cell))
    assert rows.texts[0] == "no" and rows.labels == [("x",)] * 3
    rows = read_image_texts(table, {"text": "question"})
    assert rows.texts[0] == "what ?" and rows.labels is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a cat sat down"}, "no column has the images"),
        ({"text": "a cat sat down", "image": None}, "line 1: the row has no image"),
        ({"text": "a cat sat down", "image": "cat.jpg"}, "line 1: 'cat.jpg' does not name the regions"),
    ],
)
def test_rows_without_an_image_are_refused(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        read_image_texts(write_rows(tmp_path / "t.jsonl", [row]))
