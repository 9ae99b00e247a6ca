"""Fine-tuning: a pretrained model and examples of a task in, a model for that task out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pretune.atomic import write_bytes, write_json
from pretune.devices import choose_device, deterministic
from pretune.errors import PretuneError
from pretune.inference.predict import Answerer
from pretune.metrics import choose, score
from pretune.model import Model, family_of, load_model, make_model, random_twin
from pretune.objectives import OBJECTIVES, Data, Mixture, Task, parse_objective
from pretune.objectives.on import On
from pretune.objectives.task import Answer
from pretune.presets import preset_names
from pretune.progress import say
from pretune.text.labeled import ROLES
from pretune.text.sequences import Arrangement, Packing
from pretune.text.splitting import FEWEST, split, warn_of_leaks
from pretune.text.tokenizer import Tokenizer
from pretune.training.loop import Stopped, Training, train
from pretune.training.optimizers import scale_rates
from pretune.training.pretraining import ROUND_VOCABULARY, check_length
from pretune.training.runs import Run, finish_run, start_run
from pretune.training.settings import Batching, Budget, Optimizer, Schedule, Watching, as_recipe, fill
from pretune.training.strategies import choose_strategy
from pretune.training.streams import make_streams

ANSWERS = "dev_answers.jsonl"  # to the examples for judging, in their order
SPLIT = "split.json"  # which rows of the file these were
# Devlin et al. (2019): 2e-5 to 5e-5, 2 to 4 epochs, batches of 16 or 32; smaller models take larger rates.
SETTINGS: dict[str, dict[str, Any]] = {
    "optimizer": {"lr": 5e-5, "decay": 0.01, "clip": 1.0},
    "schedule": {"kind": "linear", "warmup": 0.1},
    "batch": {"sequences": 32, "length": 128},
    "watching": {"save": 0, "log": 10},
}
# What some tasks have otherwise: passages are read in windows of so many tokens (Devlin et al., 2019).
SETTINGS_OF: dict[str, dict[str, Any]] = {"answer": {"batch": {"sequences": 32, "length": 384}}}


@dataclass(frozen=True)
class Plan:
    """A fine-tuning, all settings resolved."""

    model: str
    train: str
    dev: str | None
    out: Path
    columns: Mapping[str, str]
    objective: str
    strategy: str
    epochs: float
    budget: Budget | None
    optimizer: Optimizer
    schedule: Schedule
    batch: Batching
    watching: Watching
    seed: int
    seeds: int | None
    deterministic: bool
    tokenizer: str | None
    scratch: bool
    device: str | None
    partial: bool = False  # whether the model may lack tensors, or have too many
    devices: int = 1  # which seeds are shared out to

    def recipe(self) -> dict[str, Any]:
        """Everything that decides the outcome, under the names of the verb's options."""
        content = as_recipe(self, leave_out=("out", "device", "devices", "columns"))
        own = {role: name for role, name in self.columns.items() if role in ROLES}
        further = {role: name for role, name in self.columns.items() if role not in ROLES}
        return {**content, **own, **({"columns": further} if further else {})}


def make_plan(model: str, given: dict[str, Any]) -> Plan:
    """What is given, then the usual settings."""
    sections: dict[str, type[Any]] = {
        "optimizer": Optimizer,
        "schedule": Schedule,
        "batch": Batching,
        "watching": Watching,
    }
    usual = SETTINGS | SETTINGS_OF.get(find_task(parse_objective(given["objective"])).name, {})
    filled = {name: fill(kind, given.pop(name, None), usual[name]) for name, kind in sections.items()}
    return Plan(model=model, **given, **filled)


@dataclass(frozen=True)
class Material:
    """What a fine-tuning learns from: the task, fitted to its examples, among its objectives."""

    mixture: Mixture
    task: Task
    rows: Any  # examples to learn from
    dev: Any  # examples to judge by; None: none
    taken: list[int]  # rows of the file that were taken for judging, where there was no file for that


def asked_for(plan: Plan) -> tuple[Mixture, Task]:
    """The objectives of a plan, and the task among them, which knows nothing of its examples yet."""
    mixture = parse_objective(plan.objective, pooling=family_of(plan.model).poolings.get("", "start"))
    return mixture, find_task(mixture)


