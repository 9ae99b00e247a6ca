"""Masked region modeling: which regions are hidden, what is predicted, and that nothing else shows what is hidden."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.models.create_model import make_model
from pretune.objectives import parse_objective
from pretune.objectives.pretraining.mrm import MRM
from pretune.packed import Batch, pack_targets
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, collate
from tests.support.drawn_shapes import CLASSES, image_text_data

PACKING = Packing(tokens=96, length=24, sequences=8)


@settings(max_examples=15, deadline=None)
@given(rate=st.sampled_from([0.15, 0.5, 1.0]), seed=st.integers(0, 2**30), index=st.integers(0, 3))
def test_chosen_regions_are_targets_and_most_lose_their_features(rate: float, seed: int, index: int) -> None:
    made, draws = image_text_data(30), EpochRandom(seed)
    objective = MRM(mask_rate=rate)
    epoch = objective.arrange(made, PACKING, draws)
    clean, noisy = epoch.pack(index), objective.corrupt(epoch.pack(index), made.tokenizer, draws)
    assert clean.second is not None and noisy.second is not None
    assert (noisy.ids == clean.ids).all()
    at, target = noisy.targets["mrm"]
    regions = clean.second
    assert not regions.columns["special"][at].any() and (np.diff(at) > 0).all()
    np.testing.assert_array_equal(target, regions.columns["classes"][at])
    counts = np.bincount(regions.owner[at], minlength=len(regions.lengths))
    assert (counts == np.maximum(1, np.round(rate * (regions.lengths - 1)))).all()
    features = noisy.second.columns["features"]
    gone = (features == 0).all(1)
    assert set(np.flatnonzero(gone & ~regions.columns["special"])) <= set(at.tolist())
    kept = ~gone & ~regions.columns["special"]
    np.testing.assert_array_equal(features[kept], regions.columns["features"][kept])
    # The image as a whole is the mean of what is left, so that it does not show what is hidden.
    for number, (first, end) in enumerate(zip(regions.offsets[:-1], regions.offsets[1:], strict=True)):
        left = [place for place in range(first + 1, end) if kept[place]]
        mean = features[left].mean(0) if left else np.zeros(features.shape[1])
        np.testing.assert_allclose(features[first], mean, atol=1e-5, err_msg=str(number))
    again = objective.corrupt(epoch.pack(index), made.tokenizer, draws)
    assert again.second is not None
    np.testing.assert_array_equal(again.second.columns["features"], features)
    assert len(at) <= objective.max_targets(PACKING)["mrm"]


def test_about_a_tenth_of_the_chosen_regions_keeps_its_features() -> None:
    made, objective, kept, chosen = image_text_data(60), MRM(mask_rate=1.0), 0, 0
    for number in range(5):
        epoch = objective.arrange(made, PACKING, EpochRandom(0, number))
        for index in range(len(epoch)):
            sequences = objective.corrupt(epoch.pack(index), made.tokenizer, EpochRandom(0, number))
            assert sequences.second is not None
            at, _ = sequences.targets["mrm"]
            kept += int((sequences.second.columns["features"][at] != 0).any(1).sum())
            chosen += len(at)
    assert 0.06 < kept / chosen < 0.14


def test_the_loss_is_the_divergence_from_the_detector() -> None:
    made, objective = image_text_data(8), MRM()
    model = make_model("vilbert-tiny", vocabulary=made.tokenizer.size, regions=(19, len(CLASSES)))
    model.add_heads([objective])
    model.root.eval()
    draws = EpochRandom(0)
    batch = collate(objective.corrupt(objective.arrange(made, PACKING, draws).pack(0), made.tokenizer, draws))
    head, targets = model.root.heads["mrm"], batch.targets["mrm"]
    with torch.no_grad():
        loss = objective.loss(head, model.backbone, batch)
        predicted = head(model.backbone(*batch.packed).regions[targets.at]).softmax(-1)
    wanted = (targets.target * (targets.target / predicted).log()).sum(-1)
    torch.testing.assert_close(loss.sums["mrm"], wanted.sum())
    right = (predicted.argmax(-1) == targets.target.argmax(-1)).float().sum()
    assert loss.logs["mrm/accuracy"] == right
    other = Batch(batch.packed, {"mrm": pack_targets(np.zeros(1, dtype=int), np.ones((1, 3), dtype=np.float32))})
    with pytest.raises(PretuneError, match="probabilities of 3 classes, and the model predicts 9"):
        objective.loss(head, model.backbone, other)


def test_images_without_classes_and_models_without_images_are_refused() -> None:
    made, objective = image_text_data(6), MRM()
    blind = [replace(image, classes=None) for image in made.rows.extra["image"]]
    made = replace(made, rows=replace(made.rows, extra={"image": blind}))
    epoch = objective.arrange(made, PACKING, EpochRandom(0))
    with pytest.raises(PretuneError, match="mrm needs the class probabilities of the detector"):
        objective.corrupt(epoch.pack(0), made.tokenizer, EpochRandom(0))
    with pytest.raises(PretuneError, match="'mrm' reads regions of images, and this model does not; use vilbert"):
        objective.head(make_model("bert-tiny").backbone)
    with pytest.raises(PretuneError, match="give it a table with the columns text and image"):
        objective.arrange(replace(made, rows=None), PACKING, EpochRandom(0))
    with pytest.raises(PretuneError, match="mask_rate"):
        MRM(mask_rate=0.0)


def test_it_combines_with_itm_in_any_order_and_hides_regions_of_the_new_image() -> None:
    made = image_text_data(40)
    for expression in ("mlm+mrm+itm", "itm+mrm+mlm"):
        joint = parse_objective(expression).joints[0]
        draws = EpochRandom(3)
        epoch = joint.arrange(made, Packing(400, 24, 30), draws)
        clean, noisy = epoch.pack(0), joint.corrupt(epoch.pack(0), made.tokenizer, draws)
        assert noisy.second is not None and set(noisy.targets) == {"mlm", "mrm", "itm"}
        at, target = noisy.targets["mrm"]
        np.testing.assert_array_equal(noisy.second.columns["classes"][at], target)
        images = made.rows.extra["image"]
        for place, number in enumerate(noisy.second.labels["image"]):
            first = noisy.second.offsets[place]
            locations = noisy.second.columns["locations"][first + 1 : noisy.second.offsets[place + 1]]
            np.testing.assert_array_equal(locations, images[number].locations)
        assert clean.second is not None
        differs = noisy.second.labels["image"] != clean.second.labels["image"]
        np.testing.assert_array_equal(noisy.targets["itm"][1], differs)
    with pytest.raises(PretuneError, match="itm and nsp each need their own arrangement"):
        parse_objective("itm+nsp")
