"""Evaluate the model of a run: fine-tune (and compress) it, or measure bits per byte, probes, a suite, tokens, or translations."""

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
from pretune.inference.generation.decoding_loops import GenerationConfig
from pretune.inference.generation.translate import Translator
from pretune.inference.likelihood import LikelihoodScorer
from pretune.metrics.generated_text import bleu, chrf
from pretune.models.loading import load_model
from pretune.models.name_resolution import find_folder
from pretune.probing.probes.layer_scores import ProbeSettings
from pretune.probing.probing_job import ProbingJob, summary_rows
from pretune.probing.suites import load_suite
from pretune.runtime.errors import PretuneError
from pretune.studies.arm_jobs import EvaluationRun, finetuning_job, task_columns, task_options
from pretune.studies.compression_steps import COSTS, compress_model
from pretune.studies.study_file import Evaluation
from pretune.text.corpus.documents import read_documents
from pretune.text.corpus.files import find_files, read_lines
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.jobs.finetuning import finetune, read_task_data
from pretune.training.run_folder import RECIPE, finished_run

MOST_NEW_TOKENS = 200  # of a translation


@dataclass(frozen=True)
class Evaluated:
    """The result of an evaluation: its metrics, the name of the primary one, its cost, and the number of examples."""

    metrics: dict[str, float]
    primary: str
    cost: dict[str, float]
    examples: int | None = None  # that the metrics were measured on
    trivial: float | None = None  # the primary metric of the majority-class baseline


def evaluate_run(run: EvaluationRun, original: Path | None = None) -> Evaluated:
    """Evaluate the model of a run; an interrupted evaluation by fine-tuning resumes from its folder.

    With compression, `original` is the folder of the fine-tuned model that arms share.
    """
    evaluation = run.evaluation
    settings = evaluation.settings
    match evaluation.kind:
        case "task" if run.arm.compress or original is not None:
            start = original or run.out
            finetuned = finetune_arm(replace(run, out=start, budget=None, lr=None))
            if not run.arm.compress:
                return replace(finetuned, cost={})
            folder, cost = compress_model(replace(run, model=str(start)))
            files = {"": settings["dev"], **settings.get("also", {})}
            return replace(finetuned, metrics=score_files(folder, files, columns_of(run)), cost=cost)
        case "task":
            return finetune_arm(run)
        case "perplexity":
            data = [settings["data"]] if isinstance(settings["data"], str) else settings["data"]
            reading = ReadingOptions(settings.get("max_length"), settings.get("stride"), settings.get("limit"))
            columns = {"text": settings["text"]} if "text" in settings else {}
            found = evaluate_language(LikelihoodScorer.load(run.model, run.device), data, reading, columns)
            primary = "bits_per_byte" if "bits_per_byte" in found else next(iter(found))
            return Evaluated({primary: found[primary]}, primary, {}, found.get("texts", found.get("pairs")))
        case "probe":
            return probe_run(run)
        case "suite":
            return suite_run(run)
        case "vocabulary":
            return count_tokens(evaluation, run.model)
        case "translation":
            return score_translations(run)
    raise PretuneError(
        f"{evaluation.name}: the {evaluation.kind} is measured after all runs, not for a single one; choose another evaluation"
    )


def finetune_arm(run: EvaluationRun) -> Evaluated:
    """Fine-tune the model of a run on the task of its evaluation, unless this is done, and score it."""
    job = finetuning_job(run)
    material = read_task_data(job)
    if not material.has_dev:
        raise PretuneError(
            f"{job.train}: there are too few examples to hold some out for evaluation; name a file of dev examples under the key 'dev'"
        )
    trained = finished_run(run.out) or finetune(job, material, (run.out / RECIPE).is_file())
    metrics = {name.removeprefix("dev/"): value for name, value in trained.results.items() if name.startswith("dev/")}
    cost = {name: float(trained.results[name]) for name in COSTS if name in trained.results}
    if (further := run.evaluation.settings.get("also")) and not run.arm.compress:
        metrics |= score_files(run.out, further, columns_of(run))
    return Evaluated(metrics, material.primary_metric, cost, len(material.dev), material.baseline_score())


def columns_of(run: EvaluationRun) -> dict[str, str]:
    """Return the columns of the files of a task, by role."""
    return task_columns(task_options(run))


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


def score_translations(run: EvaluationRun) -> Evaluated:
    """Return BLEU and chrF of a model's translations of the texts in a file, with one text per line."""
    settings = run.evaluation.settings
    limit = settings.get("limit")
    texts, right = (
        [line for _, line in islice(read_lines(Path(settings[name])), limit)] for name in ("source", "reference")
    )
    if len(texts) != len(right) or not texts:
        raise PretuneError(
            f"evaluations.{run.evaluation.name}: there are {len(texts)} texts and {len(right)} references; "
            "both files need one text per line, in the same order"
        )
    decoding = GenerationConfig(MOST_NEW_TOKENS, num_beams=settings.get("num_beams", 1))
    translator = Translator.load([run.model], run.device)
    rows = translator.describe(texts, translator.translate(texts, decoding))
    found = [row["translation"] for row in rows]
    metrics = {**bleu(right, found).compute(), **chrf(right, found).compute()}
    return Evaluated(metrics, "bleu", {}, len(texts))


def probe_run(run: EvaluationRun) -> Evaluated:
    """Train probes on the layers of a model; the metrics are the accuracy of each task's best layer, and their mean."""
    settings = run.evaluation.settings
    data = None if settings.get("data") is None else Path(settings["data"])
    tasks = load_suite(settings["suite"], data, settings.get("max_examples"), 0)
    if wanted := settings.get("tasks"):
        tasks = [task for task in tasks if task.name in wanted]
    probing = ProbeSettings(settings.get("probe", "linear"), controls=False, seed=run.seed)
    layers = settings.get("layers") or None
    pooling = settings.get("pooling", "mean")
    job = ProbingJob(load_model(run.model), run.model, tasks, run.out, probing, pooling, layers)
    rows = summary_rows(job.run())
    metrics = {str(row["task"]): float(row["accuracy"]) for row in rows}
    return Evaluated({"accuracy": mean(metrics.values()), **metrics}, "accuracy", {})


def suite_run(run: EvaluationRun) -> Evaluated:
    """Evaluate a model on a benchmark suite with one seed; the metrics are those of its tasks, and their mean."""
    settings = run.evaluation.settings
    suite = find_suite(settings["suite"]).select_tasks(list(settings.get("tasks", ())))
    options = {name: settings[name] for name in ("epochs",) if name in settings}
    job = EvaluationJob(
        run.model,
        suite,
        Path(settings["data"]),
        run.out,
        num_seeds=1,
        seed=run.seed,
        settings=options,
        allow_incomplete=settings.get("allow_incomplete", False),
        device=run.device,
        shots=settings.get("shots"),
    )
    means = evaluate_suite(job).means
    metrics: dict[str, Any] = {
        f"{task}/{name}": value for task, scores in means.items() for name, value in scores.items()
    }
    each = [mean(scores.values()) for scores in means.values()]
    return Evaluated({"mean": mean(each), **metrics}, "mean", {})
