"""Decoding steps with fixed shapes, which are recorded as CUDA graphs and replayed.

A decoding step of a small model spends more time launching kernels than running them. A recorded step is launched at once,
and reads nothing on the host, so that the host runs ahead of the GPU and looks at the chosen tokens only every few steps.
Recordings belong to a model, a number of sequences and a number of slots, and are used again by later calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from pretune.backbones.transformer_stack import TransformerStack
from pretune.inference.generation.decoding_session import DecodingSession, DecodingSteps, Reader
from pretune.inference.nan_check import NAN_MESSAGE
from pretune.nn.attention.kv_cache import KVCache
from pretune.nn.attention.multi_head import SelfAttention, ShowsLogits
from pretune.nn.attention.patterns import causal
from pretune.nn.attention.static_kv_cache import StaticKVCache
from pretune.packed import Packed
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError

STEPS_PER_SYNC = 16
FEWEST_SLOTS = 64  # numbers of slots are powers of two from here on
WARMUP = 2  # runs before recording, in which libraries initialize themselves
CAPTURE = "thread_local"  # other threads may allocate memory while this one records
MOST_IDLE = 2  # caches with recordings that are kept per model


@dataclass
class Recording:
    """A recorded CUDA graph of a decoding step, with the tensors that it reads and writes."""

    graph: Any
    ids: Tensor  # (sequences, width)
    logits: Tensor  # (sequences, width, vocabulary)


@dataclass
class Workspace:
    """A static key-value cache, and the decoding steps that were recorded with it.

    It must not hold the model itself, by which it is found: see `take_workspace`.
    """

    cache: StaticKVCache
    weights: tuple[Any, ...]  # what the recorded graphs read of the model: the addresses of its tensors, its data type
    origins: Tensor  # (sequences,) the sequence that each sequence continues, if slots are shared
    has_nan: Tensor  # whether any logit was NaN
    recordings: dict[tuple[int, int], Recording] = field(default_factory=dict)  # by visible slots and width
    pool: Any = None  # the memory pool of the graphs, which run one after the other

    def matches(self, like: Workspace) -> bool:
        """Return whether this workspace can be used in place of another one, which has just been made."""
        own, other = self.cache, like.cache
        same = own.target_slots.slots == other.target_slots.slots and len(own.lengths) == len(other.lengths)
        return same and (own.table is None) == (other.table is None) and self.weights == like.weights


_IDLE: WeakKeyDictionary[nn.Module, list[Workspace]] = WeakKeyDictionary()


def bucket(slots: int) -> int:
    """Return a number of slots rounded up to a power of two, so that few different shapes are recorded.

    >>> bucket(80)
    128
    """
    return max(FEWEST_SLOTS, 1 << (slots - 1).bit_length())


def is_recordable(reader: Reader) -> bool:
    """Return whether the decoding steps of a session have the parts that a static step supports, on any device."""
    if not isinstance(reader, DecodingSession) or not isinstance(reader.backbone, TransformerStack):
        return False
    backbone = reader.backbone
    attention = [part for part in backbone.modules() if isinstance(part, ShowsLogits)]
    plain = all(isinstance(part, SelfAttention) and part.attend is None for part in attention)
    extras = backbone.score, backbone.distances, backbone.embed.padding
    return plain and type(reader.cache) is KVCache and not backbone.memory and all(part is None for part in extras)


def has_static_steps(reader: Reader) -> bool:
    """Return whether the decoding steps of a session are recorded: on a GPU, for decoders that support it."""
    return is_recordable(reader) and reader.backbone.embed.tokens.is_cuda  # type: ignore[attr-defined]


@overload
def begin_steps(reader: DecodingSession, beams: int = 1) -> DecodingSession | StaticSession: ...


@overload
def begin_steps(reader: Reader, beams: int = 1) -> DecodingSteps: ...


def begin_steps(reader: Reader, beams: int = 1) -> DecodingSteps:
    """Return the session with which to decode after `reader` has read the prompts: on a GPU, one with static steps.

    It has `beams` sequences for each sequence of the reader, which continue it.
    """
    if not has_static_steps(reader):
        return reader
    assert isinstance(reader, DecodingSession)
    return StaticSession(reader, beams)


class StaticSession(DecodingSteps):
    """A decoding session whose steps have fixed shapes: it drops no sequences, and reads no values on the host."""

    steps_per_sync = STEPS_PER_SYNC

    def __init__(self, session: DecodingSession, beams: int = 1) -> None:
        """Continue a session that has read the prompts, with `beams` sequences for each of its sequences."""
        self.session, self.backbone, self.device = session, session.backbone, session.device
        used = session.cache.used
        chosen = np.repeat(np.arange(len(used)), beams)
        self.workspace = take_workspace(session, len(chosen), bucket(session.slots), shared=beams > 1)
        self.workspace.cache.load(session.cache, chosen)
        self.workspace.has_nan.zero_()
        self.longest = int(used.max(initial=0))  # upper bound on the number of tokens of a sequence
        session.cache = None  # its memory is free from now on

    @property
    def cache(self) -> StaticKVCache:
        """The key-value cache of this session."""
        return self.workspace.cache

    def advance(self, tokens: Tensor) -> Tensor:
        """Read the next token of every sequence, (sequences,), and return logits, (sequences, vocabulary)."""
        return self.advance_many(tokens[:, None])[:, -1]

    def advance_many(self, tokens: Tensor, origins: Tensor | None = None) -> Tensor:
        """Read the next w tokens of every sequence, (sequences, w); return logits, (sequences, w, vocabulary).

        If `origins`, (sequences,), are given, the new sequence i continues the old sequence `origins[i]`. The logits
        are overwritten by the next call.
        """
        width, slots = tokens.shape[1], self.cache.target_slots.slots
        self.longest = min(self.longest + width, slots)
        self.cache.visible = min(bucket(self.longest), slots)
        if origins is not None:
            self.workspace.origins.copy_(origins)
        return self._replay(tokens) if tokens.is_cuda else self.step(tokens)

    def step(self, ids: Tensor) -> Tensor:
        """Read the next w tokens of every sequence, (sequences, w); return logits, (sequences, w, vocabulary).

        This is what is recorded: all shapes are fixed, and no value is read on the host.
        """
        sequences, width = ids.shape
        cache, model = self.cache, self.backbone
        if cache.table is not None:
            cache.reorder(self.workspace.origins)
        positions = cache.next_positions(width)
        if model.max_positions is not None:  # surplus tokens of sequences that have ended
            positions = positions.clamp(max=model.max_positions - 1)
        offsets = torch.arange(sequences + 1, device=ids.device, dtype=torch.int32) * width
        packed = Packed(ids.flatten(), offsets, positions.flatten(), width, pattern=causal)
        packed.host_offsets = np.arange(sequences + 1) * width
        logits = self.session.logits(model(packed, state=cache).last)
        cache.lengths.add_(width)
        self.workspace.has_nan.logical_or_(torch.isnan(logits).any())
        return logits.view(sequences, width, -1)

    def _replay(self, ids: Tensor) -> Tensor:
        """Replay the recorded step on the next tokens, (sequences, w), recording it at the first use."""
        name = self.cache.visible, ids.shape[1]
        if name not in self.workspace.recordings:
            self.workspace.recordings[name] = self._record(ids)
        recording = self.workspace.recordings[name]
        recording.ids.copy_(ids)
        recording.graph.replay()
        return recording.logits

    def _record(self, ids: Tensor) -> Recording:
        """Record a step on tokens of this shape as a CUDA graph.

        The runs before it write the keys and values that the first replay writes again.
        """
        work, device = self.workspace, ids.device
        ids, before = ids.clone(), [tensor.clone() for tensor in self.cache.state()]
        aside, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for _ in range(WARMUP):
                self.step(ids)
                for tensor, value in zip(self.cache.state(), before, strict=True):
                    tensor.copy_(value)
        current.wait_stream(aside)
        if work.pool is None:
            work.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, work.pool, capture_error_mode=CAPTURE):
            logits = self.step(ids)
        return Recording(graph, ids, logits)

    def truncate(self, used: Array) -> None:
        """Forget all but the first `used[i]` tokens of each sequence i."""
        self.cache.truncate(used)
        self.longest = int(used.max(initial=0))

    def keep(self, rows: Sequence[int]) -> Sequence[int]:
        """Return the indices of all sequences, because none is dropped."""
        return range(len(self.cache.lengths))

    def to_host(self, steps: Sequence[Tensor]) -> list[Any]:
        """Return tensors of the same shape, one per decoding step, as nested lists on the host, and check for NaN."""
        found = super().to_host(steps)
        if bool(self.workspace.has_nan):
            raise PretuneError(NAN_MESSAGE)
        return found

    def close(self) -> None:
        """Keep the cache and the recordings for later sessions of the same model and shape."""
        idle = _IDLE.setdefault(self.backbone, [])
        idle.append(self.workspace)
        del idle[:-MOST_IDLE]


def take_workspace(session: DecodingSession, sequences: int, slots: int, shared: bool) -> Workspace:
    """Return an idle workspace of the session's model with these shapes, or a new one if there is none.

    No other session gets it until it is given back (`StaticSession.close`). `shared` is that of `StaticKVCache`.
    """
    tokens: Tensor = session.backbone.embed.tokens
    parts = session.backbone, session.head
    tensors = [tensor for part in parts for tensor in (*part.parameters(), *part.buffers())]
    new = Workspace(
        StaticKVCache(sequences, slots, tokens.device, shared),
        (session.vocabulary, session.backbone.embed.compute, *(tensor.data_ptr() for tensor in tensors)),
        torch.arange(sequences, device=tokens.device),
        torch.zeros((), dtype=torch.bool, device=tokens.device),
    )
    idle = _IDLE.get(session.backbone, [])
    for number, workspace in enumerate(idle):
        if workspace.matches(new):
            return idle.pop(number)
    return new
