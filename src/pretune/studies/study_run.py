"""One run of a study: pretrain an arm with a seed, evaluate it, and write the outcome; a failure is an outcome, too.

DIR/pretrained        the run folder of the pretraining
DIR/adapted           the run folder of the adaptation to other text
DIR/EVALUATION        the run folder of an evaluation
DIR/EVALUATION-N-VERB the run folder of its compression step N
DIR/outcome.json      the metrics and the cost, or the error: marks the run as finished
DIR/traceback.txt     where an unexpected error was raised
"""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

from pretune.models.presets import is_preset
from pretune.objectives import parse_objective
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import json_checksum, read_mapping, validate_schema
from pretune.studies.arm_jobs import ADAPTED, PRETRAINED, EvaluationRun, pretraining_job, scaled, training_stages
from pretune.studies.compression_steps import COSTS
from pretune.studies.evaluations import evaluate_run, finetune_arm
from pretune.studies.study_file import PRETRAINING, Arm, Evaluation, run_budget, task_settings
from pretune.text.store.store import Store
from pretune.text.tokenizers.token_cache import use_token_cache
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.checkpoints import FOLDER as CHECKPOINTS
from pretune.training.jobs.pretraining import pretrain
from pretune.training.jobs.pretraining_data import get_data, read_rows
from pretune.training.jobs.pretraining_model import get_model
from pretune.training.jobs.pretraining_settings import PretrainingJob
from pretune.training.recipe_sections import Monitoring
from pretune.training.run_folder import RECIPE, Run, finish_run, finished_run, start_run

OUTCOME, TRACEBACK = "outcome.json", "traceback.txt"
WEIGHTS = "*.safetensors"


@dataclass(frozen=True)
class StudyRun:
    """One run of a study: an arm (compared recipe) with a seed, a budget, and evaluations.

    It has only plain values, so that it can be sent to a worker process.
    """

    arm: Arm
    seed: int
    unit: str
    budget: float
    evaluations: tuple[Evaluation, ...]
    folder: Path
    lr: float | None = None  # in place of the arm's
    steps: int = 0  # as planned
    store: str | None = None  # the folder of the token store that all runs with the same tokenizer share
    adapting_store: str | None = None  # that of the text to adapt to
    originals: Path | None = None  # the folder of the fine-tuned models that are compressed, shared between arms
    stage: str = PRETRAINING  # that the budget is for
    device: str | None = None
    keep_models: bool = False  # keep the weights of evaluations, too
    monitor: Monitoring | None = None  # of pretraining, where the arm sets nothing
    token_cache: Path | None = None  # the folder of the tokenized examples, which all runs share

    @property
    def digest(self) -> str:
        """A digest of all settings that determine the outcome of the run, to notice when they have changed.

        The learning rate is not part of it, because it follows from the other settings or from the folder.
        """
        evaluations = [[one.name, one.kind, one.settings] for one in self.evaluations]
        return json_checksum([self.arm.describe(), self.seed, self.unit, self.budget, evaluations])

    @property
    def title(self) -> str:
        """A description of the run in a few words, for progress messages."""
        rate = "" if self.lr is None else f", lr {self.lr:g}"
        return f"{self.arm.name}, seed {self.seed}{rate}"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run of a study: its metrics, costs, and learning curve, or its error if it failed.

    The names of metrics are EVALUATION.METRIC; `primary` has the name of each evaluation's primary metric.
    """

    arm: str
    seed: int
    budget: float
    digest: str
    lr: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    primary: dict[str, str] = field(default_factory=dict)  # by evaluation
    examples: dict[str, int] = field(default_factory=dict)  # by evaluation
    trivial: dict[str, float] = field(
        default_factory=dict
    )  # primary metric of the majority-class baseline, by evaluation
    cost: dict[str, float] = field(default_factory=dict)  # of the training that the budget is for
    seconds: float = 0.0  # of the whole run, with evaluations
    parameters: int | None = None
    curve: list[dict[str, float]] = field(
        default_factory=list
    )  # lines of metrics.jsonl with losses, FLOPs, and seconds
    error: str | None = None

    def value(self, evaluation: str) -> float | None:
        """Return the value of an evaluation's primary metric, or None if the run failed."""
        name = self.primary.get(evaluation)
        return None if name is None else self.metrics[f"{evaluation}.{name}"]


