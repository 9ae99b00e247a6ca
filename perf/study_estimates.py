"""Estimate what each study costs on one H200, alone and with several runs at once, and order the studies.

Studies of claims without any measured verdict come first, then those that complete one, then those that repeat one; within each of these
groups, those with the highest value per minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from pretune.runtime.recipe import read_recipe
from pretune.studies.execution import corpus_paths
from pretune.studies.planning import StudyPlan, meta_model, plan_study
from pretune.studies.study_file import FINETUNING, PRETRAINING, Arm, Evaluation, Study, parse_study, task_settings
from pretune.studies.study_settings import AFTERWARDS
from pretune.training.jobs.finetuning_defaults import BATCH, FEW_ROWS, FEW_ROWS_BATCH, epochs_of_rows
from pretune.training.jobs.pretraining_settings import is_store

# How much a verdict adds, 1 to 3: whether the claim is central.
VALUE = {
    "replaced-token-detection": 3, "directionality": 3, "masking-rate": 3, "pretraining-helps": 3, "sentence-relations": 3, "cross-lingual-transfer": 3,
    "vocabularies-ru": 1, "vocabularies-ko": 1, "multi-task": 1,
}  # fmt: skip
USUAL_VALUE = 2
COMPLETING = {"pretraining-helps", "features-or-fine-tuning", "vocabularies", "vocabularies-ru", "vocabularies-ko", "translation-training"}  # fmt: skip
REPEATING = {"distillation", "compression"}  # claims that have a measured verdict

# On one H200, a step that is recorded as a CUDA graph takes the time of its FLOPs at a speed that depends on the width, and some time to
# launch kernels. 12x256 reaches 2.5e14 and 12x512 3.8e14 FLOPs per second with 131,072 tokens per step
# (docs/measurements/performance.md); four fifths of that are assumed for smaller steps, and less for the narrowest models.
SPEED = {128: 6e13, 256: 2e14, 512: 3e14}
WIDEST = 3e14
LAYER_SECONDS = 0.12e-3  # to launch the kernels of a layer, forward and backward
PLAIN_STEP_SECONDS = 15e-3  # of a step that is not recorded: recurrent layers and memories
PACKING = 1.15  # steps per planned step, because packs are not quite full
# On the host, measured on x86-64 at 2.5 GHz without a GPU (2026-11-19): 2.1 to 3.7 ms per step of pretraining with 8,192 or 16,384
# tokens, 0.6 to 3.8 ms per step of fine-tuning, 0.4 s for each pretraining, and 0.3 to 3.5 s to read and tokenize a task.
PRETRAINING_HOST_SECONDS, FINETUNING_HOST_SECONDS = 3.5e-3, 2.5e-3  # per step
RUN_SECONDS = 4.0  # of each run: the model, and recording the graphs of steps, which is a guess
EVALUATION_SECONDS = {"task": 3.0, "perplexity": 4.0, "vocabulary": 2.0, "suite": 6.0, "translation": 8.0, "probe": 6.0}
KERNEL_SECONDS = 60.0  # to compile the attention kernels of an arm with relative positions, once for each run
RELATIVE = ("xlnet", "transfo-xl", "t5")  # families of presets that need them
PREPARED_BYTES_PER_SECOND = 3e6  # of text, to tokenize it and to train a tokenizer, with a share of the cores
COMPRESSED = 4.0  # a corpus file of .xz is about a quarter of its text
OVERLAP = 1.6  # kernels of several small models at once, compared with one after the other; 1 without MPS
START_SECONDS = 45.0  # to start the workers, and to compile the kernels that all models share


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a study: seconds of the GPU and of one worker on the host, and the value of its verdict."""

    name: str
    value: int
    training_seconds: float  # on the GPU
    scoring_seconds: float  # on the GPU, for evaluations
    host_seconds: float
    runs: int
    trials: int

    @property
    def gpu_seconds(self) -> float:
        """The estimated seconds of the GPU."""
        return self.training_seconds + self.scoring_seconds

    def seconds(self, at_once: int = 1, overlap: float = OVERLAP) -> float:
        """Return the share of this study in the time of all studies, with `at_once` runs at a time."""
        if at_once == 1:
            return self.gpu_seconds + self.host_seconds
        return max(self.gpu_seconds / overlap, (self.gpu_seconds + self.host_seconds) / at_once)

    @property
    def group(self) -> int:
        """The group of the study: 0 without any measured verdict on its claim, 1 with a part of it, 2 with a verdict."""
        return 2 if self.name in REPEATING else 1 if self.name in COMPLETING else 0

    def row(self, at_once: int) -> str:
        """Return the estimate as a line of a table."""
        return (
            f"{self.name:28} {self.group:5} {self.value:5} {self.runs:5} {self.trials:6} {self.training_seconds:8.0f} {self.scoring_seconds:8.0f} "
            f"{self.host_seconds:6.0f} {self.seconds(at_once):8.0f} {self.seconds(at_once, 1.0):8.0f}"
        )


HEADER = f"{'study':28} group value  runs trials GPU train    score   host      MPS   no MPS"


