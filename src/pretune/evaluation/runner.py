"""A suite, task by task: fine-tune with several seeds, answer, score by the official metrics; what is finished stays.

OUT/
  suite.json            what was asked for; another evaluation needs another folder
  TASK/rows/            its files, in the roles of our tasks: a row a line
  TASK/seeds/N/         a fine-tuning, without its weights once it has answered, and answers/TASK.SPLIT.jsonl
  TASK/result.json      scores of each seed, and what answers cost: the task is finished
  tokens/               texts as ids, which every seed needs again
  results.json, report.html, submission.zip
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pretune.atomic import write_bytes, write_json
from pretune.devices import choose_device
from pretune.errors import PretuneError
from pretune.evaluation.averages import averages, group_averages
from pretune.evaluation.cost import measured
from pretune.evaluation.official import official, phenomena
from pretune.evaluation.submission import write_submission
from pretune.evaluation.suite import ANSWERS, Suite, SuiteRows, SuiteTask
from pretune.inference.predict import Answerer, load_trained
from pretune.objectives import OBJECTIVES
from pretune.progress import say
from pretune.text.remembered import remembering
from pretune.training.finetuning import Material, Plan, make_plan, read_material
from pretune.training.pretraining import count_parameters
from pretune.training.runs import environment
from pretune.training.seeds import one_seed
from pretune.training.settings import Batching
from pretune.workers import share_out

ASKED, RESULT, RESULTS, SUBMISSION = "suite.json", "result.json", "results.json", "submission.zip"
COST = "cost.json"
TOKENS = "tokens"  # tokenized rows, which every seed needs again
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
Answers = list[dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """What to evaluate, and how it learns: `settings` are those of a fine-tuning, under the names of that verb's options."""

    model: str
    suite: Suite
    data: Path
    out: Path
    seeds: int = 3
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    subsets: bool = False
    keep: bool = False  # the weights of every seed
    device: str | None = None
    devices: int = 1  # which fine-tunings are shared out to

    def told(self) -> dict[str, Any]:
        """All that decides the outcome."""
        sections = {
            name: {k: v for k, v in asdict(value).items() if v is not None} if hasattr(value, "flat") else value
            for name, value in self.settings.items()
        }
        versions = {name: task.version for name, task in self.suite.tasks.items()}
        told = {"model": self.model, "suite": self.suite.name, "versions": versions, "seed": self.seed}
        return {**told, "settings": {name: value for name, value in sections.items() if value is not None}}


@dataclass
class Evaluation:
    """What came out: for each task its metrics, seed by seed, and everything that has to be said with them."""

    suite: Suite
    model: str
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)  # task → what its result.json holds
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Task → metric → mean and spread over seeds."""
        scored = {name: told for name, told in self.tasks.items() if told["scores"]}
        return {name: {m: spread(x) for m, x in told["scores"].items()} for name, told in scored.items()}

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """Task → metric → mean over seeds."""
        return {name: {m: value for m, (value, _) in found.items()} for name, found in self.scores.items()}

    def describe(self) -> dict[str, Any]:
        """Everything, for programs."""
        found = {
            name: {"value": a.value, "of": a.of, "missing": list(a.missing)}
            for name, a in averages(self.suite, self.means).items()
        }
        groups = {name: a.value for name, a in group_averages(self.suite, self.means).items()}
        told = {"suite": self.suite.name, "model": self.model, "averages": found, "groups": groups}
        return {**told, "tasks": self.tasks, "missing": self.missing}


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation.

    >>> spread([0.5])
    (0.5, 0.0)
    """
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def evaluate_suite(request: Request) -> Evaluation:
    """All tasks whose files are there and whose kind is known; the others are named."""
    suite = request.suite
    here, missing = suite.there(request.data)
    for name, task in list(here.items()):
        kind = task.kind.split("(")[0]
        if not hasattr(OBJECTIVES.get(kind), "answers"):
            missing[name] = f"there is no task of the kind {kind!r}"
            del here[name]
    here = {name: task for name, task in here.items() if not task.taught_by or task.taught_by in here}
    for name, why in missing.items():
        say(f"{suite.tasks[name].title}: skipped, {why}")
    if not here:
        raise PretuneError(f"{request.data}: none of {suite.title}'s tasks that are here is of a kind that is known")
    _begin(request)
    for name, task in here.items():  # a bad file is found before anything is learned
        if not _finished(request, name):
            for split in (split for split in task.files if task.where(split, request.data)):
                rows = task.read(split, request.data, subsets=request.subsets)
                write_lines(rows_path(request.out, name, split), rows.rows)
    teaching = {name: task for name, task in here.items() if not task.taught_by}
    taught_by = {
        name: {name: task} | {other: t for other, t in here.items() if t.taught_by == name}
        for name, task in teaching.items()
    }
    if request.devices > 1:
        jobs = [
            (request, task, taught_by[name], seed) for name, task in teaching.items() for seed in _left(request, task)
        ]
        say(f"{len(jobs)} fine-tunings on {request.devices} devices")
        share_out(learn, jobs, request.devices)
    with remembering(request.out / TOKENS):
        for number, (name, task) in enumerate(teaching.items(), 1):
            taught = taught_by[name]
            say(f"{task.title} ({number} of {len(teaching)})")
            evaluate_task(request, task, taught)
    found = {name: json.loads((request.out / name / RESULT).read_text(encoding="utf-8")) for name in here}
    evaluation = Evaluation(suite, request.model, found, missing)
    submit(request, here)
    write_json(request.out / RESULTS, evaluation.describe())
    return evaluation


