"""The plan of a record: pilots by successive halving, the full run, its scores, and a small model for the package.

A plan is a YAML file (perf/record.yaml is the one of the record; its comments say what the keys mean). `record_jobs` returns the
jobs that are known, given the rows of those that have ended: which pilots reach the next round depends on the scores of this one.

In HOME: store/ and further token stores, tasks/ with the official files of GLUE, files of intermediate tasks, runs/, models/ (exports)
and results.jsonl.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from record_jobs import Job, Rows

from pretune.runtime.recipe import read_recipe, write_recipe

ROOT = Path(__file__).resolve().parents[1]
METRIC = {
    "cola": "matthews", "sst-2": "accuracy", "mrpc": "f1", "sts-b": "spearman", "rte": "accuracy",
    "terra": "accuracy", "danetqa": "accuracy", "russe": "accuracy",
}  # fmt: skip
GLUE5 = ("cola", "sst-2", "mrpc", "sts-b", "rte")
CURVE = 120  # points of a learning curve that are kept in a row
COSTS = ("step", "tokens", "flops", "seconds", "loading_seconds", "compilation_seconds", "parameters")


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of successive halving: the budget of each pilot, and how many pilots go on."""

    budget: Mapping[str, float]
    keep: int


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How models are scored: tasks, seeds, and epochs of fine-tuning by task (`default` for the others)."""

    tasks: Sequence[str]
    seeds: int
    epochs: Mapping[str, float]
    settings: Sequence[str] = ()  # KEY=VALUE for fine-tuning

    def epochs_of(self, task: str) -> float:
        """Return the epochs of fine-tuning on a task."""
        return self.epochs.get(task, self.epochs["default"])


@dataclass(frozen=True, kw_only=True)
class Intermediate:
    """A labeled table on which a model is fine-tuned before it is fine-tuned on the tasks that start from it."""

    file: str  # in HOME; without it, the tasks start from the pretrained model
    tasks: Sequence[str]
    epochs: float
    columns: Mapping[str, str]  # text, pair, label


@dataclass(frozen=True, kw_only=True)
class Continued:
    """A model that continues the record's training: what its recipe changes in the preset, and its budget."""

    recipe: Mapping[str, Any]
    budget: Mapping[str, float]
    scoring: Scoring


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The content of a plan file."""

    preset: str
    pilots: Mapping[str, Mapping[str, Any]]  # keys of a recipe that differ from the preset's
    rounds: Sequence[Round]
    proxy: Scoring  # of pilots
    final: Mapping[str, float] | None  # the budget of the full run; None: only pilots
    scoring: Scoring
    student: Mapping[str, Any] | None  # a preset (as keys of a recipe), and the budget of its distillation
    at_once: Mapping[str, int]
    save_every: int
    eval_every: int = 0  # steps between evaluations on held-out text, for the learning curve
    suite: str = "glue"
    corpus: Sequence[str] = ("--open-only", "--lowercase", "--vocab-size", "16384")  # options of script/record_corpus
    incomplete: bool = False  # whether files of tasks may be incomplete
    baselines: bool = False  # whether to score a bag of words and random weights, too
    stores: Sequence[str] = ("store",)
    intermediate: Mapping[str, Intermediate] = field(default_factory=dict)
    continued: Mapping[str, Continued] = field(default_factory=dict)


def read_plan(file: Path) -> Plan:
    """Read a plan file."""
    content = read_recipe(file)
    content["rounds"] = [Round(**one) for one in content.get("rounds") or ()]
    content["intermediate"] = {name: Intermediate(**one) for name, one in (content.get("intermediate") or {}).items()}
    content["continued"] = {
        name: Continued(**one | {"scoring": Scoring(**one["scoring"])})
        for name, one in (content.get("continued") or {}).items()
    }
    return Plan(**content | {key: Scoring(**content[key]) for key in ("proxy", "scoring")})


def record_jobs(plan: Plan, home: Path, rows: Rows) -> list[Job]:
    """Return the jobs of a plan that are known, given the rows of those that have ended."""
    names, jobs = list(plan.pilots), [preparation(plan, home)] if (home / "corpora").is_dir() else list[Job]()
    for number, one in enumerate(plan.rounds, 1):
        models = {name: f"pilot-{number}-{name}" for name in names}
        for name, model in models.items():
            jobs.append(pretraining(plan, home, model, plan.pilots[name], one.budget, pilot=name))
        for model in models.values():
            jobs += scoring(home, model, home / "runs" / model, plan.proxy, plan)
        if any(job.key not in rows for job in jobs):
            return jobs
        scores = {name: proxy_score(rows, model, plan.proxy) for name, model in models.items()}
        names = sorted(names, key=lambda name: -scores[name])[: one.keep]
    if plan.final is None:
        return jobs
    jobs.append(pretraining(plan, home, "record", plan.pilots[names[0]], plan.final, pilot=names[0]))
    for name, one in plan.continued.items():  # they share the GPU with the scores of the record
        jobs.append(pretraining(plan, home, name, one.recipe, one.budget, init_from="record"))
    jobs += scoring(home, "record", home / "runs" / "record", plan.scoring, plan)
    jobs.append(export(home, "record", ("record",)))
    for name, one in plan.continued.items():
        jobs += scoring(home, name, home / "runs" / name, one.scoring, plan)
        jobs.append(export(home, name, (name,)))
    if plan.baselines:
        jobs += baselines(home, plan)
    if plan.student is not None:
        jobs.append(distillation(plan, home))
        jobs.append(export(home, "student", ("student",)))
        jobs += scoring(home, "student", home / "models" / "student", plan.scoring, plan, needs="export-student")
    return jobs


def preparation(plan: Plan, home: Path) -> Job:
    """Return the job that prepares the corpora as a token store, or continues to."""
    words = [
        "env",
        f"PYTHON={sys.executable}",
        "sh",
        str(ROOT / "script" / "record_corpus"),
        str(home / "corpora"),
        str(home / "tasks"),
    ]
    words += [str(home), *plan.corpus]
    return Job("prepare", words, partial(read_store, home / "store"), "prepare")


def pretraining(
    plan: Plan,
    home: Path,
    model: str,
    changes: Mapping[str, Any],
    budget: Mapping[str, float],
    pilot: str | None = None,
    init_from: str | None = None,
) -> Job:
    """Return the job that pretrains a model, or resumes it, with `changes` to the preset; `init_from` is a model that it continues."""
    recipe = home / "recipes" / f"{pilot or model}.yaml"
    write_preset(recipe, {"like": plan.preset, **changes})
    limits = [word for name, value in budget.items() for word in (f"--{name}", f"{value:g}")]
    out = home / "runs" / model
    words = ["pretrain", recipe, "--data", *(home / store for store in plan.stores), *limits, "--out", out]
    resumed = (out / "recipe.yaml").is_file()
    words += ["--init-from", home / "runs" / init_from] if init_from and not resumed else []
    words += [
        "--set",
        f"monitor.save_every={plan.save_every}",
        "--set",
        f"monitor.eval_every={plan.eval_every}",
        *(["--resume"] if resumed else []),
    ]
    needs = (*(["prepare"] if (home / "corpora").is_dir() else []), *([init_from] if init_from else []))
    facts = {"model": model, "budget": dict(budget), "overrides": dict(changes)}
    facts |= {"pilot": pilot} if pilot else {}
    return Job(model, pretune(*words), partial(read_pretraining, out), "pretrain", needs, facts, 20.0)


def distillation(plan: Plan, home: Path) -> Job:
    """Return the job that distills the record model into a small one, on the same text."""
    assert plan.student is not None
    recipe, out = home / "recipes" / "student.yaml", home / "runs" / "student"
    write_preset(recipe, plan.student["preset"])
    budget: Mapping[str, float] = plan.student["budget"]
    limits = [word for name, value in budget.items() for word in (f"--{name}", f"{value:g}")]
    settings = [word for one in plan.student.get("settings", ()) for word in ("--set", one)]
    words = ["distill", home / "runs" / "record", "--student", recipe, "--data", *(home / one for one in plan.stores)]
    facts = {"model": "student", "budget": dict(budget), "overrides": dict(plan.student["preset"])}
    return Job(
        "student", pretune(*words, *limits, *settings, "--out", out), partial(read_pretraining, out), "pretrain", ("record",),
        facts, budget.get("seconds", 20.0), out,
    )  # fmt: skip


def export(home: Path, name: str, needs: tuple[str, ...]) -> Job:
    """Return the job that exports a model in 16 bits, split into files that can be copied one at a time."""
    out = home / "models" / name
    words = [sys.executable, str(Path(__file__).with_name("record.py")), "export", str(home / "runs" / name), str(out)]
    return Job(f"export-{name}", words, partial(read_export, out), "export", needs, {"model": name})


def scoring(home: Path, model: str, folder: Path, how: Scoring, plan: Plan, needs: str = "") -> list[Job]:
    """Return the jobs that fine-tune a model on each task with each seed; those of the first seed come first."""
    start = (needs or model,)
    settings = [word for one in how.settings for word in ("--set", one)]
    jobs, starts = list[Job](), dict[str, tuple[Path, tuple[str, ...]]]()
    for name, one in plan.intermediate.items():
        tasks = [task for task in one.tasks if task in how.tasks]
        if not tasks or not (home / one.file).is_file():
            continue
        key, tuned = f"{name}-{model}", home / "runs" / f"{name}-{model}"
        words: list[Any] = ["finetune", folder, home / one.file, "--strategy", "full", "--epochs", one.epochs]
        words += [word for role, column in one.columns.items() for word in (f"--{role}", column)]
        words += ["--no-report", "--num-seeds", 1, "--out", tuned, *settings]
        read, facts = partial(read_finetuning, tuned), {"model": model, "task": name}
        jobs.append(Job(key, pretune(*words), read, "finetune", start, facts, fresh=tuned))
        starts |= dict.fromkeys(tasks, (tuned, (key,)))
    for seed in range(how.seeds):
        for task in how.tasks:
            first, needed = starts.get(task, (folder, start))
            jobs.append(score(home, model, first, task, seed, how, plan, needed))
    if (home / "tasks" / "STS-B").is_dir():
        jobs.append(script(home, "vectors", model, [folder, home / "tasks"], start, {"task": "vectors"}))
    return jobs


def score(
    home: Path,
    model: str,
    folder: Path,
    task: str,
    seed: int,
    how: Scoring,
    plan: Plan,
    needs: tuple[str, ...],
    *more: str,
) -> Job:
    """Return the job that fine-tunes the model in a folder on one task with one seed, and scores it."""
    out = home / "runs" / f"{model}-{task}-{seed}"
    words: list[Any] = [
        "evaluate",
        folder,
        "--suite",
        plan.suite,
        "--data",
        home / "tasks",
        "--tasks",
        task,
        "--num-seeds",
        1,
    ]
    words += ["--seed", seed, "--epochs", how.epochs_of(task), "--out", out, *more]
    words += [word for one in how.settings for word in ("--set", one)] + ["--allow-incomplete"] * plan.incomplete
    facts = {"model": model, "task": task, "seed": seed, "epochs": how.epochs_of(task)}
    return Job(out.name, pretune(*words), partial(read_score, out, task), "finetune", needs, facts)


def script(
    home: Path, verb: str, model: str, words: Sequence[Path | str], needs: tuple[str, ...], facts: Mapping[str, Any]
) -> Job:
    """Return the job that runs a command of record.py, whose last line of output is its row."""
    key = f"{verb}-{model}"
    command = [sys.executable, str(ROOT / "perf" / "record.py"), verb, *map(str, words)]
    read = partial(read_printed, home / "logs" / f"{key}.log")
    return Job(key, command, read, "finetune", needs, {"model": model, **facts})


def baselines(home: Path, plan: Plan) -> list[Job]:
    """Return the jobs of the baselines: a bag of words, and the record's network from random weights."""
    jobs, folder = list[Job](), home / "runs" / "record"
    for task in plan.scoring.tasks:
        facts = {"task": task, "seed": 0}
        jobs.append(
            script(
                home, "bag-of-words", task, [home / "tasks", plan.suite, task], (), {**facts, "model": "bag of words"}
            )
        )
        for seed in range(plan.scoring.seeds):
            jobs.append(score(home, "scratch", folder, task, seed, plan.scoring, plan, ("record",), "--from-scratch"))
    return jobs


