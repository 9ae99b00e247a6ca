"""Tests of CUDA graphs: replayed steps update the same parameters as eager ones, and no unused heads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from pretune.objectives import JointObjective, Loss
from pretune.packed import Batch
from pretune.training import loop
from pretune.training.cuda_graphs import CudaGraphs
from pretune.training.jobs import finetuning
from tests.support.tiny_models import read, tiny, tune


class InPlaceGradients(CudaGraphs):
    """An execution without CUDA that keeps gradients in place, as zeros, like CUDA graphs."""

    def __init__(self, model: Any, device: torch.device, _: object) -> None:
        super().__init__(model, device, pool=None)

    def run(self, stream: int, joint: JointObjective, batch: Batch, totals: Mapping[str, float]) -> tuple[Loss, Tensor]:
        loss = self.model(joint, batch)
        part = loss.over(totals)
        if stream not in self.recordings:
            reached = torch.autograd.grad(part, list(self.model.parameters()), retain_graph=True, allow_unused=True)
            learned = {p for p, gradient in zip(self.model.parameters(), reached, strict=True) if gradient is not None}
            self.recordings[stream] = SimpleNamespace(trained=learned)  # type: ignore[assignment]
            self.untrained.clear()
        self.taken.add(stream)
        part.backward()
        return loss, part


@pytest.mark.not_fast
@pytest.mark.parametrize("objective", ["a: classify|b: classify", "a: classify+0.5*mlm|b: prompt(verbalizer=no/yes)"])
def test_heads_without_packs_in_a_step_are_not_updated(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {}
    for name in "ab":
        files[name] = str(tmp_path / f"{name}.csv")
        Path(files[name]).write_text("text,label\n" + "red yes,yes\nblue no,no\n" * 4, encoding="utf-8")
    start = tiny("bert-tiny", read(["red yes blue no . it was"] * 4), tmp_path / "start", "mlm")
    made = finetuning.Training
    monkeypatch.setattr(loop, "CudaGraphs", InPlaceGradients)
    found = []
    for graphed in (False, True):
        parts = {"cuda_graphs": graphed}
        monkeypatch.setattr(finetuning, "Training", lambda parts=parts, **given: made(**given | parts))
        run = tune(start, files, tmp_path / str(graphed), objective, steps=7, task_sampling="uniform")
        rest = run.folder / "head.safetensors"
        found.append(load_file(run.folder / "model.safetensors") | (load_file(rest) if rest.exists() else {}))
    launched, kept = found
    assert launched.keys() == kept.keys()
    for name, tensor in launched.items():
        torch.testing.assert_close(kept[name], tensor, rtol=0, atol=0, msg=name)
