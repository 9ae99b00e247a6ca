"""Export of a model as an ONNX graph from padded token ids to hidden states and the logits of one head."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.onnx import symbolic_helper

from pretune.backbones.onnx_runtime import (
    ALL_TOKENS,
    ENGINE,
    GRAPH,
    INPUTS,
    LAYER_STATES,
    LOGITS,
    MOBILE_GRAPH,
    STATES,
    TOKEN_STATES,
    open_session,
)
from pretune.models.hf_config import CONFIG_FILE, DEFAULT_MAX_LENGTH
from pretune.models.model import Model
from pretune.models.padded_model import (
    LANGUAGE_MODELS,
    PaddedModel,
    Scorer,
    check_exportable,
    check_outputs,
    choose_scorer,
    head_layers,
    inputs_to_compare,
    model_outputs,
    output_names,
    synthetic_inputs,
    token_states,
)
from pretune.models.saving import describe_model, save_bag_of_words
from pretune.models.weight_files import HEAD_FILE
from pretune.objectives import Task
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.checksummed_safetensors import write_tensors
from pretune.runtime.errors import PretuneError
from pretune.runtime.optional_imports import import_optional
from pretune.runtime.parsing import file_digest
from pretune.runtime.quiet_libraries import quiet_libraries

EXPORTER: Any = torch.onnx  # parts of its public API have no types
SYMBOLIC_HELPER: Any = symbolic_helper
OPSET = 18  # the first with a scatter that takes the maximum
OPERATORS = "required_operators.config"  # what a custom build of ONNX Runtime needs for a graph in its mobile format
INT8_TOLERANCE = 0.25  # the largest accepted error of int8 outputs, relative to the outputs (root mean squares)


def index_add(graph: Any, x: Any, dim: Any, index: Any, source: Any, alpha: Any) -> Any:
    """Translate torch's `index_add` to the ONNX operator ScatterElements, which sums rows with equal index.

    The exporter of torch calls this function when it converts a model.
    """
    axis, rank = SYMBOLIC_HELPER._get_const(dim, "i", "dim"), source.type().dim()
    if SYMBOLIC_HELPER._get_const(alpha, "f", "alpha") != 1.0:
        source = graph.op("Mul", source, alpha)
    others = [place for place in range(rank) if place != axis % rank]
    if others:
        index = graph.op("Unsqueeze", index, graph.op("Constant", value_t=torch.tensor(others)))
    index = graph.op("Expand", index, graph.op("Shape", source))
    return graph.op("ScatterElements", x, index, source, axis_i=axis, reduction_s="add")


def write_graph(model: Model, file: Path, scorer: Scorer | None = None, check: bool = True) -> None:
    """Write a model as an ONNX graph; with `check`, raise an error if its outputs differ from those of the model.

    `scorer` is the task or the language-model head whose logits the graph outputs next to hidden states, if any.
    """
    check_exportable(model, "an ONNX graph")
    import_optional("onnx", "the export to ONNX")  # torch.onnx.export imports it, with an error of its own
    module = PaddedModel(model, scorer, graph_output_names(model, scorer)).cpu().eval()
    axes: dict[str, dict[int, str]] = {name: {0: "rows", 1: "length"} for name in (*INPUTS, STATES)}
    axes |= {LAYER_STATES.format(number): {0: "rows", 1: "length"} for number in head_layers(model)}
    axes |= {name: {0: "rows"} for name in TOKEN_STATES.values()}
    axes[LOGITS] = {0: "rows"} if scorer is not None and scorer.output_per == "sequence" else {0: "rows", 1: "length"}
    sizes = model.config.vocab_size, model.backbone.max_positions or DEFAULT_MAX_LENGTH
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")
    EXPORTER.register_custom_op_symbolic("aten::index_add", index_add, OPSET)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer warns of constants that are in fact the same for all batches
            torch.onnx.export(
                module,
                synthetic_inputs([5, 3], *sizes),
                str(draft),
                input_names=list(INPUTS),
                output_names=module.outputs,
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
                do_constant_folding=False,  # ONNX Runtime does it; here it would store shared matrices twice
            )
        remove_idle_casts(draft)
        if check:
            check_graph(model, scorer, draft)
        write_bytes(file, draft.read_bytes())
    except (RuntimeError, TypeError, torch.onnx.errors.OnnxExporterError) as error:
        reason = str(error).strip().splitlines()[0]
        raise PretuneError(
            f"{model.family.name}: this model cannot be exported as an ONNX graph ({reason}); use it with pretune"
        ) from error
    finally:
        EXPORTER.unregister_custom_op_symbolic("aten::index_add", OPSET)
        draft.unlink(missing_ok=True)


def graph_output_names(model: Model, scorer: Scorer | None) -> list[str]:
    """Return the names of the outputs of a model's graph: those of every export, and those that only heads read.

    The latter are states of single tokens and of lower layers.
    """
    return [*output_names(scorer), *token_states(model), *map(LAYER_STATES.format, head_layers(model))]


def remove_idle_casts(file: Path) -> None:
    """Remove nodes from an ONNX file that cast a value to the type that it already has.

    torch 2.11 writes such nodes, and they prevent the quantization of a graph from recognizing weights and value
    ranges.
    """
    onnx = import_optional("onnx", "the export to ONNX")
    model = onnx.load(file)
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = [*graph.input, *graph.value_info]
    kinds = {value.name: value.type.tensor_type.elem_type for value in values}
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    fixed = {value.name for value in graph.output} | set(_names_in_branches(graph))
    source: dict[str, str] = {}  # result of an idle cast → its input
    kept = []
    for node in model.graph.node:  # in topological order
        for place, name in enumerate(node.input):
            node.input[place] = source.get(name, name)
        idle = node.op_type == "Cast" and node.output[0] not in fixed
        if idle and kinds.get(node.input[0]) == node.attribute[0].i:
            source[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    if source:
        del model.graph.node[:]
        model.graph.node.extend(kept)
        onnx.save(model, file)


def make_states_optional(file: Path) -> None:
    """Let a graph with token states compute the states of all tokens only on request, by the optional input `all_tokens`.

    ONNX Runtime computes all outputs of a graph, requested or not. So the nodes that only the states of all tokens need,
    most of the top layer, become a branch of an `If`. Graphs without token states stay as they are.
    """
    onnx = import_optional("onnx", "the export to ONNX")
    model = onnx.load(file)
    graph = model.graph
    names = [entry.name for entry in graph.output]
    if not set(names) & set(TOKEN_STATES.values()):
        return
    producers = {name: number for number, node in enumerate(graph.node) for name in node.output}

    def needed(outputs: Sequence[str]) -> set[int]:
        """Return the indices of the nodes on which outputs depend."""
        found: set[int] = set()
        queue = list(outputs)
        while queue:
            number = producers.get(queue.pop())
            if number is not None and number not in found:
                found.add(number)
                queue += graph.node[number].input
        return found

    alone = needed([STATES]) - needed([name for name in names if name != STATES])
    nodes = list(graph.node)
    branch = [node for number, node in enumerate(nodes) if number in alone]
    computed = f"{STATES}.computed"
    for node in branch:
        node.output[:] = [computed if name == STATES else name for name in node.output]
    kinds = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in (computed, "nothing")]
    nothing = onnx.numpy_helper.from_array(np.zeros((0, 0, 0), dtype=np.float32))
    empty = onnx.helper.make_node("Constant", [], ["nothing"], value=nothing)
    choice = onnx.helper.make_node(
        "If",
        [ALL_TOKENS],
        [STATES],
        then_branch=onnx.helper.make_graph(branch, "all", [], kinds[:1]),
        else_branch=onnx.helper.make_graph([empty], "none", [], kinds[1:]),
    )
    del graph.node[:]
    graph.node.extend([*(node for number, node in enumerate(nodes) if number not in alone), choice])
    graph.input.append(onnx.helper.make_tensor_value_info(ALL_TOKENS, onnx.TensorProto.BOOL, []))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), ALL_TOKENS))
    onnx.save(model, file)


def _names_in_branches(graph: Any) -> Iterator[str]:
    """Yield the names of the inputs of all nodes in subgraphs of an ONNX graph, such as the branches of `If`."""
    for node in graph.node:
        for branch in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
            yield from (name for inner in branch.node for name in inner.input)
            yield from _names_in_branches(branch)


def check_graph(model: Model, scorer: Scorer | None, file: Path) -> None:
    """Raise an error if the outputs of an ONNX graph differ from those of the model that it was exported from."""
    check_outputs(model, scorer, graph_outputs(model, scorer, file), "graph", graph_output_names(model, scorer))


def graph_outputs(model: Model, scorer: Scorer | None, file: Path) -> list[Tensor]:
    """Return the outputs of an ONNX graph for the inputs of `inputs_to_compare`, in the order of `model_outputs`."""
    session = open_session(file)
    names, found = {entry.name for entry in session.get_inputs()}, []
    for inputs in inputs_to_compare(model):
        feed = {name: x.numpy() for name, x in zip(INPUTS, inputs, strict=True) if name in names}
        try:
            found += session.run(graph_output_names(model, scorer), feed)
        except Exception as error:  # ONNX Runtime has no common class for its errors
            reason = str(error).splitlines()[0]
            raise PretuneError(
                f"{model.family.name}: ONNX Runtime cannot run its graph ({reason}); use the model with pretune"
            ) from error
    return [torch.from_numpy(output) for output in found]


def export_graph(
    model: Model,
    folder: Path,
    tasks: Sequence[Task] = (),
    *,
    quantize: Callable[[Path, Path, bool], None] | None = None,
    mobile: bool = False,
) -> dict[str, Any]:
    """Write a folder with an ONNX graph, tokenizer, configuration and heads; return the names of its file and outputs.

    `quantize` writes the int8 form of a graph to another file, with one scale per channel; `mobile` writes the graph in
    the format of ONNX Runtime's mobile builds. An error is raised if the outputs of the final graph differ from those
    of the model.
    """
    scorer = choose_scorer(model, tasks)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as drafts:
        graph, operators = Path(drafts) / GRAPH, Path(drafts) / OPERATORS
        write_graph(model, graph, scorer)
        if quantize is not None:
            plain, graph = graph, Path(drafts) / "int8.onnx"
            quantize(plain, graph, True)
        make_states_optional(graph)
        if mobile:
            graph = convert_to_mobile(graph, operators)
        check = check_graph if quantize is None else check_quantized
        check(model, scorer, graph)
        write_bytes(folder / (MOBILE_GRAPH if mobile else GRAPH), graph.read_bytes())
        if mobile:
            write_bytes(folder / OPERATORS, operators.read_bytes())
    write_graph_folder(model, folder)
    facts: dict[str, Any] = {"folder": str(folder), "files": sorted(file.name for file in folder.iterdir())}
    return {**facts, "outputs": graph_output_names(model, scorer)}


def check_quantized(model: Model, scorer: Scorer | None, file: Path) -> None:
    """Raise an error if the outputs of an int8 graph differ from the model's by more than int8 rounding explains.

    All batches count together, because the logits of a single text may be close to 0.
    """
    names = graph_output_names(model, scorer)
    expected = model_outputs(model, scorer, names)
    pairs = list(zip(expected, graph_outputs(model, scorer, file), strict=True))
    for name in names:
        own = [(ours, theirs) for (output, ours), theirs in pairs if output == name]
        error = sum(float((theirs - ours).square().mean()) for ours, theirs in own)
        difference = (error / max(1e-12, sum(float(ours.square().mean()) for ours, _ in own))) ** 0.5
        if not difference < INT8_TOLERANCE:  # also true for NaN
            raise PretuneError(
                f"{model.family.name}: the {name} of the int8 graph differ from the model's by {difference:.0%}, so the graph is "
                "not usable; use `pretune quantize --method qat`, which trains the model for int8"
            )


def convert_to_mobile(graph: Path, operators: Path) -> Path:
    """Convert an ONNX graph to the format of ONNX Runtime's mobile builds, and return the new file in the same folder.

    A list of the operators that a custom build of ONNX Runtime needs for the graph is written to `operators`.
    """
    runtime = import_optional("onnxruntime", "the export to the ORT format")
    converted = graph.with_suffix(".ort")
    options = runtime.SessionOptions()
    # The highest level would choose layouts for the processor of this machine.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(converted)
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.log_severity_level = 3
    runtime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    with quiet_libraries():
        tools = import_optional("onnxruntime.tools.ort_format_model", "the export to the ORT format")
        tools.create_config_from_models([converted], operators, False)
    return converted


def write_graph_folder(model: Model, folder: Path) -> None:
    """Write the configuration, the heads, and the tokenizer of a model next to its graph, model.onnx or model.ort."""
    (graph,) = (folder / name for name in (GRAPH, MOBILE_GRAPH) if (folder / name).is_file())
    heads = {name: tensor for name, tensor in model.state().items() if name.startswith("heads.")}
    # Language-model heads need the token embedding, which the graph does not output.
    needed = {name: tensor for name, tensor in heads.items() if name.split(".")[1] not in LANGUAGE_MODELS}
    if needed:
        write_tensors(folder / HEAD_FILE, needed)
    config = describe_model(model)
    config["pretune"] |= {"engine": ENGINE, "graph_sha256": file_digest(graph)}
    write_json(folder / CONFIG_FILE, config)
    if model.tokenizer is not None:
        model.tokenizer.save(folder, model.family.template, model.backbone.max_positions)
    save_bag_of_words(model, folder)
