"""Read the features of image regions from files.

A region is a box in which an object detector has found something. An image is named by the cell `image` of a table, relative to
the folder of the table:

    regions.tsv#ID      a line of a .tsv file, as written for bottom-up attention (Anderson et al., 2018): image_id, image_w,
                        image_h, num_boxes, boxes, features and optionally cls_prob, without a header. The last columns are
                        float32 numbers in base64; boxes are x1, y1, x2, y2 in pixels.
    images/ID.npy       an array of features, (regions, width). Beside it, ID.boxes.npy has the boxes, (regions, 4), as
                        fractions of the width and height of the image, and optionally ID.classes.npy the detector's
                        probabilities of classes, (regions, classes).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, quote, suggest

TSV_COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features", "cls_prob")
WHOLE_IMAGE = (0.0, 0.0, 1.0, 1.0, 1.0)  # the location of an image as a whole
MAX_LINE = 1 << 28  # bytes of a line of a .tsv file
MAX_REGIONS = 10_000  # of an image
OUTSIDE = 0.01  # how far a box may reach beyond the image, as a fraction of its size; it is then clipped


@dataclass(frozen=True)
class ImageRegions:
    """The regions of an image: features, (regions, width), and locations, (regions, 5), and class probabilities, if known.

    A location is x1, y1, x2, y2 as fractions of the width and height of the image, and the share of its area.
    """

    features: Array  # (regions, width) float32
    locations: Array  # (regions, 5) float32
    classes: Array | None = None  # (regions, classes) float32

    def __len__(self) -> int:
        return len(self.features)

    def __str__(self) -> str:
        return f"{len(self)} regions"


@dataclass(frozen=True)
class TsvLine:
    """Where a .tsv file has an image: the line number, the offset of the line in bytes, and its number of regions."""

    number: int
    offset: int
    regions: int


class RegionFiles:
    """A reader of region features; it indexes .tsv files once, and reads the features of an image when they are needed."""

    def __init__(self) -> None:
        self._lines: dict[Path, dict[str, TsvLine]] = {}

    def count(self, image: str | ImageRegions) -> int:
        """Return the number of regions of an image, given as FILE.tsv#ID or FILE.npy, or in memory."""
        if isinstance(image, ImageRegions):
            return len(image)
        path, name = split_reference(image)
        return len(_load_npy(path)) if name is None else self._find(path, name).regions

    def read(self, image: str | ImageRegions) -> ImageRegions:
        """Return the regions of an image, given as FILE.tsv#ID or FILE.npy, or in memory."""
        if isinstance(image, ImageRegions):
            return image
        path, name = split_reference(image)
        return read_npy(path) if name is None else read_tsv_line(path, self._find(path, name))

    def _find(self, path: Path, name: str) -> TsvLine:
        """Return where the image called `name` is in a .tsv file."""
        if path not in self._lines:
            self._lines[path] = index_tsv(path)
        if name not in self._lines[path]:
            raise PretuneError(f"{path}: no image {quote(name)}; {suggest(name, self._lines[path])}")
        return self._lines[path][name]


def split_reference(image: str) -> tuple[Path, str | None]:
    """Split the reference to an image into the path of a file and, for a .tsv file, the name of the image.

    >>> split_reference("images/7.npy"), split_reference("regions.tsv#7")
    ((PosixPath('images/7.npy'), None), (PosixPath('regions.tsv'), '7'))
    """
    file, mark, name = image.rpartition(".tsv#")
    if mark:
        return Path(f"{file}.tsv"), name
    if not image.endswith(".npy"):
        raise PretuneError(
            f"{quote(image)} does not name the regions of an image; write FILE.tsv#ID or FILE.npy, relative to the folder of the table"
        )
    return Path(image), None


# -- .tsv files of bottom-up attention --------------------------------------------------------------------------------


