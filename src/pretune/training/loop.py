"""The loop: one for every backbone, every mix of objectives and every budget."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretune.models.model import Root
from pretune.nn.blocks import Layer
from pretune.nn.compiler_exclusions import leave_out_of_graphs
from pretune.nn.dropout import share_seed, stop_dropout
from pretune.objectives import Joint, Loss
from pretune.objectives.objective import means
from pretune.packed import Batch
from pretune.runtime.devices import cache_folder
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import progress, say
from pretune.runtime.randomness import hashed
from pretune.training.budget import Clock
from pretune.training.checkpoints import Saver, load_newest, optimizer_tensors, restore_optimizers, restore_parameters
from pretune.training.cuda_graphs import Graphs
from pretune.training.data_streams import Pack, Streams
from pretune.training.early_stopping import Best
from pretune.training.flops import Flops
from pretune.training.metrics_log import Log, name_packs
from pretune.training.optim.optimizers import make_optimizers, make_replayable, set_rates
from pretune.training.optim.schedules import rate_factor
from pretune.training.optim.weight_averaging import Average, make_average
from pretune.training.parallel.distributed import Parallel, Reduce, World, parallelize, synchronized
from pretune.training.parallel.fsdp_tensors import cut_again, is_shard, make_whole
from pretune.training.prefetch import Feed
from pretune.training.settings import Budget, Optimizer, Schedule, Watching
from pretune.training.spike_guard import Guard

LOGGED = 10  # steps whose mean loss is shown at the end, where nothing is logged before


class Stopped(Exception):  # noqa: N818
    """A training that was asked to stop, and saved itself."""


@dataclass
class Training:
    """Everything a training consists of."""

    root: Root
    streams: Streams
    budget: Budget
    optimizer: Optimizer
    schedule: Schedule
    watching: Watching
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    run: Path | None = None  # where metrics and checkpoints go
    world: World = field(default_factory=World)
    parallel: Parallel = "replicate"
    reduce: Reduce = "fp32"  # in which gradients are summed up over processes
    compiled: bool = False
    graphed: bool = False  # steps are recorded once and replayed, on CUDA; not for stateful data
    ahead: bool | None = None  # batches are made in a thread while the step before runs; None: where there is a GPU
    recompute: bool = False  # layers keep only their input for the backward
    starts: dict[Tensor, float] = field(default_factory=dict)  # share of the budget from which on a parameter moves
    after: Callable[[float], None] | None = None  # called after each step with the share of the budget that is spent
    evaluate: Callable[[], dict[str, float]] | None = None
    decides: str = ""  # the metric of an evaluation that says which parameters are the best
    evaluate_first: bool = False  # before the first step too
    carry: dict[int, Any] = field(default_factory=dict)  # by slot, for stateful data
    restore_carry: Callable[[dict[str, Tensor]], Any] | None = None
    now: Callable[[], float] = time.monotonic  # the time in seconds


def train(training: Training, resume: bool = False) -> dict[str, float]:
    """Train until the budget is spent; the last metrics."""
    t = training
    t.budget.check()
    t.root.to(t.device).train()
    t.root.compute_in(torch.bfloat16 if t.device.type == "cuda" else torch.float32)
    dropout = share_seed(t.root, t.device)
    model = parallelize(t.root, t.world, t.parallel, t.reduce)
    optimizers = make_optimizers(t.root, t.optimizer, t.starts)
    average = make_average(t.root, t.optimizer)
    guard = Guard(t.watching.spike) if t.watching.spike else None
    best = Best(t.root, t.decides, t.watching.patience) if t.watching.patience else None
    clock, state = _restore(t, optimizers, average, guard, best) if resume else (new_clock(t), None)
    for layer in (module for module in t.root.modules() if isinstance(module, Layer)):
        layer.recompute = t.recompute
    if t.compiled:
        compile_once(model)
    graphs = Graphs(model, t.device) if t.graphed else None
    # A guard must look at a step before it is taken; without one its end can be replayed too.
    replayed = graphs is not None and guard is None and make_replayable(optimizers)
    log = Log(t.run, t.world, clock, t.device, interval=t.watching.log or LOGGED)
    if state is not None:
        log.restore(state["log"])
    terms = sorted({term for s in t.streams.streams for term in s.joint.room(s.packing)})
    flops, parameters = Flops(t.root), list(t.root.parameters())
    # On a CPU there is nothing to gain: the step itself takes the cores, and a batch is a small part of it.
    gpu = t.device.type == "cuda"
    feed = Feed(t.streams, t.world, clock, ahead=gpu if t.ahead is None else t.ahead, pinned=gpu)
    if state is not None:
        feed.restore(state["feed"], clock)
    largest = t.optimizer.clip or 0.0

    def finish() -> Tensor:
        norm = clip(parameters, largest)
        move(optimizers, taken=True, keep=True)
        return norm

    sharded = any(map(is_shard, parameters))

    def evaluate() -> dict[str, float]:
        assert t.evaluate is not None
        with clock.paused():
            found = t.evaluate()
            t.root.train()
            if sharded:
                cut_again(t.root)
        return found

    if t.evaluate and t.evaluate_first and not clock.used["steps"]:
        log.write_evaluation(evaluate())
    saver = Saver(t.run, t.world, t.watching.keep or 2) if t.run else None
    with feed, saver or nullcontext(), stop_signals() as stopping, progress("training", 1.0) as bar:
        while not clock.spent and not (best is not None and best.enough):
            step, before = int(clock.used["steps"]), clock.progress()
            late = t.schedule.dropout is not None and before >= t.schedule.dropout
            if late and stop_dropout(t.root) and graphs is not None:
                graphs.recordings.clear()  # dropout is part of them
            given = feed.next(clock)
            packs, batches = given.packs, given.batches
            needs = _needs(flops, given.real, terms)
            writing = saver is not None and saver.busy
            totals = t.world.add_up(needs | {"stopping": float(stopping.is_set()), "writing": float(writing)})
            if saver is not None and not totals["writing"]:
                saver.finish()
            if clock.progress(totals["tokens"], totals["flops"], 1) < 1.0:  # the time it will take is not known yet
                feed.look_ahead()
            losses: list[Loss] = []
            parts: list[Tensor] = []
            for number, (pack, batch) in enumerate(zip(packs, batches, strict=True)):
                spare = number >= len(given.real)
                batch.carry = t.carry.get(pack.slot)
                reseed(dropout, t.seed, step, pack)
                joint = t.streams.streams[pack.stream].joint
                with synchronized(model, last=number == len(packs) - 1):
                    if graphs is not None:
                        loss, part = graphs.run(pack.stream, joint, batch, totals)
                    else:
                        loss = model(joint, batch.to(t.device))
                        # Replicas average their gradients; losses are sums over all of them.
                        part = loss.over(totals) * t.world.size
                        part.backward()
                    parts.append(part.detach())
                if not spare:
                    if joint.stateful:  # others begin anew with each batch
                        t.carry[pack.slot] = loss.carry
                    losses.append(loss)
            layers = layer_norms(t.root) if t.watching.layers and _due(clock, t.watching.log, ahead=1) else {}
            # Nearly all of the step is done: what it takes of a budget in seconds is known in time for its rate.
            seconds = _agreed_seconds(t, clock)
            more = seconds - clock.used["seconds"]
            factor = rate_factor(t.schedule, before, clock.progress(totals["tokens"], totals["flops"], 1, more))
            set_rates(optimizers, factor, before)
            with graphs.turn() if graphs is not None else nullcontext():
                if graphs is not None and replayed:
                    norm, taken = graphs.end(finish), True
                else:
                    norm = clip(parameters, largest)
                    taken = guard is None or judge(t, guard, parts, norm, step + 1, packs)
                    move(optimizers, taken, keep=graphs is not None)
            if taken:
                log.add(losses, totals, terms)
                log.watch(step + 1, packs, norm)
            clock.add(totals["tokens"], totals["flops"], seconds)
            if t.after is not None:
                t.after(clock.progress())
            if average is not None:
                average.update(clock.progress())

            done: bool = clock.spent
            log.flush()  # the line of a step before, while the device is busy with this one
            evaluated = t.evaluate is not None and (done or _due(clock, t.watching.evaluate))
            if done or _due(clock, t.watching.log) or (evaluated and best is not None):  # which may be the end
                log.write(factor * (t.optimizer.lr or 0.0), norm, layers)
            bar.update(clock.progress(), log.note)
            if t.evaluate and evaluated:
                log.flush()
                with average.inside() if average is not None else nullcontext():
                    found = evaluate()
                    log.write_evaluation(found)
                    if best is not None:
                        best.look(found, step + 1)
            done = done or (best is not None and best.enough)
            # Processes hear of a signal at different moments; they end after the same step.
            ending = stopping.is_set() if t.world.size == 1 else totals["stopping"] > 0
            if saver and (ending or (done and t.watching.save) or _due(clock, t.watching.save)):
                _save(saver, t, clock, feed, log, optimizers, average, guard, best)
            if ending and not done:
                log.flush()
                if saver:
                    saver.finish()
                raise Stopped
        log.flush()
    if average is not None:
        average.apply()
    if best is not None:
        log.last |= best.apply()
        if not clock.spent:
            say(f"ended after step {clock.used['steps']:.0f}: {t.decides} got no better since step {best.step}")
    if sharded:
        make_whole(t.root)
    return {**log.last, **({"evaluation_seconds": clock.evaluation} if t.evaluate else {})}


def compile_once(model: nn.Module) -> None:
    """Compile a model whose batches all have one shape."""
    from torch._inductor import config

    # What was compiled once need not be compiled again by the next run.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    # Fusing a layer norm's two kinds of sums into one kernel was ten times slower for packs of 131,072 tokens.
    if hasattr(config.triton, "mix_order_reduction"):
        config.triton.mix_order_reduction = False
    leave_out_of_graphs()
    model.compile(dynamic=False)


def new_clock(t: Training, used: dict[str, float] | None = None) -> Clock:
    """Return a clock for a training, which goes on from what is used where that is given."""
    return Clock(t.budget, now=t.now) if used is None else Clock(t.budget, dict(used), t.now)


def _agreed_seconds(t: Training, clock: Clock) -> float:
    """Return the seconds of training so far: those of the first process where they decide when all stop."""
    seconds = clock.elapsed()
    if t.budget.seconds is None:
        return seconds
    return t.world.add_up({"seconds": seconds if t.world.first else 0.0})["seconds"]


def _needs(flops: Flops, batches: list[Batch], terms: list[str]) -> dict[str, float]:
    """Return what all processes must know of a step before its first forward: targets by term, tokens, operations."""
    needs = {term: sum(batch.counts.get(term, 0.0) for batch in batches) for term in terms}
    needs["tokens"] = sum(batch.tokens for batch in batches)
    needs["flops"] = sum(flops.training(batch) for batch in batches)
    return needs


def reseed(dropout: Tensor, seed: int, step: int, pack: Pack) -> None:
    """Chance on the device (dropout, sampling) depends on seed, step and pack, not on what came before."""
    number = int(hashed(seed, "device", step, pack.stream, pack.slot))
    seed_generators(number >> 1, dropout.device)
    dropout.fill_((number >> 33) & 0x7FFFFFFF)


def seed_generators(number: int, device: torch.device) -> None:
    """What torch.manual_seed does, for the host and one device: that one also queues calls for devices that are not there."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(number)


