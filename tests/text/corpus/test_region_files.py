"""Features of image regions in .tsv and .npy files."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.text.corpus.region_files import (
    RegionFiles,
    split_reference,
)
from tests.support.drawn_shapes import (
    CLASSES,
    FEATURES,
    SIDE,
    detect,
    draw,
    tsv_line,
    write_captions,
    write_npy,
)


def test_both_formats_give_the_same_regions(tmp_path: Path) -> None:
    drawing = draw(random.Random(3))
    (tmp_path / "regions.tsv").write_bytes(tsv_line("other", draw(random.Random(4))) + tsv_line("x 1", drawing))
    write_npy(tmp_path / "1.npy", drawing)
    files = RegionFiles()
    references = (f"{tmp_path}/regions.tsv#x 1", f"{tmp_path}/1.npy")
    one, other = (files.read(reference) for reference in references)
    features, classes = detect(drawing)
    for found in (one, other):
        np.testing.assert_array_equal(found.features, features)
        assert found.classes is not None
        np.testing.assert_allclose(found.classes, classes, atol=1e-6)
        boxes = drawing.boxes / SIDE
        np.testing.assert_allclose(found.locations[:, :4], boxes, atol=1e-6)
        np.testing.assert_allclose(found.locations[:, 4], np.prod(boxes[:, 2:] - boxes[:, :2], axis=1), atol=1e-6)
    assert [files.count(reference) for reference in references] == [2, 2]
    assert files.read(one) is one and files.count(one) == 2


@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=4), width=st.integers(1, 5), seed=st.integers(0, 2**30))
def test_any_image_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], width: int, seed: int
) -> None:
    rng, lines, wanted = np.random.default_rng(seed), [], []
    for number, count in enumerate(counts):
        features = rng.normal(size=(count, width)).astype("<f4")
        corners = np.sort(rng.uniform(0, 50, (count, 2, 2)), axis=1).reshape(count, 4).astype("<f4")
        cells = [
            f"{number}",
            "50",
            "50",
            f"{count}",
            *(base64.b64encode(x.tobytes()).decode() for x in (corners, features)),
        ]
        lines.append("\t".join(cells) + rng.choice(["\n", "\r\n"]))
        wanted.append((features, corners / 50))
    file = tmp_path_factory.mktemp("made") / "a#b.tsv"
    file.write_text("".join(lines), newline="")
    files = RegionFiles()
    for number in rng.permutation(len(counts)):
        found = files.read(f"{file}#{number}")
        np.testing.assert_array_equal(found.features, wanted[number][0])
        np.testing.assert_allclose(found.locations[:, :4], wanted[number][1], atol=1e-6)
        assert found.classes is None


def test_references_to_images_are_split() -> None:
    assert split_reference("a/b.tsv#c#d") == (Path("a/b.tsv"), "c#d")
    assert split_reference("a/b.npy") == (Path("a/b.npy"), None)
    for wrong in ("a.jpg", "a.tsv", "", "12"):
        with pytest.raises(PretuneError, match=r"does not name the regions of an image; write FILE.tsv#ID or FILE.npy"):
            split_reference(wrong)


def line(**changes: Any) -> bytes:
    cells = dict(
        zip(
            ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features", "cls_prob"),
            tsv_line("1", draw(random.Random(0))).rstrip().split(b"\t"),
            strict=True,
        )
    )
    return b"\t".join({**cells, **changes}.values()) + b"\n"


def numbers(*values: float) -> bytes:
    return base64.b64encode(np.array(values, dtype="<f4").tobytes())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file contains no images"),
        (b"1\t32\t32\n", "line 1: 3 columns separated by tabs, not 6 or 7"),
        (line() + line(), "line 2: image '1' is already in line 1"),
        (line(num_boxes=b"none"), "line 1: 'none' in the column num_boxes is not an integer from 1"),
        (line(num_boxes=b"0"), "'0' in the column num_boxes is not an integer from 1"),
        (line(num_boxes=b"3"), "line 1: the column features has 12.6667 numbers per region"),
        (line(image_w=b"-32"), "'-32' in the column image_w is not an integer"),
        (line(boxes=numbers(*range(6))), "line 1: the column boxes has 3 numbers per region, not 4"),
        (line(boxes=b"&" * 44), "line 1: the column boxes is not base64 text"),
        (line(boxes=numbers(0, 0, 99, 9, 0, 0, 9, 9)), "the box of region 1, .* is not inside an image of 32 x 32 pixels"),
        (line(boxes=numbers(0, 0, 9, 9, 20, 0, 9, 9)), "the box of region 2, .* is not inside"),
        (line(features=numbers(*[np.nan] * 2 * FEATURES)), "the features contain NaN or infinite numbers"),
        (line(cls_prob=numbers(*[0.5] * 2 * len(CLASSES))), "do not add up to 1"),
        (line() + line(image_id=b"2", features=numbers(1, 2)), "line 2: the column features has 1 numbers per region, and 19 in line 1"),
    ],
)  # fmt: skip
def test_wrong_lines_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "regions.tsv"
    file.write_bytes(content)
    with pytest.raises(PretuneError, match=message) as caught:
        RegionFiles().read(f"{file}#1")
    assert str(caught.value).startswith(str(file))


def test_unknown_images_are_named_with_a_suggestion(tmp_path: Path) -> None:
    write_captions(tmp_path, 2)
    with pytest.raises(PretuneError, match=r"captions-regions.tsv: no image '7'"):
        RegionFiles().read(f"{tmp_path}/captions-regions.tsv#7")
    with pytest.raises(PretuneError, match=r"missing.tsv: cannot be read"):
        RegionFiles().count(f"{tmp_path}/missing.tsv#7")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.unlink(), "1.npy: there is no such file"),
        (lambda file: file.write_bytes(b"text"), "1.npy: not an array of numbers"),
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "1.npy: not an array of numbers"),
        (lambda file: np.save(file, np.array([{"features": 1}], dtype=object)), "1.npy: not an array of numbers"),
        (lambda file: np.save(file, np.zeros((2, 3), dtype=np.int64)), "and type int64, not"),
        (lambda file: np.save(file, np.zeros(3)), r"shape \(3,\) and type float64, not"),
        (lambda file: np.save(file, np.zeros((0, 3))), "an image has from 1 to 10000 regions"),
        (lambda file: np.save(file, np.full((2, 3), np.inf)), "the features contain NaN or infinite numbers"),
        (lambda file: file.with_suffix(".boxes.npy").unlink(), "1.boxes.npy: there is no such file"),
        (lambda file: np.save(file.with_suffix(".boxes.npy"), np.zeros((3, 4))), r"1.boxes.npy: the shape is \(3, 4\), not \(2, 4\)"),
        (lambda file: np.save(file.with_suffix(".boxes.npy"), np.full((2, 4), 7.0)), "is not inside the image; divide x by its width"),
        (lambda file: np.save(file.with_suffix(".classes.npy"), np.ones((1, 1))), "1.classes.npy: 1 rows for the 2 regions"),
    ],
)  # fmt: skip
def test_wrong_arrays_are_named(tmp_path: Path, change: Any, message: str) -> None:
    write_npy(tmp_path / "1.npy", draw(random.Random(0)))
    change(tmp_path / "1.npy")
    with pytest.raises(PretuneError, match=message):
        RegionFiles().read(f"{tmp_path}/1.npy")


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "harm",))

    np.save(tmp_path / "1.npy", np.array([Harmful()], dtype=object))
    with pytest.raises(PretuneError, match="allow_pickle=False"):
        RegionFiles().read(f"{tmp_path}/1.npy")
    assert not (tmp_path / "harm").exists()
