"""The engines that compute a model's backbone on a CPU: torch, or ONNX Runtime with a graph of the backbone.

Which of the two is faster depends on the model and on the machine. It is measured once and remembered, together with the graph, in
pretune's cache folder, under a name that changes with the files of the model and with the versions of the packages. A graph is used
only if its outputs are those of torch, up to rounding; calls that it cannot compute, such as those for inner layers, remain with torch.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

import torch

from pretune.backbones.backbone import BackboneOutput, LayerSelection
from pretune.backbones.onnx_runtime import GRAPH, OnnxBackbone
from pretune.models.language_embeddings import language_table
from pretune.models.model import Model
from pretune.models.onnx_export import make_states_optional, write_graph
from pretune.models.open_model import OpenModel
from pretune.models.padded_model import inputs_to_compare
from pretune.packed import Packed, pack_lists
from pretune.runtime.atomic_io import remove_folder, write_json
from pretune.runtime.cpu_features import cpu_model
from pretune.runtime.devices import cache_folder, choose_device
from pretune.runtime.errors import PretuneError, if_option, suggest
from pretune.runtime.optional_imports import installed_version
from pretune.runtime.progress import log_info

Engine = Literal["auto", "torch", "onnxruntime"]
EngineName = Literal["torch", "onnxruntime"]
PACKAGES = ("pretune", "torch", "onnx", "onnxruntime")
CHOICES = "choices.json"
KEPT = 4  # models whose graphs are kept in the cache folder
COLUMNS = {"segment", "global", "prompt"}  # per-token features that graphs take, or that backbones do not read
TOLERANCE = 1e-5  # the largest accepted difference between the engines, relative to the largest output
ROUNDS = 5


class GraphForward:
    """A replacement for a backbone's `forward` that runs its ONNX graph in all calls that the graph can compute."""

    def __init__(self, backbone: Any, graph: OnnxBackbone) -> None:
        self.own, self.graph = backbone.forward, graph
        self.weights = [(weight, weight._version) for weight in backbone.parameters()]

    def __call__(self, *packed: Packed, state: Any = None, keep: LayerSelection = "last") -> BackboneOutput:
        """Return the hidden states of packed sequences, as the backbone does."""
        if state is None and len(packed) == 1 and self.can_compute(packed[0], keep):
            return self.graph(packed[0])
        return self.own(*packed, state=state, keep=keep)  # type: ignore[no-any-return]

    def can_compute(self, packed: Packed, keep: LayerSelection) -> bool:
        """Return whether the graph computes a call: the top layer of sequences as they were in the export, on the CPU."""
        limit = self.graph.max_positions
        return (
            not torch.is_grad_enabled()
            and (keep == "last" or list(keep) in ([-1], [self.graph.depth]))
            and (packed.pattern is None or packed.pattern.name == "full")
            and packed.columns.keys() <= COLUMNS
            and packed.ids.device.type == "cpu"
            and (limit is None or packed.max_length <= limit)
            and torch.equal(packed.positions, positions_in_sequences(packed))
            and all(weight._version == version for weight, version in self.weights)
        )


def positions_in_sequences(packed: Packed) -> torch.Tensor:
    """Return the position of each token within its sequence, (n,).

    >>> positions_in_sequences(pack_lists([[3, 7], [5]])).tolist()
    [0, 1, 0]
    """
    starts, lengths = packed.offsets[:-1].long(), packed.offsets.diff()
    return torch.arange(len(packed)) - starts.repeat_interleave(lengths)


@dataclass(frozen=True)
class EngineCache:
    """The remembered engines of a model, by machine, and its graph: a folder in pretune's cache folder."""

    folder: Path

    @classmethod
    def of(cls, opened: OpenModel) -> EngineCache:
        """Return the cache of a model, whose name depends on the model's files and on the versions of the packages."""
        files = sorted(file for file in opened.folder.iterdir() if file.is_file())
        facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        key = json.dumps([str(opened.folder), facts, {name: installed_version(name) for name in PACKAGES}])
        return cls(cache_folder() / "engines" / sha256(key.encode()).hexdigest()[:32])

    @property
    def graph(self) -> Path:
        """The path of the model's ONNX graph."""
        return self.folder / GRAPH

    def choice(self) -> EngineName | None:
        """Return the engine that was remembered for this machine, or None if there is none."""
        entry = self._choices().get(machine())
        name = entry.get("engine") if isinstance(entry, Mapping) else None
        return name if name in ("torch", "onnxruntime") else None

    def remember(self, engine: EngineName, seconds: Mapping[str, float]) -> None:
        """Remember the engine for this machine, and the measured `seconds` by engine, in a file."""
        with suppress(OSError):  # without a cache, the engines are measured again
            write_json(
                self.folder / CHOICES, {**self._choices(), machine(): {"engine": engine, "seconds": dict(seconds)}}
            )

    def remove_others(self) -> None:
        """Remove the caches of other models, except the newest ones."""
        with suppress(OSError):
            others = [folder for folder in self.folder.parent.iterdir() if folder.is_dir() and folder != self.folder]
            for folder in sorted(others, key=lambda folder: folder.stat().st_mtime)[: -(KEPT - 1)]:
                remove_folder(folder)

    def _choices(self) -> dict[str, Any]:
        try:
            content = json.loads((self.folder / CHOICES).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}


