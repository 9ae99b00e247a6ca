"""Graphs of 8 bits, by ONNX Runtime's own tools: its pre-process first, then ranges while it runs, or ranges measured before."""

from __future__ import annotations

import logging
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pretune.atomic import write_bytes
from pretune.backbones.onnx import IDS, MASK, SEGMENTS, alike, need_runtime, open_graph, padded, spans_to_places
from pretune.packed import Batch

CPU = Path("/proc/cpuinfo")
FAST = ("vnni", "amx_int8", "asimddp", "i8mm")  # names of instructions that multiply bytes
OPERATORS = ["MatMul", "Gemm", "Gather"]  # linear maps, and vectors of tokens


def multiplies_bytes() -> bool:
    """Whether this processor has instructions for it; where that cannot be seen, it is taken to."""
    return not CPU.is_file() or any(name in CPU.read_text(errors="ignore") for name in FAST)


def dynamic(graph: Path, out: Path, per_channel: bool) -> None:
    """Matrices and vectors of tokens of 8 bits; what they are multiplied with, by its range at that moment."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with prepared(graph) as (ready, made):
        quantize_dynamic(
            str(ready),
            str(made),
            op_types_to_quantize=[*OPERATORS, "LSTM"],
            per_channel=per_channel,
            reduce_range=saturates(),
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
        write_bytes(out, made.read_bytes())


def static(graph: Path, out: Path, per_channel: bool, batches: Iterable[Batch]) -> None:
    """All of that, and what matrices are multiplied with by the range that it has in some batches."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with prepared(graph) as (ready, made):
        quantize_static(
            str(ready),
            str(made),
            Calibration(ready, batches),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=OPERATORS,
            per_channel=per_channel,
            reduce_range=saturates(),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
        write_bytes(out, made.read_bytes())


def saturates() -> bool:
    """Whether sums of two products of bytes can overflow, as on x86 without instructions for them: then 7 bits are used."""
    return platform.machine() in ("x86_64", "AMD64") and not multiplies_bytes()


@contextmanager
def prepared(graph: Path) -> Iterator[tuple[Path, Path]]:
    """A graph as the tools want it, its shapes inferred and its constants folded; and where theirs may go."""
    need_runtime()
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder, quiet():
        ready = Path(folder) / "ready.onnx"
        # Its inference by symbols leaves a copy of the model in whatever folder is current where it comes to no end.
        quant_pre_process(str(graph), str(ready), skip_symbolic_shape=True)
        turn_matrices(ready)
        yield ready, Path(folder) / "int8.onnx"


def turn_matrices(graph: Path) -> None:
    """Transpose the constant matrices of a graph once each, and let all that use one read it directly.

    The tools do the first for each use, which spoils matrices that layers share; and do not know matrices behind an
    `Identity`, by which an export names shared ones, as constants.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.load(graph)
    constants = {one.name: one for one in model.graph.initializer}
    same = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type == "Identity" and node.input[0] in constants
    }
    turned: dict[str, str] = {}
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = same.get(name, name)
        transposed = next((a for a in node.attribute if a.name == "transB" and a.i), None)
        if node.op_type != "Gemm" or transposed is None or node.input[1] not in constants:
            continue
        matrix = node.input[1]
        if matrix not in turned:
            turned[matrix] = f"{matrix}.turned"
            across = np.ascontiguousarray(numpy_helper.to_array(constants[matrix]).T)
            model.graph.initializer.append(numpy_helper.from_array(across, turned[matrix]))
        transposed.i, node.input[1] = 0, turned[matrix]
    shown = {one.name for one in model.graph.output}
    keep(model.graph.node, lambda node: node.output[0] not in same or node.output[0] in shown)
    read = {name for node in model.graph.node for name in node.input}
    keep(model.graph.initializer, lambda one: one.name not in turned or one.name in read)
    onnx.save(model, graph)


def keep(entries: Any, which: Callable[[Any], bool]) -> None:
    """Only some of a graph's entries."""
    left = [entry for entry in entries if which(entry)]
    del entries[:]
    entries.extend(left)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what the tools say of every operator that stays as it is."""
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.ERROR)
    with open(os.devnull, "w") as nowhere:
        from contextlib import redirect_stdout

        try:
            with redirect_stdout(nowhere):
                yield
        finally:
            root.setLevel(level)


class Calibration:
    """Batches as the tools ask for them: one at a time, then None."""

    def __init__(self, graph: Path, batches: Iterable[Batch]) -> None:
        names = {entry.name for entry in open_graph(graph).get_inputs()}
        self.feeds = iter([feed for batch in batches for feed in feeds_of(batch, names)])

    def get_next(self) -> dict[str, Any] | None:
        """The next one."""
        return next(self.feeds, None)

    def __iter__(self) -> Iterator[Any]:
        return self.feeds

    def __next__(self) -> Any:
        return next(self.feeds)


def feeds_of(batch: Batch, names: set[str]) -> Iterator[dict[str, Any]]:
    """A batch as padded rows of similar length."""
    (packed,) = batch.packed
    assert packed.host_offsets is not None
    lengths = np.diff(packed.host_offsets)
    segments = packed.columns.get("segment")
    columns = {IDS: packed.ids.numpy(), SEGMENTS: np.zeros(len(packed), int) if segments is None else segments.numpy()}
    for rows in alike(lengths):
        real = np.arange(int(lengths[rows].max())) < lengths[rows][:, None]
        places = spans_to_places(packed.host_offsets[:-1][rows], lengths[rows])
        feed = {name: padded(column[places], real) for name, column in columns.items() if name in names}
        yield feed | {MASK: real.astype(np.int64)}