def proxy_score(rows: Rows, model: str, how: Scoring) -> float:
    """Return the mean over tasks of the median score of a model's seeds, in percent; minus infinity if a task has none."""
    scores = task_scores(rows, model)
    if any(task not in scores for task in how.tasks):
        return -math.inf
    return statistics.mean(statistics.median(scores[task]) for task in how.tasks)


def task_scores(rows: Rows, model: str) -> dict[str, list[float]]:
    """Return the scores of a model's seeds by task, in percent."""
    scores: dict[str, list[float]] = {}
    for row in rows.values():
        if row.get("model") == model and "score" in row and row.get("task") in METRIC:
            scores.setdefault(row["task"], []).append(row["score"])
    return scores


def write_preset(file: Path, content: Mapping[str, Any]) -> None:
    """Write a preset, unless the file has the same content."""
    text = write_recipe(json.loads(json.dumps(content)))
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def pretune(*words: Any) -> list[str]:
    """Return the command line of a pretune command."""
    return [sys.executable, "-m", "pretune", *map(str, words)]


def read_pretraining(run: Path) -> dict[str, Any]:
    """Return the costs, the last metrics, and the learning curve of a pretraining run."""
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "seconds" in line]
    kept = steps[:: max(1, -(-len(steps) // CURVE))]
    losses = {name: value for name, value in results.items() if isinstance(value, float) and name not in COSTS}
    return {
        **{name: results[name] for name in COSTS if name in results},
        "last": {name: rounded(value) for name, value in losses.items()},
        "curve": [{name: rounded(value) for name, value in line.items() if in_curve(name)} for line in kept],
    }


def in_curve(name: str) -> bool:
    """Return whether a value of a log line is kept in the learning curve."""
    return not name.startswith("gradient_norm") and name not in ("lr", "flops", "mfu")


def rounded(value: Any) -> Any:
    """Return a number with four significant digits, and anything else as it is."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def read_store(store: Path) -> dict[str, Any]:
    """Return the size of a token store, and what cleaning removed."""
    manifest, cleaning = (
        json.loads((store / name).read_text(encoding="utf-8")) for name in ("manifest.json", "cleaning.json")
    )
    sizes = {name: manifest[name] for name in ("documents", "sentences", "tokens", "bytes", "vocabulary")}
    rules = {row["rule"]: row["characters"] for row in cleaning["rules"]}
    return sizes | {"characters_before": cleaning["characters"], "removed": rules}


def read_finetuning(run: Path) -> dict[str, Any]:
    """Return the costs of a fine-tuning run."""
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    return {name: results[name] for name in COSTS if name in results}


def read_score(folder: Path, task: str) -> dict[str, Any]:
    """Return the score of one run of `pretune evaluate` on a task, in percent."""
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))["tasks"][task]
    return {"metric": METRIC[task], "score": round(100 * found["scores"][METRIC[task]][0], 2)}


def read_printed(log: Path) -> dict[str, Any]:
    """Return what a command of record.py printed last."""
    return dict(json.loads(log.read_text(encoding="utf-8").splitlines()[-1]))


def read_export(folder: Path) -> dict[str, Any]:
    """Return the size of an exported model."""
    return {"bytes": sum(file.stat().st_size for file in folder.iterdir() if file.is_file())}
