"""Tests of features of the training loop: length stages, batch ramps, weight averaging, spike detection, checkpointing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.nn.dropout import Dropout
from pretune.objectives import Data, Mixture, parse_objective
from pretune.text.packing.sequences import Packing
from pretune.training.callbacks import Step
from pretune.training.data_streams import DataStreams, make_streams
from pretune.training.jobs.pretraining_model import check_stages
from pretune.training.loop import Training, train
from pretune.training.optim.weight_averaging import WeightAverage
from pretune.training.recipe_sections import Monitoring, Optimizer, Schedule, resolve_section
from tests.support.interrupted_training import same, stop_at
from tests.support.tiny_training_cases import TEMPLATE, make, store


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def streams(mixture: Mixture | None = None, **options: Any) -> DataStreams:
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    return make_streams(mixture or parse_objective("mlm"), data, tokens=512, packing=Packing(64, 16), seed=0, **options)


def test_length_stages_each_read_the_text_in_order() -> None:
    made = streams(length_schedule=[(0.5, 16), (1.0, 32)])
    early, late = made.next_step(0.2), made.next_step(0.5)
    assert {pack.stream for pack in early} == {0} and {pack.stream for pack in late} == {1}
    assert [pack.index for pack in late] == list(range(8))
    assert max(made.batch(pack, 0.0).packed[0].max_length for pack in early) <= 16
    longest = max(made.batch(pack, 0.0).packed[0].max_length for pack in late)
    assert 16 < longest <= 32
    assert made.next_step(1.0)[0].stream == 1  # the last stage continues


def test_batch_size_ramps_up() -> None:
    made = streams(size_warmup=(0.25, 0.5))
    assert [len(made.next_step(share)) for share in (0.0, 0.25, 0.49, 0.5, 0.9)] == [2, 5, 8, 8, 8]


@pytest.mark.not_fast
def test_stages_must_end_with_the_budget_and_fit_the_model() -> None:
    from pretune.models.create_model import make_model

    model = make_model("bert-tiny")
    assert check_stages(((0.9, 128), (1.0, 512)), model) == [128, 512]
    with pytest.raises(PretuneError, match="must increase and end at 1"):
        check_stages(((0.9, 128),), model)
    with pytest.raises(PretuneError, match="1024 tokens, but the model has 512"):
        check_stages(((0.5, 128), (1.0, 1024)), model)


def test_stateful_objectives_reject_stages_and_ramps() -> None:
    mixture = parse_objective("lm(stateful=true)")
    with pytest.raises(PretuneError, match="stateful objective needs one sequence length"):
        streams(mixture, size_warmup=(0.5, 0.5))


@pytest.mark.not_fast
@pytest.mark.parametrize("settings", [{"ema_decay": 0.8}, {"average_fraction": 0.5}])
def test_weight_averaging_is_the_mean_of_steps_and_resumes_bit_identically(
    settings: dict[str, float], tmp_path: Path
) -> None:
    def training(folder: str, steps: int) -> Training:
        made = make("mlm+nsp", 8, run=tmp_path / folder)
        made.optimizer = resolve_section(Optimizer, Optimizer(lr=3e-3, **settings))  # type: ignore[arg-type]
        made.monitor = resolve_section(Monitoring, Monitoring(save_every=3, log_every=1))
        return made

    whole = training("whole", 8)
    seen: list[torch.Tensor] = []
    name = "backbone.embed.tokens"
    update = WeightAverage.after_update

    def note(self: WeightAverage, step: Step) -> None:
        seen.append(self.parameters[name].detach().clone())
        update(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightAverage, "after_update", note)
        train(whole)
    if "average_fraction" in settings:
        expected = torch.stack(seen[3:]).mean(0)  # after steps 4 to 8, from half of the budget on
    else:
        expected = seen[0]
        for count, value in enumerate(seen[1:], 2):
            expected = expected.lerp(value, max(0.2, 1 / count))
    torch.testing.assert_close(whole.root.state_dict()[name], expected)
    assert not torch.equal(expected, seen[-1])

    from pretune.training import prefetch

    stopped = training("cut", 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "deal", stop_at(prefetch.deal, 6))
        with pytest.raises(InterruptedError):
            train(stopped)
    again = training("cut", 8)
    train(again, resume=True)
    same(whole, again)


def test_evaluation_uses_averaged_weights_and_training_the_last_ones(tmp_path: Path) -> None:
    training = make("mlm+nsp", 4, run=tmp_path)
    training.optimizer = resolve_section(Optimizer, Optimizer(lr=3e-3, average_fraction=1.0))
    training.monitor = replace(training.monitor, eval_every=2)
    weights: list[float] = []
    training.evaluate = lambda: weights.append(float(training.root.backbone.embed.tokens.detach().sum())) or {"x": 0.0}  # type: ignore[func-returns-value]
    plain = make("mlm+nsp", 4)
    train(training)
    train(plain)
    assert weights[-1] == pytest.approx(float(training.root.backbone.embed.tokens.sum()))
    assert weights[-1] != pytest.approx(float(plain.root.backbone.embed.tokens.sum()), abs=1e-6)


def test_dropout_stops_at_the_scheduled_progress() -> None:
    training = make("mlm+nsp", 4)
    layers = [m for m in training.root.modules() if isinstance(m, Dropout)]
    for layer in layers:
        layer.rate = 0.1
    training.schedule = Schedule("constant", 0.0, 1.0, dropout_until=0.5)
    shares: list[float] = []
    training.root.register_forward_hook(lambda *_: shares.append(max(layer.rate for layer in layers)))
    train(training)
    assert shares == [0.1] * 4 + [0.0] * 4  # two packs per step


@pytest.mark.not_fast
@pytest.mark.parametrize("name", ["mlm+nsp", "spans"])
def test_gradient_checkpointing_does_not_change_the_gradients(name: str) -> None:
    plain, again = make(name, 3), make(name, 3, gradient_checkpointing=True)
    for training in (plain, again):
        for layer in (m for m in training.root.modules() if isinstance(m, Dropout)):
            layer.rate = 0.1
        train(training)
    same(plain, again)
    saved = []
    for training in (plain, again):
        training.root.train()
        batch = training.streams.batch(training.streams.next_step()[0], 0.0)
        count = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            training.root(training.streams.streams[0].joint, batch)
        saved.append(count)
    assert saved[1] < 0.7 * saved[0]


def test_layer_gradient_norms_are_logged(tmp_path: Path) -> None:
    training = make("mlm+nsp", 4, run=tmp_path)
    training.monitor = resolve_section(Monitoring, Monitoring(log_every=2, save_every=0, log_layer_grad_norms=True))
    train(training)
    last = lines(tmp_path)[-1]
    parts = {name: value for name, value in last.items() if name.startswith("gradient_norm/")}
    assert {"gradient_norm/embed", "gradient_norm/layer 0", "gradient_norm/mlm"} <= set(parts)
    assert sum(value**2 for value in parts.values()) == pytest.approx(last["gradient_norm"] ** 2, rel=1e-4)


def scale_gradient(training: Training, step: int, value: float) -> None:
    """Multiply the gradient of one step by a value."""
    steps = iter(range(1000))
    parameter = training.root.backbone.embed.tokens
    count = [0]

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        count[0] = next(steps)
        return gradient * value if count[0] // 2 == step else gradient  # two packs per step

    parameter.register_hook(spoil)


@pytest.mark.end_to_end
@pytest.mark.parametrize("value", [1e4, float("nan")])
def test_spike_stops_training_or_is_skipped(value: float, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    training = make("mlm+nsp", 30)
    training.monitor = resolve_section(Monitoring, Monitoring(log_every=5, save_every=0, spike_threshold=20.0))
    scale_gradient(training, 25, value)
    with pytest.raises(
        PretuneError, match=r"step 26: the gradient norm is .* \(stream 0, epoch \d+, pack \d+; stream 0"
    ):
        train(training)
    training = make("mlm+nsp", 30)
    training.monitor = resolve_section(
        Monitoring, Monitoring(log_every=5, save_every=0, spike_threshold=20.0, on_spike="skip")
    )
    scale_gradient(training, 25, value)
    assert (
        train(training)["mlm"] < 5.5
    )  # from ln 300 = 5.7; the loss would be NaN after the bad step if it were not skipped
    assert "step 26: the gradient norm is" in capsys.readouterr().err


@pytest.mark.end_to_end
def test_roofline_enables_model_flops_utilization(tmp_path: Path, monkeypatch: Any) -> None:
    from pretune.runtime.devices import choose_device, peak_flops
    from pretune.verbs.evaluation import roofline

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(roofline, "SECONDS", 0.02)
    assert peak_flops(choose_device("cpu")) is None
    result = pt.roofline("cpu")
    assert peak_flops(choose_device("cpu")) == pytest.approx(result.peak)
    assert result.describe()["gigabytes_per_second"] > 0.1
    training = make("mlm+nsp", 2, run=tmp_path / "run")
    train(training)
    assert 0 < lines(tmp_path / "run")[-1]["mfu"] < 1
