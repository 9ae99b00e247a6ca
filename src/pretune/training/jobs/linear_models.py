"""Linear models on fixed features: logistic and ridge regression with cross-validated regularization.

kind       targets                       outputs                    predictions
classes    (rows,) class numbers         one logit per class        softmax
labels     (rows, labels) 0 or 1         one logit per label        sigmoid
number     (rows,) numbers               one number                 itself
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pretune.runtime.arrays import Array, softmax

Kind = Literal["classes", "labels", "number"]
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # inverse regularization of standardized features
ITERATIONS = 300
MISSING = -20.0  # the logit of a class without training examples


@dataclass(frozen=True)
class LinearModel:
    """A linear model: outputs = features @ weight + bias."""

    weight: Array  # (features, outputs)
    bias: Array  # (outputs,)
    kind: Kind

    def predict(self, features: Any) -> Array:
        """Return predictions for dense or sparse features, (rows, width).

        They are probabilities, (rows, outputs), or numbers, (rows,).
        """
        return predictions(np.asarray(features @ self.weight) + self.bias, self.kind)


def predictions(outputs: Array, kind: Kind) -> Array:
    """Turn the outputs of a linear model, (rows, outputs), into predictions.

    These are probabilities of the same shape or, for the kind "number", numbers, (rows,).

    >>> predictions(np.array([[0.0, 0.0]]), "classes").tolist()
    [[0.5, 0.5]]
    """
    if kind == "classes":
        return softmax(outputs)
    return 1 / (1 + np.exp(-outputs)) if kind == "labels" else outputs[:, 0]


def losses(predicted: Array, targets: Array, kind: Kind) -> Array:
    """Return the loss of each row, (rows,): the negative log-likelihood of its target; for numbers, the squared error.

    >>> losses(np.array([[0.25, 0.75]]), np.array([1]), "classes").round(3).tolist()
    [0.288]
    """
    if kind == "number":
        return np.asarray((predicted - targets) ** 2)
    if kind == "classes":
        return -np.log(np.clip(predicted[np.arange(len(targets)), targets], 1e-9, 1))
    right = np.where(targets > 0, predicted, 1 - predicted)
    return -np.log(np.clip(right, 1e-9, 1)).mean(1)


def fit_linear(
    features: Any, targets: Array, kind: Kind, outputs: int, strength: float, weights: Array | None = None
) -> LinearModel:
    """Fit a linear model with L2 regularization to features, (rows, width), and return it.

    `kind` is that of the targets ("classes", "labels", or "number"), and `outputs` the number of classes or labels, or
    1 for numbers. A smaller `strength` regularizes more. The features are not standardized, and may be sparse;
    `weights`, (rows,), are the weights of the rows in the loss.

    >>> x = np.array([[0.0], [1.0], [0.1], [0.9]])
    >>> fit_linear(x, np.array([0, 1, 0, 1]), "classes", 2, 100.0).predict(x).argmax(1).tolist()
    [0, 1, 0, 1]
    """
    width = features.shape[1]
    if kind == "number":
        from sklearn.linear_model import Ridge

        ridge = Ridge(alpha=1 / strength).fit(features, targets, sample_weight=weights)
        return LinearModel(ridge.coef_.reshape(width, 1), np.atleast_1d(ridge.intercept_), kind)
    weight, bias = np.zeros((width, outputs)), np.full(outputs, MISSING)
    if kind == "classes":
        present = np.unique(targets)
        coefficients, intercepts = _fit_logistic(features, targets, strength, weights)
        weight[:, present], bias[present] = coefficients, intercepts
        return LinearModel(weight, bias, kind)
    for label in range(outputs):
        if targets[:, label].min(initial=1) == targets[:, label].max(initial=0):
            bias[label] = MISSING if not targets[:, label].any() else -MISSING
            continue
        coefficients, intercepts = _fit_logistic(features, targets[:, label], strength, weights)
        weight[:, label], bias[label] = coefficients[:, 1], intercepts[1]
    return LinearModel(weight, bias, kind)


def _fit_logistic(features: Any, targets: Array, strength: float, weights: Array | None) -> tuple[Array, Array]:
    """Fit a logistic regression to features, (rows, width); return weights (width, classes) and biases (classes,)."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(targets)) == 1:
        return np.zeros((features.shape[1], 1)), np.zeros(1)
    fitted = LogisticRegression(C=strength, max_iter=ITERATIONS).fit(features, targets, sample_weight=weights)
    if len(fitted.classes_) == 2:  # one logit, of the second class
        zeros = np.zeros_like(fitted.coef_)
        return np.concatenate([zeros, fitted.coef_]).T, np.concatenate([[0.0], fitted.intercept_])
    return fitted.coef_.T, fitted.intercept_


