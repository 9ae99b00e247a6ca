"""The training loop, the same one for every backbone, mixture of objectives, and budget."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretune.models.model import Network
from pretune.nn.blocks import TransformerLayer
from pretune.nn.compiler_exclusions import apply_compile_exclusions
from pretune.nn.dropout import disable_dropout, share_dropout_seed
from pretune.objectives import JointObjective, Loss
from pretune.objectives.objective import divide_by_totals
from pretune.packed import Batch
from pretune.runtime.devices import cache_folder, deterministic
from pretune.runtime.errors import if_option
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import random_bits
from pretune.training.budget import Clock
from pretune.training.callbacks import Callback, Step, opened
from pretune.training.checkpoints import load_newest
from pretune.training.cuda_graphs import CudaGraphs
from pretune.training.data_streams import DataStreams, Pack
from pretune.training.early_stopping import EarlyStopping
from pretune.training.flops import Flops
from pretune.training.interrupts import Stopped
from pretune.training.metrics_log import Logging, MetricsLog
from pretune.training.optim.optimizers import make_capturable, make_optimizers, set_lr
from pretune.training.optim.schedules import lr_factor
from pretune.training.optim.weight_averaging import WeightAverage
from pretune.training.parallel import distributed
from pretune.training.parallel.distributed import World
from pretune.training.parallel.fsdp_tensors import full_scalar, is_sharded, reshard_model, unshard_model
from pretune.training.prefetch import Prefetcher, StepBatches
from pretune.training.recipe_sections import Budget, Monitoring, Optimizer, Schedule
from pretune.training.resume import Checkpointing
from pretune.training.spike_guard import SpikeGuard

INTERVAL = 10  # steps whose mean loss is reported at the end if there are no log lines


@dataclass
class Training:
    """The input of the training loop: the model, the data, the settings, the device, and the run folder."""

    root: Network
    streams: DataStreams
    budget: Budget
    optimizer: Optimizer
    schedule: Schedule
    monitor: Monitoring
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    run: Path | None = None  # folder for metrics and checkpoints
    world: World = field(default_factory=World)
    parallel: distributed.ParallelMode = "ddp"
    reduce_dtype: distributed.ReduceDtype = "fp32"  # dtype in which gradients are summed over processes
    compiled: bool = False
    cuda_graphs: bool = False  # record steps once as CUDA graphs and replay them; not for stateful data
    ahead: bool | None = None  # prefetch batches in a thread; None: only with a GPU
    gradient_checkpointing: bool = False  # gradient checkpointing: layers keep only their input for the backward pass
    starts: dict[Tensor, float] = field(default_factory=dict)  # share of the budget after which a parameter is trained
    update_hook: Callable[[float], None] | None = None  # called after each update with the share of the budget used
    evaluate: Callable[[], dict[str, float]] | None = None
    primary_metric: str = ""  # the metric that early stopping maximizes
    evaluate_first: bool = False  # evaluate before the first step too
    recurrent_states: dict[int, Any] = field(default_factory=dict)  # by slot, for stateful data
    restore_state: Callable[[dict[str, Tensor]], Any] | None = None
    now: Callable[[], float] = time.monotonic  # the time in seconds
    loading_since: float | None = None  # when the loading of the model and the data began, by `now`
    callbacks: Sequence[Callback] = ()  # of the user


def train_run(training: Training, resume: bool, is_deterministic: bool) -> dict[str, float]:
    """Train in a run folder, and return the last metrics; an interrupt exits with advice on how to resume."""
    from pretune.training.lr_finder import with_found_lr  # it trains with the loop in this module

    try:
        with deterministic(is_deterministic), distributed.report_lost_process(training.world):
            last = train(with_found_lr(training), resume)
    except Stopped:
        advice = if_option("resume", "; resume with the same command and --resume")
        log_info(f"stopped, with a checkpoint in {training.run}{advice}")
        raise KeyboardInterrupt from None
    training.root.set_activation_dtype(torch.float32)
    return last


def train(training: Training, resume: bool = False) -> dict[str, float]:
    """Train a model until the budget is spent or a callback ends the training, and return the last metrics."""
    t = training
    t.budget.check()
    t.root.to(t.device).train()
    t.root.set_activation_dtype(torch.bfloat16 if t.device.type == "cuda" else torch.float32)
    dropout_seed = share_dropout_seed(t.root, t.device)
    model = distributed.parallelize(t.root, t.world, t.parallel, t.reduce_dtype)
    optimizers = make_optimizers(t.root, t.optimizer, t.starts)
    checkpoint = load_newest(t.run, t.world) if resume and t.run is not None else None
    clock = Clock(t.budget, dict(checkpoint[0]["clock"]), t.now) if checkpoint else Clock(t.budget, now=t.now)
    # On a CPU prefetching gains nothing: a step uses all cores, and its batch is a small part of the work.
    gpu = t.device.type == "cuda"
    feed = Prefetcher(t.streams, t.world, clock, ahead=gpu if t.ahead is None else t.ahead, pinned=gpu)
    log = MetricsLog(t.run, t.world, clock, t.device, t.monitor.log_every or INTERVAL, t.monitor.log_to or ())
    terms = sorted({term for s in t.streams.streams for term in s.joint.max_targets(s.packing)})
    callbacks = make_callbacks(t, clock, log, terms)
    checkpointing = Checkpointing(t, clock, feed, optimizers, callbacks)
    for callback in t.callbacks:
        vars(callback).pop("finished", None)  # of an earlier training
        callback.on_start(t)
    if checkpoint:
        checkpointing.restore_all(*checkpoint)
    execution = prepare_execution(t, model, optimizers, clock)
    callbacks = [StopDropout(t, execution), *callbacks, checkpointing]
    flops, parameters = Flops(t.root), list(t.root.parameters())
    if t.evaluate and t.evaluate_first and not clock.used["steps"]:
        log.write_evaluation(evaluate(t, clock))
    if not clock.spent:
        feed.load_first()
    clock.start()
    loading = {} if t.loading_since is None else {"loading_seconds": t.now() - t.loading_since}

    with feed, opened(callback.running() for callback in callbacks):
        while not clock.spent and not any(callback.finished for callback in callbacks):
            used, progress, batches = dict(clock.used), clock.progress(), feed.next(clock)
            step = Step(int(used["steps"]) + 1, used, progress, batches.packs)
            # The loss is divided by the totals over all processes, so these are needed before the first forward pass.
            totals = t.world.add_up(count_step(flops, batches.real, terms) | checkpointing.counts())
            step.totals = totals
            for callback in callbacks:
                callback.before_step(step)
            if clock.progress(totals["tokens"], totals["flops"], 1) < 1.0:  # the seconds of this step are not known yet
                feed.prefetch_next()

            accumulate_gradients(t, model, execution, dropout_seed, batches, step)
            for callback in callbacks:
                callback.after_backward(step)

            # Most of the step is done: its seconds are known well enough for the schedule of a budget in seconds.
            seconds = agreed_seconds(t, clock)
            after = clock.progress(totals["tokens"], totals["flops"], 1, seconds - clock.used["seconds"])
            step.lr_factor = lr_factor(t.schedule, progress, after)
            set_lr(optimizers, step.lr_factor, progress)
            step.gradient_norm = execution.update(partial(update, t, optimizers, parameters, step, callbacks))
            clock.add(totals["tokens"], totals["flops"], seconds)
            step.last = clock.spent
            step.evaluates = t.evaluate is not None and (step.last or clock.due(t.monitor.eval_every))
            for callback in callbacks:
                callback.after_update(step)

            if step.evaluates:
                with opened(callback.evaluating() for callback in callbacks):
                    metrics = evaluate(t, clock)
                    for callback in callbacks:
                        callback.on_evaluate(step, metrics)
            step.last = step.last or any(callback.finished for callback in callbacks)
            for callback in callbacks:
                callback.after_step(step)

    results: dict[str, float] = {}
    for callback in callbacks:
        results |= callback.on_end()
    if any(map(is_sharded, parameters)):
        unshard_model(t.root)
    return results | loading | {f"{purpose}_seconds": seconds for purpose, seconds in clock.pauses.items()}


def make_callbacks(t: Training, clock: Clock, log: MetricsLog, terms: list[str]) -> list[Callback]:
    """Return the callbacks that the settings of the training `t` require, in the order in which they run.

    `terms` are the names of the loss terms.
    """
    callbacks: list[Callback] = []
    if t.update_hook is not None:
        callbacks.append(AfterUpdate(t.update_hook, clock))
    if t.optimizer.ema_decay is not None or t.optimizer.average_fraction is not None:
        callbacks.append(WeightAverage(t.root, t.optimizer, clock))
    callbacks.append(Logging(log, t.root, terms, t.optimizer.base_lr, t.monitor))
    if t.monitor.spike_threshold:
        callbacks.append(SpikeGuard(t.monitor.spike_threshold, t.world, skip=t.monitor.on_spike == "skip"))
    if t.monitor.patience:
        callbacks.append(EarlyStopping(t.root, t.primary_metric, t.monitor.patience, clock))
    return [*callbacks, *t.callbacks]


@dataclass
class AfterUpdate(Callback):
    """A callback that calls a function with the used share of the training budget after each parameter update."""

    function: Callable[[float], None]
    clock: Clock

    def after_update(self, step: Step) -> None:
        """Call the function of this callback with the used share of the training budget."""
        self.function(self.clock.progress())


@dataclass
class StopDropout(Callback):
    """A callback that turns dropout off once a share of the training budget is used (schedule.dropout_until)."""

    t: Training
    execution: Eager | CudaGraphs

    def before_step(self, step: Step) -> None:
        """Turn dropout off if the share of the training budget that the schedule sets is used."""
        start = self.t.schedule.dropout_until
        if start is not None and step.progress >= start and disable_dropout(self.t.root):
            self.execution.forget()


@dataclass
class Eager:
    """An executor that runs training steps without CUDA graphs; it has the same methods as `CudaGraphs`."""

    model: nn.Module
    device: torch.device
    world: World
    compiling: Callable[[], AbstractContextManager[None]] = nullcontext  # entered for the first batch of each stream
    compiled: set[int] = field(default_factory=set)  # streams that have had a batch

    def run(self, stream: int, joint: JointObjective, batch: Batch, totals: Mapping[str, float]) -> tuple[Loss, Tensor]:
        """Run the forward and backward pass of a batch for the objectives `joint`, which comes from the data stream `stream`.

        Return the loss terms, and the sum of these terms, each divided by its number of targets, `totals[term]`.
        """
        # A compiled model is compiled when it sees the first batch of a stream, whose shapes are those of all its batches.
        with nullcontext() if stream in self.compiled else self.compiling():
            loss = self.model(joint, batch.to(self.device))
            # Replicas average their gradients, but the loss is a sum over all of them.
            objective = loss.over(totals) * self.world.size
            objective.backward()
        self.compiled.add(stream)
        return loss, objective.detach()

    def update(self, function: Callable[[], Tensor]) -> Tensor:
        """Call the function that updates the parameters, and return the gradient norm that it returns."""
        return function()

    def forget(self) -> None:
        """Do nothing: without CUDA graphs, there are no recordings to discard."""


def prepare_execution(
    t: Training, model: nn.Module, optimizers: list[torch.optim.Optimizer], clock: Clock
) -> Eager | CudaGraphs:
    """Compile the model if the settings in `t` require it; return an executor of steps, with or without CUDA graphs."""
    for layer in (module for module in t.root.modules() if isinstance(module, TransformerLayer)):
        layer.recompute = t.gradient_checkpointing
    if t.compiled:
        compile_once(model)
    compiling = partial(paused_for_compilation, t.device, clock)
    if not t.cuda_graphs:
        return Eager(model, t.device, t.world, compiling if t.compiled else nullcontext)
    graphs = CudaGraphs(model, t.device, compiling)
    # The spike guard looks at a step before the update, on the host; without it the update can be replayed too.
    graphs.replays_update = not t.monitor.spike_threshold and make_capturable(optimizers)
    return graphs


@contextmanager
def paused_for_compilation(device: torch.device, clock: Clock) -> Iterator[None]:
    """Return a context manager that stops the training clock while steps are compiled or recorded."""
    # A GPU works through its queue: it has to end the steps before, and the warmup runs in the block.
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    synchronize(device)
    with clock.paused("compilation"):
        yield
        synchronize(device)


def compile_once(model: nn.Module) -> None:
    """Compile a model in place with `torch.compile`, for batches of fixed shapes."""
    from torch._inductor import config

    # Kernels are cached between runs.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    # Fusing the row and column sums of a layer norm into one kernel was ten times slower for packs of 131,072 tokens.
    if hasattr(config.triton, "mix_order_reduction"):
        config.triton.mix_order_reduction = False
    apply_compile_exclusions()
    model.compile(dynamic=False)


def accumulate_gradients(
    t: Training, model: nn.Module, execution: Eager | CudaGraphs, dropout_seed: Tensor, batches: StepBatches, step: Step
) -> None:
    """Run the forward and backward passes of all batches of a step, and record their losses in `step`."""
    for number, (pack, batch) in enumerate(zip(batches.packs, batches.batches, strict=True)):
        joint = t.streams.streams[pack.stream].joint
        batch.state = t.recurrent_states.get(pack.slot)
        reseed(dropout_seed, t.seed, step.number - 1, pack)
        with distributed.gradient_sync(model, last=number == len(batches.packs) - 1):
            loss, objective = execution.run(pack.stream, joint, batch, step.totals)
        step.objectives.append(objective)
        if number < len(batches.real):  # the others are blank, to keep processes in step
            step.losses.append(loss)
            if joint.stateful:
                t.recurrent_states[pack.slot] = loss.state


def count_step(flops: Flops, batches: list[Batch], terms: list[str]) -> dict[str, float]:
    """Return the numbers of targets of each loss term in `terms`, of tokens and of FLOPs in a step with these batches."""
    counts = {term: sum(batch.counts.get(term, 0.0) for batch in batches) for term in terms}
    counts["tokens"] = sum(batch.tokens for batch in batches)
    counts["flops"] = sum(flops.training(batch) for batch in batches)
    return counts


def reseed(dropout_seed: Tensor, seed: int, step: int, pack: Pack) -> None:
    """Seed the random generators and the tensor `dropout_seed`, so that the randomness of a batch can be reproduced.

    The seeds are derived from `seed`, the number of the step, and the batch's position in the data, `pack`.
    """
    number = int(random_bits(seed, "device", step, pack.stream, pack.slot))
    seed_generators(number >> 1, dropout_seed.device)
    dropout_seed.fill_((number >> 33) & 0x7FFFFFFF)


def seed_generators(number: int, device: torch.device) -> None:
    """Seed the random generators of the CPU and of one device (`torch.manual_seed` would seed those of all devices)."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(number)


