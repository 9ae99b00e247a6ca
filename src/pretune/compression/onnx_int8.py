"""Quantization of ONNX graphs to int8, with dynamic, calibrated, or learned ranges of activations.

Weights of matrix products have 7 bits on every machine, so that a graph gives the same results on processors with and without VNNI
(see nn/quantized/int8.py). With 8 bits, ONNX Runtime saturates on x86 without VNNI; unsigned weights (U8U8) do not, but are slower there,
and the session option session.x64quantprecision is not stored in the file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pretune.backbones.onnx_runtime import open_session, padded_inputs
from pretune.nn.quantized.int8 import LARGEST_7_BIT
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import PretuneError
from pretune.runtime.optional_imports import import_optional
from pretune.runtime.quiet_libraries import quiet_libraries

OPERATORS = ["MatMul", "Gemm", "Gather"]  # linear layers and embeddings
PURPOSE = "quantization of an ONNX graph"  # what the optional imports are for, in messages
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators


def quantize_graph_dynamic(graph: Path, out: Path, per_channel: bool) -> None:
    """Quantize an ONNX graph to int8, with activation ranges computed in each call, and write it to `out`.

    With `per_channel`, every output channel of a weight matrix has its own scale.
    """
    quantization = import_optional("onnxruntime.quantization", PURPOSE)
    with prepared(graph, out) as (ready, quantized):
        quantization.quantize_dynamic(
            str(ready),
            str(quantized),
            op_types_to_quantize=[*OPERATORS, "LSTM"],
            per_channel=per_channel,
            reduce_range=True,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )


def quantize_graph_static(graph: Path, out: Path, per_channel: bool, batches: Iterable[Batch]) -> None:
    """Quantize an ONNX graph to int8, with activation ranges measured on `batches`, and write it to `out`.

    With `per_channel`, every output channel of a weight matrix has its own scale.
    """
    quantization = import_optional("onnxruntime.quantization", PURPOSE)
    with prepared(graph, out) as (ready, quantized):
        quantization.quantize_static(
            str(ready),
            str(quantized),
            CalibrationReader(ready, batches),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=OPERATORS,
            per_channel=per_channel,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True, "TensorQuantOverrides": whole_embeddings(ready)},
        )


def whole_embeddings(graph: Path) -> dict[str, list[dict[str, bool]]]:
    """Return ONNX Runtime options, by tensor name, that quantize the embeddings of a graph to 8 bits instead of 7."""
    onnx = import_optional("onnx", PURPOSE)
    content = onnx.load(graph).graph
    constants = {entry.name for entry in content.initializer}
    tables = {node.input[0] for node in content.node if node.op_type == "Gather" and node.input[0] in constants}
    return {name: [{"reduce_range": False}] for name in tables}


def quantize_graph_learned(graph: Path, out: Path) -> None:
    """Write the int8 form of an ONNX graph from quantization-aware training, whose weights are already rounded."""
    onnx, quantization = import_optional("onnx", PURPOSE), import_optional("onnxruntime.quantization", PURPOSE)
    with prepared(graph, out) as (ready, quantized):
        model = onnx.load(ready)
        store_weights(model)
        onnx.save(model, quantized)
        if any(node.op_type == "LSTM" for node in model.graph.node):  # LSTM activations have no learned ranges
            quantized.replace(ready)
            options: dict[str, Any] = {"op_types_to_quantize": ["LSTM"], "weight_type": quantization.QuantType.QInt8}
            quantization.quantize_dynamic(str(ready), str(quantized), per_channel=True, reduce_range=True, **options)


def store_weights(model: Any) -> None:
    """Replace float weights of an ONNX model by int8 weights, in place.

    This applies to weights that are multiplied with quantized activations, and to embeddings.
    """
    onnx = import_optional("onnx", PURPOSE)
    graph = model.graph
    constants = {entry.name: onnx.numpy_helper.to_array(entry) for entry in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}

    def store(name: str, axis: int, largest: int) -> tuple[str, str]:
        """Add an int8 copy of a constant and its scales along `axis` to the graph; return the names of both."""
        names = f"{name}.int8", f"{name}.scale"
        if names[0] not in constants:
            if not is_rounded(constants[name], axis, largest):
                raise PretuneError(f"{name}: this weight was not rounded in training; please report this as a bug")
            for new, value in zip(names, quantize_along(constants[name], axis, largest), strict=True):
                constants[new] = value
                graph.initializer.append(onnx.numpy_helper.from_array(value, new))
        return names

    nodes = []
    for node in graph.node:
        quantized = producers.get(node.input[0]) if node.op_type in ("MatMul", "Gemm") else None
        if quantized is not None and quantized.op_type == "DequantizeLinear" and node.input[1] in constants:
            x, scale, zero = quantized.input
            weight, weight_scale = store(node.input[1], 1, LARGEST_7_BIT)
            # An int8 product with float output; a DequantizeLinear on both sides would be folded into a float Gemm.
            inputs = [x, weight, scale, weight_scale, zero, "", *node.input[2:]]
            nodes.append(
                onnx.helper.make_node("MatMulIntegerToFloat", inputs, node.output, node.name, domain=MICROSOFT)
            )
        elif node.op_type == "Gather" and is_rounded(constants.get(node.input[0]), 0, 127):
            table, scale = store(node.input[0], 0, 127)
            out, axes = node.output[0], f"{node.output[0]}.axes"
            graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1]), axes))
            for op, inputs, output, attributes in (
                ("Gather", [table, node.input[1]], f"{out}.rows", {}),
                ("Cast", [f"{out}.rows"], f"{out}.float", {"to": 1}),
                ("Gather", [scale, node.input[1]], f"{out}.scales", {}),
                ("Unsqueeze", [f"{out}.scales", axes], f"{out}.column", {}),
                ("Mul", [f"{out}.float", f"{out}.column"], out, {}),
            ):
                nodes.append(onnx.helper.make_node(op, inputs, [output], f"{output}.node", **attributes))
        else:
            nodes.append(node)
    used = {name for node in nodes for name in node.input} | {entry.name for entry in graph.output}
    del graph.node[:]
    graph.node.extend(node for node in nodes if node.op_type != "DequantizeLinear" or node.output[0] in used)
    filter_entries(graph.initializer, lambda entry: entry.name in used)
    if not any(entry.domain == MICROSOFT for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))


def quantize_along(weight: Array, axis: int, largest: int) -> tuple[Array, Array]:
    """Quantize a matrix to integers of magnitude up to `largest`; return these and one scale per index of `axis`."""
    scale = np.maximum(np.abs(weight).max(1 - axis) / largest, 1e-12).astype(np.float32)
    wide = scale[None, :] if axis else scale[:, None]
    return np.rint(weight / wide).clip(-largest, largest).astype(np.int8), scale


def is_rounded(weight: Array | None, axis: int, largest: int) -> bool:
    """Return whether a matrix was rounded already, that is, whether `quantize_along` would not change its values."""
    if weight is None or weight.ndim != 2 or weight.dtype != np.float32:
        return False
    integers, scale = quantize_along(weight, axis, largest)
    wide = scale[None, :] if axis else scale[:, None]
    return bool((np.abs(integers * wide - weight) <= 1e-3 * wide).all())


@contextmanager
def prepared(graph: Path, out: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the path of a preprocessed copy of an ONNX graph, and a path to write the quantized graph to.

    At the end of the `with` block, the quantized graph is copied to `out`.
    """
    shapes = import_optional("onnxruntime.quantization.shape_inference", PURPOSE)
    with tempfile.TemporaryDirectory() as folder, quiet_libraries():
        ready = Path(folder) / "ready.onnx"
        # Symbolic shape inference leaves a copy of the model in the current folder if it fails.
        shapes.quant_pre_process(str(graph), str(ready), skip_symbolic_shape=True)
        transpose_matrices(ready)
        quantized = Path(folder) / "int8.onnx"
        yield ready, quantized
        write_bytes(out, quantized.read_bytes())


