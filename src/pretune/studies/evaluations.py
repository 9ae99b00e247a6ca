"""Evaluate the model of a run: fine-tune (and compress) it, or measure bits per byte, probes, a suite, or its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

from pretune.compression.benchmark import evaluate_quality
from pretune.compression.task_model import TrainedModel
from pretune.evaluation.language_modeling import ReadingOptions, evaluate_language
from pretune.evaluation.suites.declaration import find_suite
from pretune.evaluation.suites.suite_runner import EvaluationJob, evaluate_suite
from pretune.inference.likelihood import LikelihoodScorer
from pretune.models.loading import load_model
from pretune.models.name_resolution import find_folder
from pretune.probing.probes.layer_scores import ProbeSettings
from pretune.probing.probing_job import ProbingJob, summary_rows
from pretune.probing.suites import load_suite
from pretune.runtime.errors import PretuneError
from pretune.studies.arm_jobs import finetuning_job, task_columns
from pretune.studies.compression_steps import COSTS, compress_model
from pretune.studies.study_file import Arm, Evaluation, task_settings
from pretune.studies.study_settings import TaskKeys, check_settings
from pretune.text.corpus.documents import read_documents
from pretune.text.corpus.files import find_files
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.jobs.finetuning import finetune, read_task_data
from pretune.training.recipe_sections import Budget
from pretune.training.run_folder import RECIPE, finished_run


@dataclass(frozen=True)
class Evaluated:
    """The result of an evaluation: its metrics, the name of the primary one, its cost, and the number of examples."""

    metrics: dict[str, float]
    primary: str
    cost: dict[str, float]
    examples: int | None = None  # that the metrics were measured on


def evaluate_run(
    arm: Arm,
    evaluation: Evaluation,
    model: str,
    seed: int,
    out: Path,
    *,
    original: Path | None = None,
    budget: Budget | None = None,
    lr: float | None = None,
    device: str | None = None,
    tokenizer: str | None = None,
) -> Evaluated:
    """Evaluate the model `model` of an arm, one of the compared recipes, with one seed, in the folder `out`.

    An interrupted evaluation by fine-tuning resumes from this folder. If the study compares ways of fine-tuning or
    compression, `budget` and `lr` are the budget and the learning rate of the run. With compression, `original` is the
    folder of the fine-tuned model that arms share.
    """
    settings = evaluation.settings
    match evaluation.kind:
        case "task" if arm.compress or original is not None:
            start = original or out
            finetuned = finetune_arm(arm, evaluation, model, seed, start, device=device, tokenizer=tokenizer)
            if not arm.compress:
                return replace(finetuned, cost={})
            folder, cost = compress_model(arm, evaluation, str(start), seed, out, budget=budget, lr=lr, device=device)
            files = {"": settings["dev"], **settings.get("also", {})}
            return replace(finetuned, metrics=score_files(folder, files, columns_of(arm, evaluation)), cost=cost)
        case "task":
            return finetune_arm(
                arm, evaluation, model, seed, out, budget=budget, lr=lr, device=device, tokenizer=tokenizer
            )
        case "perplexity":
            data = [settings["data"]] if isinstance(settings["data"], str) else settings["data"]
            reading = ReadingOptions(settings.get("max_length"), settings.get("stride"), settings.get("limit"))
            columns = {"text": settings["text"]} if "text" in settings else {}
            found = evaluate_language(LikelihoodScorer.load(model, device), data, reading, columns)
            primary = "bits_per_byte" if "bits_per_byte" in found else next(iter(found))
            return Evaluated({primary: found[primary]}, primary, {}, found.get("texts", found.get("pairs")))
        case "probe":
            return probe_run(evaluation, model, seed, out)
        case "suite":
            return suite_run(evaluation, model, seed, out, device)
        case "vocabulary":
            return count_tokens(evaluation, model)
    raise PretuneError(
        f"{evaluation.name}: latency cannot be measured for a single run, only after all runs; choose another evaluation"
    )


def finetune_arm(
    arm: Arm,
    evaluation: Evaluation,
    model: str,
    seed: int,
    out: Path,
    *,
    budget: Budget | None = None,
    lr: float | None = None,
    device: str | None = None,
    tokenizer: str | None = None,
) -> Evaluated:
    """Fine-tune the model `model` of an arm on the task of an evaluation, unless this is done, and score it."""
    job = finetuning_job(arm, evaluation, model, seed, out, budget=budget, lr=lr, device=device, tokenizer=tokenizer)
    material = read_task_data(job)
    if not material.has_dev:
        raise PretuneError(
            f"{job.train}: there are too few examples to hold some out for evaluation; name a file of dev examples under the key 'dev'"
        )
    run = finished_run(out) or finetune(job, material, (out / RECIPE).is_file())
    metrics = {name.removeprefix("dev/"): value for name, value in run.results.items() if name.startswith("dev/")}
    cost = {name: float(run.results[name]) for name in COSTS if name in run.results}
    if (further := evaluation.settings.get("also")) and not arm.compress:
        metrics |= score_files(out, further, columns_of(arm, evaluation))
    return Evaluated(metrics, material.primary_metric, cost, len(material.dev))


def columns_of(arm: Arm, evaluation: Evaluation) -> dict[str, str]:
    """Return the columns of the files of a task, by role."""
    return task_columns(check_settings(TaskKeys, task_settings(evaluation, arm), evaluation.name))


def score_files(folder: Path, files: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, float]:
    """Return the metrics of a trained model on files of labeled examples, as NAME/METRIC; without NAME if it is ""."""
    found = TrainedModel.load(folder)
    task = found.require_task("it is to be scored on a file")
    metrics: dict[str, float] = {}
    for name, file in files.items():
        scores = evaluate_quality(found.model, task, found.read(file, columns))
        metrics |= {f"{name}/{metric}" if name else metric: value for metric, value in scores.items()}
    return metrics


def count_tokens(evaluation: Evaluation, model: str) -> Evaluated:
    """Return what a model's tokenizer makes of texts: tokens per word (fertility), and the share of unknown tokens."""
    settings = evaluation.settings
    data = [settings["data"]] if isinstance(settings["data"], str) else settings["data"]
    documents = read_documents(find_files(data), text_field=settings.get("text_field"))
    texts = [document.text for document in islice(documents, settings.get("limit", 2000))]
    words = sum(len(text.split()) for text in texts)
    if not words:
        raise PretuneError(f"evaluations.{evaluation.name}: the texts have no words; check the paths under 'data'")
    tokenizer = Tokenizer.load(find_folder(model))
    ids, _ = tokenizer.encode_many(texts)
    unknown = float((ids == tokenizer.roles["unknown"]).mean()) if "unknown" in tokenizer.roles else 0.0
    metrics = {"tokens_per_word": len(ids) / words, "unknown": unknown, "vocabulary": float(tokenizer.size)}
    return Evaluated(metrics, "tokens_per_word", {}, words)


