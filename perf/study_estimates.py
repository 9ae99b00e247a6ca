"""Estimate what each study costs on one H200, alone and with several runs at once, and order the studies by value per minute."""

from __future__ import annotations

from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from pretune.runtime.recipe import read_recipe
from pretune.studies.execution import corpus_paths
from pretune.studies.planning import StudyPlan, meta_model, plan_study
from pretune.studies.study_file import Arm, Evaluation, Study, parse_study
from pretune.training.jobs.finetuning_defaults import BATCH

# How much a verdict adds, 1 to 3: whether the claim is central, and whether pretune has no other measurement of it.
VALUE = {
    "replaced-token-detection": 3, "directionality": 3, "masking-rate": 3, "pretraining-helps": 3, "distillation": 2, "compression": 2,
    "masking-units": 2, "dynamic-masks": 2, "sentence-relations": 3, "model-size": 2, "parameter-sharing": 2, "permutation": 2,
    "encoder-decoder-objectives": 2, "features-or-fine-tuning": 2, "vocabularies": 2, "vocabularies-ru": 1, "vocabularies-ko": 1,
    "cross-lingual-transfer": 3, "in-context-learning": 2, "locality": 2, "positions": 2, "multi-task": 1, "data-amount": 2, "translation-training": 2,
}  # fmt: skip

# Sustained training speed on one H200, FLOPs per second by width. 12x256 reaches 2.5e14 and 12x512 3.8e14 with 131,072 tokens per step
# (docs/measurements/performance.md). The smaller steps of the studies are bounded by the launch of kernels; half of that is assumed,
# and less for the narrowest models.
SPEED = {128: 2e13, 256: 1e14, 512: 2e14}
WIDEST = 3e14
STEPS_PER_SECOND = 400.0  # of fine-tuning, replayed as CUDA graphs: RTE, 468 steps of a 6x384 model in 2 s, with everything (the same page)
EVALUATION_SECONDS = {
    "task": 0.5,
    "perplexity": 2.0,
    "vocabulary": 0.0,
    "suite": 6.0,
    "translation": 3.0,
    "probe": 5.0,
    "latency": 0.0,
}
# On the host: tracing, and recording graphs, for each run; reading, tokenizing, and scoring for each evaluation.
RUN_HOST_SECONDS, EVALUATION_HOST_SECONDS = 12.0, 4.0
COMPILATION_SECONDS = 40.0  # of an arm, once
PREPARED_BYTES_PER_SECOND = 3e6  # of text, to tokenize it and to train a tokenizer, with a share of the cores
COMPRESSED = 4.0  # a corpus file of .xz is about a quarter of its text
OVERLAP = 1.5  # kernels of several small models at once, compared with one after the other; 1 without MPS


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a study: seconds of the GPU, seconds of one worker on the host, and the value of its verdict."""

    name: str
    value: int
    gpu_seconds: float
    host_seconds: float
    runs: int

    def minutes(self, at_once: int = 1) -> float:
        """Return the share of this study in the time of all studies, with `at_once` runs at a time."""
        if at_once == 1:
            return (self.gpu_seconds + self.host_seconds) / 60
        return max(self.gpu_seconds / OVERLAP, (self.gpu_seconds + self.host_seconds) / at_once) / 60

    def value_per_minute(self, at_once: int = 1) -> float:
        """Return the value of the study's verdict per minute."""
        return self.value / self.minutes(at_once)

    def row(self, at_once: int) -> str:
        """Return the estimate as a line of a table."""
        return (
            f"{self.name:28} {self.value:5} {self.runs:5} {self.minutes():8.1f} {self.minutes(at_once):8.1f} "
            f"{self.value_per_minute(at_once):9.2f}"
        )


HEADER = f"{'study':28} value  runs    alone  at once  value/min"


def read_study_content(file: Path, seeds: int | None = None) -> dict[str, Any]:
    """Return the content of a study file, with another number of seeds if it is given."""
    content = dict(read_recipe(file))
    if seeds is not None:
        content["seeds"] = seeds
    return content


def estimate(name: str, content: dict[str, Any]) -> Estimate:
    """Return the estimated cost of a study; raise an error if its arms do not spend the same."""
    study = parse_study(content, name)
    plan = plan_study(study, "cpu")
    plan.check()
    gpu, host, runs = 0.0, preparation_seconds(study), 0
    for one in plan.arms:
        search = one.arm.search
        trials = len(search.rates) if search else 0
        training = one.steps * one.step.flops / speed_of(plan, one.arm) * repetitions(study)
        scoring = {evaluation.name: evaluation_seconds(evaluation, study.stage) for evaluation in study.evaluations}
        gpu += training * (study.seeds + (search.cost if search else 0)) + study.seeds * sum(scoring.values())
        gpu += trials * scoring[search.by] if search else 0.0
        runs += study.seeds
        evaluations = study.seeds * len(study.evaluations) + trials
        host += (study.seeds + trials) * RUN_HOST_SECONDS + evaluations * EVALUATION_HOST_SECONDS
        host += COMPILATION_SECONDS if study.stage == "pretraining" and not one.arm.control else 0.0
    return Estimate(name, VALUE.get(name, 1), gpu, host, runs)


def repetitions(study: Study) -> int:
    """Return how often a run spends its budget: once, or once for each task if the budget is not for pretraining."""
    return 1 if study.stage == "pretraining" else sum(one.kind == "task" for one in study.evaluations)


def speed_of(plan: StudyPlan, arm: Arm) -> float:
    """Return the assumed training speed of an arm, by the width of its model."""
    width = meta_model(arm.model, None).backbone.width
    return next((speed for most, speed in SPEED.items() if width <= most), WIDEST)


def preparation_seconds(study: Study) -> float:
    """Return the estimated time to tokenize the text of all arms, once for each tokenizer."""
    different = {
        str([corpus_paths(arm), (arm.pretrain or {}).get("tokenizer")]): arm for arm in study.arms if arm.pretrain
    }
    size = 0.0
    for arm in different.values():
        files = [file for path in corpus_paths(arm) for file in map(Path, glob(path)) if file.is_file()]
        size += sum(file.stat().st_size * (COMPRESSED if file.suffix == ".xz" else 1) for file in files)
    return size / PREPARED_BYTES_PER_SECOND


def evaluation_seconds(evaluation: Evaluation, stage: str) -> float:
    """Return the estimated time of one evaluation on the GPU."""
    seconds, settings = EVALUATION_SECONDS[evaluation.kind], evaluation.settings
    file = Path(settings.get("train", ""))
    if evaluation.kind == "task" and stage != "fine-tuning" and file.is_file():
        tagged = settings.get("objective") == "tag"  # sentences end with an empty line
        answers = settings.get("objective") == "answer"
        rows = settings.get("shots") or (
            file.read_text(encoding="utf-8").count('"question"') if answers
            else sum(bool(line.strip()) != tagged for line in file.open("rb"))
        )  # fmt: skip
        batch = (settings.get("batch") or {}).get("size", BATCH)
        seconds += rows * float(settings.get("epochs", 3)) / batch / STEPS_PER_SECOND
    return seconds


def by_value(estimates: list[Estimate], at_once: int) -> list[Estimate]:
    """Return estimates with the highest value per minute first."""
    return sorted(estimates, key=lambda one: -one.value_per_minute(at_once))
