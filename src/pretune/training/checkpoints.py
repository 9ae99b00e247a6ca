"""Checkpoints: everything a training needs to go on as if nothing had happened; safetensors and JSON, never a pickle.

    checkpoints/step-00000200/
      root.safetensors        parameters
      optimizer.safetensors   their optimizers' states
      carry.safetensors       what stateful data hand on
      average.safetensors     the running mean of the parameters, where there is one
      best.safetensors        the best parameters so far, where these are what will come out
      state.json              position, clock, and a checksum of each file

A checkpoint is written under a temporary name and renamed when whole. The newest that is intact counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from pretune.atomic import TEMPORARY, atomic_file, remove_temporaries, sync_folder, write_json
from pretune.model import Root
from pretune.progress import say

FOLDER = "checkpoints"


def save_checkpoint(
    run: Path,
    step: int,
    root: Root,
    optimizers: list[torch.optim.Optimizer],
    state: dict[str, Any],
    carry: dict[str, Tensor],
    average: dict[str, Tensor],
    best: dict[str, Tensor],
    keep: int,
) -> None:
    """Write a checkpoint and drop the oldest beyond `keep`."""
    folder = run / FOLDER
    final = folder / f"step-{step:08d}"
    temporary = folder / f"{TEMPORARY}{os.getpid()}-{final.name}"
    folder.mkdir(parents=True, exist_ok=True)
    remove_temporaries(folder)
    parameters = {name: tensor.detach().cpu().contiguous() for name, tensor in root.tensors().items()}
    files = {
        "root.safetensors": parameters,
        "optimizer.safetensors": optimizer_tensors(root, optimizers),
        "carry.safetensors": {name: tensor.cpu().contiguous() for name, tensor in carry.items()},
    }
    if average:
        files["average.safetensors"] = average
    if best:
        files["best.safetensors"] = best
    try:
        checksums = {}
        for name, tensors in files.items():
            content = save(tensors)
            checksums[name] = hashlib.sha256(content).hexdigest()
            with atomic_file(temporary / name) as file:
                file.write(content)
        write_json(temporary / "state.json", {**state, "step": step, "checksums": checksums})
        if final.exists():
            shutil.rmtree(final)
        os.rename(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder)
    for old in list_checkpoints(run)[:-keep]:
        shutil.rmtree(old)


def list_checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, oldest first."""
    return sorted((run / FOLDER).glob("step-*")) if (run / FOLDER).is_dir() else []


def load_newest(run: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]] | None:
    """State and tensors of the newest intact checkpoint; None where there is none."""
    for folder in reversed(list_checkpoints(run)):
        try:
            state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            tensors = {}
            for name, checksum in state["checksums"].items():
                content = (folder / name).read_bytes()
                if hashlib.sha256(content).hexdigest() != checksum:
                    raise ValueError(f"{name} does not match its checksum")
                tensors[name.removesuffix(".safetensors")] = load(content)
            return state, tensors
        except (OSError, ValueError, KeyError) as error:
            say(f"{folder}: damaged checkpoint ({error}); taking the one before")
    return None


def optimizer_tensors(root: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """States of all optimizers by parameter name."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in root.named_parameters()}
    tensors = {}
    for number, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                tensors[f"{number}/{names[parameter]}/{key}"] = torch.as_tensor(value).detach().cpu().contiguous()
    return tensors


def restore_optimizers(root: nn.Module, optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Put saved states back."""
    parameters = dict(root.named_parameters())
    for name, tensor in tensors.items():
        number, parameter_name, key = name.split("/")
        parameter = parameters[parameter_name]
        # AdamW keeps its step counter on the host unless it is fused.
        device = parameter.device if key != "step" or parameter.is_cuda else torch.device("cpu")
        optimizers[int(number)].state[parameter][key] = tensor.to(device)
