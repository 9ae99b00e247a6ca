"""Checkpoints: everything needed to resume a training run bit for bit, as safetensors and JSON (never pickle).

    checkpoints/step-00000200/
      root.safetensors        parameters
      optimizer.safetensors   optimizer states
      recurrent_states.safetensors  states of stateful training
      average.safetensors     the running mean of the parameters, with weight averaging
      best.safetensors        the best parameters so far, with early stopping
      state.json              position in the data, clock, and checksums of all files, itself included

With several processes, each writes its own files, such as root-00001-of-00004.safetensors, with its rows of a sharded
model. Concatenated in file order, these rows are the whole tensors, so that any number of processes can resume. Data
that all processes share are written by the first one.

A checkpoint is written in the background, from a copy in memory, into a temporary folder. When all processes have finished,
the first one writes state.json and renames the folder, so that a checkpoint is complete or absent. Resuming uses the newest
intact checkpoint; if all are damaged, the run stops with an error.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from typing_extensions import TypedDict

from pretune.runtime.atomic_io import atomic_file, remove_folder, remove_temporaries, sync_folder, temporary_folder
from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.parsing import (
    file_digest,
    is_file_name,
    read_checksummed_json,
    validate_schema,
    write_checksummed_json,
)
from pretune.runtime.progress import log_info
from pretune.training.parallel.distributed import World
from pretune.training.parallel.fsdp_tensors import copy_into, is_sharded, local_rows

FOLDER, STATE = "checkpoints", "state.json"
Tensors = Mapping[str, Tensor]


class LogStepState(TypedDict):
    """The losses of one recent training step, as saved in a checkpoint so that a resumed run can log their means.

    `sums` and `totals` hold the sum and the number of targets of each loss; `before` is the budget used before
    the step.
    """

    sums: dict[str, float]
    totals: dict[str, float]
    before: dict[str, float]


class LogState(TypedDict):
    """The state of the metrics log, as saved in a checkpoint: the last metrics, and the losses of the recent steps."""

    last: dict[str, int | float]  # the last metrics
    recent: list[LogStepState]


class CheckpointState(TypedDict):
    """The content of a checkpoint's file state.json.

    It holds the step, the clock, the position in the data, the states of callbacks, and checksums of the other
    files.
    """

    step: int
    clock: dict[str, float]
    feed: Any  # positions in the data
    log: LogState
    guard: dict[str, float]
    best: NotRequired[dict[str, Any]]
    checksums: dict[str, str]  # by file name


@dataclass
class CheckpointWriter:
    """A writer that saves checkpoints in a background thread, one at a time, and keeps only the newest `keep`."""

    run: Path
    world: World
    keep: int
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    pending: Future[dict[str, str]] | None = None  # the write in progress; its result is a checksum per file
    state: dict[str, Any] = field(default_factory=dict)
    temporary: Path = Path()  # the folder it writes to

    @property
    def busy(self) -> bool:
        """Whether this process is still writing a checkpoint."""
        return self.pending is not None and not self.pending.done()

    def start(self, state: dict[str, Any], shared: Mapping[str, Tensors], own: Mapping[str, Tensors]) -> None:
        """Copy the tensors of a checkpoint to the CPU, and start to write them to files in the background.

        `shared` and `own` map file names to named tensors: `shared` is the same in every process, apart from
        sharding, and `own` differs between processes. `state` is the content of state.json.
        """
        self.finish()
        self.state = state
        self.world.run_on_first(self._begin)
        self.temporary = self._final.with_name(self.world.gather(self.temporary.name)[0])
        files = {name: copy_to_host(tensors, sharded_only=not self.world.first) for name, tensors in shared.items()}
        files |= {name: copy_to_host(tensors) for name, tensors in own.items()}
        if self.world.size > 1:
            suffix = f"-{self.world.rank:05d}-of-{self.world.size:05d}"
            files = {name + suffix: tensors for name, tensors in files.items() if tensors}
        self.pending = self.thread.submit(self._write, files)

    def finish(self) -> None:
        """Wait until the pending checkpoint is written, then rename its folder; all processes call this together."""
        if self.pending is None:
            return
        error = self.pending.exception()
        checksums = {} if error else self.pending.result()
        self.pending = None
        outcomes = self.world.gather([error is None, checksums])
        if not all(success for success, _ in outcomes):
            if self.world.first:
                shutil.rmtree(self.temporary, ignore_errors=True)
            raise error or SystemExit(1)  # the process that failed reports the error
        self.state["checksums"] = {name: digest for _, own in outcomes for name, digest in own.items()}
        self.world.run_on_first(self._commit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failed: object) -> None:
        # A failed training can still commit its last checkpoint, but processes that fail cannot rely on one another.
        if failed[0] is None or self.world.size == 1:
            self.finish()
        self.thread.shutdown()

    @property
    def _final(self) -> Path:
        return self.run / FOLDER / f"step-{self.state['step']:08d}"

    def _begin(self) -> None:
        """Delete the temporary folders that killed processes left, and create one for the current checkpoint."""
        if self._final.parent.is_dir():
            remove_temporaries(self._final.parent)
        self.temporary = temporary_folder(self._final)

    def _write(self, files: Mapping[str, dict[str, Tensor]]) -> dict[str, str]:
        """Write files of named tensors to the temporary checkpoint folder, and return the checksum of each file."""
        checksums = {}
        for name, tensors in files.items():
            content = save(tensors)
            checksums[f"{name}.safetensors"] = hashlib.sha256(content).hexdigest()
            with atomic_file(self.temporary / f"{name}.safetensors") as file:
                file.write(content)
        return checksums

    def _commit(self) -> None:
        """Complete the current checkpoint: write state.json, rename the folder, and delete the oldest checkpoints."""
        try:
            write_checksummed_json(self.temporary / STATE, self.state)
            if self._final.exists():
                remove_folder(self._final)
            os.rename(self.temporary, self._final)
        except BaseException:
            shutil.rmtree(self.temporary, ignore_errors=True)
            raise
        sync_folder(self._final.parent)
        for old in list_checkpoints(self.run)[: -self.keep]:
            remove_folder(old)


def copy_to_host(tensors: Tensors, sharded_only: bool = False) -> dict[str, Tensor]:
    """Return copies of named tensors on the CPU; of a sharded tensor, only the rows of this process are copied.

    With `sharded_only`, tensors that are not sharded are left out.
    """
    return {
        name: local_rows(tensor.detach()).to("cpu", copy=True).contiguous()
        for name, tensor in tensors.items()
        if is_sharded(tensor) or not sharded_only
    }


class LazyTensors(Mapping[str, Tensor]):
    """A mapping from names to tensors in files; it reads a tensor when accessed, and concatenates its parts."""

    def __init__(self, paths: list[Path]) -> None:
        self.where: dict[str, list[Any]] = {}
        for path in paths:
            file: Any = safe_open(path, "pt")
            for name in file.keys():  # noqa: SIM118
                self.where.setdefault(name, []).append(file)

    def __getitem__(self, name: str) -> Tensor:
        parts = [file.get_tensor(name) for file in self.where[name]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.where)

    def __len__(self) -> int:
        return len(self.where)


def list_checkpoints(run: Path) -> list[Path]:
    """Return the folders of all checkpoints of the run in the folder `run`, oldest first."""
    return sorted((run / FOLDER).glob("step-*")) if (run / FOLDER).is_dir() else []


def load_newest(run: Path, world: World | None = None) -> tuple[dict[str, Any], dict[str, LazyTensors]] | None:
    """Return the state and the tensors of a run's newest intact checkpoint; None if the run has no checkpoints.

    The tensors are grouped by file name, such as optimizer. The processes of `world` verify the files together. If all
    checkpoints are damaged, an error is raised.
    """
    world = world or World()
    names = world.gather([path.name for path in list_checkpoints(run)])[0]
    for name in reversed(names):
        folder = run / FOLDER / name
        problem = ""
        try:
            state = read_state(folder)
            for file in sorted(state["checksums"])[world.rank :: world.size]:  # each process verifies some of the files
                if file_digest(folder / file) != state["checksums"][file]:
                    raise ValueError(f"{file} does not match its checksum")
            paths: dict[str, list[Path]] = {}
            for file in sorted(state["checksums"]):
                paths.setdefault(file.removesuffix(".safetensors").split("-")[0], []).append(folder / file)
            tensors = {kind: LazyTensors(files) for kind, files in paths.items()}
        except (OSError, ValueError, KeyError, SafetensorError, PretuneError) as error:
            problem = str(error)
        problems = [text for text in world.gather(problem) if text]
        if not problems:
            return dict(state), tensors
        log_info(f"{folder}: the checkpoint is damaged ({problems[0]}); trying an older one")
    if names:
        raise PretuneError(
            f"{run / FOLDER}: all {len(names)} checkpoints are damaged; restore one from a backup, or delete this folder to "
            "start the run again from step 0"
        )
    return None


def read_state(folder: Path) -> CheckpointState:
    """Return the content of state.json in a checkpoint folder; raise an error if the file is damaged."""
    content = read_checksummed_json(folder / STATE, "the state of a checkpoint")
    state = validate_schema(content, CheckpointState, str(folder / STATE))
    for file in state["checksums"]:
        if not is_file_name(file):
            raise PretuneError(
                f"{folder / STATE}: {quote(file)} must be the name of a file in this folder; restore it from a backup"
            )
    return state


def optimizer_tensors(root: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return the state tensors of the optimizers of the model `root`, with names OPTIMIZER_NUMBER/PARAMETER/KEY."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in root.named_parameters()}
    tensors = {}
    for number, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                tensors[f"{number}/{names[parameter]}/{key}"] = torch.as_tensor(value)
    return tensors


def restore_optimizers(root: nn.Module, optimizers: list[torch.optim.Optimizer], saved: Tensors) -> None:
    """Restore the states of the optimizers of the model `root` from `saved`, the result of `optimizer_tensors`."""
    parameters = dict(root.named_parameters())
    for name, tensor in saved.items():
        number, parameter_name, key = name.split("/")
        parameter = parameters[parameter_name]
        if is_sharded(parameter) and tensor.shape == parameter.shape:
            restored = torch.empty_like(parameter, dtype=tensor.dtype)
            copy_into(restored, tensor)
        else:
            # AdamW keeps its step counter on the host unless it is fused.
            host = key == "step" and not parameter.is_cuda
            restored = tensor.to(torch.device("cpu") if host else parameter.device, copy=True)
        optimizers[int(number)].state[parameter][key] = restored
