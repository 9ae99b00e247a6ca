"""Pretraining on drawn shapes: what is learned from texts with their images, and not from texts with other images."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch

from pretune.objectives import parse_objective
from tests.support.drawn_shapes import batches, image_text_data, small_model, train


def accuracies(expression: str, steps: int, lr: float, aligned: bool) -> dict[str, float]:
    """Train on captions of one shape, with their images or with shuffled ones, and return accuracies on new images."""
    data = image_text_data(400, shapes=1)
    if not aligned:
        random.Random(0).shuffle(data.rows.extra["image"])
    joint = parse_objective(expression).joints[0]
    model = small_model(data.tokenizer, joint.objectives)
    train(model, joint, data, steps, lr)
    new = replace(image_text_data(200, seed=5, shapes=1), tokenizer=data.tokenizer, cache={})
    logs, counts = Counter[str](), Counter[str]()
    with torch.no_grad():
        for batch in islice(batches(joint, new, first=999), 12):
            logs.update({name: float(value) for name, value in model.root(joint, batch).logs.items()})
            counts.update(batch.counts)
    return {name: value / counts[name.split("/")[0]] for name, value in logs.items()}


@pytest.mark.end_to_end
def test_hidden_regions_are_predicted_from_the_caption() -> None:
    # The class of a region is one of nine; its caption names the class, unless one of its words is masked.
    assert accuracies("mlm+mrm", 250, 0.005, aligned=True)["mrm/accuracy"] > 0.45
    assert accuracies("mlm+mrm", 250, 0.005, aligned=False)["mrm/accuracy"] < 0.35


@pytest.mark.end_to_end
def test_captions_of_other_images_are_found() -> None:
    assert accuracies("itm", 500, 0.001, aligned=True)["itm/accuracy"] > 0.75
    assert accuracies("itm", 500, 0.001, aligned=False)["itm/accuracy"] < 0.7  # the more frequent class has 0.6
