"""From a trained model to one of fewer bits, in a folder that is used like any model and says what was gained and lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import torch

from pretune.backbones.onnx import GRAPH
from pretune.compression.measuring import some_texts
from pretune.compression.onnx_int8 import dynamic, multiplies_bytes, static
from pretune.compression.pruning import copied
from pretune.compression.recovery import Recovery, as_recipe, plan_of
from pretune.compression.trained import Trained, beside
from pretune.errors import PretuneError
from pretune.inference.batches import text_batches
from pretune.model import Model
from pretune.nn.int8 import check_kind, replace_linears
from pretune.nn.recurrent import asks_the_host
from pretune.onnx_export import finish_folder, write_graph
from pretune.outputs import intermediate
from pretune.progress import say
from pretune.training.finetuning import finetune
from pretune.training.runs import Run, finish_run, start_run
from pretune.training.settings import Budget

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
    bits: int = 8  # of matrices, where these alone are integers
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
    copied(before.model)  # refuses what is of 8 bits already
    engine = order.engine or choose_engine(order.how, before.model)
    check(order, engine, before.model)
    rows, dev = (before.read(file, order.columns) for file in (order.train, order.dev))
    source = before
    models = {"before": before}
    if order.how == "aware":
        folder = intermediate(order.out, "aware")
        learning = Recovery(order.train or "", order.dev, order.columns, order.epochs, order.budget, order.learning)
        finetune(plan_of(order.model, folder, before.objective, learning, "full+int8", order.seed, order.device))
        source = Trained.load(folder)
        models["trained with 8 bits in mind"] = source
        # The control: the same 8 bits for a model that had them not in mind.
        plain = intermediate(order.out, "control")
        start_run(plain, "quantize", replace(order, how="dynamic").recipe(), resume=False)
        write(replace(order, out=plain), engine, before, rows)
        finish_run(plain, {"model": order.model, "how": "dynamic", "engine": engine})
        models["quantized without that"] = Trained.load(plain)
    start_run(order.out, "quantize", order.recipe(), resume=False)
    write(order, engine, source, rows)
    models["quantized"] = Trained.load(order.out)
    facts = {"model": order.model, "how": order.how, "engine": engine}
    return finish_run(order.out, {**facts, **beside(models, dev)})


def choose_engine(how: How, model: Model) -> Engine:
    """ONNX Runtime for encoders; torch where tokens are written one by one, and where only the file gets smaller."""
    return "torch" if how in ("weights", *HALVES) or "lm" in model.root.heads else "onnx"


def check(order: Order, engine: Engine, model: Model) -> None:
    """Refuse what does not go together, before anything is made."""
    if order.how == "aware" and order.train is None:
        raise PretuneError("--how aware trains with 8 bits in mind; give rows with --train")
    if order.how == "weights" and engine != "torch":
        raise PretuneError("--how weights reads matrices of 8 bits by torch's kernels; leave --engine out")
    if order.bits not in (4, 8) or (order.bits == 4 and order.how != "weights"):
        raise PretuneError(f"--bits {order.bits}: matrices have 8 bits, or 4 with --how weights")
    if not order.per_channel and engine != "onnx":
        raise PretuneError("--no-per-channel applies only to the onnx engine; leave it out")
    if order.how == "static" and engine != "onnx":
        raise PretuneError("--how static measures ranges for ONNX Runtime; leave --engine out")
    if engine == "torch" and order.how not in HALVES and asks_the_host(model.root):
        raise PretuneError(
            "recurrent cells of 8 bits are ONNX Runtime's; use `pretune quantize --engine onnx` on a task's model"
        )
    if order.how == "static" and asks_the_host(model.root):
        raise PretuneError(
            "what goes into recurrent cells is measured while they run; use `pretune quantize --how dynamic`"
        )
    if engine == "torch" and order.how not in HALVES:
        check_kind(kind_of(order))
    if engine == "onnx" and not multiplies_bytes():
        say("this processor has no instructions for 8-bit integers; the model will be smaller, but hardly faster")


def kind_of(order: Order) -> str:
    """Of linear maps, by torch."""
    return ("int4" if order.bits == 4 else "weights") if order.how == "weights" else "dynamic"


def write(order: Order, engine: Engine, source: Trained, rows: Any) -> None:
    """The artifact itself."""
    model, out = copied(source.model), order.out
    if order.how in HALVES:
        model.save(out, HALVES[order.how])
        return
    if engine == "torch":
        model.shape = replace(model.shape, linear=kind_of(order))
        replace_linears(model.backbone, model.shape.linear)
        model.save(out)
        return
    with TemporaryDirectory() as folder:
        graph = Path(folder) / GRAPH
        write_graph(model, graph, source.task)
        if order.how == "static":
            batches = source.examples(rows).batches or list(text_batches(model, some_texts(), length=128))
            static(graph, out / GRAPH, order.per_channel, batches)
        else:
            dynamic(graph, out / GRAPH, order.per_channel)
    finish_folder(model, out)
