"""Small images of drawn shapes, the regions that a detector would find in them, and captions and questions about them."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.families.encoders.vilbert import VILBERT
from pretune.models.model import Model, Network
from pretune.objectives import Data, JointObjective, Objective
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.documents import Document
from pretune.text.corpus.region_files import make_regions
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing, collate
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents

SIDE, CELL = 32, 16  # pixels of an image, and of a quarter of it
COLORS = {"red": (1.0, 0.1, 0.1), "green": (0.1, 1.0, 0.1), "blue": (0.1, 0.1, 1.0)}
SHAPES = ("circle", "square", "cross")
CLASSES = [(color, shape) for color in COLORS for shape in SHAPES]
FEATURES = 3 + 16  # mean color, and 4 x 4 brightness


@dataclass
class Drawing:
    """A drawn image: pixels, (32, 32, 3), and the box and the class of each shape."""

    pixels: Array
    boxes: Array  # (shapes, 4) in pixels
    classes: list[int]


def draw(rng: random.Random, shapes: int = 2) -> Drawing:
    """Draw shapes of different colors and kinds, each somewhere in its own quarter of a noisy image."""
    noise = np.random.default_rng(rng.getrandbits(32))
    pixels = noise.uniform(0.0, 0.1, (SIDE, SIDE, 3)).astype(np.float32)
    kinds = rng.sample(SHAPES, shapes)
    colors = rng.sample(list(COLORS), shapes)
    boxes, classes = [], []
    for quarter, kind, color in zip(rng.sample(range(4), shapes), kinds, colors, strict=True):
        size = rng.randint(9, 13)
        x = quarter % 2 * CELL + rng.randint(0, CELL - size)
        y = quarter // 2 * CELL + rng.randint(0, CELL - size)
        across, down = np.meshgrid(np.linspace(-1, 1, size), np.linspace(-1, 1, size))
        inside = {
            "circle": across**2 + down**2 <= 1,
            "square": np.ones_like(across, dtype=bool),
            "cross": (abs(across) < 0.3) | (abs(down) < 0.3),
        }[kind]
        pixels[y : y + size, x : x + size][inside] = np.array(COLORS[color]) * rng.uniform(0.8, 1.0)
        boxes.append((x, y, x + size, y + size))
        classes.append(CLASSES.index((color, kind)))
    return Drawing(pixels, np.array(boxes, dtype=np.float32), classes)


def detect(drawing: Drawing) -> tuple[Array, Array]:
    """Return features (shapes, 19), computed from the pixels in each box, and class probabilities (shapes, 9)."""
    features, shares = [], []
    for (left, top, right, bottom), known in zip(drawing.boxes.astype(int), drawing.classes, strict=True):
        crop = drawing.pixels[top:bottom, left:right]
        rows, columns = (np.linspace(0, length - 1, 4).round().astype(int) for length in crop.shape[:2])
        bright = crop.max(-1)[rows][:, columns]
        features.append(np.concatenate([crop.mean((0, 1)), bright.ravel()]))
        share = np.full(len(CLASSES), 0.2 / (len(CLASSES) - 1))
        share[known] = 0.8
        shares.append(share)
    return np.array(features, dtype=np.float32), np.array(shares, dtype=np.float32)


def tsv_line(name: str, drawing: Drawing, classes: bool = True) -> bytes:
    """Return the line of an image in a .tsv file of bottom-up attention, with or without class probabilities."""
    features, shares = detect(drawing)
    numbers = [drawing.boxes, features, *([shares] if classes else [])]
    cells = [name.encode(), b"%d" % SIDE, b"%d" % SIDE, b"%d" % len(features)]
    return b"\t".join([*cells, *(base64.b64encode(x.astype("<f4").tobytes()) for x in numbers)]) + b"\n"


def write_npy(file: Path, drawing: Drawing, classes: bool = True) -> None:
    """Write the features of an image to FILE, and boxes and class probabilities to files beside it."""
    features, shares = detect(drawing)
    np.save(file, features)
    np.save(file.with_suffix(".boxes.npy"), drawing.boxes / SIDE)
    if classes:
        np.save(file.with_suffix(".classes.npy"), shares)


def caption(drawing: Drawing) -> str:
    """Return a text that names the shapes from left to right, or from top to bottom."""
    order = sorted(range(len(drawing.classes)), key=lambda i: tuple(drawing.boxes[i][:2]))
    return "a " + " and a ".join(" ".join(CLASSES[drawing.classes[i]]) for i in order)


def question(drawing: Drawing, rng: random.Random) -> tuple[str, str]:
    """Return a question about the color or the kind of a shape in an image, and its answer."""
    color, kind = CLASSES[rng.choice(drawing.classes)]
    return rng.choice([("what color is it ?", color), ("what shape is it ?", kind)])


def drawings(count: int, seed: int = 0, shapes: int = 2) -> list[Drawing]:
    """Return drawn images of some shapes each."""
    rng = random.Random(seed)
    return [draw(rng, shapes) for _ in range(count)]


def write_captions(folder: Path, count: int, seed: int = 0, npy: bool = False, name: str = "captions") -> Path:
    """Write images and a table with a caption for each, and return the table; the images are a .tsv file or .npy files."""
    rows, folder = [], Path(folder)
    made = drawings(count, seed)
    for number, drawing in enumerate(made):
        if npy:
            write_npy(folder / f"{name}-{number}.npy", drawing)
        rows.append(
            {"text": caption(drawing), "image": f"{name}-{number}.npy" if npy else f"{name}-regions.tsv#{number}"}
        )
    if not npy:
        lines = (tsv_line(str(number), drawing) for number, drawing in enumerate(made))
        (folder / f"{name}-regions.tsv").write_bytes(b"".join(lines))
    return write_rows(folder / f"{name}.jsonl", rows)


def write_questions(folder: Path, count: int, seed: int = 0, shuffled: bool = False, name: str = "questions") -> Path:
    """Write images of one shape and a table with a question and the answers of three people for each; return the table.

    With `shuffled`, questions are about other images, so that only guessing is left.
    """
    rng = random.Random(seed + 1)
    made, rows = drawings(count, seed, shapes=1), []
    (Path(folder) / f"{name}-regions.tsv").write_bytes(
        b"".join(tsv_line(str(number), drawing, classes=False) for number, drawing in enumerate(made))
    )
    for number, drawing in enumerate(made):
        asked, answer = question(drawing, rng)
        place = rng.randrange(count) if shuffled else number
        rows.append({"question": asked, "image": f"{name}-regions.tsv#{place}", "answers": [answer] * 3})
    return write_rows(Path(folder) / f"{name}.jsonl", rows)


def write_rows(file: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows to a .jsonl file, and return the file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def image_text_data(number: int, copies: int = 1, seed: int = 0, shapes: int = 2) -> Data:
    """Return captions with images in memory, as the data of an objective; each image occurs `copies` times."""
    regions = []
    made = drawings(number // copies, seed, shapes)
    for drawing in made:
        features, shares = detect(drawing)
        regions.append(make_regions(features, drawing.boxes / SIDE, shares, "drawn", "the image"))
    texts = [caption(drawing) for drawing in made] * copies
    tokenizer = train_on_documents([Document(text, Path("drawn"), 1) for text in texts], "items", 64)
    rows = LabeledRows(Path("drawn"), {}, texts, extra={"image": regions * copies})
    return Data(tokenizer, VILBERT.template, rows=rows)


# A network that learns what is drawn in seconds.
SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 32, "v_feature_size": FEATURES, "v_target_size": len(CLASSES), "v_hidden_size": 32,
    "v_num_hidden_layers": 1, "v_num_attention_heads": 2, "v_intermediate_size": 64, "bi_hidden_size": 32,
    "bi_num_attention_heads": 2, "v_biattention_id": [0], "t_biattention_id": [1], "hidden_dropout_prob": 0.0,
    "v_hidden_dropout_prob": 0.0, "initializer_range": 0.1,
}  # fmt: skip


def small_model(tokenizer: Tokenizer, objectives: Iterable[Objective]) -> Model:
    """Return a small ViLBERT with random weights and the heads of objectives."""
    config = VILBERT.read_config(SMALL)
    torch.manual_seed(0)
    model = Model(VILBERT, config, Network(VILBERT.build(config)), tokenizer)
    model.add_heads(objectives)
    return model


def train(model: Model, joint: JointObjective, data: Data, steps: int, lr: float = 0.005) -> None:
    """Train a model for some steps of 32 texts."""
    model.root.train()
    optimizer = torch.optim.Adam(model.root.parameters(), lr=lr)
    for batch in islice(batches(joint, data), steps):
        optimizer.zero_grad()
        torch.autograd.backward(model.root(joint, batch).over(batch.counts))
        optimizer.step()
    model.root.eval()


def batches(joint: JointObjective, data: Data, first: int = 0) -> Iterator[Batch]:
    """Yield batches of 32 texts, epoch after epoch."""
    for number in count(first):
        draws = EpochRandom(0, number)
        epoch = joint.arrange(data, Packing(32 * 16, 16, 32), draws)
        for index in range(len(epoch)):
            yield collate(joint.corrupt(epoch.pack(index), data.tokenizer, draws))
