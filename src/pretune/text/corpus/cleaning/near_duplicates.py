"""Find near duplicates by MinHash signatures and locality-sensitive hashing (Broder, 1997; Lee et al., 2022, arXiv:2107.06499).

A document is the set of its word 5-grams (shingles). The share of equal values in two signatures estimates the Jaccard similarity of the
sets, with a standard error of sqrt(J (1 - J) / 128), 0.035 at J = 0.8. The signatures are split into bands; documents that agree on a
band are compared, and pairs whose estimate reaches the threshold are joined into clusters.

Memory: 4 × 128 bytes per document for the signatures, and three times as much again while they are sorted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from pretune.runtime.arrays import Array
from pretune.text.corpus.cleaning.document_features import DocumentFeatures
from pretune.text.corpus.ngram_hashes import BASE, NgramHasher, hash_text

SHINGLE_WORDS = 5
PERMUTATIONS = 128
SHINGLES_AT_ONCE = 1 << 9  # so that the hashes of a block, 512 KB, stay in the cache of the CPU
RECALL = 0.99  # of pairs at the threshold: they agree on a band at least this often
LARGEST_BUCKET = 1000  # documents of a bucket that are all compared with each other


def _constants(purpose: str) -> Array:
    """Return fixed pseudorandom 64-bit numbers, one per MinHash permutation; each `purpose` has its own numbers."""
    digests = (hashlib.blake2b(f"{purpose} {i}".encode(), digest_size=8).digest() for i in range(PERMUTATIONS))
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


FACTORS, OFFSETS = _constants("factor") | np.uint64(1), _constants("offset")


def minhash_signature(document: DocumentFeatures) -> Array:
    """Return the MinHash signature of a document, uint32 of shape (permutations,).

    A document with fewer words than a shingle has a single shingle of all its words; a document without words is hashed
    as a whole.
    """
    hashes = document.word_hashes
    if not len(hashes):
        hashes = np.array([hash_text(document.text.strip())], dtype=np.uint64)
    shingles = NgramHasher.runs(hashes, min(SHINGLE_WORDS, len(hashes)))
    signature = np.full(PERMUTATIONS, np.iinfo(np.uint64).max, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = (shingles ^ (shingles >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        for start in range(0, len(mixed), SHINGLES_AT_ONCE):
            # Multiply-add-shift hashing, (permutations, shingles); the upper half is the value.
            values = FACTORS[:, None] * mixed[start : start + SHINGLES_AT_ONCE] + OFFSETS[:, None]
            signature = np.minimum(signature, values.min(1))
    return (signature >> np.uint64(32)).astype(np.uint32)


def choose_bands(threshold: float) -> tuple[int, int]:
    """Return the number of LSH bands and the number of signature values (rows) per band for a similarity threshold.

    The number of rows is the largest for which two documents whose similarity equals the threshold still agree on at
    least one band with probability RECALL; more rows per band mean fewer pairs to compare.

    >>> choose_bands(0.8)
    (21, 6)
    """
    fits = (
        rows for rows in range(PERMUTATIONS, 1, -1) if 1 - (1 - threshold**rows) ** (PERMUTATIONS // rows) >= RECALL
    )
    rows = next(fits, 1)
    return PERMUTATIONS // rows, rows


def duplicate_clusters(signatures: Array, threshold: float) -> Array:
    """Return, for each document, the index of the first document in its cluster of near duplicates, (documents,).

    `signatures` (documents, permutations) has the MinHash signature of each document. Two documents are in one cluster
    if their estimated similarity is at least `threshold`, or if a chain of such pairs links them. The clusters do not
    depend on the order of the documents.
    """
    if not len(signatures):
        return np.empty(0, dtype=np.int64)
    # Equal documents count once; the sorted order makes the comparisons independent of the order of the documents.
    distinct, first, inverse = np.unique(signatures, axis=0, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    parents = list(range(len(distinct)))

    def root(item: int) -> int:
        while parents[item] != item:
            parents[item] = parents[parents[item]]
            item = parents[item]
        return item

    needed = int(np.ceil(threshold * PERMUTATIONS - 1e-9))
    for bucket in _buckets(distinct, *choose_bands(threshold)):
        rest = bucket
        while len(rest) > 1:
            alike = (distinct[rest[1:]] == distinct[rest[0]]).sum(1) >= needed
            for other in rest[1:][alike].tolist():
                one, two = root(int(rest[0])), root(other)
                parents[max(one, two)] = min(one, two)
            # In a large bucket, what is like its first document is not compared again.
            rest = rest[1:] if len(bucket) <= LARGEST_BUCKET else rest[1:][~alike]
    roots = np.array([root(item) for item in range(len(distinct))])
    earliest = np.full(len(distinct), len(signatures), dtype=np.int64)
    np.minimum.at(earliest, roots, first)
    return np.asarray(earliest[roots][inverse])


def _buckets(signatures: Array, bands: int, rows: int) -> Iterator[Array]:
    """Yield, for each band, every group of two or more signatures with equal values in it, as an array of indices."""
    for band in range(bands):
        keys = np.zeros(len(signatures), dtype=np.uint64)
        with np.errstate(over="ignore"):
            for row in range(band * rows, (band + 1) * rows):
                keys = keys * BASE + signatures[:, row]
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.append(True, keys[order][1:] != keys[order][:-1]))
        sizes = np.diff(np.append(starts, len(keys)))
        for start, size in zip(starts[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
            yield order[start : start + size]
