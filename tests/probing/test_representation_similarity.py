"""Tests of CKA and SVCCA: their invariances, and agreement with the formulas of the papers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.probing.representation_similarity import (
    MEASURES,
    debiased_cka,
    linear_cka,
    matrix_rows,
    similarity_matrix,
    svcca,
)
from pretune.runtime.arrays import Array

SHAPES = st.tuples(st.integers(5, 30), st.integers(1, 12), st.integers(1, 12), st.integers(0, 10_000))


def draw(shape: tuple[int, int, int, int]) -> tuple[Array, Array, np.random.Generator]:
    """Return two random representations of the same items, and the generator for more."""
    items, first, second, seed = shape
    draws = np.random.default_rng(seed)
    return draws.normal(size=(items, first)), draws.normal(size=(items, second)), draws


def rotation(size: int, draws: np.random.Generator) -> Array:
    """Return a random orthogonal matrix."""
    return np.linalg.qr(draws.normal(size=(size, size)))[0]


def hsic(k: Array, m: Array) -> float:
    """Return the empirical HSIC of two kernel matrices by its definition, tr(K H M H) / (n - 1)²."""
    n = len(k)
    center = np.eye(n) - 1 / n
    return float(np.trace(k @ center @ m @ center)) / (n - 1) ** 2


@settings(deadline=None, max_examples=40)
@given(SHAPES)
def test_linear_cka_agrees_with_hsic_and_has_its_invariances(shape: tuple[int, int, int, int]) -> None:
    x, y, draws = draw(shape)
    k, m = x @ x.T, y @ y.T
    expected = hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))
    assert linear_cka(x, y) == pytest.approx(expected, abs=1e-9)
    assert linear_cka(x, x) == pytest.approx(1.0)
    assert linear_cka(x, y) == pytest.approx(linear_cka(y, x))
    turned = 3.5 * x @ rotation(x.shape[1], draws) + draws.normal(size=x.shape[1])
    assert linear_cka(turned, y) == pytest.approx(linear_cka(x, y))
    assert 0 <= linear_cka(x, y) <= 1 + 1e-12
    order = draws.permutation(len(x))
    assert linear_cka(x[order], y[order]) == pytest.approx(linear_cka(x, y))


@settings(deadline=None, max_examples=40)
@given(SHAPES)
def test_debiased_cka_has_the_same_invariances(shape: tuple[int, int, int, int]) -> None:
    x, y, draws = draw(shape)
    assert debiased_cka(x, x) == pytest.approx(1.0)
    turned = 0.1 * x @ rotation(x.shape[1], draws) + 7
    assert debiased_cka(turned, y) == pytest.approx(debiased_cka(x, y), abs=1e-6)


def test_independent_representations_have_the_expected_bias() -> None:
    draws = np.random.default_rng(0)
    items, width = 60, 40
    pairs = [(draws.normal(size=(items, width)), draws.normal(size=(items, width))) for _ in range(40)]
    # E‖XᵀY‖² / E‖XᵀX‖² for Gaussians with n - 1 degrees of freedom after centering
    expected = width / (items - 1 + width + 1)
    assert np.mean([linear_cka(x, y) for x, y in pairs]) == pytest.approx(expected, rel=0.05)
    assert np.mean([debiased_cka(x, y) for x, y in pairs]) == pytest.approx(0.0, abs=0.03)


@settings(deadline=None, max_examples=40)
@given(SHAPES)
def test_svcca_is_1_for_invertible_maps_of_the_kept_subspace(shape: tuple[int, int, int, int]) -> None:
    x, y, draws = draw(shape)
    x = x[:, : len(x) - 2]
    mixed = x @ (rotation(x.shape[1], draws) * draws.uniform(0.5, 2.0, size=x.shape[1])) + 2
    assert svcca(x, mixed, variance=1.0) == pytest.approx(1.0, abs=1e-6)
    assert svcca(x, x) == pytest.approx(1.0)
    assert 0 <= svcca(x, y) <= 1
    assert svcca(x, y) == pytest.approx(svcca(y, x))


def test_svcca_is_the_mean_canonical_correlation() -> None:
    draws = np.random.default_rng(1)
    x = draws.normal(size=(200, 3))
    y = np.stack([x[:, 0] + draws.normal(size=200), draws.normal(size=200)], 1)
    x, y = x - x.mean(0), y - y.mean(0)
    # Canonical correlations are the square roots of the eigenvalues of Syy⁻¹ Syx Sxx⁻¹ Sxy.
    product = np.linalg.solve(y.T @ y, y.T @ x) @ np.linalg.solve(x.T @ x, x.T @ y)
    expected = np.sqrt(np.clip(np.linalg.eigvals(product).real, 0, 1)).mean()
    assert svcca(x, y, variance=1.0) == pytest.approx(expected)


def test_svcca_ignores_directions_of_little_variance() -> None:
    draws = np.random.default_rng(2)
    signal = draws.normal(size=(100, 2))
    noisy = [np.concatenate([signal, 1e-3 * draws.normal(size=(100, 20))], 1) for _ in range(2)]
    assert svcca(*noisy) > 0.99 > svcca(*noisy, variance=1.0)


@pytest.mark.parametrize("method", MEASURES)
def test_matrix_of_layers(method: str) -> None:
    draws = np.random.default_rng(3)
    layers = [draws.normal(size=(12, width)) for width in (3, 4)]
    layers.append(np.ones((12, 5)))  # a constant layer is similar to nothing
    matrix = similarity_matrix(layers, layers, method)
    np.testing.assert_allclose(np.diag(matrix)[:2], 1.0)
    np.testing.assert_allclose(matrix, matrix.T)
    assert np.isnan(matrix[2]).all() and np.isfinite(matrix[:2, :2]).all()
    np.testing.assert_allclose(similarity_matrix(layers, [layers[1]], method), matrix[:, 1:2])
    single = {"cka": linear_cka, "debiased-cka": debiased_cka, "svcca": svcca}[method]
    assert matrix[0, 1] == pytest.approx(single(layers[0], layers[1]))
    rows = matrix_rows(matrix)
    assert len(rows) == 9 and rows[1]["layer"] == 0 and rows[1]["other_layer"] == 1 and rows[8]["similarity"] is None


def test_too_few_items_are_refused() -> None:
    with pytest.raises(PretuneError, match="but one was given; give at least 4"):
        similarity_matrix([np.ones((1, 3))], [np.ones((1, 3))])
    with pytest.raises(PretuneError, match="but 3 were given"):
        similarity_matrix([np.ones((3, 3))], [np.ones((3, 3))])