def agreed_seconds(t: Training, clock: Clock) -> float:
    """Return the training time in seconds; with a time budget, all processes get the time of the first process."""
    seconds = clock.elapsed()
    if t.budget.seconds is None:
        return seconds
    return t.world.add_up({"seconds": seconds if t.world.first else 0.0})["seconds"]


def update(
    t: Training,
    optimizers: list[torch.optim.Optimizer],
    parameters: list[nn.Parameter],
    step: Step,
    callbacks: list[Callback],
) -> Tensor:
    """Clip the gradients, update the parameters if all callbacks allow it, and return the gradient norm."""
    step.gradient_norm = clip(parameters, t.optimizer.max_grad_norm or 0.0)
    step.updated = all(callback.allow_update(step) for callback in callbacks)
    step_optimizers(optimizers, step.updated, keep=t.cuda_graphs)
    return step.gradient_norm


def clip(parameters: list[nn.Parameter], max_norm: float) -> Tensor:
    """Clip the gradients of parameters to a maximum norm (0: no limit), and return their norm before clipping."""
    parameters = [p for p in parameters if p.grad is not None]
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm if max_norm > 0 else math.inf)
    return full_scalar(norm)


def step_optimizers(optimizers: list[torch.optim.Optimizer], updated: bool, keep: bool) -> None:
    """Update the parameters if `updated`, then set gradients to None or, with `keep`, to zeros."""
    for optimizer in optimizers:
        if updated:
            optimizer.step()
        optimizer.zero_grad(set_to_none=not keep)


def evaluate(t: Training, clock: Clock) -> dict[str, float]:
    """Evaluate the model of the training `t` with the training clock paused, and return the metrics."""
    assert t.evaluate is not None
    sharded = any(map(is_sharded, t.root.parameters()))
    with clock.paused("evaluation"):
        metrics = t.evaluate()
        t.root.train()
        if sharded:
            reshard_model(t.root)
    return metrics


@torch.no_grad()
def evaluate_loss(root: Network, joint: JointObjective, batches: list[Batch], device: torch.device) -> dict[str, float]:
    """Return the means of each loss term and logged value over batches; `joint` computes them with the model `root`.

    Stateful objectives keep their recurrent state from one batch to the next.
    """
    root.eval()
    state, sums, totals = None, dict[str, float](), dict[str, float]()
    for number, batch in enumerate(batches):
        seed_generators(number, device)  # the same random numbers in every evaluation
        loss = root(joint, replace(batch.to(device), state=state))
        state = loss.state if joint.stateful else None
        for name, value in {**loss.sums, **loss.logs}.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        for term in loss.sums:
            totals[term] = totals.get(term, 0.0) + batch.counts[term]
    return divide_by_totals(sums, totals)
