"""Tests of projections against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from pretune import PretuneError
from pretune.probing.projection import principal_components, project_vectors


@settings(deadline=None)
@given(st.integers(3, 20), st.integers(2, 8), st.integers(0, 10_000))
def test_principal_components_agree_with_scikit_learn(count: int, width: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, width)) * np.arange(1, width + 1)
    points, shares = principal_components(vectors, 2)
    peer = PCA(2, svd_solver="full").fit(vectors)
    expected = peer.transform(vectors)
    np.testing.assert_allclose(shares, peer.explained_variance_ratio_, atol=1e-9)
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-7)
    largest = points[np.abs(points).argmax(0), [0, 1]]
    assert (largest > 0).all()  # the same picture each time


def test_degenerate_vectors_have_coordinates() -> None:
    for vectors in (np.ones((5, 3)), np.arange(5.0)[:, None]):
        points, facts = project_vectors(vectors)
        assert points.shape == (5, 2) and np.isfinite(points).all() and all(np.isfinite(list(facts.values())))
    with pytest.raises(PretuneError, match="at least 3 texts, but there are 2"):
        project_vectors(np.ones((2, 3)))


def test_tsne_keeps_groups_together_and_repeats_with_a_seed() -> None:
    draws = np.random.default_rng(0)
    vectors = np.concatenate([draws.normal(center, 0.05, size=(20, 10)) for center in (-3, 0, 3)])
    points, facts = project_vectors(vectors, "tsne", seed=(1 << 62) + 5)
    assert points.shape == (60, 2) and np.isfinite(points).all() and facts["perplexity"] < 30
    group = np.repeat([0, 1, 2], 20)
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1) + 1e9 * np.eye(60)
    assert (group[distance.argmin(1)] == group).all()
    np.testing.assert_allclose(points, project_vectors(vectors, "tsne", seed=(1 << 62) + 5)[0])
    assert np.isfinite(project_vectors(np.ones((4, 3)), "tsne")[0]).all()
