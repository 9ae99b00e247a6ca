"""Linear probes: logistic regression whose L2 regularization is chosen on the dev set.

The objective is that of `training.jobs.linear_models`, but the solver is made for dense features of thousands of rows: L-BFGS in single
precision, in coordinates in which the Hessian at the start is the identity (a Cholesky factor of the Gram matrix), so that the first
step is that of ridge regression and about a dozen suffice. The Gram matrix is computed once per layer, and shared by all regularization
strengths, tasks with random labels, and portions of the online code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array, softmax
from pretune.training.jobs.linear_models import losses

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # inverse regularization
ITERATIONS = 40  # per strength at most; a dozen is usual
CLASS_ITERATIONS = (
    4000  # at most this many iterations times classes, as the cost of an iteration grows with the classes
)
RISE = 1.02  # ratio of a dev loss to the lowest one at which weaker regularization is no longer tried
TOLERANCE = 1e-5  # relative decrease of the loss at which the solver stops
CONSTANT = 1e-6  # standard deviation below which a feature counts as constant


@dataclass(frozen=True)
class ProbeFeatures:
    """The standardized features of a layer for train, dev, and test, and the Gram matrix of the training features."""

    train: Array  # (n, features), single precision
    dev: Array
    test: Array
    gram: Array  # (features, features): mean of the outer products of training rows
    factors: dict[tuple[float, int], Array] = field(default_factory=dict, repr=False)  # see `factor`

    @classmethod
    def make(cls, train: Array, dev: Array, test: Array) -> ProbeFeatures:
        """Return the features, (n, width) per split, standardized in place by training mean and deviation."""
        mean, deviation = train.mean(0), train.std(0)
        scale = np.where(deviation > CONSTANT, 1 / np.maximum(deviation, CONSTANT), 0).astype(np.float32)
        for rows in (train, dev, test):
            rows -= mean
            rows *= scale
        return cls(train, dev, test, (train.T @ train) / len(train))

    def factor(self, curvature: float, penalty: float) -> Array:
        """Return the Cholesky factor of curvature · Gram + penalty · I, which preconditions the solver.

        Gram is the matrix `gram`, and I the identity. The penalty is rounded to a power of ten, so that the cached
        result can be used for many penalties.
        """
        from scipy.linalg import cholesky

        power = round(np.log10(max(penalty, 1e-5 * curvature)))
        if (curvature, power) not in self.factors:
            hessian = curvature * self.gram.astype(np.float64)
            hessian[np.diag_indices(len(hessian))] += 10.0**power
            self.factors[curvature, power] = cholesky(hessian, lower=True, overwrite_a=True).astype(np.float32)
        return self.factors[curvature, power]


@dataclass(frozen=True)
class FittedProbe:
    """A fitted linear probe: logits = standardized features @ weight + bias."""

    weight: Array  # (features, classes)
    bias: Array  # (classes,)
    strength: float  # inverse regularization
    dev_loss: float  # mean negative log-likelihood
    dev_accuracy: float

    def logits(self, features: Array) -> Array:
        """Return the logits of standardized features, (n, classes)."""
        return features @ self.weight + self.bias


def fit_linear_probe(
    features: ProbeFeatures,
    targets: Array,
    dev_targets: Array,
    classes: int,
    rows: Array | None = None,
    strengths: Sequence[float] = STRENGTHS,
) -> FittedProbe:
    """Fit a logistic regression for each regularization strength, and return the one with the lowest dev loss.

    Strengths are tried from the strongest regularization on, each starting from the last solution, until the dev loss
    rises. With more than a hundred classes, the solver stops early, which regularizes as well.

    Parameters
    ----------
    features
        The standardized features of a layer.
    targets
        Class numbers of the training rows, (n,).
    dev_targets
        Class numbers of the dev rows.
    classes
        The number of classes.
    rows
        Indices of the training rows to learn from; all by default. `targets` has the classes of all rows.
    strengths
        Inverse regularization strengths, as in scikit-learn's LogisticRegression(C).

    >>> x = np.array([[-1.0], [1.0], [-2.0], [2.0]], dtype=np.float32)
    >>> y = np.array([0, 1, 0, 1])
    >>> fit_linear_probe(ProbeFeatures.make(x, x.copy(), x.copy()), y, y, 2).dev_accuracy
    1.0
    """
    x = features.train if rows is None else features.train[rows]
    y = targets if rows is None else targets[rows]
    weight = np.zeros((x.shape[1], classes), dtype=np.float32)
    counts = np.bincount(y, minlength=classes) + 1.0
    bias = np.log(counts / counts.sum()).astype(np.float32)
    best: FittedProbe | None = None
    for strength in sorted(strengths):
        weight, bias = _minimize(x, y, features, weight, bias, 1 / (strength * len(y)))
        predicted = softmax((features.dev @ weight + bias).astype(np.float64))
        loss = float(losses(predicted, dev_targets, "classes").mean())
        if best is None or loss < best.dev_loss:
            accuracy = float((predicted.argmax(1) == dev_targets).mean())
            best = FittedProbe(weight, bias, strength, loss, accuracy)
        elif loss > RISE * best.dev_loss:
            break
    assert best is not None
    return best


def _minimize(
    x: Array, y: Array, features: ProbeFeatures, weight: Array, bias: Array, penalty: float
) -> tuple[Array, Array]:
    """Return the weight and bias that minimize the mean cross-entropy plus penalty/2 · ‖weight‖², by L-BFGS.

    The solver starts from the given `weight`, (features, classes), and `bias`. It optimizes θ with weight = L⁻ᵀ θ,
    where L Lᵀ = curvature · Gram + penalty · I (see `ProbeFeatures.factor`), because the Hessian for θ is close to the
    identity.
    """
    from scipy.linalg import solve_triangular
    from scipy.optimize import minimize

    count, classes = len(y), len(bias)
    curvature = (1 - 1 / classes) / classes  # of the cross-entropy at equal probabilities
    factor = features.factor(curvature, penalty)
    scale = np.float32(curvature**0.5)  # of the biases, whose features are 1
    size = weight.size
    at = np.arange(count)

    def unpack(theta: Array) -> tuple[Array, Array]:
        inner = theta[:size].reshape(weight.shape).astype(np.float32)
        made: Array = solve_triangular(factor, inner, lower=True, trans=1, check_finite=False)
        return made, theta[size:].astype(np.float32) / scale

    def objective(theta: Array) -> tuple[float, Array]:
        w, b = unpack(theta)
        logits = x @ w + b
        logits -= logits.max(1, keepdims=True)
        right = logits[at, y].sum(dtype=np.float64)
        np.exp(logits, out=logits)
        totals = logits.sum(1, keepdims=True)
        loss = (np.log(totals.astype(np.float64)).sum() - right) / count + 0.5 * penalty * float((w**2).sum())
        logits /= totals
        logits[at, y] -= 1.0
        logits /= count
        gradient = solve_triangular(factor, x.T @ logits + penalty * w, lower=True, check_finite=False)
        return float(loss), np.concatenate([gradient.ravel(), logits.sum(0) / scale]).astype(np.float64)

    start = np.concatenate([(factor.T @ weight).ravel(), bias * scale]).astype(np.float64)
    options: dict[str, Any] = {
        "maxiter": min(ITERATIONS, max(3, CLASS_ITERATIONS // classes)),
        "ftol": TOLERANCE,
        "gtol": 1e-6,
    }
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return unpack(found.x)
