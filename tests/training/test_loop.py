from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import JointObjective
from pretune.objectives.objective import Loss
from pretune.objectives.pretraining.nsp import NSP
from pretune.training import checkpoints
from pretune.training.checkpoints import list_checkpoints, load_newest
from pretune.training.data_streams import Pack
from pretune.training.interrupts import Stopped, stop_signals
from pretune.training.loop import train
from pretune.training.optim.schedules import lr_factor
from pretune.training.parallel.distributed import World
from pretune.training.prefetch import deal
from pretune.training.recipe_sections import Budget, Monitoring, Optimizer, Schedule, resolve_section
from tests.support.kill_training import kill_often
from tests.support.paths import ROOT
from tests.support.tiny_training_cases import CASES, make


def weights(training: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in training.root.tensors().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# -- equivalent steps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlm+nsp", "mlm|lm", "spans", "distill"])
def test_accumulated_packs_equal_one_big_batch(name: str) -> None:
    """The gradient of a step over several packs equals that of one pack with all their sequences."""
    small = make(name, 1)
    streams = small.streams
    count = min(4, len(streams.streams[0].epoch_plan(0)))
    packs = [streams.batch(pack, 0.0) for pack in (Pack(0, 0, i, i) for i in range(count))]
    assert count > 1
    joint = streams.streams[0].joint
    totals = {term: sum(batch.counts[term] for batch in packs) for term in packs[0].counts}
    for batch in packs:
        small.root(joint, batch).over(totals).backward()
    accumulated = {n: p.grad.clone() for n, p in small.root.named_parameters() if p.grad is not None}

    big = make(name, 1)
    epoch = streams.streams[0].epoch_plan(0)
    chosen = np.concatenate([epoch.plan.pack(i) for i in range(count)])  # type: ignore[attr-defined]
    from pretune.runtime.randomness import EpochRandom
    from pretune.text.packing.sequences import collate

    sequences = joint.corrupt(epoch.arrangement.take(chosen), streams.streams[0].data.tokenizer, EpochRandom(0))  # type: ignore[attr-defined]
    batch = collate(sequences)
    assert batch.counts == totals
    big.root(joint, batch).over(batch.counts).backward()
    for parameter_name, parameter in big.root.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(accumulated[parameter_name], parameter.grad, atol=1e-6, rtol=1e-4)


def test_joint_loss_is_the_sum_of_its_parts_from_one_forward_pass() -> None:
    training = make("mlm+nsp", 1)
    batch = training.streams.batch(Pack(0, 0, 0, 0), 0.0)
    joint = training.streams.streams[0].joint
    calls = []
    handle = training.root.backbone.register_forward_hook(lambda *_: calls.append(1))
    together: Loss = training.root(joint, batch)
    assert len(calls) == 1
    handle.remove()
    for weight, part in joint.parts:
        alone = training.root(JointObjective(((weight, part),)), batch)
        assert torch.equal(together.sums[part.name], alone.sums[part.name])
    totals = {"mlm": 3.0, "nsp": 4.0}
    expected = together.sums["mlm"] / 3 + together.sums["nsp"] / 4
    torch.testing.assert_close(together.over(totals), expected)
    weighted = JointObjective(tuple((0.5 if p.name == "nsp" else w, p) for w, p in joint.parts))
    torch.testing.assert_close(
        training.root(weighted, batch).over(totals), together.sums["mlm"] / 3 + 0.5 * together.sums["nsp"] / 4
    )


def test_padding_does_not_change_the_loss() -> None:
    from pretune.runtime.randomness import EpochRandom
    from pretune.text.packing.sequences import Packing, collate

    training = make("mlm+nsp", 1)
    stream = training.streams.streams[0]
    joint = stream.joint
    losses, gradients = [], []
    for fixed in (False, True):
        sequences = joint.corrupt(stream.epoch_plan(0).pack(0), stream.data.tokenizer, EpochRandom(0))
        packing = Packing(400, 32, sequences=60, fixed=fixed)
        batch = collate(sequences, packing.capacity(joint.max_targets(packing)))
        training.root.zero_grad()
        loss = training.root(joint, batch).over(batch.counts)
        loss.backward()
        losses.append(loss.detach())
        gradients.append({n: p.grad.clone() for n, p in training.root.named_parameters() if p.grad is not None})
    torch.testing.assert_close(losses[0], losses[1])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-4)


def test_packs_are_assigned_evenly_and_once() -> None:
    packs = [Pack(0, 0, i, i) for i in range(7)]
    for size in (1, 2, 3, 7, 9):
        hands = [deal(packs, World(rank, size)) for rank in range(size)]
        assert len({len(hand) + spare for hand, spare in hands}) == 1
        assert sorted(p.index for hand, _ in hands for p in hand) == list(range(7))


