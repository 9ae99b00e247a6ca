"""Linear models on fixed features: logistic and ridge regression, averaged over strengths of regularization.

With few rows, cross-validation says little about the best strength, and the strongest one often wins because it risks
nothing: it predicts the most frequent class. So models of several strengths are averaged, and a strength counts the less, the
less likely its cross-validated predictions make the targets. In the same way, models that read all layers of an encoder and
models that read its last layer alone are averaged.

kind       targets                       outputs                    predictions
classes    (rows,) class numbers         one logit per class        softmax
labels     (rows, labels) 0 or 1         one logit per label        sigmoid
number     (rows,) numbers               one number                 itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np

from pretune.runtime.arrays import Array, softmax

Kind = Literal["classes", "labels", "number"]
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)  # inverse regularization of standardized features
TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
PART_PRIOR = (
    100.0  # the prior of a model that reads a part of the features, given n rows: exp(-PART_PRIOR / n) of the others'
)
ITERATIONS = 300
MISSING = -20.0  # the logit of a class without training examples


class Setting(NamedTuple):
    """How one of the averaged linear models is fitted: its inverse regularization, and the first feature that it reads."""

    strength: float
    start: int = 0


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
        return predictions(self.outputs(features), self.kind)

    def outputs(self, features: Any) -> Array:
        """Return logits or numbers, (rows, outputs), for dense or sparse features, (rows, width)."""
        return np.asarray(features @ self.weight) + self.bias


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
    """The result of cross-validating an average of linear models: shares of the models, predictions, and loss."""

    shares: Mapping[Setting, float]  # how a model is fitted → its weight in the average of the models' outputs
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
    starts: Sequence[int] = (0,),
) -> CrossValidated:
    """Cross-validate linear models of several strengths of regularization, and return their weighted average.

    `folds`, (rows,), has the number of the fold in which each row is held out. Dense features are standardized, and
    sparse features are used as they are. For each of `starts`, there are models that read only the features from this
    column on; the fewer rows, the less these count. The other parameters are those of `fit_linear`.
    """
    from threadpoolctl import threadpool_limits

    settings = [Setting(strength, start) for start in starts for strength in strengths]
    found = np.zeros((len(settings), len(targets), outputs))
    with threadpool_limits(1):  # matrices this small are slower on several threads
        for fold, start in product(np.unique(folds), starts):
            learned, held_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            x, other = features[learned], features[held_out]
            if isinstance(features, np.ndarray):
                rotation = Rotation.make(x[:, start:])
                x, other = rotation(x[:, start:]), rotation(other[:, start:])
            counts = None if weights is None else weights[learned]
            for strength in strengths:
                model = fit_linear(x, targets[learned], kind, outputs, strength, counts)
                outputs_there = model.outputs(other)
                present = np.unique(targets[learned])
                found[settings.index(Setting(strength, start)), held_out] = (
                    without_missing(outputs_there, present) if kind == "classes" else outputs_there
                )
    likelihoods = np.array([log_likelihood(each, targets, kind) for each in found])
    shares = softmax(likelihoods - PART_PRIOR / len(targets) * np.array([one.start > 0 for one in settings]))
    predicted = predictions(np.tensordot(shares, found, 1), kind)
    by_setting = dict(zip(settings, shares.tolist(), strict=True))
    return CrossValidated(by_setting, predicted, float(losses(predicted, targets, kind).mean()))


def without_missing(logits: Array, present: Array) -> Array:
    """Return logits, (rows, classes), in which a class without training examples is as likely as the least likely other one.

    In cross-validation, a row of a class with a single example cannot be predicted; its loss would outweigh all others.

    >>> without_missing(np.array([[2.0, 1.0, -20.0]]), np.array([0, 1])).tolist()
    [[2.0, 1.0, 1.0]]
    """
    found = np.repeat(logits[:, present].min(1, keepdims=True), logits.shape[1], 1)
    found[:, present] = logits[:, present]
    return found


def log_likelihood(outputs: Array, targets: Array, kind: Kind) -> float:
    """Return the log-likelihood of the targets of all rows given outputs of a linear model, (rows, outputs).

    Classes and labels have the temperature, and numbers the variance of the error, that fits best: the confidence of
    a model is corrected later.
    """
    if kind == "number":
        return float(-len(targets) / 2 * np.log(max(losses(outputs[:, 0], targets, kind).mean(), 1e-9)))
    fits = (losses(predictions(outputs / each, kind), targets, kind).mean() for each in TEMPERATURES)
    return float(-len(targets) * min(fits))


def fit_average(
    features: Any,
    targets: Array,
    kind: Kind,
    outputs: int,
    shares: Mapping[Setting, float],
    weights: Array | None = None,
) -> LinearModel:
    """Fit linear models of several strengths of regularization, and return their average, which is one linear model.

    `shares` has the weight of each model, which reads all features; the other parameters are those of `fit_linear`.

    >>> x = np.array([[0.0], [1.0], [0.1], [0.9]])
    >>> shares = {Setting(1.0): 0.5, Setting(100.0): 0.5}
    >>> fit_average(x, np.array([0, 1, 0, 1]), "classes", 2, shares).predict(x).argmax(1).tolist()
    [0, 1, 0, 1]
    """
    models = {one: fit_linear(features, targets, kind, outputs, one.strength, weights) for one in shares}
    weight = sum(share * models[one].weight for one, share in shares.items())
    bias = sum(share * models[one].bias for one, share in shares.items())
    return LinearModel(np.asarray(weight), np.asarray(bias), kind)


def fit_standardized(
    features: Array,
    targets: Array,
    kind: Kind,
    outputs: int,
    shares: Mapping[Setting, float],
    weights: Array | None = None,
) -> LinearModel:
    """Fit an average of linear models to standardized features; return the equivalent model for the features as they are.

    The parameters are those of `fit_average`; features must be dense.
    """
    weight, bias = np.zeros((features.shape[1], outputs)), np.zeros(outputs)
    for start in {one.start for one in shares}:
        own = {one: share for one, share in shares.items() if one.start == start}
        rotation = Rotation.make(features[:, start:])
        model = rotation.undo(fit_average(rotation(features[:, start:]), targets, kind, outputs, own, weights))
        weight[start:] += model.weight
        bias += model.bias
    return LinearModel(weight, bias, kind)
