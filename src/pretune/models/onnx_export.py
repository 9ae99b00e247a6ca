"""Export of a model as an ONNX graph from padded token ids to hidden states and the logits of one head.

Inside the graph, tokens are packed: padding is removed first and exists again only within attention, so that the cost
of a batch depends on its real tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.onnx import symbolic_helper

from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.onnx_runtime import GRAPH, INPUTS, LOGITS, STATES, OnnxBackbone, open_session, padded_inputs
from pretune.models.hf_config import CONFIG_FILE, DEFAULT_MAX_LENGTH
from pretune.models.length_bucketing import text_batches
from pretune.models.model import Model
from pretune.models.saving import describe_model
from pretune.models.weight_files import HEAD_FILE
from pretune.nn.attention.patterns import Pattern
from pretune.nn.attention.query_key_layout import TracedPacked
from pretune.objectives import OBJECTIVES, Task
from pretune.objectives.wrappers import CachedBackbone
from pretune.packed import Batch
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.checksummed_safetensors import write_tensors
from pretune.runtime.errors import PretuneError
from pretune.runtime.optional_imports import import_optional
from pretune.runtime.parsing import file_digest

EXPORTER: Any = torch.onnx  # parts of its public API have no types
SYMBOLIC_HELPER: Any = symbolic_helper
OPSET = 18  # the first with a scatter that takes the maximum
TOLERANCE = 1e-3  # the largest accepted difference between graph and model, relative to the largest output
LANGUAGE_MODELS = ("mlm", "lm")  # heads that map states and token embeddings to logits over the vocabulary
# The texts on which a graph is compared with its model before it is written.
TEXTS = (
    "The ferry leaves at nine.",
    "Yes.",
    "She read the letter twice, folded it, and put it back into the drawer without a word to anybody in the house.",
    "Prices rose by 3.5 % in March; nobody had expected that.",
)


@dataclass(frozen=True)
class LanguageModel:
    """A masked or causal language-model head, with logits over the vocabulary for each token."""

    name: str  # one of LANGUAGE_MODELS
    output_per: ClassVar[Literal["token"]] = "token"

    @property
    def pattern(self) -> Pattern | None:
        """The attention pattern with which a language-model head was trained."""
        return OBJECTIVES[self.name].pattern

    def outputs(self, head: nn.Module, backbone: Any, batch: Batch) -> Tensor:
        """Return the logits of a language-model head for each token of a batch, (tokens, vocabulary)."""
        logits: Tensor = head(backbone(*batch.packed).last, backbone.embed.tokens)
        return logits


GraphScorer = Task | LanguageModel  # what computes the logits of an ONNX graph


def choose_scorer(model: Model, tasks: Sequence[Task]) -> GraphScorer | None:
    """Return the task, or else the language-model head, whose logits an ONNX graph outputs; None for no logits."""
    for task in (task for task in tasks if task.name in model.root.heads):
        return None if task.reads_spans else task.with_tokenizer(model.require_tokenizer())
    return next((LanguageModel(name) for name in LANGUAGE_MODELS if name in model.root.heads), None)


class PaddedModel(nn.Module):
    """A model that takes padded inputs, (b, L), as other libraries do, instead of concatenated sequences."""

    def __init__(self, model: Model, scorer: GraphScorer | None) -> None:
        super().__init__()
        self.root, self.scorer = model.root, scorer
        self.max_length = model.backbone.max_positions or DEFAULT_MAX_LENGTH

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor, attends_all: Tensor) -> tuple[Tensor, ...]:
        """Return hidden states (b, L, width) of padded inputs (b, L) and, with a head, logits (b, [L,] classes)."""
        real = mask > 0
        rows = real.flatten().nonzero().squeeze(1)  # (n,)
        ends = mask.sum(1).cumsum(0)
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).flatten()[rows]
        packed = TracedPacked(
            ids=ids.flatten()[rows],
            offsets=torch.cat([ends.new_zeros(1), ends]).int(),
            positions=places,
            max_length=self.max_length,
            columns={"segment": segments.flatten()[rows], "global": attends_all.flatten()[rows]},
            pattern=self.scorer.pattern if self.scorer is not None else None,
            mask=real,
        )
        backbone: Any = CachedBackbone(self.root.backbone)
        states = backbone(packed).last

        def padded(x: Tensor) -> Tensor:  # (n, d) → (b, L, d); a lookup is much faster than a scatter
            token = (real.flatten().long().cumsum(0) - 1).clamp(min=0)
            return x.index_select(0, token).view(ids.shape[0], ids.shape[1], x.shape[-1]) * real[:, :, None]

        if self.scorer is None:
            return (padded(states),)
        logits = self.scorer.outputs(self.root.heads[self.scorer.name], backbone, Batch((packed,)))
        return padded(states), logits if self.scorer.output_per == "sequence" else padded(logits)


def index_add(graph: Any, x: Any, dim: Any, index: Any, source: Any, alpha: Any) -> Any:
    """Export torch's `index_add` to ONNX as ScatterElements with addition, so that rows of equal index are summed."""
    axis, rank = SYMBOLIC_HELPER._get_const(dim, "i", "dim"), source.type().dim()
    if SYMBOLIC_HELPER._get_const(alpha, "f", "alpha") != 1.0:
        source = graph.op("Mul", source, alpha)
    others = [place for place in range(rank) if place != axis % rank]
    if others:
        index = graph.op("Unsqueeze", index, graph.op("Constant", value_t=torch.tensor(others)))
    index = graph.op("Expand", index, graph.op("Shape", source))
    return graph.op("ScatterElements", x, index, source, axis_i=axis, reduction_s="add")


