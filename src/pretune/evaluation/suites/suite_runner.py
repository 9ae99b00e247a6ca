"""Evaluation on a suite: fine-tune (or prompt) a model on each task with several seeds, predict, and score; resumable.

OUT/
  suite.json            the settings; an evaluation with other settings needs another folder
  TASK/rows/            the rows of its files by role, one per line
  TASK/seeds/N/         a fine-tuning run, without its weights after prediction, and answers/TASK.SPLIT.jsonl; with in-context
                        learning, the first prompt
  TASK/result.json      the scores of each seed and the cost of inference; marks the task as finished
  tokens/               cached token ids, which every seed uses
  results.json, report.html, submission.zip
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Protocol

import torch

from pretune.evaluation.in_context import InContextLearning, load_generative_model
from pretune.evaluation.inference_cost import measure_cost
from pretune.evaluation.suites.averages import averages, group_averages
from pretune.evaluation.suites.declaration import ANSWERS, Suite, SuiteRows, SuiteTask
from pretune.evaluation.suites.official_metrics import phenomena, suite_metrics
from pretune.evaluation.suites.submission import write_submission
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.seq2seq_generation import Seq2SeqGenerator
from pretune.inference.predict import Predictor, load_task_model
from pretune.models.model import Model
from pretune.objectives import OBJECTIVES, Task, task_names
from pretune.objectives.task import Answer
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import read_checksummed_json, read_json_lines, write_checksummed_json
from pretune.runtime.process_pool import run_jobs
from pretune.runtime.progress import log_info
from pretune.text.tokenizers.token_cache import use_token_cache
from pretune.training.jobs.finetuning import FinetuningJob, TaskData, read_task_data, resolve_finetuning
from pretune.training.jobs.pretraining_model import count_parameters
from pretune.training.jobs.several_seeds import run_seed
from pretune.training.recipe_sections import Batching
from pretune.training.run_folder import environment

ASKED, RESULT, RESULTS, SUBMISSION = "suite.json", "result.json", "results.json", "submission.zip"
COST = "cost.json"
TOKENS = "tokens"  # cached token ids, which every seed uses
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
Answers = list[dict[str, Any]]


@dataclass(frozen=True)
class EvaluationJob:
    """A job that evaluates a model on a benchmark suite.

    `settings` are options of `pretune finetune`, by name. `shots` is the number of examples in the prompt for
    in-context learning; None stands for fine-tuning. `devices` is the number of devices over which the seeds of all
    tasks are distributed.
    """

    model: str
    suite: Suite
    data: Path
    out: Path
    num_seeds: int = 3
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    allow_incomplete: bool = False
    keep_models: bool = False  # whether to keep the weights of every seed
    device: str | None = None
    shots: int | None = None  # the number of examples for in-context learning; None: fine-tuning
    devices: int = 1  # over which the seeds of all tasks are distributed

    def result_settings(self) -> dict[str, Any]:
        """Return all settings that determine the results of an evaluation, as they are written to suite.json."""
        sections = {
            name: {k: v for k, v in asdict(value).items() if v is not None} if hasattr(value, "flat") else value
            for name, value in self.settings.items()
        }
        asked = self.shots is not None
        versions = {n: [t.version, dict(t.prompt)] if asked else t.version for n, t in self.suite.tasks.items()}
        told = {"model": self.model, "suite": self.suite.name, "versions": versions, "seed": self.seed}
        told["shots"] = self.shots
        return {**told, "settings": {name: value for name, value in sections.items() if value is not None}}


@dataclass
class Evaluation:
    """The results of an evaluation on a suite: the contents of result.json by task, and the skipped tasks.

    `missing` maps a skipped task to the reason. `shots` is the number of examples in the prompt; None for fine-tuning.
    """

    suite: Suite
    model: str
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)  # the contents of result.json, by task
    missing: dict[str, str] = field(default_factory=dict)
    shots: int | None = None

    @property
    def system(self) -> str:
        """Return the name of the evaluated model for the results table, with the number of shots, if any."""
        if self.shots is None:
            return self.model
        return f"{self.model}, {({0: 'zero', 1: 'one'}).get(self.shots, self.shots)}-shot"

    @property
    def scores(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Return the mean and the standard deviation of each metric over seeds.

        The result maps task → metric → (mean, standard deviation).
        """
        scored = {name: told for name, told in self.tasks.items() if told["scores"]}
        return {name: {m: mean_and_sd(x) for m, x in told["scores"].items()} for name, told in scored.items()}

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """Return the mean over seeds of each metric: task → metric → mean."""
        return {name: {m: value for m, (value, _) in found.items()} for name, found in self.scores.items()}

    def describe(self) -> dict[str, Any]:
        """Return all results of the evaluation as a JSON-compatible dictionary."""
        found = {
            name: {"value": a.value, "num_tasks": a.of, "missing": list(a.missing)}
            for name, a in averages(self.suite, self.means).items()
        }
        groups = {name: a.value for name, a in group_averages(self.suite, self.means).items()}
        told: dict[str, Any] = {"suite": self.suite.name, "model": self.model, "averages": found, "groups": groups}
        if self.shots is not None:
            told["shots"] = self.shots
        return {**told, "tasks": self.tasks, "missing": self.missing}


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation of some values; the deviation of one value is 0.

    >>> mean_and_sd([0.5])
    (0.5, 0.0)
    """
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def evaluate_suite(request: EvaluationJob) -> Evaluation:
    """Evaluate a model on the tasks of a suite that are supported and have files, and log why others are skipped."""
    _check_same(request)
    suite, asked = request.suite, request.shots is not None
    here, missing = suite.available_tasks(request.data, learned=request.shots != 0)
    for name, task in list(here.items()):
        kind = task.kind.split("(")[0]
        if kind not in task_names():
            missing[name] = f"the task {kind!r} does not exist"
            del here[name]
        elif asked and not OBJECTIVES[kind].in_context_template:
            missing[name] = f"in-context learning does not support {kind}; fine-tune the model instead"
            del here[name]
    here = {name: task for name, task in here.items() if not task.uses_model_of or task.uses_model_of in here}
    for name, why in missing.items():
        log_info(f"{suite.tasks[name].title}: skipped, {why}")
    if not here:
        raise PretuneError(
            f"{request.data}: files exist for some tasks of {suite.title}, but pretune supports none of these tasks; add the files of a supported task"
        )
    writer = load_generator(request)
    _begin(request)
    for name, task in here.items():  # find bad files before training starts
        if not _finished(request, name):
            for split in (split for split in task.files if task.find_files(split, request.data)):
                rows = task.read(split, request.data, allow_incomplete=request.allow_incomplete)
                write_lines(rows_path(request.out, name, split), rows.rows)
    teaching = {name: task for name, task in here.items() if not task.uses_model_of}
    uses_model_of = {
        name: {name: task} | {other: t for other, t in here.items() if t.uses_model_of == name}
        for name, task in teaching.items()
    }
    if request.devices > 1:
        jobs = [
            (request, task, uses_model_of[name], seed)
            for name, task in teaching.items()
            for seed in _left(request, task)
        ]
        log_info(f"running {len(jobs)} jobs, one per task and seed, on {request.devices} devices")
        run_jobs(train_in_worker, jobs, request.devices)
    with use_token_cache(request.out / TOKENS):
        for number, (name, task) in enumerate(teaching.items(), 1):
            taught = uses_model_of[name]
            log_info(f"task {task.title} ({number} of {len(teaching)})")
            evaluate_task(request, task, taught, writer)
    found = {name: read_checksummed_json(request.out / name / RESULT, "the result of a task") for name in here}
    evaluation = Evaluation(suite, request.model, found, missing, request.shots)
    submit(request, here)
    write_json(request.out / RESULTS, evaluation.describe())
    return evaluation


def _check_same(request: EvaluationJob) -> dict[str, Any]:
    """Return the settings of an evaluation as written to suite.json.

    Raise an error if the output folder already has an evaluation with other settings.
    """
    path = request.out / ASKED
    told: dict[str, Any] = json.loads(json.dumps(request.result_settings()))
    if not path.is_file():
        return told
    before = read_checksummed_json(path, "the settings of an evaluation")
    different = [key for key in told if before.get(key) != told[key] and key != "versions"]
    old = before.get("versions", {})
    different += [name for name, version in told["versions"].items() if old.get(name, version) != version]
    if different:
        raise PretuneError(
            f"{request.out}: contains an evaluation with other settings ({', '.join(different)}); choose another --out"
        )
    return {**told, "versions": {**old, **told["versions"]}}


def _begin(request: EvaluationJob) -> None:
    """Write the settings of an evaluation to its folder, so that only a command with the same settings resumes it."""
    told = {**_check_same(request), "suite_file": request.suite.file, "environment": environment()}
    write_checksummed_json(request.out / ASKED, told)


# -- a task ---------------------------------------------------------------------------------------------------------


class AnsweringMethod(Protocol):
    """A method by which a model solves a task: fine-tuning or in-context learning."""

    @property
    def model(self) -> Model: ...

    device: torch.device

    def train(self, seed: int, folder: Path) -> bool:
        """Train with `seed` and write the model to `folder`; return False if training failed.

        The folder is named after the seed.
        """

    def prepare(self, folder: Path, task: SuiteTask, rows: SuiteRows) -> Callable[[], list[Answer]]:
        """Return a function that predicts the answers to rows of a task, with the model or prompt in `folder`."""


class FineTuning:
    """The method that fine-tunes a model on a task and predicts with the result."""

    def __init__(self, plan: FinetuningJob) -> None:
        self.plan, self.device = plan, choose_device(plan.device)
        self.material: TaskData | None = None
        self.loaded: tuple[Path, Model, Task] | None = None

    @property
    def model(self) -> Model:
        """Return the fine-tuned model that `prepare` loaded last."""
        assert self.loaded is not None
        return self.loaded[1]

    def train(self, seed: int, folder: Path) -> bool:
        """Fine-tune with a seed and write the model to a folder; return False if training failed."""
        self.material = self.material or read_task_data(self.plan)
        return run_seed(replace(self.plan, seed=seed, out=folder), self.material) is not None

    def prepare(self, folder: Path, task: SuiteTask, rows: SuiteRows) -> Callable[[], list[Answer]]:
        """Load the model that `train` wrote to a folder, and return a function that predicts the answers to rows."""
        if self.loaded is None or self.loaded[0] != folder:
            self.loaded = folder, *load_task_model(folder)
        _, model, objective = self.loaded
        length = min(self.plan.batch.max_length or 128, model.longest or 1 << 30)
        columns = {role: name for role, name in task.columns.items() if role not in ANSWERS}
        answerer = Predictor(model, objective, objective.read(rows.file, columns, answered=False), length)
        return lambda: answerer(self.device)


def evaluate_task(
    request: EvaluationJob,
    task: SuiteTask,
    taught: Mapping[str, SuiteTask],
    writer: TextGenerator | Seq2SeqGenerator | None = None,
) -> None:
    """Fine-tune a model on `task`, or prompt the model `writer`, with each seed, and write the results.

    `taught` are the tasks that are answered with the result: the task itself, and tasks that share its model.
    """
    if all(_finished(request, name) for name in taught):
        log_info(f"{task.title}: all seeds are already finished")
        return
    rows = {name: _rows(request.out, own) for name, own in taught.items()}
    method = answering_method(request, task, rows[task.name], writer)
    for seed in _left(request, task):
        log_info(f"running seed {seed} ({seed - request.seed + 1} of {request.num_seeds})")
        learn_seed(method, _seed_folder(request, task, seed), rows, taught)
    folders = [_seed_folder(request, task, request.seed + number) for number in range(request.num_seeds)]
    learned = [folder for folder in folders if read_checksummed_json(folder / COST, "the cost of a seed")]
    if not learned:
        raise PretuneError(
            f"{request.out / task.name}: training diverged for all {request.num_seeds} seeds; lower the learning rate"
        )
    scored = rows[task.name][task.scored].rows
    answers = {folder: read_answers(folder, task.name, task.scored) for folder in learned}
    best = max(learned, key=lambda folder: mean(suite_metrics(task.metrics, scored, answers[folder]).values()))
    tests = {n: (t, {"test": rows[n]["test"]}) for n, t in taught.items() if "test" in rows[n] and t.submission}
    if tests and not all((best / "answers" / f"{name}.test.jsonl").is_file() for name in tests):
        answer_with(method, best, tests)
    for name, other in taught.items():
        there = other.scored in rows[name]
        told = (
            _result(other, rows[name], learned, request.num_seeds)
            if there
            else {"scores": {}, "seeds": request.num_seeds}
        )
        write_checksummed_json(request.out / name / RESULT, {**told, "best": int(best.name)})
    if not request.keep_models:
        for folder in folders:
            for weights in (path for pattern in WEIGHTS for path in folder.glob(pattern)):
                weights.unlink()


def answering_method(
    request: EvaluationJob,
    task: SuiteTask,
    rows: Mapping[str, SuiteRows],
    writer: TextGenerator | Seq2SeqGenerator | None = None,
) -> AnsweringMethod:
    """Return the method to solve a task: in-context learning with the model `writer`, or fine-tuning if it is None.

    `rows` has the rows of the task by split.
    """
    if writer is None:
        return FineTuning(finetuning_job(request, task, rows))
    return InContextLearning(writer, task, rows, request.shots or 0)


def learn_seed(
    method: AnsweringMethod, folder: Path, rows: Mapping[str, Mapping[str, SuiteRows]], taught: Mapping[str, SuiteTask]
) -> None:
    """Train `method` on the tasks `taught` with one seed, and save its answers and its inference costs in `folder`.

    The name of the folder is the seed. `rows` has the rows of each task by split.
    """
    scored = {n: (t, {t.scored: rows[n][t.scored]}) for n, t in taught.items() if t.scored in rows[n]}
    write_checksummed_json(
        folder / COST, answer_with(method, folder, scored) if method.train(int(folder.name), folder) else {}
    )


def train_in_worker(request: EvaluationJob, task: SuiteTask, taught: Mapping[str, SuiteTask], seed: int) -> None:
    """Train on `task` with one seed in a worker process, and answer the tasks `taught` with the resulting model."""
    with use_token_cache(request.out / TOKENS):
        rows = {name: _rows(request.out, own) for name, own in taught.items()}
        method = answering_method(request, task, rows[task.name], load_generator(request))
        learn_seed(method, _seed_folder(request, task, seed), rows, taught)


def load_generator(request: EvaluationJob) -> TextGenerator | Seq2SeqGenerator | None:
    """Load the generative model of an evaluation by in-context learning; return None for fine-tuning."""
    if request.shots is None:
        return None
    return load_generative_model(request.model, request.device, bool(request.settings.get("ignore_mismatched")))


def _left(request: EvaluationJob, task: SuiteTask) -> list[int]:
    """Return the seeds with which a task of an evaluation has not been run yet, as needed to resume it."""
    seeds = range(request.seed, request.seed + request.num_seeds)
    return [seed for seed in seeds if not (_seed_folder(request, task, seed) / COST).is_file()]


def _seed_folder(request: EvaluationJob, task: SuiteTask, seed: int) -> Path:
    return request.out / task.name / "seeds" / str(seed)


def _finished(request: EvaluationJob, name: str) -> bool:
    """Return whether an evaluation already has the results of a task for all seeds."""
    path = request.out / name / RESULT
    return path.is_file() and read_checksummed_json(path, "the result of a task")["seeds"] >= request.num_seeds


def rows_path(out: Path, task: str, split: str) -> Path:
    """Return the path of the file with the rows of a task's split in the evaluation folder `out`."""
    return out / task / "rows" / f"{split}.jsonl"


