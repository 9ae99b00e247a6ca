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
from pretune.models import onnx_export, padded_model
from pretune.models.length_bucketing import text_batches
from pretune.models.model import Model
from pretune.nn.quantized.int8 import check_kind, replace_linears
from pretune.nn.quantized.quantization_aware import set_input_ranges
from pretune.nn.recurrent import has_recurrent_layers
from pretune.objectives import Task
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.output_paths import intermediate_folder
from pretune.runtime.parsing import read_mapping, validate_schema
from pretune.text.examples.splits import warn_of_duplicates
from pretune.training.jobs.finetuning import RANGES, finetune
from pretune.training.run_folder import Run, finish_run, start_run

ActivationRange = Annotated[float, Ge(0), Le(1e30)]  # the largest magnitude of an activation; NaN is refused
QuantizationMethod = Literal["dynamic", "static", "qat", "weight-only", "bf16", "fp16"]
Backend = Literal["onnx", "torch"]
HALF_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class QuantizationJob(CompressionJob):
    """A quantization job: the model, the method, and the data."""

    model: str
    method: QuantizationMethod = "dynamic"
    backend: Backend | None = None  # None: chosen by the model
    per_channel: bool = True
    bits: int = 8  # of the weights, for method="weight-only"
    epochs: float = 1.0
    ignore_mismatched: bool = False

    def recipe(self) -> dict[str, Any]:
        """Return the options that determine the result of a quantization job, named like the command-line options."""
        names = ("model", "method", "backend", "per_channel", "bits", "train", "dev")
        options = {name: getattr(self, name) for name in names}
        return self.write_recipe({**options, **self.columns, "seed": self.seed})


def run_quantization(job: QuantizationJob) -> Run:
    """Quantize a model, compare it with the original unless the job says otherwise, and return the run."""
    if job.method not in get_args(QuantizationMethod):
        raise PretuneError(
            f"--method {job.method}: unknown method; {suggest(job.method, get_args(QuantizationMethod))}"
        )
    before = TrainedModel.load(job.model, job.ignore_mismatched)
    editable_copy(before.model)  # an error for a model that is quantized already
    backend = job.backend or choose_backend(job.method, before)
    check_options(job, backend, before)
    rows, dev = (before.read(file, job.columns) for file in (job.train, job.dev))
    if dev is not None:
        report_contamination(job, before, rows, dev)
    source = before
    models = {"before": before}
    if job.method == "qat" and job.train is not None:
        folder = intermediate_folder(job.out, "qat")
        finetune(job.finetuning(job.model, folder, before.objective, "full+int8"))
        source = TrainedModel.load(folder)
        models["trained for int8"] = source
        plain = intermediate_folder(job.out, "baseline")
        baseline = replace(job, out=plain, method="dynamic")
        start_run(plain, "quantize", baseline.recipe(), resume=False)
        write_quantized(baseline, backend, before, rows)
        finish_run(plain, {"model": job.model, "method": "dynamic", "backend": backend})
        models["quantized without that"] = TrainedModel.load(plain)
    start_run(job.out, "quantize", job.recipe(), resume=False)
    write_quantized(job, backend, source, rows)
    models["quantized"] = TrainedModel.load(job.out)
    facts = {"model": job.model, "method": job.method, "backend": backend}
    return finish_run(job.out, facts | (compare_models(models, dev) if job.compare else {}))


def report_contamination(job: QuantizationJob, source: TrainedModel, rows: Any, dev: Any) -> None:
    """Log how many of the `dev` examples are among those that the model was trained on, or among `rows` of this job."""
    learned = {} if rows is None else {str(rows.file): rows}
    if (examples := source.training_examples()) is not None:
        learned[str(examples.file)] = examples
    for file, known in learned.items():
        if job.method != "qat" or file != job.train:  # fine-tuning reports these itself
            warn_of_duplicates(known, dev)


def choose_backend(method: QuantizationMethod, source: TrainedModel) -> Backend:
    """Return "torch" for weight-only methods and for models that cannot become ONNX graphs, else "onnx"."""
    if method in ("static", "qat"):
        return "onnx"
    small = method in ("weight-only", *HALF_PRECISION)
    return "torch" if small or "lm" in source.model.root.heads or graph_obstacle(source.task) else "onnx"


def graph_obstacle(task: Task | None) -> str:
    """Return the reason why a task cannot be used with an ONNX graph, which outputs only hidden states, or ""."""
    if task is not None and task.reads_word_vectors:
        return "its head reads word vectors"
    if task is not None and task.uses_language_model_head:
        return "its head is a language modeling head, which needs the token embeddings"
    return ""


