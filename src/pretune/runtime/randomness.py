"""Compute random numbers as a function of their coordinates.

A random number is a hash of (seed, purpose, epoch, sequence, position …). There is no generator state to save, and results
are the same on every machine, in every order, and with any number of processes. All coordinates broadcast.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array

Coordinate = int | Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def random_bits(seed: int, purpose: str, *coordinates: Coordinate) -> Array:
    """Return 64 random bits per element: a hash of the seed, a purpose such as "order", and coordinates.

    The coordinates are integers or integer arrays, which are broadcast.

    >>> bool((random_bits(0, "order", np.arange(3)) == random_bits(0, "order", np.arange(3))).all())
    True
    """
    state: Any = _mix(np.uint64(seed & 0xFFFFFFFFFFFFFFFF) ^ np.uint64(zlib.crc32(purpose.encode())))
    return extend_random_bits(state, *coordinates)


def extend_random_bits(state: Any, *coordinates: Coordinate) -> Array:
    """Return 64 random bits per element: a hash of `state`, a result of `random_bits`, and further coordinates.

    The result is the same as if `random_bits` had been called with all coordinates at once.

    >>> int(extend_random_bits(random_bits(0, "order", 1), 2)) == int(random_bits(0, "order", 1, 2))
    True
    """
    for coordinate in coordinates:
        with np.errstate(over="ignore"):
            salt = np.asarray(coordinate).astype(np.uint64)
            salt += np.uint64(1)
            salt *= _GOLDEN
            state = _mix(state + salt)
    return np.asarray(state)


def _mix(z: Any) -> Any:
    """Mix the bits of 64-bit integers with the last steps of the generator splitmix64; modify and return the array."""
    with np.errstate(over="ignore"):  # overflow is intended
        z ^= z >> _30
        z *= _FIRST
        z ^= z >> _27
        z *= _SECOND
        z ^= z >> _31
        return z


def uniform(seed: int, purpose: str, *coordinates: Coordinate) -> Array:
    """Return random numbers in [0, 1): hashes of the seed, a purpose such as "mask", and coordinates.

    The coordinates are integers or integer arrays, which are broadcast.
    """
    return (random_bits(seed, purpose, *coordinates) >> _11).astype(np.float64) * 2.0**-53


def permutation(count: int, seed: int, purpose: str, *coordinates: int) -> Array:
    """Return a random permutation of range(count), determined by the seed, a purpose such as "order", and integers."""
    return np.argsort(random_bits(seed, purpose, *coordinates, np.arange(count)), kind="stable")


@dataclass(frozen=True)
class EpochRandom:
    """The reproducible random numbers of one epoch: hashes of the seed, the epoch, a purpose, and coordinates.

    Coordinates are integers or integer arrays, such as the index of a sequence and token positions. `progress` is the
    share of the training that is done, for schedules; `order_epoch` determines the order of the data if it differs from
    `epoch`.
    """

    seed: int
    epoch: int = 0
    progress: float = 0.0  # share of the training that is done, for schedules
    order_epoch: int | None = None  # seeds the order of the data if it differs from `epoch`, whose samples are repeated

    def repeat(self, copies: int) -> EpochRandom:
        """Return a copy whose random numbers repeat after `copies` epochs (0: never).

        The order of the data still changes in every epoch.
        """
        return replace(self, epoch=self.epoch % copies, order_epoch=self.epoch) if copies else self

    def random_bits(self, purpose: str, *coordinates: Coordinate) -> Array:
        """Return 64 random bits per element, determined by this epoch, a purpose such as "mask", and coordinates."""
        return random_bits(self.seed, purpose, self.epoch, *coordinates)

    def uniform(self, purpose: str, *coordinates: Coordinate) -> Array:
        """Return random numbers in [0, 1), determined by this epoch, a purpose such as "mask", and coordinates."""
        return uniform(self.seed, purpose, self.epoch, *coordinates)

    def integers(self, high: Coordinate, purpose: str, *coordinates: Coordinate) -> Array:
        """Return random integers in [0, high), determined by this epoch, a purpose such as "mask", and coordinates."""
        return (self.uniform(purpose, *coordinates) * high).astype(np.int64)

    def permutation(self, count: int, purpose: str) -> Array:
        """Return a random permutation of range(count), determined by this epoch and a purpose such as "order"."""
        return permutation(count, self.seed, purpose, self.epoch)