def read_outcome(folder: Path) -> Outcome | None:
    """Return the outcome of the run in a folder, or None if the run is unfinished."""
    path = folder / OUTCOME
    if not path.is_file():
        return None
    content, types = read_mapping(path, "the outcome of a run"), get_type_hints(Outcome)
    if not {"arm", "seed", "budget", "digest"} <= content.keys() <= types.keys():
        raise PretuneError(f"{path} does not have the keys of an outcome; delete this damaged file to repeat the run")
    return Outcome(**{key: validate_schema(value, types[key], f"{path}: {key}") for key, value in content.items()})


def run_once(run: StudyRun) -> Outcome:
    """Execute or resume a run, and write its outcome; if it fails, the error is its outcome, and other runs go on."""
    began = time.monotonic()
    start = Outcome(run.arm.name, run.seed, run.budget, run.digest, run.lr)
    try:
        with use_token_cache(run.token_cache) if run.token_cache is not None else nullcontext():
            outcome = replace(train_and_evaluate(run, start), seconds=time.monotonic() - began)
    except BrokenPipeError:  # nobody reads the output any more: the command is to end, and the run is to resume
        raise
    except Exception as error:  # the other runs of the study go on
        expected = isinstance(error, PretuneError)
        reason = str(error) if expected else f"{type(error).__name__}: {error}"
        if not expected:
            write_bytes(run.folder / TRACEBACK, traceback.format_exc().encode())
        outcome = replace(start, error=" ".join(reason.split()), seconds=time.monotonic() - began)
    remove_surplus(run)
    write_json(run.folder / OUTCOME, asdict(outcome))
    return outcome


def train_and_evaluate(run: StudyRun, start: Outcome) -> Outcome:
    """Train an arm (compared recipe) and evaluate it; return the outcome `start`, completed by metrics and costs."""
    arm, outcome = run.arm, start
    model, tokenizer = arm.model, None
    pretrained: Run | None = None
    if arm.pretrain is not None:
        pretrained = pretrain_arm(run)
        model = str(pretrained.folder)
        stages = [Run(run.folder / name) for name in (PRETRAINED, ADAPTED) if (run.folder / name).is_dir()]
        cost = {
            name: sum(float(one.results[name]) for one in stages)
            for name in COSTS
            if all(name in one.results for one in stages)
        }
        outcome = replace(
            outcome, cost=cost, curve=training_curve(pretrained), parameters=pretrained.results.get("parameters")
        )
    elif is_preset(model):
        tokenizer = run.store
    budget = None if run.stage == PRETRAINING else run_budget(run.unit, run.budget)
    lr = None if run.stage == PRETRAINING else run.lr
    for evaluation in run.evaluations:
        folder = run.folder / evaluation.name
        one = EvaluationRun(arm, evaluation, model, run.seed, folder, budget, lr, run.device, tokenizer)
        found = evaluate_run(one, original_folder(run, evaluation))
        metrics = {f"{evaluation.name}.{name}": float(value) for name, value in found.metrics.items()}
        outcome = replace(
            outcome,
            metrics=outcome.metrics | metrics,
            primary=outcome.primary | {evaluation.name: found.primary},
            examples=outcome.examples | ({} if found.examples is None else {evaluation.name: found.examples}),
            trivial=outcome.trivial | ({} if found.trivial is None else {evaluation.name: found.trivial}),
        )
        if budget is not None and evaluation.kind == "task":
            curve = outcome.curve or (training_curve(Run(folder)) if run.originals is None else [])
            outcome = replace(outcome, cost=outcome.cost or found.cost, curve=curve)
    return outcome


def original_folder(run: StudyRun, evaluation: Evaluation) -> Path | None:
    """Return the folder of the fine-tuned model that a run compresses, or None if the run does not share it."""
    if run.originals is None or evaluation.kind != "task":
        return None
    digest = json_checksum([run.arm.model, task_settings(evaluation, run.arm)])[:12]
    return run.originals / digest / f"seed-{run.seed}"