def index_tsv(path: Path) -> dict[str, TsvLine]:
    """Return where the images of a .tsv file are, by name; only the sizes of their columns are checked."""
    found: dict[str, TsvLine] = {}
    widths: dict[str, tuple[int, int]] = {}  # column → numbers per region, line
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
                if line.strip():
                    place = f"{path}, line {number}"
                    columns = _columns(line, place)
                    name = columns["image_id"].decode("utf-8", "replace")
                    if name in found:
                        raise PretuneError(
                            f"{place}: image {quote(name)} is already in line {found[name].number}; remove one of the two lines"
                        )
                    count = _whole(columns, "num_boxes", MAX_REGIONS, place)
                    for column in ("features", "cls_prob"):
                        if column in columns:
                            width = _base64_numbers(columns[column]) / count
                            usual, first = widths.setdefault(column, (int(width), number))
                            if width != usual or not usual:
                                raise PretuneError(
                                    f"{place}: the column {column} has {width:g} numbers per region, and {usual} in line {first}; "
                                    "extract the features of all images with the same detector"
                                )
                    found[name] = TsvLine(number, offset, count)
                offset += len(line)
    except OSError as error:
        raise PretuneError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not found:
        raise PretuneError(f"{path}: the file contains no images; extract the features of regions again")
    return found


def read_tsv_line(path: Path, line: TsvLine) -> ImageRegions:
    """Return the regions of an image in a .tsv file."""
    with path.open("rb") as file:
        file.seek(line.offset)
        raw = file.readline(MAX_LINE)
    place = f"{path}, line {line.number}"
    columns = _columns(raw, place)
    count = _whole(columns, "num_boxes", MAX_REGIONS, place)
    width, height = (_whole(columns, side, 1 << 20, place) for side in ("image_w", "image_h"))
    numbers = {name: _decode(columns[name], count, name, place) for name in TSV_COLUMNS[4:] if name in columns}
    if numbers["boxes"].shape[1] != 4:
        raise PretuneError(
            f"{place}: the column boxes has {numbers['boxes'].shape[1]} numbers per region, not 4; give x1, y1, x2, y2"
        )
    boxes = numbers["boxes"] / np.array([width, height, width, height], dtype=np.float32)
    advice = f"an image of {width} x {height} pixels; check the columns image_w and image_h"
    return make_regions(numbers["features"], boxes, numbers.get("cls_prob"), place, advice)


def _columns(line: bytes, place: str) -> dict[str, bytes]:
    """Split a line of a .tsv file into its columns, by name; errors name `place`."""
    cells = line.rstrip(b"\r\n").split(b"\t")
    if len(cells) not in (len(TSV_COLUMNS) - 1, len(TSV_COLUMNS)):
        raise PretuneError(
            f"{place}: {len(cells)} columns separated by tabs, not 6 or 7; write {', '.join(TSV_COLUMNS[:-1])} and, optionally, cls_prob"
        )
    return dict(zip(TSV_COLUMNS, cells, strict=False))


def _whole(columns: Mapping[str, bytes], name: str, largest: int, place: str) -> int:
    """Return the positive integer in the column `name`; errors name `place`."""
    cell = columns[name].strip()
    if not (cell.isdigit() and len(cell) < 10 and 1 <= int(cell) <= largest):
        raise PretuneError(
            f"{place}: {quote(cell.decode('utf-8', 'replace'))} in the column {name} is not an integer from 1 to {largest}; correct it"
        )
    return int(cell)