def _rows(out: Path, task: SuiteTask) -> dict[str, SuiteRows]:
    """Read the rows of all splits of a task, as saved in the evaluation folder `out`."""
    paths = {split: rows_path(out, task.name, split) for split in task.files}
    return {s: SuiteRows(task, s, path, read_lines(path)) for s, path in paths.items() if path.is_file()}


def finetuning_job(request: EvaluationJob, task: SuiteTask, rows: Mapping[str, SuiteRows]) -> FinetuningJob:
    """Return the job that fine-tunes on a task; its maximum length is the task's own unless the user sets one."""
    settings = dict(request.settings)
    batch = settings.pop("batch", None)
    given: dict[str, Any] = {
        "train": str(rows_path(request.out, task.name, "train")),
        "dev": str(rows_path(request.out, task.name, "dev")) if "dev" in rows else None,
        "out": request.out / task.name / "seeds" / str(request.seed),
        "columns": task.columns,
        "objective": task.kind,
        "seed": request.seed,
        "device": request.device,
        **settings,
    }
    if task.length is not None and (batch is None or batch.max_length is None):
        batch = replace(batch or Batching(), max_length=task.length)
    return resolve_finetuning(request.model, {**given, "batch": batch})


def answer_with(
    method: AnsweringMethod, folder: Path, wanted: Mapping[str, tuple[SuiteTask, Mapping[str, SuiteRows]]]
) -> dict[str, dict[str, Any]]:
    """Answer rows by `method` and save the answers in `folder`; return the costs of inference by task.

    `wanted` has the tasks to answer, each with its rows by split.
    """
    costs: dict[str, dict[str, Any]] = {}
    for name, (own, splits) in wanted.items():
        for split, rows in splits.items():
            ready = method.prepare(folder, own, rows)
            with measure_cost(method.device) as cost:
                answers = ready()
            if len(answers) != len(rows):
                raise PretuneError(
                    f"{rows.file}: the model gave {len(answers)} answers to {len(rows)} examples; the task must return one per example"
                )
            write_lines(folder / "answers" / f"{name}.{split}.jsonl", answers)
            if isinstance(method, InContextLearning):
                write_bytes(folder / "answers" / f"{name}.{split}.prompt.txt", method.prompt.encode("utf-8", "replace"))
            costs[name] = {
                "parameters": count_parameters(method.model),
                "examples_per_second": len(rows) / max(cost.seconds, 1e-9),
                "peak_memory": float(cost.memory or 0),
            }
    return costs


