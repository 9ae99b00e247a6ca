"""Multitask fine-tuning (Caruana, 1997; Liu et al., 2019, MT-DNN): one backbone, one head per task, one task per step.

Each task has its own files, given by its name. Text-to-text tasks share the head too, and differ in their prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretune.inference.predict import Predictor
from pretune.metrics import positive_class, score
from pretune.objectives import JointObjective, Mixture, RenamedTask, parse_objective
from pretune.objectives.task import Answer
from pretune.runtime.atomic_io import write_json
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, suggest
from pretune.training.data_streams import DataStream, DataStreams, TrainingStage
from pretune.training.jobs import finetuning
from pretune.training.jobs.finetuning import FinetuningJob, TaskData
from pretune.training.jobs.pretraining_model import check_length
from pretune.training.jobs.task_sampling import parse_sampling
from pretune.training.run_folder import Run, finish_run, start_run
from pretune.training.subword_regularization import epochs_of_sampled_subwords


@dataclass(frozen=True)
class MultitaskData:
    """The examples and objectives of several tasks that are trained together; `parts` has the data by task name."""

    objective: str  # with names
    mixture: Mixture
    parts: dict[str, TaskData]

    @property
    def size(self) -> int:
        """The number of training examples of all tasks together."""
        return sum(part.size for part in self.parts.values())

    @property
    def has_dev(self) -> bool:
        """Whether any task has dev examples to evaluate on."""
        return any(part.has_dev for part in self.parts.values())

    @property
    def primary_metric(self) -> str:
        """The metric by which multitask runs are compared: the sum of primary metrics (McCann et al., 2018)."""
        return "score"

    def baseline_score(self) -> float:
        """Return the sum of the primary metrics of the majority-class baselines of all tasks that have dev examples."""
        return sum(part.baseline_score() for part in self.parts.values() if part.has_dev)


def read_tasks(plan: FinetuningJob) -> MultitaskData:
    """Read the examples of all tasks of a job; tasks without a dev file hold out some of their training examples."""
    assert isinstance(plan.train, Mapping)
    objective = name_tasks(plan.objective, plan.train)
    mixture = finetuning.requested_objectives(plan, objective)
    parts = {}
    for task in find_tasks(mixture, plan):
        dev = plan.dev.get(task.name) if isinstance(plan.dev, Mapping) else None
        parts[task.name] = finetuning.read_part(plan, objective, mixture, task, plan.train[task.name], dev)
        mixture = parts[task.name].mixture
    return MultitaskData(objective, mixture, parts)


def finetune_tasks(plan: FinetuningJob, material: MultitaskData, resume: bool = False) -> Run:
    """Run the multitask fine-tuning job `plan` with one seed on the examples `material`, and return its run."""
    parts, mixture = material.parts, material.mixture
    recipe, plan = plan.recipe(), plan.for_rows(material.size)
    model = finetuning.starting_model(plan, mixture)
    for part in parts.values():
        model = finetuning.model_with_special_tokens(model, part.task, part.rows)
    tasks = {name: part.task.with_tokenizer(model.require_tokenizer()) for name, part in parts.items()}
    for task in tasks.values():
        mixture = mixture.with_part(task)
    model.labels, model.options, model.tasks, model.objective = [], {}, {}, material.objective
    labels = {name: list(task.labels) for name, task in tasks.items()}
    device = choose_device(plan.device)
    length = check_length(min(plan.batch.max_length or 128, model.longest or 1 << 30), model)
    strategy = finetuning.resolve_strategy(plan, model, tasks.values(), material.has_dev)
    starts = strategy.prepare(model, plan.seed)
    evaluated = {name: part.dev for name, part in parts.items() if part.has_dev}
    predictors = {n: Predictor(model, tasks[n], dev, length).report_truncated() for n, dev in evaluated.items()}
    sampling = parse_sampling(plan.task_sampling)
    resuming = start_run(plan.out, "finetune", recipe, resume)
    if split := {n: {"file": str(p.rows.file), "dev_rows": p.dev_rows} for n, p in parts.items() if p.dev_rows}:
        write_json(plan.out / finetuning.SPLIT, split)
    names = [task_of(joint).name for joint in mixture.joints]
    for task in tasks.values():
        mixture = strategy.wrap(mixture, task)
    streams, truncated = [], {}
    for name, joint in zip(names, mixture.joints, strict=True):
        data, packing, truncated[name] = finetuning.tokenize_examples(
            plan, model, tasks[name], parts[name].rows, length, device
        )
        sampled = epochs_of_sampled_subwords(data, plan.batch.subword_sampling, plan.seed)
        streams.append(DataStream(joint, data, packing, plan.seed, epoch_data=sampled))
    sizes, weights = [parts[name].size for name in names], [share for share, _ in mixture.shares]
    shared = DataStreams(
        mixture, streams, [TrainingStage(1.0, 0, 1)], shares=lambda t: sampling.until(sizes, weights, t).tolist()
    )
    epoch = sum(len(stream.epoch_plan(0)) for stream in streams)

    def evaluate() -> dict[str, float]:
        return evaluate_tasks(predictors, {name: predict(device) for name, predict in predictors.items()})

    options = epoch, evaluate if predictors else None, material.primary_metric
    last = finetuning.train_model(plan, model, strategy, starts, shared, *options, device, resuming)
    answers = {}
    for name, part in parts.items():
        task, answers[name] = finetuning.finalize_task(model, part.unfitted, tasks[name], predictors.get(name), device)
        model.tasks[name] = {"labels": labels[name], **finetuning.fitted_options(part.unfitted, task)}
    model.save(plan.out)
    results: dict[str, Any] = {"model": plan.model, "objective": material.objective}
    results |= {"rows": dict(zip(names, sizes, strict=True)), "truncated": truncated}
    results |= {"batches": {name: stream.taken for name, stream in zip(names, streams, strict=True)}}
    results |= {"labels": labels, **last}
    if predictors:
        results |= {f"dev/{name}": value for name, value in evaluate_tasks(predictors, answers).items()}
        positive = {name: positive_class(predict.task) for name, predict in predictors.items()}
        results |= {"positive_class": {name: label for name, label in positive.items() if label is not None}}
    for name in predictors:
        finetuning.write_predictions(plan.out / answers_file(name), answers[name])
    return finish_run(plan.out, results)


def name_tasks(objective: str, files: Mapping[str, str]) -> str:
    """Return an objective expression in which every task has the name of its file, given files by name.

    A single task without a name is repeated for all files.

    >>> name_tasks("classify+0.5*lm", {"sst": "a.csv", "rte": "b.csv"})
    'sst: classify+0.5*lm|rte: classify+0.5*lm'
    """
    mixture = parse_objective(objective)
    if any(isinstance(part, RenamedTask) for part in mixture.objectives):
        return objective
    if len(mixture.shares) > 1:
        raise PretuneError(f"{objective}: name each task after its file, as in {' | '.join(f'{n}: …' for n in files)}")
    return "|".join(f"{name}: {objective}" for name in files)


def task_of(joint: JointObjective) -> Any:
    """Return the only named task, such as "sst: classify", in `joint`; raise an error if there are none or several."""
    tasks = [part for part in joint.objectives if isinstance(part, RenamedTask)]
    if len(tasks) != 1:
        raise PretuneError(f"{joint}: each of several tasks needs a name; write NAME: TASK, as in sst: classify")
    return tasks[0]


def find_tasks(mixture: Mixture, plan: FinetuningJob) -> list[Any]:
    """Return the tasks of a mixture; raise an error if the job `plan` has no data file under the name of a task."""
    tasks = [task_of(joint) for joint in mixture.joints]
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise PretuneError(f"{mixture}: two tasks have the same name; rename one of the tasks")
    for what, files in (("train", plan.train), ("dev", plan.dev)):
        if isinstance(files, str):
            raise PretuneError(
                f"--{what} {files}: there are several tasks; name the task of this file, as in {names[0]}={files}"
            )
        if unknown := [name for name in files or () if name not in names]:
            raise PretuneError(f"--{what} {unknown[0]}=…: no task has this name; {suggest(unknown[0], names)}")
    if missing := [name for name in names if name not in plan.train]:
        raise PretuneError(f"--train: there is no file for the task {missing[0]}; give {missing[0]}=FILE")
    return tasks


def answers_file(name: str) -> str:
    """Return the name of the file that holds the predictions for the dev examples of the task `name`.

    >>> answers_file("sst")
    'dev_answers-sst.jsonl'
    """
    stem, dot, ending = finetuning.DEV_PREDICTIONS.rpartition(".")
    return f"{stem}-{name}{dot}{ending}"


def evaluate_tasks(predictors: Mapping[str, Predictor], answers: Mapping[str, Sequence[Answer]]) -> dict[str, float]:
    """Score the predictions `answers` of each task; return metrics named TASK/METRIC, and their sum as `score`.

    The sum is over the primary metrics. Both arguments are mappings by task name.
    """
    results: dict[str, float] = {}
    total = 0.0
    for name, predictor in predictors.items():
        metrics = score(predictor.task, answers[name], predictor.examples)
        results |= {f"{name}/{metric}": value for metric, value in metrics.items()}
        total += metrics[predictor.task.primary_metric]
    return {**results, "score": total}
