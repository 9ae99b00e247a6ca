"""Fit the output layer of a task's head by logistic or ridge regression on the pooled vectors of the training examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pretune.models.length_bucketing import batches_by_length
from pretune.models.model import Model
from pretune.objectives.objective import Data
from pretune.objectives.task import Task
from pretune.objectives.tasks.classify import ClassifyHead, one_per_example
from pretune.objectives.tasks.layer_features import FeatureBackbone, LayerFeaturesHead
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.splits import assign_folds
from pretune.training.jobs.linear_models import STRENGTHS, Kind, Setting, cross_validate, fit_standardized

FOLDS = 5
FEWEST_ROWS = 10  # below which there is no cross-validation


def head_parts(model: Model, task: Task) -> tuple[Any, ClassifyHead]:
    """Return the backbone of a model and the head of a task.

    An error is raised if the head is not a single linear layer with a bias.
    """
    head: Any = model.root.heads[task.name]
    backbone: Any = model.root.backbone
    if isinstance(head, LayerFeaturesHead):
        backbone, head = FeatureBackbone(backbone, head.features), head.head
    plain = isinstance(head, ClassifyHead) and head.hidden is None and head.attention is None
    if not plain or not isinstance(head.output, torch.nn.Linear) or head.output.bias is None:
        raise PretuneError(
            f"the head of the task {task.name} is not a single linear layer, so it cannot be fitted by regression; "
            "use an objective such as `classify on last`, or another strategy"
        )
    return backbone, head


@torch.no_grad()
def pooled_vectors(model: Model, task: Task, rows: LabeledRows, length: int, device: torch.device) -> Array:
    """Return the inputs of the output layer of a task's head, one vector per example, (rows, width)."""
    backbone, head = head_parts(model, task)
    model.root.to(device).eval()
    tokenizer = model.require_tokenizer()
    arrangement = task.tokenize_examples(Data(tokenizer, model.family.template, rows=rows), length)
    found: dict[int, Array] = {}
    for batch in batches_by_length(arrangement, lambda sequences: task.corrupt(sequences, tokenizer, EpochRandom(0))):
        moved = batch.to(device)
        vectors = head.pooled(backbone(*moved.packed).last, moved.packed[-1])
        found |= zip(batch.rows.tolist(), vectors.float().cpu().numpy(), strict=False)  # filler has no row
    return one_per_example([found[number] for number in range(len(arrangement))], arrangement).astype(np.float64)


def regression_targets(task: Any, rows: LabeledRows) -> tuple[Array, Kind, int, Array | None]:
    """Return what a linear model needs to learn a task from labeled rows.

    These are the targets, their kind ("classes", "labels", or "number"), the number of outputs, and the weight of
    each row or None.
    """
    own = task.unwrapped
    if not own.labels:
        standardized = (np.array(rows.labels, dtype=np.float64) - own.mean) / own.deviation
        return standardized, "number", 1, None
    targets = own.encode_labels(rows)
    if own.multi_label:
        return targets, "labels", len(own.labels), None
    weights = np.array(own.label_weights)[targets] if own.label_weights else None
    return targets, "classes", len(own.labels), weights


def layer_starts(model: Model, task: Task, rows: LabeledRows) -> tuple[int, ...]:
    """Return the columns of pooled vectors from which linear models of frozen features read: all layers, and the last one.

    A head that reads one layer, or the concatenation of several pooled vectors, has models of all features only.
    """
    backbone, head = head_parts(model, task)
    layers, wide = backbone.width, model.root.backbone.width
    whole = isinstance(backbone, FeatureBackbone) and backbone.features.layers == "layers" and not backbone.features.top
    if rows.pairs is not None or not whole or head.output.in_features != layers or layers <= wide:
        return (0,)
    return (0, layers - wide)


@torch.no_grad()
def fit_head(
    model: Model,
    task: Task,
    rows: LabeledRows,
    length: int,
    device: torch.device,
    seed: int = 0,
    frozen: bool = False,
) -> None:
    """Fit the output layer of a task's head to labeled rows by logistic or ridge regression.

    It is an average over strengths of regularization, weighted by cross-validation. With `frozen` features, models of the
    last layer alone are averaged, too.
    """
    output: Any = head_parts(model, task)[1].output
    vectors = pooled_vectors(model, task, rows, length, device)
    targets, kind, outputs, weights = regression_targets(task, rows)
    shares: Mapping[Setting, float] = {Setting(strength): 1 / len(STRENGTHS) for strength in STRENGTHS}
    starts = layer_starts(model, task, rows) if frozen else (0,)
    if len(rows) >= FEWEST_ROWS:
        folds = assign_folds(rows, FOLDS, seed)
        shares = cross_validate(vectors, targets, kind, outputs, folds, weights=weights, starts=starts).shares
    fitted = fit_standardized(vectors, targets, kind, outputs, shares, weights)
    output.weight.copy_(torch.from_numpy(fitted.weight.T))
    output.bias.copy_(torch.from_numpy(fitted.bias))
