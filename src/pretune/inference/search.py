"""Semantic search: the texts whose embeddings are most similar to the embedding of a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pretune.inference.embed import embed_texts, embedding_task
from pretune.models.name_resolution import ModelReference
from pretune.models.open_model import OpenModel
from pretune.nn.sentence_embedding import TextEmbedding
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import progress

BLOCK = 8192  # texts whose embeddings are in memory at the same time
QUERY_PROMPTS = ("query",)  # names of prompts in sentence-transformers, the preferred one first
TEXT_PROMPTS = ("document", "passage", "corpus")
SMALLEST_NORM = 1e-12  # the similarity to a zero vector is 0


@dataclass(frozen=True)
class Match:
    """A text that was found: its index among the texts, and its similarity to the query."""

    index: int
    similarity: float


def search_texts(
    reference: ModelReference,
    queries: Sequence[str],
    texts: Sequence[str],
    top_k: int = 5,
    pooling: str | None = None,
    ignore_mismatched: bool = False,
) -> list[list[Match]]:
    """Return the `top_k` texts most similar to each query, best first; texts that are equally similar keep their order.

    Embeddings are compared with the similarity function in the model's settings, by default the cosine. If the model
    has prompts for queries and for documents, they are put before queries and texts. Blank texts are never found.

    Parameters
    ----------
    reference
        A model folder, a run folder, or the name of a model.
    pooling
        A pooling to use instead of the model's own; by default, models without a pooling use the mean.
    ignore_mismatched
        Whether the checkpoint may lack tensors, which are then initialized at random.

    >>> search_texts("pretune-small-en", ["a cat"], ["two dogs", "a cat"], top_k=1)[0][0].index
    1
    """
    if top_k < 1:
        raise PretuneError(f"--top-k {top_k}: at least one text must be returned; choose a number above 0")
    for query in queries:
        if not query.strip():
            raise PretuneError("a query is empty; describe what to search for")
    places: dict[str, list[int]] = {}  # equal texts are embedded once
    for index, text in enumerate(texts):
        if text.strip():
            places.setdefault(text, []).append(index)
    if not queries or not places:
        return [[] for _ in queries]
    opened = reference if isinstance(reference, OpenModel) else OpenModel(reference)
    embedding: TextEmbedding = embedding_task(opened, pooling).unwrapped.described

    def embed(some: Sequence[str], names: Sequence[str]) -> Array:
        prompt_name = next((name for name in names if name in embedding.prompts), None)
        return embed_texts(opened, some, pooling, ignore_mismatched=ignore_mismatched, prompt_name=prompt_name)

    def embed_blocks() -> Iterable[Array]:
        distinct = list(places)
        with progress("embedding", len(distinct)) as bar:
            for start in range(0, len(distinct), BLOCK):
                block = distinct[start : start + BLOCK]
                yield embed(block, TEXT_PROMPTS)
                bar.update(start + len(block))

    found = nearest_vectors(embed(queries, QUERY_PROMPTS), embed_blocks(), top_k, embedding.similarity)
    indices = list(places.values())
    every = [[Match(index, x.similarity) for x in matches for index in indices[x.index]] for matches in found]
    return [sorted(matches, key=lambda match: (-match.similarity, match.index))[:top_k] for matches in every]


def nearest_vectors(
    queries: Array, blocks: Iterable[Array], top_k: int, similarity: str = "cosine"
) -> list[list[Match]]:
    """Return the `top_k` vectors most similar to each query, best first; vectors that are equally similar keep their order.

    The vectors, (n, width), come in blocks, so that only one block and its similarities to one query are in memory.

    >>> vectors = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    >>> nearest_vectors(np.array([[1.0, 0.0]]), [vectors[:2], vectors[2:]], top_k=2)
    [[Match(index=0, similarity=1.0), Match(index=2, similarity=1.0)]]
    """
    compare = SIMILARITIES[similarity]
    best = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]  # indices and similarities
    start = 0
    for block in blocks:
        indices = np.arange(start, start + len(block))
        for number, query in enumerate(queries):
            known, scores = best[number]
            candidates, scores = np.append(known, indices), np.append(scores, compare(query, block))
            order = np.argsort(-scores, kind="stable")[:top_k]  # earlier vectors come first
            best[number] = candidates[order], scores[order]
        start += len(block)
    return [list(map(Match, known.tolist(), scores.tolist())) for known, scores in best]


def _cosine(query: Array, vectors: Array) -> Array:
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines: Array = vectors @ query / np.maximum(norms, SMALLEST_NORM)
    return cosines


def _dot(query: Array, vectors: Array) -> Array:
    products: Array = vectors @ query
    return products


def _euclidean(query: Array, vectors: Array) -> Array:
    return -np.linalg.norm(vectors - query, axis=1)


def _manhattan(query: Array, vectors: Array) -> Array:
    distances: Array = np.abs(vectors - query).sum(1)
    return -distances


# How a query, (width,), is compared with vectors, (n, width) → (n,): as in sentence-transformers, distances are negative.
SIMILARITIES: dict[str, Callable[[Array, Array], Array]] = {
    "cosine": _cosine,
    "dot": _dot,
    "euclidean": _euclidean,
    "manhattan": _manhattan,
}