def read_material(plan: Plan) -> Material:
    """Read the examples; those to judge by are a file, or taken from the others."""
    mixture, task = asked_for(plan)
    rows = task.read(plan.train, plan.columns)
    dev, taken = None, list[int]()
    if plan.dev:
        dev = task.read(plan.dev, getattr(rows, "columns", plan.columns))
        warn_of_leaks(rows, dev)
    elif len(rows) >= FEWEST:
        kept, taken = split(rows, seed=plan.seed)
        say(
            f"{rows.file}: {len(taken)} of {len(rows)} examples are for judging, not for learning; name others with --dev"
        )
        rows, dev = rows.take(kept), rows.take(taken)
    task = task.fit(rows)
    return Material(mixture.with_part(task), task, rows, dev, taken)


def finetune(plan: Plan, material: Material | None = None, resume: bool = False) -> Run:
    """Carry out a plan, with one seed."""
    material = material or read_material(plan)
    mixture, task, rows, dev = material.mixture, material.task, material.rows, material.dev
    device = choose_device(plan.device)
    model = starting_model(plan, mixture, task)
    labels = list(getattr(task, "labels", ()))
    model.labels, model.objective = labels, plan.objective
    length = check_length(min(plan.batch.length or 128, model.backbone.longest or 1 << 30), model)
    strategy = choose_strategy(plan.strategy, len(rows))
    if plan.optimizer.name == "muon" and {"gradual", "lora"} & strategy.parts.keys():
        raise PretuneError(f"strategy {plan.strategy}: muon moves all matrices alike; choose another optimizer")
    if plan.watching.patience and dev is None:
        raise PretuneError("watching.patience waits for better answers to other rows; give them with --dev")
    starts = strategy.prepare(model, plan.seed)
    answer = Answerer(model, task, dev, length).say_cut() if dev is not None else None  # refuses unknown labels
    going_on = start_run(plan.out, "finetune", plan.recipe(), resume)
    if material.taken:
        write_json(plan.out / SPLIT, {"file": str(rows.file), "judged": material.taken})
    data = Data(model.need_tokenizer(), model.family.template, rows=rows)
    arrangement = task.lay_out(data, length)
    if arrangement.truncated:
        say(
            f"{rows.file}: {arrangement.truncated} of {len(arrangement)} texts are longer than {length} tokens and were cut"
        )
    fixed = device.type == "cuda"
    packing = row_packing(arrangement, plan.batch.sequences or 32, length, fixed)
    streams = make_streams(strategy.wrap(mixture, task), data, tokens=packing.tokens, packing=packing, seed=plan.seed)
    epoch = len(streams.streams[0].epoch_plan(0))
    steps = max(1, round(plan.epochs * epoch))
    watching = plan.watching
    if watching.patience and not watching.evaluate:
        watching = replace(watching, evaluate=epoch)
    training = Training(
        root=model.root,
        streams=streams,
        budget=plan.budget or Budget(steps=steps),
        optimizer=scale_rates(plan.optimizer, plan.batch.sequences or 32),
        schedule=plan.schedule,
        watching=watching,
        seed=plan.seed,
        device=device,
        run=plan.out,
        # torch's LSTMs ask the host for lengths, which a recording cannot.
        graphed=fixed and not any(isinstance(module, nn.LSTM) for module in model.root.modules()),
        starts=starts,
        recompute=bool(plan.batch.recompute),
        # The model that is saved answers once more anyway.
        evaluate=evaluator(answer, device) if answer is not None and watching.evaluate else None,
        decides=task.decides,
    )
    try:
        with deterministic(plan.deterministic):
            last = train(training, resume=going_on)
    except Stopped:
        say(f"stopped and saved; go on with the same command and --resume (run folder {plan.out})")
        raise KeyboardInterrupt from None
    strategy.finish(model)
    model.root.compute_in(torch.float32)
    if hasattr(task, "finish"):
        task = task.finish(model.root.heads[task.name])
    _, asked = asked_for(plan)
    answers: list[Answer] = []
    if answer is not None:
        answer.task = task
        outputs = answer.outputs(device)
        answers = task.answers(outputs, answer.laid, dev)
        best = choose(task, answers, dev)
        if best := {name: value for name, value in best.items() if getattr(asked, name) is None}:
            task = with_options(task, best)
            answers = task.answers(outputs, answer.laid, dev)
    model.options = found_out(asked, task)
    model.save(plan.out)
    results: dict[str, Any] = {"model": plan.model, "objective": plan.objective, "rows": len(rows)}
    results |= {"truncated": arrangement.truncated, "labels": labels, **last}
    if answer is not None:
        results |= {f"dev/{name}": value for name, value in score(task, answers, dev).items()}
        write_bytes(plan.out / ANSWERS, "".join(json.dumps(a, ensure_ascii=False) + "\n" for a in answers).encode())
    return finish_run(plan.out, results)


