"""Tests that compiled or replayed steps on a GPU in half precision equal those on the CPU. Run with -m gpu."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.models.create_model import make_model
from pretune.nn.dropout import disable_dropout, share_dropout_seed
from pretune.objectives import parse_objective
from pretune.packed import Batch, Capacity, pack, pack_targets
from pretune.sample_data import example
from pretune.training.loop import compile_once

pytestmark = pytest.mark.gpu


def make_batch(vocabulary: int) -> Batch:
    """Return sequences of different lengths, with all slots in use and some targets."""
    chance = np.random.default_rng(0)
    lengths = chance.integers(1, 65, 40)
    n = int(lengths.sum())
    ids = chance.integers(5, vocabulary, n)
    at = np.sort(chance.permutation(n)[: n // 5])
    room = Capacity(n, len(lengths), 64)
    targets = {"mlm": pack_targets(at, chance.integers(5, vocabulary, len(at)))}
    packed = pack(ids, lengths, columns={"segment": np.zeros(n, dtype=np.int64)}, capacity=room)
    return Batch((packed,), targets, {"mlm": float(len(at)), "tokens": float(n)})


@pytest.mark.parametrize("preset", ["bert-tiny", "modern-small"])
def test_compiled_step_on_the_gpu_equals_the_cpu(preset: str) -> None:
    torch._dynamo.reset()
    model = make_model(preset, 512)
    mixture = parse_objective("mlm")
    model.add_heads(mixture.objectives)
    root, joint, batch = model.root.train(), mixture.joints[0], make_batch(512)
    for parameter in root.parameters():  # no parameter may start at 0, which would hide a gradient
        torch.nn.init.normal_(parameter, std=0.05) if parameter.dim() > 1 else None
    disable_dropout(root)
    root(joint, batch).over(batch.counts).backward()
    wanted = {name: p.grad.clone() for name, p in root.named_parameters() if p.grad is not None}
    root.zero_grad()
    root.cuda()
    root.set_activation_dtype(torch.bfloat16)
    share_dropout_seed(root, torch.device("cuda"))
    compile_once(root)
    root(joint, batch.to(torch.device("cuda"))).over(batch.counts).backward()
    for name, parameter in root.named_parameters():
        if name in wanted:
            assert parameter.grad is not None
            gone = float((parameter.grad.cpu() - wanted[name]).norm() / wanted[name].norm())
            assert gone < 0.06, (name, gone)


@pytest.mark.parametrize("names", [(), ("a", "b")], ids=["one task", "two alternating tasks"])
def test_replayed_graphs_train_like_eager_steps(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pretune.training.jobs import finetuning

    start = make_model("bert-tiny", 1024)
    start.tokenizer = pt.train_tokenizer(str(example("messages_train.csv")), kind="wordpiece", vocab_size=1024)
    start.save(tmp_path / "start")
    losses = []
    made = finetuning.Training
    for graphed in (True, False):
        monkeypatch.setattr(
            finetuning, "Training", lambda graphed=graphed, **parts: made(**{**parts, "cuda_graphs": graphed})
        )
        run = pt.finetune(
            str(tmp_path / "start"),
            {name: str(example("messages_train.csv")) for name in names} or example("messages_train.csv"),
            out=tmp_path / str(graphed),
            epochs=2,
            device="cuda",
            optimizer=pt.Optimizer(lr=1e-3),
            num_seeds=1,
        )
        losses.append([run.results[name] for name in names or ("classify",)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