def whole_seconds(estimates: list[Estimate], at_once: int, overlap: float = OVERLAP) -> float:
    """Return the estimated seconds of all studies together, from the start of the workers on."""
    gpu, host = sum(one.gpu_seconds for one in estimates), sum(one.host_seconds for one in estimates)
    return START_SECONDS + max(gpu / overlap, (gpu + host) / at_once)


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
    training, scoring, host, trials = 0.0, 0.0, preparation_seconds(study), 0
    for one in plan.arms:
        search, layers = one.arm.search, depth(one.arm)
        runs = study.seeds + (search.cost if search else 0.0)  # in budgets
        counts = {evaluation.name: finetuning_steps(evaluation, study.stage) for evaluation in study.evaluations}
        kinds = [evaluation.kind for evaluation in study.evaluations if evaluation.kind not in AFTERWARDS]
        steps = PACKING * one.steps * repetitions(study)
        training += runs * steps * (layers * LAYER_SECONDS + one.step.flops / speed_of(plan, one.arm))
        plain = is_plain(one.arm)
        host += runs * steps * (PLAIN_STEP_SECONDS if plain else PRETRAINING_HOST_SECONDS)
        tasks = study.seeds * sum(counts.values()) + (len(search.rates) * counts[search.by] if search else 0)
        scoring += tasks * layers * LAYER_SECONDS * 1.5
        host += tasks * (PLAIN_STEP_SECONDS if reads_recurrently(one.arm) else FINETUNING_HOST_SECONDS)
        own = len(search.rates) if search else 0
        trials += own
        host += (study.seeds + own) * (RUN_SECONDS + KERNEL_SECONDS * one.arm.model.startswith(RELATIVE))
        host += study.seeds * sum(EVALUATION_SECONDS[kind] for kind in kinds) + own * EVALUATION_SECONDS["task"]
    value = VALUE.get(name, USUAL_VALUE)
    return Estimate(name, value, training, scoring, host, study.seeds * len(plan.arms), trials)


def repetitions(study: Study) -> int:
    """Return how often a run spends its budget: once, or once for each task if the budget is not for pretraining."""
    return 1 if study.stage == PRETRAINING else sum(one.kind == "task" for one in study.evaluations)


def depth(arm: Arm) -> int:
    """Return the number of layers of the model of an arm, and one for its embeddings and heads."""
    return 1 + meta_model(arm.model, None).backbone.depth


def speed_of(plan: StudyPlan, arm: Arm) -> float:
    """Return the assumed training speed of an arm, by the width of its model."""
    width = meta_model(arm.model, None).backbone.width
    return next((speed for most, speed in SPEED.items() if width <= most), WIDEST)


def is_plain(arm: Arm) -> bool:
    """Return whether the training steps of an arm are not recorded as CUDA graphs."""
    return "stateful=true" in str((arm.pretrain or {}).get("objective")) or (
        arm.pretrain is None and reads_recurrently(arm)
    )


def reads_recurrently(arm: Arm) -> bool:
    """Return whether the tasks of an arm are learned by recurrent layers."""
    return "lstm" in str((arm.finetune or {}).get("layers", "")) or arm.model.startswith("awd-lstm")


def preparation_seconds(study: Study) -> float:
    """Return the estimated time to tokenize the text of all arms, once for each tokenizer."""
    different = {
        str([corpus_paths(arm), (arm.pretrain or {}).get("tokenizer")]): arm for arm in study.arms if arm.pretrain
    }
    size = 0.0
    for arm in different.values():
        if all(map(is_store, corpus_paths(arm))):
            continue
        files = [file for path in corpus_paths(arm) for file in map(Path, glob(path)) if file.is_file()]
        size += sum(file.stat().st_size * (COMPRESSED if file.suffix == ".xz" else 1) for file in files)
    return size / PREPARED_BYTES_PER_SECOND


def finetuning_steps(evaluation: Evaluation, stage: str, arm: Arm | None = None) -> float:
    """Return the number of steps of fine-tuning in an evaluation, if its epochs decide them."""
    settings = evaluation.settings if arm is None else task_settings(evaluation, arm)
    file = Path(settings.get("train", ""))
    if evaluation.kind != "task" or stage == FINETUNING or not file.is_file():
        return 0.0
    tagged = settings.get("objective") == "tag"  # sentences end with an empty line
    answers = settings.get("objective") == "answer"
    rows = (
        file.read_text(encoding="utf-8").count('"question"') if answers
        else sum(bool(line.strip()) != tagged for line in file.open("rb"))
    )  # fmt: skip
    if settings.get("shots"):
        rows = 2 * settings["shots"]  # the tasks with shots have two classes
    batch = (settings.get("batch") or {}).get("size") or (FEW_ROWS_BATCH if rows < FEW_ROWS else BATCH)
    return rows * float(settings.get("epochs") or epochs_of_rows(rows, batch)) / batch


def in_order(estimates: list[Estimate], at_once: int) -> list[Estimate]:
    """Return estimates in the order in which the studies run."""
    return sorted(estimates, key=lambda one: (one.group, -one.value / one.seconds(at_once)))
