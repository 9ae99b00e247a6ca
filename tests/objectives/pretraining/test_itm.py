"""Image-text matching: which texts exchange images, and that only the content of both tells it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.models.create_model import make_model
from pretune.objectives.pretraining.itm import ITM
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, collate
from tests.support.drawn_shapes import image_text_data

PACKING = Packing(tokens=200, length=24, sequences=16)


@settings(max_examples=15, deadline=None)
@given(rate=st.sampled_from([0.2, 0.5, 1.0]), seed=st.integers(0, 2**30), copies=st.sampled_from([1, 4]))
def test_images_are_exchanged_within_the_batch_and_the_label_says_so(rate: float, seed: int, copies: int) -> None:
    made, objective, draws = image_text_data(24, copies=copies), ITM(negative_rate=rate), EpochRandom(seed)
    epoch = objective.arrange(made, PACKING, draws)
    for index in range(len(epoch)):
        clean, noisy = epoch.pack(index), objective.corrupt(epoch.pack(index), made.tokenizer, draws)
        assert clean.second is not None and noisy.second is not None
        np.testing.assert_array_equal(noisy.ids, clean.ids)
        # The same images, in another order.
        before, after = clean.second.labels["image"], noisy.second.labels["image"]
        assert sorted(before) == sorted(after)
        at, label = noisy.targets["itm"]
        assert at.tolist() == list(range(len(clean.lengths)))
        np.testing.assert_array_equal(label, before != after)
        if rate == 1.0 and copies == 1 and len(label) > 1:
            assert label.all()


def test_about_half_of_the_texts_get_another_image() -> None:
    made, objective, labels = image_text_data(48), ITM(), []
    for number in range(6):
        epoch = objective.arrange(made, PACKING, EpochRandom(0, number))
        for index in range(len(epoch)):
            labels += objective.corrupt(epoch.pack(index), made.tokenizer, EpochRandom(0, number)).targets["itm"][1].tolist()  # fmt: skip
    assert 0.4 < np.mean(labels) < 0.6


def test_texts_and_images_alone_do_not_give_the_label_away() -> None:
    """Over many epochs, every text and every image is in both classes about equally often."""
    made, objective = image_text_data(12), ITM()
    texts, images = np.zeros((12, 2)), np.zeros((12, 2))
    for number in range(150):
        epoch = objective.arrange(made, PACKING, EpochRandom(1, number))
        for index in range(len(epoch)):
            sequences = objective.corrupt(epoch.pack(index), made.tokenizer, EpochRandom(1, number))
            assert sequences.second is not None
            label = sequences.targets["itm"][1]
            np.add.at(texts, (sequences.index, label), 1)
            np.add.at(images, (sequences.second.labels["image"], label), 1)
    for counts in (texts, images):
        shares = counts[:, 1] / counts.sum(1)
        assert abs(shares - shares.mean()).max() < 0.15 and 0.35 < shares.mean() < 0.6


def test_the_logits_depend_on_both_sides_and_the_loss_is_the_cross_entropy() -> None:
    made, objective, draws = image_text_data(10), ITM(), EpochRandom(0)
    model = make_model("vilbert-tiny", vocabulary=made.tokenizer.size, regions=(19, 9))
    model.add_heads([objective])
    model.root.eval()
    batch = collate(objective.corrupt(objective.arrange(made, PACKING, draws).pack(0), made.tokenizer, draws))
    head = model.root.heads["itm"]
    for parameter in head.parameters():
        parameter.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    text, regions = batch.packed
    regions.columns["features"].requires_grad_()
    logits = head(model.backbone(text, regions), batch)
    logits.square().sum().backward()
    assert regions.columns["features"].grad is not None and regions.columns["features"].grad.abs().sum() > 0
    assert model.backbone.embed.tokens.grad.abs().sum() > 0
    with torch.no_grad():
        loss = objective.loss(head, model.backbone, batch)
    wanted = torch.nn.functional.cross_entropy(logits, batch.targets["itm"].target, reduction="sum")
    torch.testing.assert_close(loss.sums["itm"], wanted)


def test_models_without_images_are_refused() -> None:
    with pytest.raises(PretuneError, match="'itm' reads regions of images, and this model does not; use vilbert"):
        ITM().head(make_model("bert-tiny").backbone)
    with pytest.raises(PretuneError, match="negative_rate"):
        ITM(negative_rate=0.0)
