"""Quantization of a trained model into a folder that is used like any model, with a comparison of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, get_args

import torch
from annotated_types import Ge, Le

from pretune.backbones.onnx_runtime import GRAPH
from pretune.compression.benchmark import synthetic_texts
from pretune.compression.compression_job import CompressionJob
from pretune.compression.onnx_int8 import quantize_graph_dynamic, quantize_graph_learned, quantize_graph_static
from pretune.compression.pruning import editable_copy
from pretune.compression.task_model import TrainedModel, compare_models
from pretune.models.length_bucketing import text_batches
from pretune.models.model import Model
from pretune.models.onnx_export import (
    GraphScorer,
    choose_scorer,
    graph_outputs,
    model_outputs,
    write_graph,
    write_graph_folder,
)
from pretune.nn.quantized.int8 import check_kind, replace_linears
from pretune.nn.quantized.quantization_aware import set_input_ranges
from pretune.nn.recurrent import has_recurrent_layers
from pretune.objectives import Task
from pretune.objectives.tasks.layer_features import OnLayerFeatures
from pretune.runtime.errors import PretuneError
from pretune.runtime.output_paths import intermediate_folder
from pretune.runtime.parsing import read_mapping, validate_schema
from pretune.training.jobs.finetuning import RANGES, finetune
from pretune.training.run_folder import Run, finish_run, start_run

ActivationRange = Annotated[float, Ge(0), Le(1e30)]  # the largest magnitude of an activation; NaN is refused
QuantizationMethod = Literal["dynamic", "static", "aware", "weights", "bf16", "fp16"]
Engine = Literal["onnx", "torch"]
HALF_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class QuantizationJob(CompressionJob):
    """A quantization job with all settings resolved: the model, the method, and the data."""

    model: str
    how: QuantizationMethod = "dynamic"
    engine: Engine | None = None  # None: chosen by the model
    per_channel: bool = True
    bits: int = 8  # of the weights, for how="weights"
    epochs: float = 1.0
    partial: bool = False

    def recipe(self) -> dict[str, Any]:
        """Return the options that determine the result, under the names of the verb's options."""
        names = ("model", "how", "engine", "per_channel", "bits", "train", "dev")
        options = {name: getattr(self, name) for name in names}
        return self.write_recipe({**options, **self.columns, "seed": self.seed})


def run_quantization(job: QuantizationJob) -> Run:
    """Quantize a model, compare it with the original, and return the run."""
    if job.how not in get_args(QuantizationMethod):
        raise PretuneError(f"--how {job.how}: unknown method; choose one of {', '.join(get_args(QuantizationMethod))}")
    before = TrainedModel.load(job.model, job.partial)
    editable_copy(before.model)  # an error for a model that is quantized already
    engine = job.engine or choose_engine(job.how, before)
    check_options(job, engine, before)
    rows, dev = (before.read(file, job.columns) for file in (job.train, job.dev))
    source = before
    models = {"before": before}
    if job.how == "aware" and job.train is not None:
        folder = intermediate_folder(job.out, "aware")
        finetune(job.finetuning(job.model, folder, before.objective, "full+int8"))
        source = TrainedModel.load(folder)
        models["trained for int8"] = source
        plain = intermediate_folder(job.out, "control")
        control = replace(job, out=plain, how="dynamic")
        start_run(plain, "quantize", control.recipe(), resume=False)
        write_quantized(control, engine, before, rows)
        finish_run(plain, {"model": job.model, "how": "dynamic", "engine": engine})
        models["quantized without that"] = TrainedModel.load(plain)
    start_run(job.out, "quantize", job.recipe(), resume=False)
    write_quantized(job, engine, source, rows)
    models["quantized"] = TrainedModel.load(job.out)
    facts = {"model": job.model, "how": job.how, "engine": engine}
    return finish_run(job.out, {**facts, **compare_models(models, dev)})


def choose_engine(how: QuantizationMethod, source: TrainedModel) -> Engine:
    """Return the default engine of a quantization method for a model, onnx or torch.

    It is torch for generative models, for heads that an ONNX graph cannot feed, and to make only the file smaller.
    """
    if how in ("static", "aware"):
        return "onnx"
    small = how in ("weights", *HALF_PRECISION)
    return "torch" if small or "lm" in source.model.root.heads or graph_obstacle(source.task) else "onnx"


def graph_obstacle(task: Task | None) -> str:
    """Return why the head of a task cannot use an ONNX graph, which outputs only the last layer, or "" if it can."""
    if isinstance(task, OnLayerFeatures):
        return "its head reads several layers"
    if task is not None and task.uses_language_model_head:
        return "its head is a language modeling head, which needs the token embeddings"
    return ""


