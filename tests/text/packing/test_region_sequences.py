"""Regions of images as packed sequences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pretune import PretuneError
from pretune.text.corpus.region_files import ImageRegions
from pretune.text.packing.region_sequences import RegionSequences, reorder_images, with_mean_features


def image(regions: int, width: int = 3, seed: int = 0, classes: bool = True) -> ImageRegions:
    rng = np.random.default_rng((seed, regions))
    boxes = np.sort(rng.uniform(size=(regions, 5)), axis=1)
    shares = rng.dirichlet(np.ones(4), regions).astype(np.float32)
    features = rng.normal(size=(regions, width)).astype(np.float32)
    return ImageRegions(features, boxes.astype(np.float32), shares if classes else None)


def test_the_image_as_a_whole_comes_first_with_the_mean_of_its_regions() -> None:
    images = [image(2), image(5)]
    made = RegionSequences.make([images[0], images[1], images[0]], length=16)
    assert made.lengths.tolist() == [3, 6, 3] and made.numbers.tolist() == [0, 1, 0]
    sequences = made.take(np.array([1, 2]))
    assert sequences.lengths.tolist() == [6, 3] and sequences.labels["image"].tolist() == [1, 0]
    assert np.flatnonzero(sequences.columns["special"]).tolist() == [0, 6]
    np.testing.assert_allclose(sequences.columns["features"][0], images[1].features.mean(0), atol=1e-6)
    np.testing.assert_array_equal(sequences.columns["features"][7:], images[0].features)
    np.testing.assert_array_equal(sequences.columns["locations"][[0, 6]], [[0, 0, 1, 1, 1]] * 2)
    np.testing.assert_array_equal(sequences.columns["classes"][1:6], images[1].classes)
    assert made.choose(np.array([2, 2])).take(np.array([1])).labels["image"].tolist() == [0]


def test_more_regions_than_fit_are_left_out() -> None:
    sequences = RegionSequences.make([image(5)], length=4).take(np.array([0]))
    assert sequences.lengths.tolist() == [4]
    np.testing.assert_array_equal(sequences.columns["features"][1:], image(5).features[:3])


def test_hidden_regions_do_not_count_in_the_mean() -> None:
    sequences = RegionSequences.make([image(3)], length=9).take(np.array([0]))
    shown = with_mean_features(sequences, np.array([False, True, False, True])).columns["features"]
    np.testing.assert_allclose(shown[0], image(3).features[1], atol=1e-6)
    assert (with_mean_features(sequences, np.ones(4, dtype=bool)).columns["features"][0] == 0).all()


def test_images_can_be_reordered() -> None:
    sequences = RegionSequences.make([image(2), image(4), image(1)], length=9).take(np.arange(3))
    order = np.array([2, 0, 1])
    turned = reorder_images(sequences, order)
    assert turned.lengths.tolist() == [2, 3, 5] and turned.labels["image"].tolist() == [2, 0, 1]
    np.testing.assert_array_equal(turned.columns["features"][:2], sequences.columns["features"][8:])
    back = reorder_images(turned, np.argsort(order))
    for name, values in sequences.columns.items():
        np.testing.assert_array_equal(back.columns[name], values)


def test_classes_are_only_there_if_all_images_have_them() -> None:
    made = RegionSequences.make([image(2), image(2, classes=False, seed=1)], length=9)
    assert "classes" in made.take(np.array([0])).columns and "classes" not in made.take(np.array([0, 1])).columns


def test_features_of_different_widths_are_refused(tmp_path: Path) -> None:
    made = RegionSequences.make([image(2), image(2, width=4)], length=9)
    with pytest.raises(PretuneError, match=r"the features of a region are 4 numbers, and those of .* 3; extract"):
        made.take(np.array([0, 1]))