def clip(parameters: list[nn.Parameter], largest: float) -> Tensor:
    """Scale the gradient down to a largest norm; returns the norm it had."""
    parameters = [p for p in parameters if p.grad is not None]
    norm = torch.nn.utils.clip_grad_norm_(parameters, largest if largest > 0 else math.inf)
    return whole_number(norm)


def whole_number(norm: Any) -> Tensor:
    """A norm; that of shards is known once all processes have added theirs."""
    return norm.full_tensor() if is_shard(norm) else norm


def move(optimizers: list[torch.optim.Optimizer], taken: bool, keep: bool) -> None:
    """Take a step, unless it was found bad, and clear the gradients; with `keep` they stay in their places, as zeros."""
    for optimizer in optimizers:
        if taken:
            optimizer.step()
        optimizer.zero_grad(set_to_none=not keep)


def layer_norms(root: Root) -> dict[str, Tensor]:
    """The gradient norm of each group of the backbone, and of the heads."""
    groups = [*root.backbone.groups(), *((name, [head]) for name, head in root.heads.items())]
    norms = {}
    for name, modules in groups:
        gradients = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
        if gradients:
            norms[name] = whole_number(torch.nn.utils.get_total_norm(gradients))
    return norms


def judge(t: Training, guard: Guard, parts: list[Tensor], norm: Tensor, step: int, packs: list[Pack]) -> bool:
    """Whether a step may be taken. A bad one ends the training, or is skipped, and says which packs were in it."""
    loss = t.world.add_up({"loss": float(torch.stack(parts).sum()) / t.world.size})["loss"]
    trouble = guard.trouble(loss, float(norm))
    if trouble is None:
        return True
    if t.watching.on_spike == "skip":
        say(f"step {step}: {trouble}; skipped ({name_packs(packs)})")
        return False
    raise PretuneError(
        f"step {step}: {trouble} ({name_packs(packs)}); lower the learning rate, or set watching.on_spike=skip"
    )


