"""Pruning of a trained model, with optional fine-tuning, into a run folder that compares both models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pretune.compression.compression_job import CompressionJob
from pretune.compression.pruning import PruningSpec, prune_model
from pretune.compression.task_model import TrainedModel, compare_models
from pretune.models.weight_files import stored_dtype
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.output_paths import intermediate_folder
from pretune.training.jobs.finetuning import finetune
from pretune.training.run_folder import Run, finish_run, start_run, write_run_recipe


@dataclass(frozen=True, kw_only=True)
class PruningJob(CompressionJob):
    """A pruning job: the model, what to remove, and how to fine-tune afterwards."""

    model: str
    pruning: PruningSpec
    epochs: float = 0.0
    ignore_mismatched: bool = False
    vocabulary_texts: list[str] = field(default_factory=list)  # text files whose tokens are kept
    reading: Mapping[str, Any] = field(default_factory=dict)  # options for reading these files
    baseline: bool = False  # whether to fine-tune the unpruned model as well

    @property
    def trains(self) -> bool:
        """Whether the pruned model is fine-tuned afterwards."""
        return bool(self.epochs or self.budget)

    def recipe(self) -> dict[str, Any]:
        """Return the options that determine the result of a pruning job, named like the command-line options."""
        fractions = {
            name: value for name, value in asdict(replace(self.pruning, vocabulary_texts=None)).items() if value
        }
        known = {"model": self.model, **fractions, "train": self.train, "dev": self.dev, **self.columns}
        known |= {"vocabulary_texts": self.vocabulary_texts, **self.reading, "epochs": self.epochs}
        return self.write_recipe(known)


def run_pruning(job: PruningJob) -> Run:
    """Prune a model, fine-tune it if the job has a budget for it, compare it with the original, and return the run."""
    pruning = job.pruning.check()
    if job.trains and job.train is None:
        raise PretuneError(
            "to fine-tune the pruned model, `pretune prune` needs labeled examples; give them with --train"
        )
    before = TrainedModel.load(job.model, job.ignore_mismatched)
    rows, dev = (before.read(file, job.columns) for file in (job.train, job.dev))
    # Unstructured pruning is gradual during fine-tuning, and one-shot without it.
    gradual = pruning.sparsity if job.trains else 0.0
    one_shot = replace(pruning, sparsity=pruning.sparsity - gradual)
    model, report = prune_model(before.model, one_shot, before.importance_data(rows), choose_device(job.device))
    folder = intermediate_folder(job.out, "pruned") if job.trains else job.out
    start_run(folder, "prune", job.recipe(), resume=False)
    model.save(folder, stored_dtype(before.folder))  # in the original's data type, so that the file is not larger
    models = {"before": before, "pruned": TrainedModel.load(folder)}
    if job.trains:
        finish_run(folder, {"model": job.model, **report})
        strategy = f"full+sparse({gradual:g})" if gradual else "full"
        run = finetune(job.finetuning(folder, job.out, before.objective, strategy))
        write_run_recipe(job.out, "prune", job.recipe())
        report = {**run.results, **report}
        if job.baseline:
            baseline = intermediate_folder(job.out, "baseline")
            finetune(job.finetuning(job.model, baseline, before.objective))
            models["trained, not pruned"] = TrainedModel.load(baseline)
        models["pruned and trained"] = TrainedModel.load(job.out)
    comparison = compare_models(models, dev) if job.compare else {}
    return finish_run(job.out, {"model": job.model, **report, **comparison})