def _result(task: SuiteTask, rows: Mapping[str, SuiteRows], folders: Sequence[Path], num_seeds: int) -> dict[str, Any]:
    """Return the contents of a task's result.json: the scores of all seeds, inference costs, and incomplete splits.

    `folders` has the folders of the seeds that did not fail; `num_seeds` counts all seeds.
    """
    scored = rows[task.scored]
    each = [
        suite_metrics(task.metrics, scored.rows, read_answers(folder, task.name, task.scored)) for folder in folders
    ]
    costs = [read_checksummed_json(folder / COST, "the cost of a seed")[task.name] for folder in folders]
    told: dict[str, Any] = {
        "split": task.scored,
        "examples": len(scored),
        "seeds": num_seeds,
        "failed": num_seeds - len(folders),
        "scores": {metric: [found[metric] for found in each] for metric in task.metrics},
        "cost": {key: mean(cost[key] for cost in costs) for key in costs[0]},
        "incomplete": {split: [len(found), found.expected[0]] for split, found in rows.items() if not found.complete},
    }
    if (prompt := folders[0] / "answers" / f"{task.name}.{task.scored}.prompt.txt").is_file():
        told["prompt"] = prompt.read_text(encoding="utf-8")
    if task.categories:
        told["phenomena"] = phenomena(scored.rows, read_answers(folders[0], task.name, task.scored))
    return told