def _begin(request: Request) -> None:
    """A folder of its own, or one in which the same was begun."""
    path = request.out / ASKED
    told = json.loads(json.dumps(request.told()))
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        different = [key for key in told if before.get(key) != told[key] and key != "versions"]
        old = before.get("versions", {})
        different += [name for name, version in told["versions"].items() if old.get(name, version) != version]
        if different:
            raise PretuneError(
                f"{request.out}: holds an evaluation with other settings ({', '.join(different)}); choose another --out"
            )
        told["versions"] = {**old, **told["versions"]}
    elif request.out.exists() and any(request.out.iterdir()):
        raise PretuneError(f"{request.out}: exists and is no evaluation; choose another --out")
    write_json(path, {**told, "environment": environment()})


# -- a task ---------------------------------------------------------------------------------------------------------


def evaluate_task(request: Request, task: SuiteTask, taught: Mapping[str, SuiteTask]) -> None:
    """Learn a task with each seed, and answer it, and those that have its model."""
    if all(_finished(request, name) for name in taught):
        say(f"{task.title}: finished before")
        return
    rows = {name: _rows(request.out, own) for name, own in taught.items()}
    plan = plan_of(request, task, rows[task.name])
    material = None
    for seed in _left(request, task):
        say(f"seed {seed} ({seed - request.seed + 1} of {request.seeds})")
        material = material or read_material(plan)
        learn_seed(plan, material, rows, taught, seed)
    folders = [_seed_folder(request, task, request.seed + number) for number in range(request.seeds)]
    learned = [folder for folder in folders if json.loads((folder / COST).read_text(encoding="utf-8"))]
    if not learned:
        raise PretuneError(f"{request.out / task.name}: all {request.seeds} seeds failed; lower the learning rate")
    best = max(learned, key=lambda folder: _decides(task, rows[task.name][task.scored], folder))
    tests = {n: (t, {"test": rows[n]["test"]}) for n, t in taught.items() if "test" in rows[n] and t.submission}
    if tests and not all((best / "answers" / f"{name}.test.jsonl").is_file() for name in tests):
        answer_with(replace(plan, out=best), tests)
    for name, other in taught.items():
        there = other.scored in rows[name]
        told = _result(other, rows[name], learned, request.seeds) if there else {"scores": {}, "seeds": request.seeds}
        write_json(request.out / name / RESULT, {**told, "best": int(best.name)})
    if not request.keep:
        for folder in folders:
            for weights in (path for pattern in WEIGHTS for path in folder.glob(pattern)):
                weights.unlink()


def learn_seed(
    plan: Plan,
    material: Material,
    rows: Mapping[str, Mapping[str, SuiteRows]],
    taught: Mapping[str, SuiteTask],
    seed: int,
) -> None:
    """Fine-tune with a seed, and answer what is scored; `cost.json` says that it is done."""
    own = replace(plan, seed=seed, out=plan.out.parent / str(seed))
    run = one_seed(own, material)
    scored = {n: (t, {t.scored: rows[n][t.scored]}) for n, t in taught.items() if t.scored in rows[n]}
    write_json(own.out / COST, answer_with(own, scored) if run else {})


def learn(request: Request, task: SuiteTask, taught: Mapping[str, SuiteTask], seed: int) -> None:
    """The same in a process that has nothing of it yet."""
    with remembering(request.out / TOKENS):
        rows = {name: _rows(request.out, own) for name, own in taught.items()}
        plan = plan_of(request, task, rows[task.name])
        learn_seed(plan, read_material(plan), rows, taught, seed)


def _left(request: Request, task: SuiteTask) -> list[int]:
    """The seeds of a task that are not done yet."""
    seeds = range(request.seed, request.seed + request.seeds)
    return [seed for seed in seeds if not (_seed_folder(request, task, seed) / COST).is_file()]


def _seed_folder(request: Request, task: SuiteTask, seed: int) -> Path:
    return request.out / task.name / "seeds" / str(seed)


def _finished(request: Request, name: str) -> bool:
    path = request.out / name / RESULT
    return path.is_file() and json.loads(path.read_text(encoding="utf-8"))["seeds"] >= request.seeds


def rows_path(out: Path, task: str, split: str) -> Path:
    """Where the rows of a split are."""
    return out / task / "rows" / f"{split}.jsonl"