def test_objectives_of_a_mixture_are_sampled_by_their_shares() -> None:
    training = make("mlm|lm", 1)
    streams = training.streams
    streams.mixture = replace(
        streams.mixture, shares=((0.75, streams.mixture.joints[0]), (0.25, streams.mixture.joints[1]))
    )
    chosen = [pack.stream for _ in range(20) for pack in streams.next_step()]
    assert chosen.count(0) == 30 and chosen.count(1) == 10
    assert all(chosen[i : i + 4].count(1) == 1 for i in range(0, 40, 4))


# -- kill and resume ------------------------------------------------------------------------------------------------


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", CASES)
def test_resumed_training_is_bit_identical(name: str, tmp_path: Path) -> None:
    """The data position, optimizer state, recurrent state, and random numbers are restored bit for bit."""
    whole = make(name, 9, tmp_path / "whole", save=100)
    train(whole)
    first = make(name, 9, tmp_path / "parts", save=4)
    first.budget = Budget(steps=4)
    first.schedule = second_schedule = replace(first.schedule, kind="constant")
    train(first)
    second = make(name, 9, tmp_path / "parts", save=100)
    second.schedule = second_schedule
    train(second, resume=True)
    assert same(weights(whole), weights(second))
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 10))


KILLED = """
import os, sys, torch
sys.path[:0] = [{here!r}]
from pathlib import Path
from pretune.training import checkpoints
if {inside}:
    # die half-way through the second checkpoint: one of its files is there, the others are not
    save, calls = checkpoints.atomic_file, []
    def atomic_file(path):
        calls.append(path)
        if len(calls) == 5:
            os.kill(os.getpid(), 9)
        return save(path)
    checkpoints.atomic_file = atomic_file
torch.set_num_threads(1)
from tests.support.tiny_training_cases import make
from pretune.training.loop import train
t = make("mlm+nsp", 10, Path({folder!r}), save=3)
train(t, resume=True)
from safetensors.torch import save_file
save_file({{n: x.detach().contiguous() for n, x in t.root.tensors().items()}}, {folder!r} + "/final.safetensors")
"""


@pytest.mark.end_to_end
def test_training_killed_during_a_checkpoint_resumes_bit_identically(tmp_path: Path) -> None:
    here = str(ROOT)

    def run_script(folder: str, inside: bool = False) -> int:
        (tmp_path / folder).mkdir(exist_ok=True)
        script = KILLED.format(here=here, inside=inside, folder=str(tmp_path / folder))
        return subprocess.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL, check=False).returncode

    assert run_script("whole") == 0
    assert run_script("killed", inside=True) == -signal.SIGKILL
    assert len(list_checkpoints(tmp_path / "killed")) == 1
    assert run_script("killed") == 0
    expected, found = ((tmp_path / f / "final.safetensors").read_bytes() for f in ("whole", "killed"))
    assert expected == found


