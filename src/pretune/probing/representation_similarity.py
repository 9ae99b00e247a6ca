"""Similarity of representations: linear CKA (Kornblith et al., 2019), its debiased form, and SVCCA (Raghu et al., 2017).

Each compares two matrices with one row per item (text or word) and any number of columns. All are 1 for matrices that differ only by
a rotation, a shift, and a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError

MIN_ITEMS = 4  # with fewer items, any two representations are about equally similar
KEPT_VARIANCE = 0.99  # of the singular value decomposition of SVCCA


def linear_cka(x: Array, y: Array) -> float:
    """Return the linear CKA of two representations of the same n items, (n, p) and (n, q): from 0 to 1.

    For independent random representations, its expectation is not 0, but about p / (n + p) for p = q.
    The result is NaN if one of the representations is constant.

    >>> x = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 5.0], [3.0, 1.0]])
    >>> round(linear_cka(x, 2 * x[:, ::-1] + 1), 6)
    1.0
    """
    return _compare_centered(_center_and_scale(x), _center_and_scale(y))


def _center_and_scale(x: Array) -> Array:
    """Return a representation, (n, width), centered and scaled so that its Gram matrix has Frobenius norm 1."""
    x = _centered(x)
    products = x @ x.T if len(x) < x.shape[1] else x.T @ x  # both have the same norm
    size = np.sqrt(np.linalg.norm(products))
    return x / size if size > 0 else np.full_like(x, np.nan)


def _compare_centered(x: Array, y: Array) -> float:
    """Return ‖xᵀy‖² (Frobenius norm), the linear CKA of two representations, (n, p) and (n, q).

    Both must have centered columns, and be scaled so that ‖xᵀx‖ = ‖yᵀy‖ = 1 (see `_center_and_scale`).
    """
    if len(x) < min(x.shape[1], y.shape[1]):
        return float(((x @ x.T) * (y @ y.T)).sum())
    return float(np.linalg.norm(x.T @ y) ** 2)


def debiased_cka(x: Array, y: Array) -> float:
    """Return linear CKA with the unbiased estimator of HSIC (Song et al., 2012): about 0 for independent representations.

    `x` and `y` represent the same n items, (n, p) and (n, q). The result may be slightly negative, and is NaN if one of
    the representations is constant.
    """
    return _compare_pairs(_pair_products(x), _pair_products(y))


def _pair_products(x: Array) -> Array:
    """Return the Gram matrix of a representation, (n, n), with diagonal 0, scaled so that its HSIC with itself is 1.

    `_compare_pairs` computes this HSIC.
    """
    x = _centered(x)
    products = x @ x.T
    np.fill_diagonal(products, 0.0)
    size = _compare_pairs(products, products)
    return products / np.sqrt(size) if size > 0 else np.full_like(products, np.nan)


def _compare_pairs(k: Array, m: Array) -> float:
    """Return the unbiased HSIC, up to a constant factor, of two Gram matrices, (n, n), with zero diagonals."""
    n = len(k)
    rows, columns = k.sum(0), m.sum(0)
    return float((k * m).sum() + rows.sum() * columns.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (rows @ columns))


def svcca(x: Array, y: Array, variance: float = KEPT_VARIANCE) -> float:
    """Return the mean canonical correlation of two representations after a singular value decomposition of each.

    Parameters
    ----------
    x, y
        Representations of the same items, (n, p) and (n, q).
    variance
        The share of the variance that the kept singular directions explain.
    """
    return _compare_bases(_principal_basis(x, variance), _principal_basis(y, variance))


def _principal_basis(x: Array, variance: float = KEPT_VARIANCE) -> Array:
    """Return an orthonormal basis, (n, k), of the top singular directions of a representation, (n, p).

    k is the smallest number of directions that explain the share `variance` of the variance.
    """
    left, values, _ = np.linalg.svd(_centered(x), full_matrices=False)
    explained = np.cumsum(values**2)
    if not explained[-1] > 0:
        return left[:, :0]
    kept = int(np.searchsorted(explained, variance * explained[-1] * (1 - 1e-12))) + 1
    return left[:, :kept]


def _compare_bases(x: Array, y: Array) -> float:
    """Return the mean canonical correlation of two subspaces, given orthonormal bases, (n, k) and (n, l)."""
    if not x.shape[1] or not y.shape[1]:
        return float("nan")
    return float(np.clip(np.linalg.svd(x.T @ y, compute_uv=False), 0.0, 1.0).mean())


def _centered(x: Array) -> Array:
    x = np.asarray(x, dtype=np.float64)
    centered = x - x.mean(0)
    scale = np.abs(x).max(initial=0.0)
    # What remains of a constant column is rounding.
    return np.where(np.abs(centered) > 1e-12 * scale, centered, 0.0)


# Method → a function of each representation, and the comparison of what it returns.
MEASURES: dict[str, tuple[Callable[[Array], Array], Callable[[Array, Array], float]]] = {
    "cka": (_center_and_scale, _compare_centered),
    "debiased-cka": (_pair_products, _compare_pairs),
    "svcca": (_principal_basis, _compare_bases),
}


def check_items(count: int) -> None:
    """Raise an error if there are too few texts or words to compare representations."""
    if count < MIN_ITEMS:
        given = "one was given" if count == 1 else f"{count} were given"
        raise PretuneError(
            f"similarity can be computed only over many texts or words, but {given}; give at least {MIN_ITEMS}, or better hundreds"
        )


def similarity_matrix(first: Sequence[Array], second: Sequence[Array], method: str = "cka") -> Array:
    """Return the similarity of each layer in `first` to each layer in `second`, (len(first), len(second)).

    Parameters
    ----------
    first, second
        Representations of the same items, one array (items, width) per layer.
    method
        cka, debiased-cka, or svcca.
    """
    check_items(len(first[0]))
    prepare, compare = MEASURES[method]
    same = first is second
    left = [prepare(layer) for layer in first]
    right = left if same else [prepare(layer) for layer in second]
    found = np.zeros((len(left), len(right)))
    for row, x in enumerate(left):
        for column, y in enumerate(right):
            found[row, column] = found[column, row] if same and column < row else compare(x, y)
    return found


def matrix_rows(matrix: Array) -> list[dict[str, Any]]:
    """Return a similarity matrix as rows of a table: layer, other_layer, similarity (None where it is undefined)."""
    return [
        {"layer": row, "other_layer": column, "similarity": None if np.isnan(value) else round(float(value), 6)}
        for (row, column), value in np.ndenumerate(matrix)
    ]