def _rows(out: Path, task: SuiteTask) -> dict[str, SuiteRows]:
    """The rows of all splits that were read."""
    paths = {split: rows_path(out, task.name, split) for split in task.files}
    return {s: SuiteRows(task, s, path, read_lines(path)) for s, path in paths.items() if path.is_file()}


def plan_of(request: Request, task: SuiteTask, rows: Mapping[str, SuiteRows]) -> Plan:
    """The fine-tuning of a task, with its own length of texts unless another is asked for."""
    settings = dict(request.settings)
    batch = settings.pop("batch", None)
    given: dict[str, Any] = {
        "train": str(rows_path(request.out, task.name, "train")),
        "dev": str(rows_path(request.out, task.name, "dev")) if "dev" in rows else None,
        "out": request.out / task.name / "seeds" / str(request.seed),
        "columns": task.columns,
        "objective": task.kind,
        "strategy": "full",
        "epochs": 3.0,
        "budget": None,
        "optimizer": None,
        "schedule": None,
        "watching": None,
        "deterministic": False,
        "partial": False,
        "seed": request.seed,
        "seeds": 1,
        "tokenizer": None,
        "scratch": False,
        "device": request.device,
        **settings,
    }
    if task.length is not None and (batch is None or batch.length is None):
        batch = replace(batch or Batching(), length=task.length)
    return make_plan(request.model, {**given, "batch": batch})


def answer_with(
    plan: Plan, wanted: Mapping[str, tuple[SuiteTask, Mapping[str, SuiteRows]]]
) -> dict[str, dict[str, float]]:
    """A seed's answers to some splits, and what they cost, task by task."""
    model, task = load_trained(plan.out)
    device = choose_device(plan.device)
    length = min(plan.batch.length or 128, model.backbone.longest or 1 << 30)
    root = plan.out.parent.parent.parent
    costs = {}
    for name, (own, splits) in wanted.items():
        for split, rows in splits.items():
            columns = {role: name for role, name in own.columns.items() if role not in ANSWERS}
            examples = task.read(rows_path(root, name, split), columns, answered=False)
            ready = Answerer(model, task, examples, length)
            with measured(device) as cost:
                answers = ready(device)
            if len(answers) != len(rows):
                raise PretuneError(f"{rows.file}: {len(rows)} examples, but {len(answers)} answers")
            write_lines(plan.out / "answers" / f"{name}.{split}.jsonl", answers)
            costs[name] = {
                "parameters": count_parameters(model),
                "examples_per_second": len(rows) / max(cost.seconds, 1e-9),
                "peak_memory": float(cost.memory or 0),
            }
    return costs


def _result(task: SuiteTask, rows: Mapping[str, SuiteRows], folders: Sequence[Path], seeds: int) -> dict[str, Any]:
    scored = rows[task.scored]
    each = [official(task.metrics, scored.rows, read_answers(folder, task.name, task.scored)) for folder in folders]
    costs = [json.loads((folder / COST).read_text(encoding="utf-8"))[task.name] for folder in folders]
    told: dict[str, Any] = {
        "split": task.scored,
        "examples": len(scored),
        "seeds": seeds,
        "failed": seeds - len(folders),
        "scores": {metric: [found[metric] for found in each] for metric in task.metrics},
        "cost": {key: mean(cost[key] for cost in costs) for key in costs[0]},
        "incomplete": {split: [len(found), found.expected[0]] for split, found in rows.items() if not found.complete},
    }
    if task.categories:
        told["phenomena"] = phenomena(scored.rows, read_answers(folders[0], task.name, task.scored))
    return told


def _decides(task: SuiteTask, rows: SuiteRows, folder: Path) -> float:
    return mean(official(task.metrics, rows.rows, read_answers(folder, task.name, task.scored)).values())


def read_answers(folder: Path, task: str, split: str) -> Answers:
    """The answers of a seed."""
    return read_lines(folder / "answers" / f"{task}.{split}.jsonl")


def read_lines(path: Path) -> Answers:
    """A row a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A row a line."""
    write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "replace"))


# -- the suite ------------------------------------------------------------------------------------------------------


def submit(request: Request, tasks: Mapping[str, SuiteTask]) -> list[str]:
    """Write the submission, where there are answers to official tests; the tasks that it lacks come back."""
    answered = {}
    for name, task in tasks.items():
        best = json.loads((request.out / name / RESULT).read_text(encoding="utf-8"))["best"]
        path = request.out / (task.taught_by or name) / "seeds" / str(best) / "answers" / f"{name}.test.jsonl"
        if path.is_file() and task.submission:
            answered[name] = (read_lines(rows_path(request.out, name, "test")), read_lines(path))
    if not answered:
        return []
    missing = write_submission(request.out / SUBMISSION, request.suite, answered)
    lacks = f"; the server wants {', '.join(request.suite.tasks[n].title for n in missing)} too" if missing else ""
    say(f"submission: {request.out / SUBMISSION}{lacks}")
    return missing
