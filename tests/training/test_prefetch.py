"""Tests of prefetching: results are bit-identical with and without a thread, also after interruptions and errors."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretune import PretuneError
from pretune.objectives import Data, parse_objective
from pretune.text.packing.sequences import Packing
from pretune.training.data_streams import DataStream, DataStreams, make_streams
from pretune.training.interrupts import Stopped
from pretune.training.loop import Training, train
from pretune.training.recipe_sections import Budget
from tests.support.tiny_training_cases import TEMPLATE, make, store

STEPS = 8


def progress_dependent_streams() -> DataStreams:
    """Return streams that depend on the progress of training: masking rate, sequence length and batch size change."""
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    mixture, packing = parse_objective("mlm(mask_rate=0.1,final_mask_rate=0.6)"), Packing(64, 16)
    return make_streams(
        mixture,
        data,
        tokens=256,
        packing=packing,
        seed=0,
        length_schedule=[(0.5, 16), (1.0, 32)],
        size_warmup=(0.25, 0.7),
    )


def training(name: str = "changing", run: Path | None = None, ahead: bool = True, **options: Any) -> Training:
    """Return a tiny training case with or without prefetching."""
    if name != "changing":
        return make(name, STEPS, run, ahead=ahead, **options)
    made = make("shared layers", STEPS, run, ahead=ahead, **options)
    made.streams = progress_dependent_streams()
    return made


def same(one: Training, other: Training) -> None:
    for (name, a), b in zip(one.root.state_dict().items(), other.root.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert one.streams.state() == other.streams.state()


@pytest.mark.not_fast
@pytest.mark.parametrize("name", ["changing", "mlm|lm", "stateful lstm", "plm with memory"])
def test_prefetching_does_not_change_the_result(name: str) -> None:
    made = [training(name, ahead=ahead) for ahead in (False, True)]
    seen: list[set[str]] = []
    for one in made:
        names: set[str] = set()
        batch = one.streams.batch
        one.streams.batch = lambda *a, n=names, b=batch: n.add(threading.current_thread().name) or b(*a)  # type: ignore
        train(one)
        seen.append(names)
    assert seen == [{"MainThread"}, {"MainThread", "feed_0"}]  # the first step is made when it is requested
    same(*made)


@pytest.mark.end_to_end
@pytest.mark.parametrize("limit", ["steps", "tokens", "flops"])
@pytest.mark.parametrize("ahead", [False, True])
def test_prefetching_resumes_bit_identically(limit: str, ahead: bool, tmp_path: Path) -> None:
    whole = training(ahead=not ahead)
    last = train(whole)
    budget = Budget(**{limit: last["step" if limit == "steps" else limit]})  # type: ignore[arg-type]
    whole = training(ahead=not ahead)
    whole.budget = budget
    train(whole)

    parts = [training(run=tmp_path, ahead=ahead, save=100) for _ in range(2)]
    for part in parts:
        part.budget = budget
    parts[0].monitor = replace(parts[0].monitor, eval_every=3)
    parts[0].evaluate = lambda: os.kill(os.getpid(), signal.SIGTERM) or {}  # type: ignore[func-returns-value]
    with pytest.raises(Stopped):
        train(parts[0])
    train(parts[1], resume=True)
    same(whole, parts[1])


@pytest.mark.not_fast
@pytest.mark.parametrize("ahead", [False, True])
def test_recurrent_state_survives_prefetching(ahead: bool, tmp_path: Path) -> None:
    whole = training("plm with memory", ahead=not ahead)
    train(whole)
    parts = [training("plm with memory", tmp_path, ahead, save=3) for _ in range(2)]
    parts[0].budget = Budget(steps=3)
    train(parts[0])
    train(parts[1], resume=True)
    same(whole, parts[1])
    for slot, memory in whole.recurrent_states.items():
        for name, tensor in memory.tensors().items():
            assert torch.equal(tensor, parts[1].recurrent_states[slot].tensors()[name]), name


def test_unused_prefetched_steps_do_not_count() -> None:
    one = make("mlm+nsp", 1, ahead=True)
    one.budget = Budget(seconds=0.3)
    steps = train(one)["step"]
    assert one.streams.state()[0]["taken"] == 2 * steps  # two packs per step


def test_errors_in_the_prefetching_thread_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, calls = DataStream.batch, iter(range(100))

    def failing(self: DataStream, epoch: int, index: int, progress: float) -> Any:
        if next(calls) == 5:
            raise PretuneError(f"this pack is bad ({threading.current_thread().name})")
        return batch(self, epoch, index, progress)

    monkeypatch.setattr(DataStream, "batch", failing)
    one = training("mlm+nsp")
    with pytest.raises(PretuneError, match=r"this pack is bad \(feed_0\)"):
        train(one)
    assert one.streams.state()[0]["taken"] == 4  # two whole steps
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("feed")]