def check_options(job: QuantizationJob, backend: Backend, source: TrainedModel) -> None:
    """Raise an error for quantization options that contradict each other or do not suit the model."""
    model = source.model
    if job.method == "qat" and job.train is None and not (source.folder / RANGES).is_file():
        raise PretuneError(
            "--method qat trains the model for int8; give examples with --train, or a model made by "
            "`pretune finetune --strategy full+int8`"
        )
    if job.method == "weight-only" and backend != "torch":
        raise PretuneError("--method weight-only uses torch's int8 kernels; use --backend torch")
    if job.bits not in (4, 8) or (job.bits == 4 and job.method != "weight-only"):
        raise PretuneError(
            f"--bits {job.bits}: weights can have 8 bits or, with --method weight-only, 4; give one of these"
        )
    if job.method in ("static", "qat") and backend != "onnx":
        raise PretuneError(
            f"--method {job.method} fixes the ranges of activations, which only the onnx backend supports; use --backend onnx"
        )
    if not job.per_channel and backend != "onnx":
        raise PretuneError("--no-per-channel applies only to the onnx backend; leave out --no-per-channel")
    if backend == "onnx" and (reason := graph_obstacle(source.task)):
        kind = source.require_task("an ONNX graph needs a task").kind
        raise PretuneError(
            f"the task {kind!r} cannot be used with an ONNX graph: {reason}; use `pretune quantize --method dynamic --backend torch`"
        )
    if backend == "torch" and job.method not in HALF_PRECISION and has_recurrent_layers(model.root):
        raise PretuneError(
            "the torch backend has no int8 recurrent cells; use `pretune quantize --backend onnx` on a model that was "
            "fine-tuned for a task"
        )
    if job.method == "static" and has_recurrent_layers(model.root):
        raise PretuneError("--method static does not support recurrent cells; use `pretune quantize --method dynamic`")
    if backend == "torch" and job.method not in HALF_PRECISION:
        check_kind(linear_kind(job))


def linear_kind(job: QuantizationJob) -> str:
    """Return the kind of quantized linear layer that the torch backend uses: int4, weight-only, or dynamic."""
    return ("int4" if job.bits == 4 else "weight-only") if job.method == "weight-only" else "dynamic"


def write_quantized(job: QuantizationJob, backend: Backend, source: TrainedModel, rows: Any) -> None:
    """Quantize a model and write it to the folder of a job; `rows` are examples for calibration, or None."""
    model, out = editable_copy(source.model), job.out
    if backend == "torch" and job.method not in HALF_PRECISION:
        model.shape = replace(model.shape, linear=linear_kind(job))
        replace_linears(model.backbone, model.shape.linear)
    if backend == "torch" or job.method in HALF_PRECISION:
        model.save(out, HALF_PRECISION.get(job.method, torch.float32))
        return
    # Without logits for a language model: its output matrix would be in the graph twice.
    scorer = None if source.task is None else padded_model.choose_scorer(model, [source.task])
    with TemporaryDirectory() as folder:
        graph = Path(folder) / GRAPH
        if job.method == "qat":
            write_qat_graph(model, scorer, read_ranges(source.folder / RANGES), graph, out / GRAPH)
        else:
            onnx_export.write_graph(model, graph, scorer)
        if job.method == "static":
            batches = source.importance_data(rows).batches or list(text_batches(model, synthetic_texts(), length=128))
            quantize_graph_static(graph, out / GRAPH, job.per_channel, batches)
        elif job.method == "dynamic":
            quantize_graph_dynamic(graph, out / GRAPH, job.per_channel)
    onnx_export.make_states_optional(out / GRAPH)
    onnx_export.write_graph_folder(model, out)


def read_ranges(path: Path) -> dict[str, float]:
    """Return the largest absolute activations that quantization-aware training stored in a file, by module path."""
    return validate_schema(read_mapping(path, "ranges of activations"), dict[str, ActivationRange], str(path))


def write_qat_graph(
    model: Model, scorer: padded_model.Scorer | None, ranges: Mapping[str, float], draft: Path, out: Path
) -> None:
    """Write the int8 graph of a model with activation ranges from quantization-aware training to `out`.

    Raise an error if its outputs differ too much from those of the model with fake quantization. They may differ by
    about as much as fake quantization changes the outputs, because values between two quantization steps may be rounded
    either way. `draft` is the path of a temporary file.
    """
    names = onnx_export.graph_output_names(model, scorer)
    plain = padded_model.model_outputs(model, scorer, names)
    set_input_ranges(model.backbone, ranges)
    trained = padded_model.model_outputs(model, scorer, names)
    onnx_export.write_graph(model, draft, scorer, check=False)
    quantize_graph_learned(draft, out)
    for (name, before), (_, after), found in zip(
        plain, trained, onnx_export.graph_outputs(model, scorer, out), strict=True
    ):
        noise = float((after - before).square().mean().sqrt()) + 0.01 * float(before.square().mean().sqrt())
        if not float((found - after).square().mean().sqrt()) < 2 * noise:
            raise PretuneError(
                f"{out}: the {name} of the int8 graph differ from those of the trained model; please report this as a bug"
            )