def write_graph(model: Model, file: Path, scorer: GraphScorer | None = None, check: bool = True) -> None:
    """Write a model as an ONNX graph; with `check`, first compare the outputs of the graph with those of the model."""
    if isinstance(model.backbone, OnnxBackbone):
        raise PretuneError(f"{model.backbone.path}: the model is an ONNX graph already; use this file")
    if model.shape.linear:
        raise PretuneError("int8 weights for torch cannot be exported to ONNX; export the model before quantization")
    if isinstance(model.backbone, EncoderDecoder):
        raise PretuneError(
            f"{model.family.name}: encoder-decoders cannot be exported as an ONNX graph; use another model"
        )
    import_optional("onnx", "the export to ONNX")  # torch.onnx.export imports it, with an error of its own
    module = PaddedModel(model, scorer).cpu().eval()
    axes: dict[str, dict[int, str]] = {name: {0: "rows", 1: "length"} for name in (*INPUTS, STATES)}
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
                output_names=output_names(scorer),
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


def remove_idle_casts(file: Path) -> None:
    """Remove casts of values to the type that they have from an ONNX file.

    torch 2.11 writes them, and quantization of the graph does not recognize weights and ranges behind them.
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


def _names_in_branches(graph: Any) -> Iterator[str]:
    """Yield the names of inputs of nodes in the branches of an ONNX graph, such as those of `If`."""
    for node in graph.node:
        for branch in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
            yield from (name for inner in branch.node for name in inner.input)
            yield from _names_in_branches(branch)


def synthetic_inputs(lengths: list[int], vocabulary: int, longest: int) -> tuple[Tensor, ...]:
    """Return synthetic inputs of an ONNX graph, padded sequences of the given lengths."""
    lengths = [min(length, longest) for length in lengths]
    steps = torch.arange(max(lengths))
    mask = (steps < torch.tensor(lengths)[:, None]).long()
    ids = (steps * 7 + torch.arange(len(lengths))[:, None] * 13 + 5) % vocabulary
    first = (steps == 0).long().expand_as(mask)  # the global attention of Longformer's classifiers
    return ids * mask, mask, torch.zeros_like(mask), first


def check_graph(model: Model, scorer: GraphScorer | None, file: Path) -> None:
    """Raise an error if the outputs of an ONNX graph differ from those of the model that it was exported from."""
    for (name, ours), theirs in zip(model_outputs(model, scorer), graph_outputs(model, scorer, file), strict=True):
        difference = float((theirs - ours).abs().max()) / max(1.0, float(ours.abs().max()))
        if not difference < TOLERANCE:  # also true for NaN
            raise PretuneError(
                f"{model.family.name}: the {name} of the graph differ from the model's by {difference:.2g} of the largest "
                "value, so the graph is not usable; please report this as a bug"
            )


def inputs_to_compare(model: Model) -> Iterator[tuple[Tensor, ...]]:
    """Yield inputs on which an ONNX graph is compared with its model: synthetic ones, and tokenized sentences."""
    longest = model.backbone.max_positions or DEFAULT_MAX_LENGTH
    yield synthetic_inputs([2, 7, 4, 1], model.config.vocab_size, longest)
    if model.tokenizer is not None:
        for batch in text_batches(model, TEXTS, length=min(longest, DEFAULT_MAX_LENGTH)):
            for feed, _ in padded_inputs(batch.packed[0]):
                yield tuple(torch.from_numpy(feed[name]) for name in INPUTS)


@torch.no_grad()
def model_outputs(model: Model, scorer: GraphScorer | None) -> list[tuple[str, Tensor]]:
    """Return the outputs of a model for the inputs of `inputs_to_compare`, as pairs of name and tensor."""
    module = PaddedModel(model, scorer).cpu().eval()
    rows = list(inputs_to_compare(model))
    return [pair for inputs in rows for pair in zip(output_names(scorer), module(*inputs), strict=True)]


def graph_outputs(model: Model, scorer: GraphScorer | None, file: Path) -> list[Tensor]:
    """Return the outputs of an ONNX graph for the inputs of `inputs_to_compare`, in the order of `model_outputs`."""
    session = open_session(file)
    names, found = {entry.name for entry in session.get_inputs()}, []
    for inputs in inputs_to_compare(model):
        feed = {name: x.numpy() for name, x in zip(INPUTS, inputs, strict=True) if name in names}
        try:
            found += session.run(output_names(scorer), feed)
        except Exception as error:  # ONNX Runtime has no common class for its errors
            reason = str(error).splitlines()[0]
            raise PretuneError(
                f"{model.family.name}: ONNX Runtime cannot run its graph ({reason}); use the model with pretune"
            ) from error
    return [torch.from_numpy(output) for output in found]


def output_names(scorer: GraphScorer | None) -> list[str]:
    """Return the names of an ONNX graph's outputs: hidden states and, if `scorer` is a task or LM head, logits."""
    return [STATES] if scorer is None else [STATES, LOGITS]


