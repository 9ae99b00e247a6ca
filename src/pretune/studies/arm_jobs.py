"""Make the training jobs of an arm: its pretraining, and its fine-tuning on the task of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretune.models.name_resolution import find_folder
from pretune.models.presets import is_preset
from pretune.objectives import add_task_options, parse_objective
from pretune.runtime.recipe import merge_recipes
from pretune.studies.study_file import Arm, Evaluation, task_settings
from pretune.studies.study_settings import PretrainingKeys, TaskKeys, check_settings
from pretune.training.jobs import adapting
from pretune.training.jobs.finetuning import FinetuningJob, resolve_finetuning
from pretune.training.jobs.pretraining_settings import PretrainingJob, resolve_pretraining
from pretune.training.recipe_sections import Budget, Monitoring, Optimizer

SAMPLE = "sample:"  # prefix of files of the sample data that come with pretune
PRETRAINED, ADAPTED = "pretrained", "adapted"  # folders of a run
CURVE_POINTS = 40  # lines of metrics.jsonl that a run is to have, for its curve
EVALUATIONS = 5  # of the held-out loss in a run


@dataclass(frozen=True)
class EvaluationRun:
    """One evaluation of the model of an arm, one of the recipes that a study compares, with one seed."""

    arm: Arm
    evaluation: Evaluation
    model: str  # that is evaluated, or fine-tuned and compressed
    seed: int
    out: Path
    budget: Budget | None = None  # that of the study, if it compares ways of fine-tuning or compression
    lr: float | None = None  # the same for the learning rate
    device: str | None = None
    tokenizer: str | None = None  # with which a preset is trained from scratch


def pretraining_job(
    arm: Arm,
    budget: Budget,
    seed: int,
    out: Path,
    *,
    lr: float | None = None,
    device: str | None = None,
    steps: int = 0,
    monitor: Monitoring | None = None,
) -> PretrainingJob:
    """Return the pretraining job of an arm, one of the recipes that a study compares.

    `budget` is the budget of the study, which a budget of the arm replaces. `lr` replaces the arm's learning rate.
    `monitor` has monitoring settings for what the arm leaves open. Where both leave it open, `steps`, the expected
    number of steps, determines how often metrics are logged and evaluated.
    """
    assert arm.pretrain is not None
    options = check_settings(PretrainingKeys, arm.pretrain, arm.name)
    data = options.pop("data")
    options["budget"] = options.get("budget") or budget
    if lr is not None:
        options["optimizer"] = replace(options.get("optimizer") or Optimizer(), lr=lr)
    options["monitor"] = with_intervals(fill_in(options.get("monitor"), monitor), steps)
    defaults = None
    if not is_preset(arm.model):
        defaults = {**adapting.SETTINGS, "budget": {}}
        options.setdefault("tokenizer", str(find_folder(arm.model)))
    paths = [data] if isinstance(data, str) else list(data)
    return resolve_pretraining(arm.model, paths, out, options, seed, device, defaults)


def fill_in(monitor: Monitoring | None, defaults: Monitoring | None) -> Monitoring:
    """Return monitoring settings in which those that `monitor` leaves open come from `defaults`.

    >>> fill_in(Monitoring(log_every=5), Monitoring(log_every=1, save_every=0)).save_every
    0
    """
    own = {} if monitor is None else {name: value for name, value in vars(monitor).items() if value is not None}
    return replace(defaults or Monitoring(), **own)


def with_intervals(monitor: Monitoring, steps: int) -> Monitoring:
    """Return monitoring settings in which unset intervals of logging and evaluation suit a run of `steps` steps."""
    every = monitor.log_every or max(1, steps // CURVE_POINTS)
    own = replace(monitor, log_every=every)
    if own.eval_every is not None:
        return own
    # A multiple of the logging interval, because a line of the log has the cost until an evaluation.
    return replace(own, eval_every=every * -(-steps // (EVALUATIONS * every)))


def finetuning_job(run: EvaluationRun) -> FinetuningJob:
    """Return the job that fine-tunes the model of an arm (compared recipe) on the task of an evaluation."""
    options = task_options(run)
    columns = task_columns(options)
    for key in ("kind", "also"):
        options.pop(key, None)
    if run.lr is not None:
        options["optimizer"] = replace(options.get("optimizer") or Optimizer(), lr=run.lr)
    given: dict[str, Any] = {"objective": "classify", "num_seeds": 1, **options}
    layers = given.pop("layers", None)
    given["objective"] = add_task_options(given["objective"] + (f" on {layers}" if layers else ""), {})
    given["budget"] = options.get("budget") or run.budget
    if run.tokenizer is not None and is_preset(run.model):
        given.setdefault("tokenizer", run.tokenizer)
    given |= {"out": run.out, "columns": columns, "seed": run.seed, "device": run.device}
    return resolve_finetuning(run.model, given)


def task_options(run: EvaluationRun) -> dict[str, Any]:
    """Return the checked settings of the task of an evaluation, for the arm of the run."""
    where = f"{run.arm.name}: {run.evaluation.name}"
    return check_settings(TaskKeys, task_settings(run.evaluation, run.arm), where)


def task_columns(options: dict[str, Any]) -> dict[str, str]:
    """Return the columns of a task's files by role, and remove them from its options.

    >>> task_columns({"text": "sentence", "columns": {"label": "gold"}})
    {'label': 'gold', 'text': 'sentence'}
    """
    columns = dict(options.pop("columns", {}))
    return columns | {role: options.pop(role) for role in ("text", "pair", "label") if role in options}


def training_stages(arm: Arm) -> list[tuple[Arm, float]]:
    """Return the stages of an arm's pretraining in order, as arms with one stage each, and their shares of the budget.

    The second stage, if there is one, is the adaptation to other text.
    """
    if arm.adapt is None:
        return [(arm, 1.0)]
    settings = dict(arm.adapt)
    share = settings.pop("share", 0.5)
    kept = {name: value for name, value in (arm.pretrain or {}).items() if name != "budget"}
    adapted = replace(arm, pretrain=merge_recipes(kept, settings), adapt=None)
    return [(replace(arm, adapt=None), 1 - share), (adapted, share)]


def scaled(budget: Budget, share: float) -> Budget:
    """Return a part of a budget.

    >>> scaled(Budget(flops=100), 0.25).limits
    {'flops': 25.0}
    """
    return Budget(**{unit: limit * share for unit, limit in budget.limits.items()})  # type: ignore[arg-type]


def trains_on_rows(job: PretrainingJob) -> bool:
    """Return whether a pretraining job reads table rows, such as parallel text, instead of running text."""
    return any(part.learns_from_rows for part in parse_objective(job.objective).objectives)


def locate(value: Any, sample: Path) -> Any:
    """Return settings in which each path of sample data (sample:FILE) is replaced by a path in the folder `sample`.

    >>> locate({"data": ["sample:manual.txt", "more.txt"]}, Path("out"))
    {'data': ['out/manual.txt', 'more.txt']}
    """
    if isinstance(value, str):
        return str(sample / value.removeprefix(SAMPLE)) if value.startswith(SAMPLE) else value
    if isinstance(value, dict):
        return {key: locate(one, sample) for key, one in value.items()}
    return [locate(one, sample) for one in value] if isinstance(value, Sequence) else value


def locate_arm(arm: Arm, sample: Path) -> Arm:
    """Return an arm (compared recipe) whose paths of sample data are replaced by paths in the folder `sample`."""
    parts = {name: locate(getattr(arm, name), sample) for name in ("pretrain", "adapt", "finetune")}
    steps = tuple(replace(step, settings=locate(step.settings, sample)) for step in arm.compress)
    return replace(arm, **parts, compress=steps)
