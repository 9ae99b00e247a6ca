"""Tests of SMART: the distance of predictions, the perturbation, and the loss with both regularizers."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pretune.models.model import Model
from pretune.objectives.tasks.classify import Classify
from pretune.objectives.tasks.regress import Regress
from pretune.objectives.tasks.smoothness import ReferenceModel, SmoothTask
from pretune.packed import Batch, pack_lists, pack_targets
from pretune.training.callbacks import Step
from pretune.training.optim.proximal_point import ProximalPoint
from tests.support.tiny_models import random_model, small_tokenizer

TASKS: dict[str, Any] = {
    "classify": Classify(labels=("a", "b", "c"), dropout=0.0),
    "multi-label": Classify(labels=("a", "b", "c"), dropout=0.0, multi_label=True),
    "regress": Regress(dropout=0.0),
}
LABELS = {
    "classify": np.array([0, 2]),
    "multi-label": np.array([[1, 0, 1], [0, 0, 0]], dtype=np.float32),
    "regress": np.array([0.5, -1.0], dtype=np.float32),
}


def model_and_batch(kind: str) -> tuple[Model, Batch]:
    """Return a model without dropout, and three sequences of which the last has no target."""
    model = random_model("bert", small_tokenizer("wordpiece"), "mlm", hidden_dropout_prob=0.0)
    model.add_heads([TASKS[kind]])
    model.root.requires_grad_(True).eval()
    for parameter in model.root.heads[TASKS[kind].name].parameters():
        torch.nn.init.normal_(parameter.detach(), std=1.0)
    targets = pack_targets(np.arange(2), LABELS[kind])
    return model, Batch((pack_lists([[5, 9, 20], [7, 30], [8]]),), {TASKS[kind].name: targets})


def smooth(kind: str, model: Model, **changes: Any) -> SmoothTask:
    return SmoothTask(TASKS[kind], ReferenceModel(deepcopy(model.root)), **changes)


def loss_of(task: Any, model: Model, batch: Batch) -> Any:
    torch.manual_seed(0)
    return task.loss(model.root.heads[task.name], model.backbone, batch)


def test_distances_by_hand() -> None:
    model, _ = model_and_batch("classify")
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    p, q = a.softmax(-1), b.softmax(-1)
    there, back = (F.kl_div(y.log(), x, reduction="none").sum(-1) for x, y in ((p, q), (q, p)))
    torch.testing.assert_close(smooth("classify", model).distance(a, b), there + back)
    p, q = a.sigmoid(), b.sigmoid()
    both = [x * (x / y).log() + (1 - x) * ((1 - x) / (1 - y)).log() for x, y in ((p, q), (q, p))]
    torch.testing.assert_close(smooth("multi-label", model).distance(a, b), sum(both).mean(-1))
    torch.testing.assert_close(smooth("regress", model).distance(a[:, 0], b[:, 0]), (a - b)[:, 0] ** 2)


@pytest.mark.parametrize("kind", TASKS)
def test_the_perturbation_is_small_and_changes_predictions_more_than_noise(kind: str) -> None:
    model, batch = model_and_batch(kind)
    task, head = smooth(kind, model, noise=1e-3, rate=1e-1, radius=1e-2, steps=2), model.root.heads[TASKS[kind].name]
    predicted = task.task.outputs(head, model.backbone, batch)[:2].detach()
    torch.manual_seed(0)
    shift = task.perturbation(head, model.backbone, batch, predicted)
    assert shift.abs().max() <= 1e-2 and shift.abs().max() > 5e-3

    def change(x: torch.Tensor) -> float:
        return float(task.distance(task.perturbed_outputs(head, model.backbone, batch, x), predicted).sum().detach())

    random = [torch.empty_like(shift).uniform_(-1e-2, 1e-2) for _ in range(5)]
    assert change(shift) > 2 * max(map(change, random))


@pytest.mark.parametrize("kind", TASKS)
def test_the_loss_is_that_of_the_task_and_both_regularizers(kind: str) -> None:
    model, batch = model_and_batch(kind)
    name = TASKS[kind].name
    plain = float(loss_of(TASKS[kind], model, batch).sums[name].detach())
    same = loss_of(smooth(kind, model), model, batch)
    assert float(same.logs[f"{name}/proximity"]) == pytest.approx(0.0, abs=1e-6)
    assert float(same.sums[name].detach()) == pytest.approx(plain, rel=1e-4)  # a radius of 1e-5 changes next to nothing

    task = smooth(kind, model, weight=3.0, noise=0.01, rate=0.1, radius=0.1)
    with torch.no_grad():
        for parameter in task.reference.root.heads[name].parameters():  # type: ignore[union-attr]
            parameter.mul_(0.5)
    found = loss_of(task, model, batch)
    parts = {part: float(found.logs[f"{name}/{part}"]) for part in ("smoothness", "proximity")}
    assert min(parts.values()) > 1e-6
    assert float(found.sums[name].detach()) == pytest.approx(plain + 3 * sum(parts.values()), rel=1e-5)
    found.sums[name].backward()
    assert model.backbone.embed.tokens.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in task.reference.root.parameters())  # type: ignore[union-attr]


def test_the_reference_is_the_moving_average_and_survives_a_checkpoint() -> None:
    root = torch.nn.Linear(2, 1, bias=False)
    reference = ReferenceModel()
    average = ProximalPoint(reference)
    with torch.no_grad():
        root.weight.fill_(1.0)
    average.on_start(SimpleNamespace(root=root))  # type: ignore[arg-type]
    with torch.no_grad():
        root.weight.fill_(2.0)
    average.after_update(Step(1, {}, 0.05, []))
    assert average.tensors()["weight"].tolist() == [[pytest.approx(1.01)] * 2]
    average.after_update(Step(2, {}, 0.5, []))
    expected = [[pytest.approx(1.01 + 0.001 * 0.99)] * 2]
    assert average.tensors()["weight"].tolist() == expected
    saved = {name: tensor.clone() for name, tensor in average.tensors().items()}
    again = ProximalPoint(ReferenceModel())
    again.on_start(SimpleNamespace(root=root))  # type: ignore[arg-type]
    again.restore({}, saved)
    assert again.reference.root.weight.tolist() == expected  # type: ignore[union-attr]
    average.on_end()
    assert reference.root is None
