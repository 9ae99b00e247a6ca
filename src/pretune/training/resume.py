"""Saving of checkpoints during training, and resuming from the newest one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pretune.runtime.progress import log_info
from pretune.training.budget import Clock
from pretune.training.callbacks import Callback, Step
from pretune.training.checkpoints import CheckpointWriter, optimizer_tensors, restore_optimizers
from pretune.training.interrupts import Stopped, stop_signals
from pretune.training.parallel.fsdp_tensors import copy_into
from pretune.training.prefetch import Prefetcher

if TYPE_CHECKING:
    from pretune.training.loop import Training


@dataclass
class Checkpointing(Callback):
    """A callback that saves checkpoints in a run folder: at intervals, at the end of training, and on an interrupt."""

    t: Training
    clock: Clock
    feed: Prefetcher
    optimizers: list[torch.optim.Optimizer]
    callbacks: Sequence[Callback]  # whose states are saved too
    saver: CheckpointWriter | None = field(init=False)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.saver = (
            CheckpointWriter(self.t.run, self.t.world, self.t.monitor.save_total_limit or 2) if self.t.run else None
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Return a context manager that catches interrupts during training, and waits for the last checkpoint."""
        with self.saver or nullcontext(), stop_signals() as self.stopping:
            yield

    def counts(self) -> dict[str, float]:
        """Return two numbers, 0 or 1, to be summed over processes: interrupted, and busy writing a checkpoint."""
        writing = self.saver is not None and self.saver.busy
        return {"stopping": float(self.stopping.is_set()), "writing": float(writing)}

    def before_step(self, step: Step) -> None:
        """Complete the pending checkpoint if all processes have written their files of it."""
        if self.saver is not None and not step.totals["writing"]:
            self.saver.finish()

    def after_step(self, step: Step) -> None:
        """Save a checkpoint if one is due, and raise `Stopped` if the training was interrupted."""
        # Processes receive a signal at different moments, but must end after the same step.
        stopping = self.stopping.is_set() if self.t.world.size == 1 else step.totals["stopping"] > 0
        every = self.t.monitor.save_every
        if self.saver is not None and (stopping or (step.last and every) or self.clock.due(every)):
            self.save(self.saver)
        if stopping and not step.last:
            if self.saver is not None:
                self.saver.finish()
            raise Stopped

    def save(self, saver: CheckpointWriter) -> None:
        """Start to write a checkpoint of the model, the optimizers, the position in the data, and all callbacks."""
        state: dict[str, Any] = {"clock": dict(self.clock.used), "feed": self.feed.state(), "log": {}, "guard": {}}
        shared = {"root": self.t.root.tensors(), "optimizer": optimizer_tensors(self.t.root, self.optimizers)}
        for callback in self.callbacks:
            if entry := callback.state():
                state[callback.name] = entry
            if tensors := callback.tensors():
                shared[callback.name] = dict(tensors)
        recurrent = {
            f"{slot}/{name}": tensor
            for slot, state in self.t.recurrent_states.items()
            if state is not None
            for name, tensor in state.tensors().items()
        }
        saver.start({**state, "step": int(self.clock.used["steps"])}, shared, own={"recurrent_states": recurrent})

    def restore_all(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore the model, the optimizers, the position in the data, and all callbacks from a checkpoint."""
        t = self.t
        for name, tensor in t.root.tensors().items():
            copy_into(tensor, tensors["root"][name])
        restore_optimizers(t.root, self.optimizers, tensors["optimizer"])
        for callback in self.callbacks:
            callback.restore(state.get(callback.name, {}), tensors.get(callback.name, {}))
        self.feed.restore(state["feed"], self.clock)
        slots: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.get("recurrent_states", {}).items():
            slot, _, key = name.partition("/")
            if int(slot) % t.world.size == t.world.rank:  # packs are assigned to processes in the same way
                slots.setdefault(int(slot), {})[key] = tensor.to(t.device, copy=True)
        if t.restore_state is not None:
            t.recurrent_states = {slot: t.restore_state(recurrent) for slot, recurrent in slots.items()}
        log_info(f"resuming from step {state['step']}")