def machine() -> str:
    """Return a description of this machine and of the number of threads, on which measurements depend."""
    return f"{platform.machine()}, {cpu_model()}, {torch.get_num_threads()} threads"


def open_with_engine(opened: OpenModel, engine: Engine) -> EngineName:
    """Let an open model compute with an engine, and return the engine.

    `auto` is the engine that is remembered as the faster one; if none is, both are measured. An error is raised if `onnxruntime` is requested and cannot compute the model.

    >>> open_with_engine(OpenModel("pretune-small-en"), "torch")
    'torch'
    """
    if engine not in get_args(Engine):
        raise PretuneError(f"unknown engine {engine!r}; {suggest(engine, get_args(Engine))}")
    model = opened.core
    if engine == "torch" or choose_device().type != "cpu":
        return "torch"
    if isinstance(model.backbone, OnnxBackbone):
        return "onnxruntime"
    cache = EngineCache.of(opened)
    if engine == "auto":
        known = cache.choice()
        if known == "torch" or None in map(installed_version, PACKAGES):
            return "torch"
    try:
        graph = load_graph(model, cache)
    except PretuneError as error:
        if engine == "onnxruntime":
            raise PretuneError(
                f"{opened}: ONNX Runtime cannot be the engine of this model: {error}{if_option('engine', '; to continue, use --engine torch')}"
            ) from error
        cache.remember("torch", {})
        return "torch"
    forward = GraphForward(model.backbone, graph)
    if engine == "auto" and known is None:
        model.root.pack_weights()
        seconds = measure_engines(model, {"torch": forward.own, "onnxruntime": forward})
        fastest: EngineName = "torch" if seconds["torch"] < seconds["onnxruntime"] else "onnxruntime"
        cache.remember(fastest, seconds)
        log_info(f"{opened}: {fastest} is the faster engine on this machine, and is remembered")
        if fastest == "torch":
            cache.graph.unlink(missing_ok=True)
            return "torch"
    model.backbone.forward = forward
    return "onnxruntime"


def load_graph(model: Model, cache: EngineCache) -> OnnxBackbone:
    """Return the graph of a model's backbone from its cache, where it is written if it is missing or damaged."""
    if language_table(model) is not None:
        raise PretuneError("the model has language embeddings, but an ONNX graph can read only one language")
    if cache.graph.is_file():
        with suppress(PretuneError):
            return checked_graph(model, cache.graph)
    log_info("exporting the model for ONNX Runtime, once")
    try:
        write_graph(model, cache.graph, check=False)
        make_states_optional(cache.graph)
    except OSError as error:
        raise PretuneError(f"{cache.graph}: the graph cannot be written ({error.strerror})") from error
    cache.remove_others()
    return checked_graph(model, cache.graph)


@torch.no_grad()
def checked_graph(model: Model, path: Path) -> OnnxBackbone:
    """Load a graph of a model's backbone; raise an error if its outputs are not those of the backbone."""
    graph = OnnxBackbone(path, model.backbone)
    for packed in comparison_batches(model):
        expected, found = (run(packed).last for run in (model.root.ready(torch.device("cpu")).backbone, graph))
        difference = float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))
        if not difference < TOLERANCE:  # also true for NaN
            raise PretuneError(
                f"the outputs of the graph differ from the model's by {difference:.2g} of the largest value"
            )
    return graph


def comparison_batches(model: Model) -> list[Packed]:
    """Return batches on which engines are compared: synthetic sequences, one text, several, and many."""
    rows = (
        [row[real > 0].tolist() for row, real in zip(ids, mask, strict=True)]
        for ids, mask, *_ in inputs_to_compare(model)
    )
    return [pack_lists(lists) for lists in rows]


@torch.no_grad()
def measure_engines(model: Model, engines: Mapping[str, Callable[[Packed], Any]]) -> dict[str, float]:
    """Return the seconds per token of each engine: the geometric mean of those for one text and for many.

    The engines run in turn, round after round, and medians count, so that other work on the machine slows all down alike.
    """
    batches = comparison_batches(model)
    chosen = [batches[0], batches[-1]] if len(batches) < 3 else [batches[1], batches[-1]]
    times: dict[str, list[list[float]]] = {name: [[] for _ in chosen] for name in engines}
    for _ in range(ROUNDS):
        for name, run in engines.items():
            for place, packed in enumerate(chosen):
                started = time.perf_counter()
                _ = run(packed).last
                times[name][place].append((time.perf_counter() - started) / len(packed))
    return {name: float(torch.tensor([median(some) for some in own]).log().mean().exp()) for name, own in times.items()}