def found_out(asked: Task, task: Task) -> dict[str, Any]:
    """The options that a task did not get from whoever asked for it, but from its examples; what is `fitted` is none."""
    if isinstance(task, On):
        return found_out(asked.task, task.task)  # type: ignore[attr-defined]
    names = [option.name for option in fields(task) if not option.metadata.get("fitted")]  # type: ignore[arg-type]
    return {name: getattr(task, name) for name in names if getattr(task, name) != getattr(asked, name)}


def with_options(task: Any, options: Mapping[str, Any]) -> Task:
    """A task with other options."""
    if isinstance(task, On):
        return replace(task, task=with_options(task.task, options))  # type: ignore[return-value]
    return replace(task, **options)


def find_task(mixture: Mixture) -> Task:
    """The task among some objectives."""
    tasks = [part for part in mixture.objectives if isinstance(part, Task)]
    if len(tasks) != 1:
        known = ", ".join(name for name, kind in OBJECTIVES.items() if hasattr(kind, "answers"))
        raise PretuneError(f"{mixture}: fine-tuning is for one task, and what else helps it; tasks are {known}")
    return tasks[0]


def starting_model(plan: Plan, mixture: Mixture, task: Task) -> Model:
    """The pretrained model; or a preset with random weights, which needs a tokenizer."""
    if plan.model in preset_names():
        if plan.tokenizer is None:
            raise PretuneError(f"{plan.model} is a preset without weights; give --tokenizer to train it from scratch")
        tokenizer = Tokenizer.load(plan.tokenizer)
        size = -(-tokenizer.size // ROUND_VOCABULARY) * ROUND_VOCABULARY
        model = make_model(plan.model, size, plan.seed, padding=tokenizer.roles.get("padding"))
        model.tokenizer = tokenizer
    elif plan.scratch:
        model = random_twin(load_model(plan.model, partial=plan.partial), plan.seed)
    else:
        model = load_model(plan.model, mixture, seed=plan.seed, partial=plan.partial)
        own = f"heads.{getattr(task, 'head_of', task.name)}."
        if hasattr(task, "begin") and not any(name.startswith(own) for name in model.untrained):
            task.begin(model.root.heads[task.name])
        return model
    model.add_heads(mixture.objectives, plan.seed)
    return model


def row_packing(arrangement: Arrangement, rows: int, length: int, fixed: bool) -> Packing:
    """So many sequences to a pack, or a group that has more of them.

    Fixed shapes have room for almost every draw of sequences; a rare one has a sequence fewer.
    """
    lengths, groups = arrangement.lengths, arrangement.labels.get("group", np.arange(len(arrangement)))
    _, group = np.unique(groups, return_inverse=True)
    rows = max(rows, int(np.bincount(group).max(initial=1)))
    if not fixed:
        return Packing(tokens=rows * length, length=length, sequences=rows)
    usual = rows * lengths.mean() + 4 * lengths.std() * rows**0.5
    longest = max(length, int(np.bincount(group, lengths).max(initial=0)))
    tokens = int(np.clip(-(-usual // 128) * 128, longest, rows * length))
    slots = rows + -(-tokens // length)  # filler takes some
    return Packing(tokens=tokens, length=length, sequences=slots, fixed=True, rows=rows)


def evaluator(answer: Answerer, device: torch.device) -> Callable[[], dict[str, float]]:
    """Metrics on the examples that are ready to be answered."""
    return lambda: score(answer.task, answer(device), answer.examples)


__all__ = ["ANSWERS", "SPLIT", "Material", "Plan", "finetune", "make_plan", "read_material"]