def test_resuming_falls_back_from_a_damaged_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    train(make("mlm+nsp", 6, tmp_path, save=3))
    newest = list_checkpoints(tmp_path)[-1]
    data = bytearray((newest / "root.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "root.safetensors").write_bytes(data)
    found = load_newest(tmp_path)
    assert found is not None and found[0]["step"] == 3
    assert "the checkpoint is damaged (root.safetensors does not match its checksum)" in capsys.readouterr().err


def test_failed_save_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = make("mlm+nsp", 3, tmp_path, save=3)
    train(training)
    before = list_checkpoints(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_checksummed_json", full)
    with pytest.raises(OSError, match="No space"):
        train(make("mlm+nsp", 6, tmp_path, save=6), resume=True)
    assert list_checkpoints(tmp_path) == before
    assert not list((tmp_path / "checkpoints").glob(".tmp*"))


@pytest.mark.not_fast
def test_old_checkpoints_are_deleted(tmp_path: Path) -> None:
    train(make("mlm+nsp", 9, tmp_path, save=2))
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-00000008", "step-00000009"]


@pytest.mark.not_fast
def test_stop_signal_saves_a_checkpoint_and_stops(tmp_path: Path) -> None:
    training = make("mlm+nsp", 10_000, tmp_path, save=10_000)
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(Stopped):
        train(training)
    (checkpoint,) = list_checkpoints(tmp_path)
    assert json.loads((checkpoint / "state.json").read_text())["step"] >= 1


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals() as event:
        os.kill(os.getpid(), signal.SIGTERM)
        assert event.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


# -- budgets and schedules ------------------------------------------------------------------------------------------


@pytest.mark.not_fast
def test_every_kind_of_budget_ends_a_training(tmp_path: Path) -> None:
    steps = make("mlm+nsp", 4, tmp_path / "a")
    last = train(steps)
    assert last["step"] == 4
    for limit in ("tokens", "flops"):
        training = make("mlm+nsp", 1, tmp_path / limit)
        training.budget = Budget(**{limit: last[limit]})  # type: ignore[arg-type]
        assert train(training)["step"] == 4
    training = make("mlm+nsp", 1)
    training.budget = Budget(seconds=0.5)
    assert 0.5 <= train(training)["seconds"] < 3


def test_training_without_a_budget_is_rejected() -> None:
    training = make("mlm+nsp", 1)
    training.budget = Budget()
    with pytest.raises(PretuneError, match="needs a budget: give --steps"):
        train(training)
    with pytest.raises(PretuneError, match=r"budget\.steps=0: expected a number that is above 0 and finite"):
        Budget(steps=0)


def test_learning_rate_warms_up_then_decays() -> None:
    schedule = Schedule("linear", warmup_ratio=0.25, min_lr_ratio=0.0)
    factors = [lr_factor(schedule, step / 8, (step + 1) / 8) for step in range(8)]
    assert factors == pytest.approx([0.5, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert lr_factor(Schedule("constant", 0.0, 0.0), 0.5, 0.6) == 1.0
    assert lr_factor(Schedule("linear", 0.0, 0.1), 1.0, 1.0) == pytest.approx(0.1)


@given(
    st.sampled_from(["linear", "cosine", "constant", "inverse-sqrt", "slanted-triangular", "one-cycle", "warmup-stable-decay"]),
    st.floats(0.0, 0.9), st.floats(0.0, 0.5), st.floats(0.01, 1.0), st.integers(2, 200),
)  # fmt: skip
def test_every_schedule_peaks_at_the_end_of_the_warmup_and_then_only_falls(
    kind: str, warmup: float, final: float, decay: float, steps: int
) -> None:
    schedule = Schedule(kind, warmup, final, min(decay, 1 - warmup))  # type: ignore[arg-type]
    factors = [lr_factor(schedule, step / steps, (step + 1) / steps) for step in range(steps)]
    assert all(0.0 <= factor <= 1.0 + 1e-9 for factor in factors)
    peak = sum((step + 1) / steps < warmup for step in range(steps))
    assert factors[:peak] == sorted(factors[:peak])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


def test_schedules_match_their_papers() -> None:
    def at(schedule: Schedule, share: float) -> float:
        return lr_factor(schedule, share, share)

    triangular = Schedule(
        "slanted-triangular", warmup_ratio=0.1, min_lr_ratio=1 / 32
    )  # Howard and Ruder (2018), equation 3
    for share in (0.05, 0.1, 0.3, 0.9):
        p = share / 0.1 if share < 0.1 else 1 - (share - 0.1) / (0.1 * (1 / 0.1 - 1))
        assert at(triangular, share) == pytest.approx((1 + p * (32 - 1)) / 32)
    transformer = Schedule("inverse-sqrt", warmup_ratio=0.04)  # Vaswani et al. (2017), section 5.3, divided by its peak
    for share in (0.01, 0.04, 0.16, 1.0):
        assert at(transformer, share) == pytest.approx(min(share**-0.5, share * 0.04**-1.5) / 0.04**-0.5)
    assert at(Schedule("cosine", 0.0, 0.0), 0.5) == pytest.approx(0.5)
    assert at(Schedule("one-cycle", 0.3, 0.0), 0.0) == pytest.approx(1 / 25)
    stable = Schedule("warmup-stable-decay", warmup_ratio=0.1, min_lr_ratio=0.0, decay_ratio=0.2)
    assert [at(stable, share) for share in (0.05, 0.5, 0.8, 0.9, 1.0)] == pytest.approx([0.5, 1, 1, 0.5, 0])


def test_given_settings_override_the_preset_and_the_defaults() -> None:
    filled = resolve_section(Optimizer, Optimizer(lr=1.0), {"lr": 2.0, "weight_decay": 0.5})
    assert (filled.lr, filled.weight_decay, filled.betas) == (1.0, 0.5, (0.9, 0.999))
    assert resolve_section(Budget, Budget(seconds=5), {"steps": 100}).limits == {"seconds": 5.0}
    assert resolve_section(Monitoring, None).save_every == 100


def test_loss_term_without_targets_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs of a step may be unlabeled: their loss is 0, not 0 / 0."""

    def unlabeled(self: NSP, sequences: Any, tokenizer: Any, draws: Any) -> Any:
        places = sequences.offsets[:-1]
        sequences.targets["nsp"] = (places, np.zeros_like(places), np.zeros(len(places)))  # as with fixed shapes
        return sequences

    monkeypatch.setattr(NSP, "corrupt", unlabeled)
    training = make("mlm+nsp", 2)
    found = train(training)
    assert found["nsp"] == 0.0 and 0.0 < found["mlm"] < 20.0
    assert all(torch.isfinite(tensor).all() for tensor in weights(training).values())


def test_nan_loss_stops_the_training() -> None:
    training = make("mlm+nsp", 50)
    training.optimizer = replace(training.optimizer, lr=1e30, max_grad_norm=0.0)
    with pytest.raises(PretuneError, match=r"step \d+: the gradient is not a number .stream 0, epoch"):
        train(training)


@pytest.mark.slow
def test_training_killed_thirty_times_resumes_bit_identically() -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)  # pytest shows it when the test fails
    doing = kill_often(30, seed)
    assert doing["already over"] == 0 and sum(doing.values()) == 30