def check_options(job: QuantizationJob, engine: Engine, source: TrainedModel) -> None:
    """Raise an error for options that contradict each other or do not fit the model."""
    model = source.model
    if job.how == "aware" and job.train is None and not (source.folder / RANGES).is_file():
        raise PretuneError(
            "--how aware trains the model for int8; give examples with --train, or a model that was fine-tuned with "
            "--strategy full+int8"
        )
    if job.how == "weights" and engine != "torch":
        raise PretuneError("--how weights uses torch's int8 kernels; leave --engine out")
    if job.bits not in (4, 8) or (job.bits == 4 and job.how != "weights"):
        raise PretuneError(f"--bits {job.bits}: weights can have 8 bits, or 4 with --how weights")
    if job.how in ("static", "aware") and engine != "onnx":
        raise PretuneError(
            f"--how {job.how} fixes the ranges of activations, which only the onnx engine supports; leave --engine out"
        )
    if not job.per_channel and engine != "onnx":
        raise PretuneError("--no-per-channel applies only to the onnx engine; leave it out")
    if engine == "onnx" and (reason := graph_obstacle(source.task)):
        kind = source.require_task("an ONNX graph needs one").kind
        raise PretuneError(
            f"{kind} cannot be used with an ONNX graph: {reason}; use `pretune quantize --how dynamic --engine torch`"
        )
    if engine == "torch" and job.how not in HALF_PRECISION and has_recurrent_layers(model.root):
        raise PretuneError(
            "the torch engine has no int8 recurrent cells; use `pretune quantize --engine onnx` on a model that was "
            "fine-tuned for a task"
        )
    if job.how == "static" and has_recurrent_layers(model.root):
        raise PretuneError("--how static does not support recurrent cells; use `pretune quantize --how dynamic`")
    if engine == "torch" and job.how not in HALF_PRECISION:
        check_kind(linear_kind(job))


def linear_kind(job: QuantizationJob) -> str:
    """Return the kind of quantized linear layer that the torch engine uses: int4, weights, or dynamic."""
    return ("int4" if job.bits == 4 else "weights") if job.how == "weights" else "dynamic"


def write_quantized(job: QuantizationJob, engine: Engine, source: TrainedModel, rows: Any) -> None:
    """Quantize a model and write it to the folder of a job; `rows` are examples for calibration, or None."""
    model, out = editable_copy(source.model), job.out
    if engine == "torch" and job.how not in HALF_PRECISION:
        model.shape = replace(model.shape, linear=linear_kind(job))
        replace_linears(model.backbone, model.shape.linear)
    if engine == "torch" or job.how in HALF_PRECISION:
        model.save(out, HALF_PRECISION.get(job.how, torch.float32))
        return
    # Without logits for a language model: its output matrix would be in the graph twice.
    scorer = None if source.task is None else choose_scorer(model, [source.task])
    with TemporaryDirectory() as folder:
        graph = Path(folder) / GRAPH
        if job.how == "aware":
            write_aware_graph(model, scorer, read_ranges(source.folder / RANGES), graph, out / GRAPH)
        else:
            write_graph(model, graph, scorer)
        if job.how == "static":
            batches = source.importance_data(rows).batches or list(text_batches(model, synthetic_texts(), length=128))
            quantize_graph_static(graph, out / GRAPH, job.per_channel, batches)
        elif job.how == "dynamic":
            quantize_graph_dynamic(graph, out / GRAPH, job.per_channel)
    write_graph_folder(model, out)


def read_ranges(path: Path) -> dict[str, float]:
    """Return the activation ranges from quantization-aware training that a file has, by the path of the layer."""
    return validate_schema(read_mapping(path, "ranges of activations"), dict[str, ActivationRange], str(path))


def write_aware_graph(
    model: Model, scorer: GraphScorer | None, ranges: Mapping[str, float], draft: Path, out: Path
) -> None:
    """Write the int8 graph of a model with activation ranges from quantization-aware training, and check its outputs.

    The outputs of the graph must be about as close to those of the fake-quantized model as the latter are to those of the float
    model. They cannot be much closer: a value halfway between two steps may be rounded either way, and each layer amplifies
    the difference.
    """
    plain = model_outputs(model, scorer)
    set_input_ranges(model.backbone, ranges)
    trained = model_outputs(model, scorer)
    write_graph(model, draft, scorer, check=False)
    quantize_graph_learned(draft, out)
    for (name, before), (_, after), found in zip(plain, trained, graph_outputs(model, scorer, out), strict=True):
        noise = float((after - before).square().mean().sqrt()) + 0.01 * float(before.square().mean().sqrt())
        if not float((found - after).square().mean().sqrt()) < 2 * noise:
            raise PretuneError(
                f"{out}: the {name} of the int8 graph differ from those of the trained model; please report this as a bug"
            )