def export_graph(model: Model, folder: Path, tasks: Sequence[Task] = ()) -> dict[str, Any]:
    """Write a folder with an ONNX graph, tokenizer, configuration and heads; return its file and output names."""
    scorer = choose_scorer(model, tasks)
    write_graph(model, folder / GRAPH, scorer)
    write_graph_folder(model, folder)
    facts: dict[str, Any] = {"folder": str(folder), "files": sorted(file.name for file in folder.iterdir())}
    return {**facts, "outputs": output_names(scorer)}


def write_graph_folder(model: Model, folder: Path) -> None:
    """Write the configuration, the heads, and the tokenizer of a model next to its ONNX graph."""
    heads = {name: tensor for name, tensor in model.state().items() if name.startswith("heads.")}
    # Language-model heads need the token embedding, which the graph does not output.
    needed = {name: tensor for name, tensor in heads.items() if name.split(".")[1] not in LANGUAGE_MODELS}
    if needed:
        write_tensors(folder / HEAD_FILE, needed)
    config = describe_model(model)
    config["pretune"] |= {"engine": "onnxruntime", "graph_sha256": file_digest(folder / GRAPH)}
    write_json(folder / CONFIG_FILE, config)
    if model.tokenizer is not None:
        model.tokenizer.save(folder, model.family.template, model.backbone.max_positions)