def _base64_numbers(cell: bytes) -> float:
    """Return how many float32 numbers a base64 text has, from its length alone."""
    return (len(cell) // 4 * 3 - cell[-2:].count(b"=")) / 4


def _decode(cell: bytes, count: int, name: str, place: str) -> Array:
    """Return the numbers in a base64 column of `count` regions, (count, numbers per region); errors name `place`."""
    try:
        raw = base64.b64decode(cell, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PretuneError(
            f"{place}: the column {name} is not base64 text ({error}); extract the features again"
        ) from error
    if not raw or len(raw) % (4 * count):
        raise PretuneError(
            f"{place}: the column {name} has {len(raw)} bytes, which are not the float32 numbers of {count} regions; extract the features again"
        )
    return np.frombuffer(raw, dtype="<f4").astype(np.float32).reshape(count, -1)


# -- .npy files -------------------------------------------------------------------------------------------------------


def read_npy(path: Path) -> ImageRegions:
    """Return the regions of an image from a .npy file of features and the files of boxes and classes beside it."""
    features = _load_npy(path)
    boxes_file, classes_file = (path.with_suffix(f".{kind}.npy") for kind in ("boxes", "classes"))
    boxes = _load_npy(boxes_file)
    if boxes.shape != (len(features), 4):
        raise PretuneError(
            f"{boxes_file}: the shape is {boxes.shape}, not ({len(features)}, 4); give one box for each region in {path.name}"
        )
    classes = _load_npy(classes_file) if classes_file.is_file() else None
    if classes is not None and len(classes) != len(features):
        raise PretuneError(
            f"{classes_file}: {len(classes)} rows for the {len(features)} regions in {path.name}; give one row for each region"
        )
    shares = None if classes is None else np.array(classes, dtype=np.float32)
    numbers, corners = (np.array(x, dtype=np.float32) for x in (features, boxes))
    return make_regions(numbers, corners, shares, str(path), "the image; divide x by its width and y by its height")


def _load_npy(path: Path) -> Array:
    """Return the two-dimensional array in a .npy file, which stays on the disk until it is used."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise PretuneError(f"{path}: there is no such file; check the path") from error
    except OSError as error:
        raise PretuneError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error
    except Exception as error:  # numpy parses headers as Python expressions, which fail in many ways
        raise PretuneError(
            f"{path}: not an array of numbers ({str(error).splitlines()[0] if str(error) else type(error).__name__}); "
            "save it with numpy.save(FILE, ARRAY, allow_pickle=False)"
        ) from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or not np.issubdtype(array.dtype, np.floating):
        shape = f"shape {array.shape} and type {array.dtype}" if isinstance(array, np.ndarray) else "several arrays"
        raise PretuneError(f"{path}: {shape}, not (regions, numbers) of floating-point numbers; save such an array")
    if not (1 <= len(array) <= MAX_REGIONS and array.shape[1]):
        raise PretuneError(f"{path}: the shape is {array.shape}; an image has from 1 to {MAX_REGIONS} regions")
    return array


def make_regions(features: Array, boxes: Array, classes: Array | None, place: str, image: str) -> ImageRegions:
    """Check the numbers of the regions of an image, and return them with locations; errors name `place`.

    `boxes` are fractions of the width and height of the image, which `image` describes in errors.
    """
    for name, numbers in (("features", features), ("boxes", boxes), ("class probabilities", classes)):
        if numbers is not None and not np.isfinite(numbers).all():
            raise PretuneError(f"{place}: the {name} contain NaN or infinite numbers; extract the features again")
    wrong = (boxes < -OUTSIDE) | (boxes > 1 + OUTSIDE)
    wrong[:, :2] |= boxes[:, :2] > boxes[:, 2:]
    if wrong.any():
        region = int(wrong.any(1).argmax())
        raise PretuneError(
            f"{place}: the box of region {region + 1}, {', '.join(f'{x:.4g}' for x in boxes[region])} as fractions, is not inside {image}"
        )
    if classes is not None:
        totals = classes.sum(1, keepdims=True)
        if (classes < 0).any() or (abs(totals - 1) > 0.02).any():
            raise PretuneError(
                f"{place}: the class probabilities of a region are negative, or do not add up to 1; give the softmax of the detector"
            )
        classes = classes / totals
    boxes = boxes.clip(0, 1)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return ImageRegions(features, np.column_stack([boxes, area]).astype(np.float32), classes)
