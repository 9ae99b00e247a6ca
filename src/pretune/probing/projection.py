"""Projections of vectors to the plane: principal components (PCA) and t-SNE."""

from __future__ import annotations

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError

PERPLEXITY = 30.0  # of t-SNE, at most
REDUCED = 50  # dimensions to which PCA reduces the vectors before t-SNE


def principal_components(vectors: Array, components: int = 2) -> tuple[Array, Array]:
    """Project vectors, (n, width), on their first principal components.

    Return the coordinates, (n, components), and the share of the variance that each component explains, (components,).
    The sign of a component is such that its largest coordinate is positive. There are at most min(n, width) components.

    >>> points, shares = principal_components(np.array([[0.0, 0.0], [1.0, 0.1], [4.0, -0.1]]), 1)
    >>> points[:, 0].round(1).tolist(), shares.round(2).tolist()
    ([-1.7, -0.7, 2.3], [1.0])
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    left, values, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    points = left[:, :components] * values[:components]
    signs = np.sign(points[np.abs(points).argmax(0), np.arange(points.shape[1])])
    total = (values**2).sum()
    shares = values[:components] ** 2 / total if total > 0 else np.zeros(points.shape[1])
    return points * np.where(signs == 0, 1.0, signs), shares


def project_vectors(vectors: Array, method: str = "pca", seed: int = 0) -> tuple[Array, dict[str, float]]:
    """Project vectors, (n, width), to the plane, and return the points, (n, 2), and facts about the projection.

    The facts are the share of variance that each axis explains, for PCA, or the perplexity, for t-SNE.

    Parameters
    ----------
    vectors
        At least 3 vectors.
    method
        pca keeps the directions of largest variance; tsne keeps near vectors near (van der Maaten and Hinton, 2008), while its
        distances between clusters mean nothing.
    seed
        The seed of t-SNE.
    """
    if len(vectors) < 3:
        raise PretuneError(f"a projection needs at least 3 texts, but there are {len(vectors)}; give more texts")
    if method == "pca":
        points, shares = principal_components(vectors)
        if points.shape[1] < 2:
            points, shares = np.pad(points, ((0, 0), (0, 1))), np.append(shares, 0.0)
        return points, {"explained_variance_x": float(shares[0]), "explained_variance_y": float(shares[1])}
    from sklearn.manifold import TSNE

    reduced, _ = principal_components(vectors, REDUCED)
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    # Starting from the principal components keeps the global arrangement; scaled as recommended by Kobak and Berens (2019).
    start = np.pad(reduced[:, :2], ((0, 0), (0, max(0, 2 - reduced.shape[1]))))
    spread = start[:, 0].std()
    start = start / spread * 1e-4 if spread > 0 else np.random.default_rng(0).normal(size=start.shape) * 1e-4
    model = TSNE(init=start.astype(np.float32), perplexity=perplexity, random_state=seed % (1 << 32))
    return model.fit_transform(reduced.astype(np.float32)).astype(np.float64), {"perplexity": perplexity}
