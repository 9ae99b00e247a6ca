"""Data streams: choose the packs of each step and build their batches.

A position in a stream is an integer, and everything else is a function of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pretune.objectives import Data, JointObjective, Mixture
from pretune.packed import Batch, Capacity
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import UNLIMITED, Epoch, Packing, collate


@dataclass(frozen=True)
class Pack:
    """A batch of a training step, given by its position in the data (stream, epoch, index) and in the step (slot)."""

    stream: int  # index of its stream
    epoch: int
    index: int  # within the epoch
    slot: int  # position within the step; for stateful data, whose recurrent state the pack continues


def describe_packs(packs: Sequence[Pack]) -> str:
    """Return the positions of batches (data stream, epoch, index) as text for an error message."""
    names = [f"stream {p.stream}, epoch {p.epoch}, pack {p.index}" for p in packs]
    return "; ".join([*names[:3], *(["…"] if len(names) > 3 else [])])


@dataclass
class DataStream:
    """An endless stream of batches of packed sequences, for one objective or for several that share a forward pass."""

    joint: JointObjective
    data: Data
    packing: Packing
    seed: int
    epoch: int = 0
    index: int = 0
    taken: int = 0  # packs so far, over all epochs
    first_epoch: int = field(init=False)
    epoch_data: Callable[[int], Data] | None = None  # the data of an epoch, if they differ from epoch to epoch
    _epochs: dict[int, Epoch] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.first_epoch = self.epoch
        if self.packing.fixed and self.packing.sequences == UNLIMITED:
            # The largest number of sequences in a pack, and a few more: kernels run over every slot, including empty ones.
            # Epochs after the first start inside documents, and their packs hold more sequences.
            most = max(int(self.epoch_plan(epoch).sizes().max(initial=1)) for epoch in (0, 1))
            least = -(-self.packing.tokens // self.packing.length)  # for a pack that is only padding
            self.packing = replace(self.packing, sequences=max(int(1.02 * most), least) + 8)
            self._epochs = {}

    def next(self) -> tuple[int, int]:
        """Advance a data stream to its next batch, and return the epoch and the index of the batch in the epoch."""
        while self.index >= len(self.epoch_plan(self.epoch)):
            if self.index == 0:
                raise PretuneError(
                    f"{self.joint}: the corpus is too small to fill one batch; add more text, or reduce batch.tokens"
                )
            self.epoch, self.index = self.epoch + 1, 0
        place = self.epoch, self.index
        self.index += 1
        self.taken += 1
        return place

    def epoch_plan(self, epoch: int) -> Epoch:
        """Return how the sequences of an epoch are divided into batches; the last two epochs are cached."""
        if epoch not in self._epochs:
            self._epochs = {known: plan for known, plan in self._epochs.items() if known == epoch - 1}
            data = self.data if self.epoch_data is None else self.epoch_data(epoch)
            self._epochs[epoch] = self.joint.arrange(data, self.packing, EpochRandom(self.seed, epoch))
        return self._epochs[epoch]

    def epochs_read(self) -> float:
        """Return how many epochs the batches so far make up."""
        return self.epoch - self.first_epoch + (self.index / len(self.epoch_plan(self.epoch)) if self.index else 0.0)

    @property
    def capacity(self) -> Capacity | None:
        """The fixed tensor shapes of all batches of a data stream, or None if shapes vary."""
        return self.joint.capacity(self.packing)

    def batch(self, epoch: int, index: int, progress: float) -> Batch:
        """Build the batch at an index of an epoch; it depends only on these two, the seed, and the progress."""
        tokenizer, draws = self.data.tokenizer, EpochRandom(self.seed, epoch, progress)
        sequences = self.joint.corrupt(self.epoch_plan(epoch).pack(index), tokenizer, draws)
        return collate(sequences, self.capacity, filler=tokenizer.roles.get("padding", 0))


@dataclass
class TrainingStage:
    """A stage of training with a fixed maximum sequence length and fixed objectives, which has its own data streams."""

    until: float  # share of the budget at which it ends
    first: int  # index of its first stream
    packs: int  # per step
    mixture: Mixture | None = None  # its objectives; None: those of the whole training


@dataclass
class DataStreams:
    """The data streams of all training objectives; each objective provides its share of the batches."""

    mixture: Mixture
    streams: list[DataStream]  # those of the first stage, then those of the second, and so on
    stages: list[TrainingStage]
    # (initial share of a step's packs, share of the budget at which steps reach their full size)
    size_warmup: tuple[float, float] | None = None
    # Maps progress to each joint objective's share of all packs so far; None: the constant shares of the mixture.
    shares: Callable[[float], Sequence[float]] | None = None

    def next_step(self, progress: float = 0.0) -> list[Pack]:
        """Choose the batches of the next step at a training progress of 0 to 1; return their positions in the data."""
        stage = next((stage for stage in self.stages if progress < stage.until), self.stages[-1])
        mixture = stage.mixture or self.mixture
        own = self.streams[stage.first : stage.first + len(mixture.shares)]
        shares = self.shares(progress) if self.shares is not None else [share for share, _ in mixture.shares]
        chosen = []
        for slot in range(max(1, round(stage.packs * self._growth(progress)))):
            total = sum(stream.taken for stream in own)
            lags = [share * (total + 1) - stream.taken for share, stream in zip(shares, own, strict=True)]
            number = max(range(len(lags)), key=lambda i: lags[i])
            epoch, index = own[number].next()
            chosen.append(Pack(stage.first + number, epoch, index, slot))
        return chosen

    def _growth(self, progress: float) -> float:
        """Return the batch size at a training progress of 0 to 1 as a fraction of the full size (warmup)."""
        if self.size_warmup is None or progress >= self.size_warmup[1]:
            return 1.0
        return self.size_warmup[0] + (1.0 - self.size_warmup[0]) * progress / self.size_warmup[1]

    def batch(self, pack: Pack, progress: float) -> Batch:
        """Build the batch at the position `pack` (data stream, epoch, index), for a training progress of 0 to 1."""
        return self.streams[pack.stream].batch(pack.epoch, pack.index, progress)

    def epochs_read(self) -> float:
        """Return how many epochs the batches so far make up, over all data streams."""
        return sum(stream.epochs_read() for stream in self.streams)

    def state(self) -> list[dict[str, int]]:
        """Return the positions of all data streams, to be saved in a checkpoint."""
        return [{"epoch": s.epoch, "index": s.index, "taken": s.taken} for s in self.streams]

    def restore(self, state: list[dict[str, int]]) -> None:
        """Move all data streams to the positions that were saved in a checkpoint."""
        for stream, saved in zip(self.streams, state, strict=True):
            stream.epoch, stream.index, stream.taken = saved["epoch"], saved["index"], saved["taken"]


def make_streams(
    mixture: Mixture,
    data: Data,
    *,
    tokens: int,
    packing: Packing,
    seed: int,
    length_schedule: Sequence[tuple[float, int]] = (),
    objective_schedule: Sequence[tuple[float, Mixture]] = (),
    size_warmup: tuple[float, float] | None = None,
    epoch_data: Callable[[int], Data] | None = None,
) -> DataStreams:
    """Build the data streams of a mixture of objectives, for training steps of about `tokens` tokens.

    `length_schedule` has pairs (share of the budget, maximum sequence length until then); if it is empty, the length is
    the one in `packing`. `objective_schedule` has pairs (share of the budget, objectives until then); the objectives
    are among those of `mixture`, and each stage reads the data in another order. `size_warmup` is the initial fraction
    of the batch size, and the share of the budget at which batches reach their full size. `epoch_data` is a function
    from the number of an epoch to its data; by default, all epochs have the same `data`.
    """
    if objective_schedule and any(stage.stateful for _, stage in objective_schedule):
        raise PretuneError(
            f"{mixture}: a stateful objective cannot be one of several stages; remove batch.objective_schedule"
        )
    if len(mixture.shares) > 1 and mixture.stateful:
        raise PretuneError(f"{mixture}: a stateful objective cannot alternate with others; train with it alone")
    if mixture.stateful and (len(length_schedule) > 1 or size_warmup is not None):
        raise PretuneError(
            f"{mixture}: a stateful objective needs one sequence length and one batch size; "
            "remove batch.size_warmup, and all but one entry of batch.length_schedule"
        )
    streams: list[DataStream] = []
    built: list[TrainingStage] = []
    first_streams: dict[tuple[int, int], int] = {}  # by length and number of the mixture: the first of their streams
    lengths = length_schedule or [(1.0, packing.length)]
    mixtures = objective_schedule or [(1.0, mixture)]
    for until in sorted({until for until, _ in (*lengths, *mixtures)}):
        length = next(length for end, length in lengths if until <= end)
        number, current = next((n, stage) for n, (end, stage) in enumerate(mixtures) if until <= end)
        own = replace(packing, tokens=max(packing.tokens, length), length=length)
        packs = max(1, round(tokens / own.tokens))
        own = replace(own, packs_per_step=packs)
        if (length, number) not in first_streams:  # a schedule of the other kind may divide a stage
            first_streams[length, number] = len(streams)
            # Epochs have different orders: a later stage does not read the same part of a large corpus again.
            streams += [
                DataStream(joint, data, own, seed, epoch=number, epoch_data=epoch_data) for joint in current.joints
            ]
        stage = current if objective_schedule else None
        built.append(TrainingStage(until, first_streams[length, number], packs, stage))
    return DataStreams(mixture, streams, built, size_warmup)
