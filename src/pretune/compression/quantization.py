"""From a trained model to one of fewer bits, in a folder that is used like any model and says what was gained and lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, get_args

import torch
from annotated_types import Ge, Le

from pretune.backbones.onnx_runtime import GRAPH
from pretune.compression.measurement import some_texts
from pretune.compression.onnx_int8 import dynamic, learned, static
from pretune.compression.pruning import copied
from pretune.compression.recovery import Recovery, as_recipe, plan_of
from pretune.compression.task_model import Trained, beside
from pretune.inference.batching import text_batches
from pretune.models.model import Model
from pretune.models.onnx_export import Scorer, choose_scorer, finish_folder, graph_outputs, model_outputs, write_graph
from pretune.nn.quantized.int8 import check_kind, replace_linears
from pretune.nn.quantized.quantization_aware import use_ranges
from pretune.nn.recurrent import asks_the_host
from pretune.objectives import Task
from pretune.objectives.tasks.layer_features import On
from pretune.runtime.errors import PretuneError
from pretune.runtime.output_paths import intermediate
from pretune.runtime.parsing import conform, read_mapping
from pretune.training.jobs.finetuning import RANGES, finetune
from pretune.training.run_folder import Run, finish_run, start_run
from pretune.training.settings import Budget

Range = Annotated[float, Ge(0), Le(1e30)]  # the largest magnitude of an activation; NaN is none
How = Literal["dynamic", "static", "aware", "weights", "bf16", "fp16"]
Engine = Literal["onnx", "torch"]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Order:
    """What is to be quantized, and how."""

    model: str
    out: Path
    how: How = "dynamic"
    engine: Engine | None = None  # None: what suits the model
    per_channel: bool = True
    bits: int = 8  # of weights, where these alone are integers
    train: str | None = None
    dev: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    epochs: float = 1.0
    budget: Budget | None = None
    learning: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    device: str | None = None
    partial: bool = False

    def recipe(self) -> dict[str, Any]:
        """Everything that decides the outcome, under the names of the verb's options."""
        known: dict[str, Any] = {
            "model": self.model,
            "how": self.how,
            "engine": self.engine,
            "per_channel": self.per_channel,
            "bits": self.bits,
        }
        known |= {"train": self.train, "dev": self.dev, **self.columns, "seed": self.seed}
        return as_recipe(known, self.learning, self.budget)


def carry_out(order: Order) -> Run:
    """Quantize, and compare."""
    if order.how not in get_args(How):
        raise PretuneError(f"--how {order.how}: there are {', '.join(get_args(How))}")
    before = Trained.load(order.model, order.partial)
    copied(before.model)  # refuses what is int8 already
    engine = order.engine or choose_engine(order.how, before)
    check(order, engine, before)
    rows, dev = (before.read(file, order.columns) for file in (order.train, order.dev))
    source = before
    models = {"before": before}
    if order.how == "aware" and order.train is not None:
        folder = intermediate(order.out, "aware")
        learning = Recovery(order.train, order.dev, order.columns, order.epochs, order.budget, order.learning)
        finetune(plan_of(order.model, folder, before.objective, learning, "full+int8", order.seed, order.device))
        source = Trained.load(folder)
        models["trained for int8"] = source
        # The control: int8 for a model that was not trained for it.
        plain = intermediate(order.out, "control")
        control = replace(order, out=plain, how="dynamic")
        start_run(plain, "quantize", control.recipe(), resume=False)
        write(control, engine, before, rows)
        finish_run(plain, {"model": order.model, "how": "dynamic", "engine": engine})
        models["quantized without that"] = Trained.load(plain)
    start_run(order.out, "quantize", order.recipe(), resume=False)
    write(order, engine, source, rows)
    models["quantized"] = Trained.load(order.out)
    facts = {"model": order.model, "how": order.how, "engine": engine}
    return finish_run(order.out, {**facts, **beside(models, dev)})


def choose_engine(how: How, source: Trained) -> Engine:
    """Return torch for generative models, for heads that need more than a graph gives, and where only the file gets smaller."""
    if how in ("static", "aware"):
        return "onnx"
    small = how in ("weights", *HALVES)
    return "torch" if small or "lm" in source.model.root.heads or beyond_graph(source.task) else "onnx"


def beyond_graph(task: Task | None) -> str:
    """Return why the head of a task cannot be used with a graph, which gives the states of the top layer alone, or ""."""
    if isinstance(task, On):
        return "its head reads other layers than the last"
    if task is not None and task.on_language_head:
        return "its head is that of the language model, which needs the token embeddings"
    return ""