def transpose_matrices(graph: Path) -> None:
    """Transpose the constant matrices that nodes of an ONNX file read transposed, in place.

    Each matrix is transposed once, for all nodes that read it. ONNX Runtime's quantization tools would transpose it for
    each node, and do not support matrices that several layers share.
    """
    onnx = import_optional("onnx", PURPOSE)
    model = onnx.load(graph)
    constants = {entry.name: entry for entry in model.graph.initializer}
    same = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type == "Identity" and node.input[0] in constants
    }
    transposed_names: dict[str, str] = {}
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = same.get(name, name)
        transposed = next((a for a in node.attribute if a.name == "transB" and a.i), None)
        if node.op_type != "Gemm" or transposed is None or node.input[1] not in constants:
            continue
        matrix = node.input[1]
        if matrix not in transposed_names:
            transposed_names[matrix] = f"{matrix}.transposed"
            columns = np.ascontiguousarray(onnx.numpy_helper.to_array(constants[matrix]).T)
            model.graph.initializer.append(onnx.numpy_helper.from_array(columns, transposed_names[matrix]))
        transposed.i, node.input[1] = 0, transposed_names[matrix]
    outputs = {entry.name for entry in model.graph.output}
    filter_entries(model.graph.node, lambda node: node.output[0] not in same or node.output[0] in outputs)
    inputs = {name for node in model.graph.node for name in node.input}
    filter_entries(model.graph.initializer, lambda entry: entry.name not in transposed_names or entry.name in inputs)
    onnx.save(model, graph)


def filter_entries(entries: Any, keep: Callable[[Any], bool]) -> None:
    """Remove the entries for which `keep` returns False from a list of an ONNX graph, such as its nodes, in place."""
    kept = [entry for entry in entries if keep(entry)]
    del entries[:]
    entries.extend(kept)


class CalibrationReader:
    """A data reader for the calibration by ONNX Runtime, which returns the inputs of one batch at a time, then None."""

    def __init__(self, graph: Path, batches: Iterable[Batch]) -> None:
        names = {entry.name for entry in open_session(graph).get_inputs()}
        rows = [feed for batch in batches for packed in batch.packed for feed, *_ in padded_inputs(packed)]
        self.feeds = iter([{name: feed[name] for name in names} for feed in rows])

    def get_next(self) -> dict[str, Any] | None:
        """Return the next calibration inputs by name, or None at the end."""
        return next(self.feeds, None)