def _due(clock: Clock, every: int | None, ahead: int = 0) -> bool:
    return bool(every) and (int(clock.used["steps"]) + ahead) % (every or 1) == 0


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set an event instead of ending the process; a second one ends it."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: Any) -> None:
        event.set()
        for known, handler in before.items():
            signal.signal(known, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- what is kept ---------------------------------------------------------------------------------------------------


def _save(
    saver: Saver,
    t: Training,
    clock: Clock,
    feed: Feed,
    log: Log,
    optimizers: list[torch.optim.Optimizer],
    average: Average | None,
    guard: Guard | None,
    best: Best | None,
) -> None:
    carry = {
        f"{slot}/{name}": tensor
        for slot, state in t.carry.items()
        if state is not None
        for name, tensor in state.tensors().items()
    }
    state: dict[str, Any] = {"clock": dict(clock.used), "feed": feed.state(), "log": log.state()}
    state |= {"guard": guard.state() if guard else {}}
    state |= {"best": best.state()} if best is not None else {}
    shared = {"root": t.root.tensors(), "optimizer": optimizer_tensors(t.root, optimizers)}
    shared |= {"average": average.tensors()} if average is not None else {}
    shared |= {"best": best.tensors()} if best is not None and best.kept else {}
    saver.start({**state, "step": int(clock.used["steps"])}, shared, own={"carry": carry})


def _restore(
    t: Training,
    optimizers: list[torch.optim.Optimizer],
    average: Average | None,
    guard: Guard | None,
    best: Best | None,
) -> tuple[Clock, dict[str, Any] | None]:
    """Put what was saved back in its place; return the clock, and what the checkpoint says of feed and log."""
    assert t.run is not None
    newest = load_newest(t.run, t.world)
    if newest is None:
        return new_clock(t), None
    state, tensors = newest
    restore_parameters(t.root.tensors(), tensors["root"])
    restore_optimizers(t.root, optimizers, tensors["optimizer"])
    if average is not None:
        average.restore(tensors["average"])
    if guard is not None:
        guard.restore(state["guard"])
    if best is not None:
        best.restore(state["best"], tensors.get("best", {}))
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.get("carry", {}).items():
        slot, _, key = name.partition("/")
        if int(slot) % t.world.size == t.world.rank:  # as packs are dealt
            slots.setdefault(int(slot), {})[key] = tensor.to(t.device, copy=True)
    if t.restore_carry is not None:
        t.carry = {slot: t.restore_carry(tensors) for slot, tensors in slots.items()}
    say(f"going on from step {state['step']}")
    return new_clock(t, state["clock"]), dict(state)


@torch.no_grad()
def evaluate_loss(root: Root, joint: Joint, batches: list[Batch], device: torch.device) -> dict[str, float]:
    """Mean of every loss term and log over some batches, which go on from one another where the objective is stateful."""
    root.eval()
    carry = None
    sums: dict[str, float] = {}
    totals: dict[str, float] = {}
    for number, batch in enumerate(batches):
        seed_generators(number, device)  # what is drawn on the device is the same every time
        loss = root(joint, replace(batch.to(device), carry=carry))
        carry = loss.carry if joint.stateful else None
        for name, value in {**loss.sums, **loss.logs}.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        for term in loss.sums:
            totals[term] = totals.get(term, 0.0) + batch.counts[term]
    return means(sums, totals)