def check(order: Order, engine: Engine, source: Trained) -> None:
    """Refuse what does not go together, before anything is made."""
    model = source.model
    if order.how == "aware" and order.train is None and not (source.folder / RANGES).is_file():
        raise PretuneError(
            "--how aware trains for int8; give rows with --train, or a model made by `pretune finetune --strategy full+int8`"
        )
    if order.how == "weights" and engine != "torch":
        raise PretuneError("--how weights reads int8 weights by torch's kernels; leave --engine out")
    if order.bits not in (4, 8) or (order.bits == 4 and order.how != "weights"):
        raise PretuneError(f"--bits {order.bits}: weights have 8 bits, or 4 with --how weights")
    if order.how in ("static", "aware") and engine != "onnx":
        raise PretuneError(
            f"--how {order.how} fixes the ranges of activations, which only ONNX Runtime can use; leave --engine out"
        )
    if not order.per_channel and engine != "onnx":
        raise PretuneError("--no-per-channel applies only to the onnx engine; leave it out")
    if engine == "onnx" and (reason := beyond_graph(source.task)):
        kind = source.need_task("it is quantized").kind
        raise PretuneError(
            f"{kind} cannot be used with a graph: {reason}; use `pretune quantize --how dynamic --engine torch`"
        )
    if engine == "torch" and order.how not in HALVES and asks_the_host(model.root):
        raise PretuneError(
            "int8 recurrent cells are ONNX Runtime's; use `pretune quantize --engine onnx` on a model fine-tuned for a task"
        )
    if order.how == "static" and asks_the_host(model.root):
        raise PretuneError(
            "the inputs of recurrent cells are measured while they run; use `pretune quantize --how dynamic`"
        )
    if engine == "torch" and order.how not in HALVES:
        check_kind(linear_kind(order))


def linear_kind(order: Order) -> str:
    """Return the kind of linear layers that torch runs."""
    return ("int4" if order.bits == 4 else "weights") if order.how == "weights" else "dynamic"


def write(order: Order, engine: Engine, source: Trained, rows: Any) -> None:
    """Write the quantized model to its folder."""
    model, out = copied(source.model), order.out
    if order.how in HALVES:
        model.save(out, HALVES[order.how])
        return
    if engine == "torch":
        model.shape = replace(model.shape, linear=linear_kind(order))
        replace_linears(model.backbone, model.shape.linear)
        model.save(out)
        return
    # Logits of a language model are left out: its matrix would be in the graph twice.
    scorer = None if source.task is None else choose_scorer(model, [source.task])
    with TemporaryDirectory() as folder:
        graph = Path(folder) / GRAPH
        match order.how:
            case "aware":
                ranges = read_ranges(source.folder / RANGES)
                write_learned(model, scorer, ranges, graph, out / GRAPH)
            case "static":
                write_graph(model, graph, scorer)
                batches = source.examples(rows).batches or list(text_batches(model, some_texts(), length=128))
                static(graph, out / GRAPH, order.per_channel, batches)
            case _:
                write_graph(model, graph, scorer)
                dynamic(graph, out / GRAPH, order.per_channel)
    finish_folder(model, out)


def read_ranges(path: Path) -> dict[str, float]:
    """Return the ranges of activations that quantization-aware training learned, by the path of their layer."""
    return conform(read_mapping(path, "ranges of activations"), dict[str, Range], str(path))


def write_learned(model: Model, scorer: Scorer | None, ranges: Mapping[str, float], draft: Path, out: Path) -> None:
    """Write the int8 graph of a model whose activations are quantized by ranges learned in training.

    It must be about as close to the fake-quantized model as that is to the float model. It cannot be much closer: a number at
    the edge between two steps is rounded either way, and each layer makes more of the difference.
    """
    plain = model_outputs(model, scorer)
    use_ranges(model.backbone, ranges)
    trained = model_outputs(model, scorer)
    write_graph(model, draft, scorer, check=False)
    learned(draft, out)
    for (name, before), (_, after), found in zip(plain, trained, graph_outputs(model, scorer, out), strict=True):
        noise = float((after - before).square().mean().sqrt()) + 0.01 * float(before.square().mean().sqrt())
        if not float((found - after).square().mean().sqrt()) < 2 * noise:
            raise PretuneError(
                f"{out}: {name} of the int8 graph are not those of the trained model; please report this"
            )
