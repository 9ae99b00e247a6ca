"""Checkpoints: everything a training needs to go on as if nothing had happened; safetensors and JSON, never a pickle.

    checkpoints/step-00000200/
      root.safetensors        parameters
      optimizer.safetensors   their optimizers' states
      carry.safetensors       what stateful data hand on
      average.safetensors     the running mean of the parameters, where there is one
      best.safetensors        the best parameters so far, where these are what will come out
      state.json              position, clock, and a checksum of each file and of itself

Of several processes each writes what it has, to root-00001-of-00004.safetensors and the like: of a model in shards its rows, which
make up the whole in the order of the files, whatever the number of processes that read them; of what all have the first alone.

A checkpoint is written in the background, from a copy in memory, under a temporary name. When all processes are through, the
first writes state.json and renames the folder: it is there as a whole or not at all. The newest intact one is restored; where
all are damaged, nothing is, and the run stops.
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
from pretune.runtime.parsing import conform, is_file_name, read_sealed_json, write_sealed_json
from pretune.runtime.progress import say
from pretune.text.store.store import file_digest
from pretune.training.parallel.distributed import World
from pretune.training.parallel.fsdp_tensors import is_shard, local, put_back

FOLDER, STATE = "checkpoints", "state.json"
Tensors = Mapping[str, Tensor]


class LoggedStep(TypedDict):
    """What state.json holds of one of the last steps."""

    sums: dict[str, float]
    totals: dict[str, float]
    before: dict[str, float]


class Logged(TypedDict):
    """What state.json holds of the log."""

    last: dict[str, int | float]  # the last metrics
    recent: list[LoggedStep]


class State(TypedDict):
    """What state.json holds."""

    step: int
    clock: dict[str, float]
    feed: Any  # positions in the data
    log: Logged
    guard: dict[str, float]
    best: NotRequired[dict[str, Any]]
    checksums: dict[str, str]  # by file name


@dataclass
class Saver:
    """Writes the checkpoints of a run, one at a time, and drops the oldest beyond `keep`."""

    run: Path
    world: World
    keep: int
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    going: Future[dict[str, str]] | None = None  # what is being written: a checksum for each file
    state: dict[str, Any] = field(default_factory=dict)
    temporary: Path = Path()  # where it is being written

    @property
    def busy(self) -> bool:
        """Whether this process is still writing."""
        return self.going is not None and not self.going.done()

    def start(self, state: dict[str, Any], shared: Mapping[str, Tensors], own: Mapping[str, Tensors]) -> None:
        """Copy tensors, by the name of their file, and begin to write them. All processes have the same ones in `shared`,
        or rows of them; those in `own` are each one's own."""
        self.finish()
        self.state = state
        self.world.first_alone(self._begin)
        self.temporary = self._final.with_name(self.world.gather(self.temporary.name)[0])
        files = {name: copied(tensors, rows_alone=not self.world.first) for name, tensors in shared.items()}
        files |= {name: copied(tensors) for name, tensors in own.items()}
        if self.world.size > 1:
            place = f"-{self.world.rank:05d}-of-{self.world.size:05d}"
            files = {name + place: tensors for name, tensors in files.items() if tensors}
        self.going = self.thread.submit(self._write, files)

    def finish(self) -> None:
        """Wait until what is being written is there. All processes do so together."""
        if self.going is None:
            return
        error, checksums = self.going.exception(), {} if self.going.exception() else self.going.result()
        self.going = None
        told = self.world.gather([error is None, checksums])
        if not all(well for well, _ in told):
            if self.world.first:
                shutil.rmtree(self.temporary, ignore_errors=True)
            raise error or SystemExit(1)  # the one that failed says why
        self.state["checksums"] = {name: digest for _, own in told for name, digest in own.items()}
        self.world.first_alone(self._commit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failed: object) -> None:
        # Whatever went wrong, a checkpoint before it is good. Of several processes nobody knows what the others do.
        if failed[0] is None or self.world.size == 1:
            self.finish()
        self.thread.shutdown()

    @property
    def _final(self) -> Path:
        return self.run / FOLDER / f"step-{self.state['step']:08d}"

    def _begin(self) -> None:
        if self._final.parent.is_dir():
            remove_temporaries(self._final.parent)
        self.temporary = temporary_folder(self._final)

    def _write(self, files: Mapping[str, dict[str, Tensor]]) -> dict[str, str]:
        checksums = {}
        for name, tensors in files.items():
            content = save(tensors)
            checksums[f"{name}.safetensors"] = hashlib.sha256(content).hexdigest()
            with atomic_file(self.temporary / f"{name}.safetensors") as file:
                file.write(content)
        return checksums

    def _commit(self) -> None:
        try:
            write_sealed_json(self.temporary / STATE, self.state)
            if self._final.exists():
                remove_folder(self._final)
            os.rename(self.temporary, self._final)
        except BaseException:
            shutil.rmtree(self.temporary, ignore_errors=True)
            raise
        sync_folder(self._final.parent)
        for old in list_checkpoints(self.run)[: -self.keep]:
            remove_folder(old)