def finetune_original(run: StudyRun, evaluation: Evaluation) -> None:
    """Fine-tune the model that the run of an arm compresses; leave a failure to the run itself, which reports it."""
    folder = original_folder(run, evaluation)
    assert folder is not None
    with suppress(PretuneError):
        finetune_arm(EvaluationRun(run.arm, evaluation, run.arm.model, run.seed, folder, device=run.device))


def pretrain_arm(run: StudyRun) -> Run:
    """Pretrain an arm (compared recipe), and adapt it to other text if it is to be; return the last run.

    Finished runs are loaded, and interrupted ones resumed. A control arm is not trained: its run has the randomly
    initialized model.
    """
    arm, budget = run.arm, run_budget(run.unit, run.budget)
    folders, paths = (PRETRAINED, ADAPTED), (run.store, run.adapting_store)
    done: list[Run] = []
    for (stage, share), name, path in zip(training_stages(arm), folders, paths, strict=False):
        folder, store = run.folder / name, None if path is None else Store(path)
        if (finished := finished_run(folder)) is not None:
            done.append(finished)
            continue
        own = replace(stage, model=str(done[-1].folder)) if done else stage
        steps = max(1, round(share * run.steps))
        settings: dict[str, Any] = {"lr": run.lr, "device": run.device, "steps": steps, "monitor": run.monitor}
        job = pretraining_job(own, scaled(budget, share), run.seed, folder, **settings)
        if arm.control:
            return save_untrained(job, store)
        done.append(pretrain(job, store, resume=(folder / RECIPE).is_file()))
    return done[-1]


def save_untrained(job: PretrainingJob, store: Store | None) -> Run:
    """Save the untrained model of a pretraining job to a run folder, and return the run.

    `store` is the tokenized text of the job, which has the tokenizer.
    """
    mixture = parse_objective(job.objective)
    start_run(job.out, job.command, job.recipe(), resume=(job.out / RECIPE).is_file())
    tokenizer: Tokenizer = get_data(job, read_rows(job, mixture), store)[0]
    model = get_model(job, tokenizer, mixture)
    model.save(job.out)
    parameters = sum(weight.numel() for weight in model.root.parameters())
    return finish_run(job.out, {"model": job.model, "objective": job.objective, "parameters": parameters})


def training_curve(run: Run) -> list[dict[str, float]]:
    """Return the learning curve of a run: for each logged step, the FLOPs, the seconds, and the losses so far.

    An evaluation is joined with the line of its step.
    """
    lines: dict[int, dict[str, float]] = {}
    for line in run.metrics():
        lines.setdefault(int(line["step"]), {}).update(line)
    kept = ("step", "flops", "seconds", "tokens")
    return [
        {name: float(value) for name, value in line.items() if name in kept or is_loss(name)}
        for line in lines.values()
        if "flops" in line
    ]


def is_loss(name: str) -> bool:
    """Return whether a key of metrics.jsonl is a loss or a held-out metric.

    >>> [name for name in ("mlm", "dev/mlm", "mlm/accuracy", "lr", "gradient_norm") if is_loss(name)]
    ['mlm', 'dev/mlm']
    """
    return "/" not in name.removeprefix("dev/") and name not in ("lr", "tokens_per_second", "mfu", "gradient_norm")


def remove_surplus(run: StudyRun) -> None:
    """Delete the checkpoints of a finished run and, unless models are to be kept, the weights of fine-tuned models."""
    for folder in surplus(run):
        if folder.name == CHECKPOINTS and folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.is_file():
            folder.unlink()


def surplus(run: StudyRun) -> Iterator[Path]:
    """Yield the files and folders of a finished run that are not needed anymore."""
    yield from run.folder.glob(f"*/{CHECKPOINTS}")
    for evaluation in () if run.keep_models else run.evaluations:
        yield from (run.folder / evaluation.name).glob(WEIGHTS)
        yield from run.folder.glob(f"{evaluation.name}-*/intermediate/**/{WEIGHTS}")
