"""Several tasks at once (Caruana, 1997; Liu et al., 2019, MT-DNN): one backbone, a head a task, a batch of one task each step.

Each task has its own files, under its name; text-to-text tasks share the head too, and are told apart by their prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from pretune.devices import choose_device
from pretune.errors import PretuneError, nearest
from pretune.inference.predict import Answerer
from pretune.metrics import score
from pretune.model import Model, family_of
from pretune.objectives import Data, Joint, Mixture, Named, parse_objective
from pretune.objectives.task import knowing
from pretune.progress import say
from pretune.text.shots import draw_shots
from pretune.training.finetuning import Plan, learn, row_packing, starting_model, strategy_of
from pretune.training.pretraining import check_length
from pretune.training.runs import Run, finish_run, start_run
from pretune.training.sampling import parse_sampling
from pretune.training.streams import Stage, Stream, Streams


@dataclass
class Part:
    """One of the tasks, with its examples."""

    task: Any
    rows: Any
    dev: Any  # None: it is not judged


def finetune_tasks(plan: Plan, resume: bool = False) -> Run:
    """Carry out a plan whose files are those of several tasks, by name."""
    files = plan.train
    assert isinstance(files, Mapping)
    plan = replace(plan, objective=name_tasks(plan.objective, files))
    pooling = family_of(plan.model).poolings.get("", "start")
    mixture = parse_objective(plan.objective, pooling=pooling)
    parts = {task.name: read_part(task, plan) for task in find_tasks(mixture, plan)}
    model = starting_model(plan, with_tasks(mixture, parts))
    for part in parts.values():
        part.task = knowing(part.task, model.need_tokenizer())
    mixture = with_tasks(mixture, parts)
    model.labels, model.objective = [], plan.objective
    model.task_labels = {name: list(getattr(part.task, "labels", ())) for name, part in parts.items()}
    device = choose_device(plan.device)
    length = check_length(min(plan.batch.length or 128, model.backbone.longest or 1 << 30), model)
    strategy = strategy_of(plan, sum(len(part.rows) for part in parts.values()))
    starts = strategy.prepare(model, plan.seed)
    judges = {n: Answerer(model, p.task, p.dev, length) for n, p in parts.items() if p.dev is not None}
    sampling = parse_sampling(plan.sampling)
    going_on = start_run(plan.out, "finetune", plan.recipe(), resume)
    streams, truncated = [], {}
    for joint in mixture.joints:
        part = parts[task_of(joint).name]
        made, truncated[part.task.name] = make_stream(plan, model, joint, part, length, device.type == "cuda")
        streams.append(made)
    for part in parts.values():
        mixture = strategy.wrap(mixture, part.task)
    for stream, joint in zip(streams, mixture.joints, strict=True):
        stream.joint = joint
    sizes, weights = [len(stream.data.rows) for stream in streams], [share for share, _ in mixture.shares]
    shared = Streams(mixture, streams, [Stage(1.0, 0, 1)], shares=lambda t: sampling.until(sizes, weights, t).tolist())
    steps = max(1, round(plan.epochs * sum(len(stream.epoch_plan(0)) for stream in streams)))
    evaluate = (lambda: judge(judges, device)) if judges else None
    last = learn(plan, model, strategy, starts, shared, steps, evaluate, device, going_on)
    results: dict[str, Any] = {"model": plan.model, "objective": plan.objective}
    results |= {"rows": {name: len(part.rows) for name, part in parts.items()}, "truncated": truncated}
    results |= {"turns": {name: stream.taken for name, stream in zip(parts, streams, strict=True)}}
    return finish_run(plan.out, {**results, "labels": model.task_labels, **last})


def name_tasks(objective: str, files: Mapping[str, str]) -> str:
    """An objective with a task for each file: one without names is that of all of them.

    >>> name_tasks("classify+0.5*lm", {"sst": "a.csv", "rte": "b.csv"})
    'sst: classify+0.5*lm|rte: classify+0.5*lm'
    """
    mixture = parse_objective(objective)
    if any(isinstance(part, Named) for part in mixture.objectives):
        return objective
    if len(mixture.shares) > 1:
        raise PretuneError(
            f"{objective}: name the tasks as their files are named: {' | '.join(f'{n}: …' for n in files)}"
        )
    return "|".join(f"{name}: {objective}" for name in files)


def task_of(joint: Joint) -> Any:
    """The task of a joint."""
    tasks = [part for part in joint.objectives if isinstance(part, Named)]
    if len(tasks) != 1:
        raise PretuneError(
            f"{joint}: of several tasks that take turns, each has a name of its own, as in sst: classify"
        )
    return tasks[0]


def find_tasks(mixture: Mixture, plan: Plan) -> list[Any]:
    """The tasks of a mixture, in order, which are those that files are named for."""
    tasks = [task_of(joint) for joint in mixture.joints]
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise PretuneError(f"{mixture}: two tasks have one name")
    for what, files in (("train", plan.train), ("dev", plan.dev)):
        if isinstance(files, str):
            raise PretuneError(f"--{what} {files}: there are several tasks; say whose it is, as in {names[0]}={files}")
        for name in files or ():
            if name not in names:
                raise PretuneError(f"--{what} {name}=…: no task has this name; {nearest(name, names)}")
    if lacking := [name for name in names if name not in plan.train]:
        raise PretuneError(f"--train: no file for {', '.join(lacking)}; give {lacking[0]}=FILE")
    return tasks


def read_part(task: Any, plan: Plan) -> Part:
    """A task's examples, and the task fitted to them."""
    assert isinstance(plan.train, Mapping)
    rows = task.read(plan.train[task.name], plan.columns)
    file = plan.dev.get(task.name) if isinstance(plan.dev, Mapping) else None
    dev = task.read(file, getattr(rows, "columns", plan.columns)) if file else None
    if plan.shots is not None:
        rows = draw_shots(rows, plan.shots, plan.seed)
    return Part(task.fit(rows), rows, dev)


def with_tasks(mixture: Mixture, parts: Mapping[str, Part]) -> Mixture:
    """The mixture with its tasks as they are now."""
    for part in parts.values():
        mixture = mixture.with_part(part.task)
    return mixture


def make_stream(plan: Plan, model: Model, joint: Joint, part: Part, length: int, fixed: bool) -> tuple[Stream, int]:
    """The packs of a task, and how many of its texts are cut."""
    data = Data(model.need_tokenizer(), model.family.template, rows=part.rows)
    laid = part.task.lay_out(data, length)
    if laid.truncated:
        say(f"{part.rows.file}: {laid.truncated} of {len(laid)} texts are longer than {length} tokens and were cut")
    costs = laid.labels.get("tokens", laid.lengths)
    return Stream(joint, data, row_packing(costs, plan.batch.sequences or 32, length, fixed), plan.seed), laid.truncated


def judge(judges: Mapping[str, Answerer], device: torch.device) -> dict[str, float]:
    """The metrics of each task, and the sum of those that decide (as the decaScore of McCann et al., 2018)."""
    found: dict[str, float] = {}
    total = 0.0
    for name, answer in judges.items():
        metrics = score(answer.task, answer(device), answer.examples)
        found |= {f"{name}/{metric}": value for metric, value in metrics.items()}
        total += metrics[answer.task.decides]
    return {**found, "score": total}