def copied(tensors: Tensors, rows_alone: bool = False) -> dict[str, Tensor]:
    """Copies in the host's memory, of shards the rows here; with `rows_alone` of nothing else."""
    return {
        name: local(tensor.detach()).to("cpu", copy=True).contiguous()
        for name, tensor in tensors.items()
        if is_shard(tensor) or not rows_alone
    }


class Pieces(Mapping[str, Tensor]):
    """Tensors of some files, read when they are asked for. One that several files have is cut along its rows, in their order."""

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
    """Checkpoints of a run, oldest first."""
    return sorted((run / FOLDER).glob("step-*")) if (run / FOLDER).is_dir() else []


def load_newest(run: Path, world: World | None = None) -> tuple[dict[str, Any], dict[str, Pieces]] | None:
    """Return state and tensors of the newest checkpoint that all processes find intact; None if the run has none.

    Where there are checkpoints and all are damaged, starting again from step 0 would be a surprise: that is an error.
    """
    world = world or World()
    names = world.gather([path.name for path in list_checkpoints(run)])[0]
    for name in reversed(names):
        folder = run / FOLDER / name
        problem = ""
        try:
            state = read_state(folder)
            for file in sorted(state["checksums"])[world.rank :: world.size]:  # each process looks at its share
                if file_digest(folder / file) != state["checksums"][file]:
                    raise ValueError(f"{file} does not match its checksum")
            paths: dict[str, list[Path]] = {}
            for file in sorted(state["checksums"]):
                paths.setdefault(file.removesuffix(".safetensors").split("-")[0], []).append(folder / file)
            tensors = {kind: Pieces(files) for kind, files in paths.items()}
        except (OSError, ValueError, KeyError, SafetensorError, PretuneError) as error:
            problem = str(error)
        problems = [told for told in world.gather(problem) if told]
        if not problems:
            return dict(state), tensors
        say(f"{folder}: damaged checkpoint ({problems[0]}); looking for an older one")
    if names:
        raise PretuneError(
            f"{run / FOLDER}: all {len(names)} checkpoints are damaged; restore one from a backup, or delete this folder to "
            "start the run again from step 0"
        )
    return None


def read_state(folder: Path) -> State:
    """Return the state of a checkpoint, checked against its own checksum, its schema and the files it names."""
    state = conform(read_sealed_json(folder / STATE, "the state of a checkpoint"), State, str(folder / STATE))
    for file in state["checksums"]:
        if not is_file_name(file):
            raise PretuneError(f"{folder / STATE}: names {quote(file)}, which is not a file beside it")
    return state


def restore_parameters(tensors: Tensors, saved: Tensors) -> None:
    """Put saved parameters and buffers back; shared ones are saved under one name."""
    for name, tensor in tensors.items():
        put_back(tensor, saved[name])


def optimizer_tensors(root: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """States of all optimizers by parameter name."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in root.named_parameters()}
    tensors = {}
    for number, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                tensors[f"{number}/{names[parameter]}/{key}"] = torch.as_tensor(value)
    return tensors


def restore_optimizers(root: nn.Module, optimizers: list[torch.optim.Optimizer], saved: Tensors) -> None:
    """Put saved states back."""
    parameters = dict(root.named_parameters())
    for name, tensor in saved.items():
        number, parameter_name, key = name.split("/")
        parameter = parameters[parameter_name]
        if is_shard(parameter) and tensor.shape == parameter.shape:
            place = torch.empty_like(parameter, dtype=tensor.dtype)
            put_back(place, tensor)
        else:
            # AdamW keeps its step counter on the host unless it is fused.
            host = key == "step" and not parameter.is_cuda
            place = tensor.to(torch.device("cpu") if host else parameter.device, copy=True)
        optimizers[int(number)].state[parameter][key] = place