def probe_run(evaluation: Evaluation, model: str, seed: int, out: Path) -> Evaluated:
    """Train probes on the layers of a model; the metrics are the accuracy of each task's best layer, and their mean."""
    settings = evaluation.settings
    data = None if settings.get("data") is None else Path(settings["data"])
    tasks = load_suite(settings["suite"], data, settings.get("max_examples"), 0)
    if wanted := settings.get("tasks"):
        tasks = [task for task in tasks if task.name in wanted]
    probing = ProbeSettings(settings.get("probe", "linear"), controls=False, seed=seed)
    layers = settings.get("layers") or None
    job = ProbingJob(load_model(model), model, tasks, out, probing, settings.get("pooling", "mean"), layers)
    rows = summary_rows(job.run())
    metrics = {str(row["task"]): float(row["accuracy"]) for row in rows}
    return Evaluated({"accuracy": mean(metrics.values()), **metrics}, "accuracy", {})


def suite_run(evaluation: Evaluation, model: str, seed: int, out: Path, device: str | None) -> Evaluated:
    """Evaluate a model on a benchmark suite with one seed; the metrics are those of its tasks, and their mean."""
    settings = evaluation.settings
    suite = find_suite(settings["suite"]).select_tasks(list(settings.get("tasks", ())))
    options = {name: settings[name] for name in ("epochs",) if name in settings}
    job = EvaluationJob(
        model,
        suite,
        Path(settings["data"]),
        out,
        num_seeds=1,
        seed=seed,
        settings=options,
        allow_incomplete=settings.get("allow_incomplete", False),
        device=device,
        shots=settings.get("shots"),
    )
    means = evaluate_suite(job).means
    metrics: dict[str, Any] = {
        f"{task}/{name}": value for task, scores in means.items() for name, value in scores.items()
    }
    each = [mean(scores.values()) for scores in means.values()]
    return Evaluated({"mean": mean(each), **metrics}, "mean", {})