def read_answers(folder: Path, task: str, split: str) -> Answers:
    """Read the answers to a split of a task by the model of one seed, whose folder is `folder`."""
    return read_lines(folder / "answers" / f"{task}.{split}.jsonl")


def read_lines(path: Path) -> Answers:
    """Return the JSON objects in a file, one per line."""
    return list(read_json_lines(path))


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON objects to a file, one per line."""
    write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "replace"))


# -- the suite ------------------------------------------------------------------------------------------------------


def submit(request: EvaluationJob, tasks: Mapping[str, SuiteTask]) -> list[str]:
    """Write a submission archive if official test sets were answered; return the names of the tasks that it lacks."""
    answered = {}
    for name, task in tasks.items():
        best = read_checksummed_json(request.out / name / RESULT, "the result of a task")["best"]
        path = request.out / (task.uses_model_of or name) / "seeds" / str(best) / "answers" / f"{name}.test.jsonl"
        if path.is_file() and task.submission:
            answered[name] = (read_lines(rows_path(request.out, name, "test")), read_lines(path))
    if not answered:
        return []
    missing = write_submission(request.out / SUBMISSION, request.suite, answered)
    titles = ", ".join(request.suite.tasks[name].title for name in missing)
    lacks = f"; it lacks {titles}, which the server also requires" if missing else ""
    log_info(f"wrote the submission {request.out / SUBMISSION}{lacks}")
    return missing