@dataclass(frozen=True)
class Rotation:
    """A transform that standardizes features and, if there are fewer rows than features, rotates them.

    The rotation to principal components leaves fewer features, but the same predictions of fitted linear models.
    """

    mean: Array  # (width,)
    scale: Array  # (width,) 1 / standard deviation
    axes: Array  # (width, components)

    @classmethod
    def make(cls, features: Array) -> Rotation:
        """Fit the transform to features, (rows, width); the number of components is at most the number of rows."""
        mean, deviation = features.mean(0), features.std(0)
        scale = 1 / np.where(deviation > 1e-6, deviation, np.inf)
        if features.shape[0] >= features.shape[1]:
            return cls(mean, scale, np.eye(features.shape[1]))
        _, _, axes = np.linalg.svd((features - mean) * scale, full_matrices=False)
        return cls(mean, scale, axes.T)

    def __call__(self, features: Array) -> Array:
        """Transform features, (rows, width), to standardized and possibly rotated features, (rows, components)."""
        return ((features - self.mean) * self.scale) @ self.axes

    def undo(self, model: LinearModel) -> LinearModel:
        """Convert a linear model on transformed features to the equivalent model on the original features."""
        weight = self.scale[:, None] * (self.axes @ model.weight)
        return LinearModel(weight, model.bias - self.mean @ weight, model.kind)


@dataclass(frozen=True)
class CrossValidated:
    """The result of cross-validating a linear model: the best regularization strength, with predictions and loss."""

    strength: float
    predicted: Array  # (rows, outputs), or (rows,) numbers
    loss: float  # mean over rows


def cross_validate(
    features: Any,
    targets: Array,
    kind: Kind,
    outputs: int,
    folds: Array,
    strengths: Sequence[float] = STRENGTHS,
    weights: Array | None = None,
) -> CrossValidated:
    """Choose the regularization strength of a linear model by cross-validation.

    `folds`, (rows,), has the number of the fold in which each row is held out. Dense features are standardized, and
    sparse features are used as they are. The other parameters are those of `fit_linear`.
    """
    from threadpoolctl import threadpool_limits

    rows = len(targets)
    shape = (len(strengths), rows) if kind == "number" else (len(strengths), rows, outputs)
    predicted = np.zeros(shape)
    with threadpool_limits(1):  # matrices this small are slower on several threads
        for fold in np.unique(folds):
            learned, held_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            rotation = Rotation.make(features[learned]) if isinstance(features, np.ndarray) else lambda x: x
            x, other = rotation(features[learned]), rotation(features[held_out])
            counts = None if weights is None else weights[learned]
            for number, strength in enumerate(strengths):
                model = fit_linear(x, targets[learned], kind, outputs, strength, counts)
                predicted[number, held_out] = model.predict(other)
    means = [float(losses(one, targets, kind).mean()) for one in predicted]
    best = int(np.argmin(means))
    return CrossValidated(strengths[best], predicted[best], means[best])


def fit_standardized(
    features: Array, targets: Array, kind: Kind, outputs: int, strength: float, weights: Array | None = None
) -> LinearModel:
    """Fit a linear model to standardized features; return the equivalent model for the features as they are.

    The parameters are those of `fit_linear`; features must be dense.
    """
    rotation = Rotation.make(features)
    return rotation.undo(fit_linear(rotation(features), targets, kind, outputs, strength, weights))
