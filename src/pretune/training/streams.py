"""Data streams: which packs a step takes, and their batches. A position is an integer; everything follows from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

from pretune.errors import PretuneError
from pretune.objectives import Data, Joint, Mixture
from pretune.packed import Batch, Capacity
from pretune.randomness import Draws
from pretune.text.sequences import UNLIMITED, Epoch, Packing, collate


@dataclass(frozen=True)
class Pack:
    """One pack of a step."""

    stream: int  # which joint of the mixture
    epoch: int
    index: int  # within the epoch
    slot: int  # whose carry it continues, for stateful data


@dataclass
class Stream:
    """The packs of one joint objective, epoch after epoch."""

    joint: Joint
    data: Data
    packing: Packing
    seed: int
    epoch: int = 0
    index: int = 0
    taken: int = 0
    _epochs: dict[int, Epoch] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.packing.fixed and self.packing.sequences == UNLIMITED:
            # As many sequences as a pack of the first epoch has, and some: kernels run over every slot, empty ones too.
            most = int(self.epoch_plan(0).sizes().max(initial=1))
            least = -(-self.packing.tokens // self.packing.length)  # a pack of nothing but filler
            self.packing = replace(self.packing, sequences=max(int(1.02 * most), least) + 8)
            self._epochs = {}

    def next(self) -> tuple[int, int]:
        """Epoch and index of the next pack; the position moves on."""
        while self.index >= len(self.epoch_plan(self.epoch)):
            if self.index == 0:
                raise PretuneError(f"{self.joint}: there is no text to learn from; the corpus is too small")
            self.epoch, self.index = self.epoch + 1, 0
        place = self.epoch, self.index
        self.index += 1
        self.taken += 1
        return place

    def epoch_plan(self, epoch: int) -> Epoch:
        """An epoch's packs; the last two are kept."""
        if epoch not in self._epochs:
            self._epochs = {known: plan for known, plan in self._epochs.items() if known == epoch - 1}
            self._epochs[epoch] = self.joint.arrange(self.data, self.packing, Draws(self.seed, epoch))
        return self._epochs[epoch]

    @property
    def capacity(self) -> Capacity | None:
        """Fixed shapes, or None where every batch has its own."""
        return self.packing.capacity(self.joint.room(self.packing))

    def batch(self, epoch: int, index: int, progress: float) -> Batch:
        """The batch of a pack: a pure function of seed, epoch, index and progress."""
        sequences = self.epoch_plan(epoch).pack(index)
        sequences = self.joint.corrupt(sequences, self.data.tokenizer, Draws(self.seed, epoch, progress))
        tokenizer = self.data.tokenizer
        return collate(sequences, self.capacity, filler=tokenizer.roles.get("padding", 0))


@dataclass
class Streams:
    """The streams of a mixture, and whose turn it is."""

    mixture: Mixture
    streams: list[Stream]
    packs: int  # in a step

    def next_step(self) -> list[Pack]:
        """The packs of the next step: always the joint that lags most behind its share."""
        chosen = []
        for slot in range(self.packs):
            total = sum(stream.taken for stream in self.streams)
            lags = [
                share * (total + 1) - stream.taken
                for (share, _), stream in zip(self.mixture.shares, self.streams, strict=True)
            ]
            number = max(range(len(lags)), key=lambda i: lags[i])
            epoch, index = self.streams[number].next()
            chosen.append(Pack(number, epoch, index, slot))
        return chosen

    def batch(self, pack: Pack, progress: float) -> Batch:
        """The batch of a pack."""
        return self.streams[pack.stream].batch(pack.epoch, pack.index, progress)

    def state(self) -> list[dict[str, int]]:
        """Positions, for checkpoints."""
        return [{"epoch": s.epoch, "index": s.index, "taken": s.taken} for s in self.streams]

    def restore(self, state: list[dict[str, int]]) -> None:
        """Go to saved positions."""
        for stream, saved in zip(self.streams, state, strict=True):
            stream.epoch, stream.index, stream.taken = saved["epoch"], saved["index"], saved["taken"]


def make_streams(mixture: Mixture, data: Data, *, tokens: int, packing: Packing, seed: int) -> Streams:
    """Streams whose steps take about `tokens`."""
    packs = max(1, round(tokens / packing.tokens))
    if len(mixture.shares) > 1 and any(joint.stateful for joint in mixture.joints):
        raise PretuneError(f"{mixture}: a stateful objective cannot take turns with others")
    packing = replace(packing, lanes=packs)
    return Streams(mixture, [Stream(joint, data, packing, seed) for joint in mixture.joints], packs)


def digest(values: Any) -> str:
    """A short fingerprint of something printable."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]
