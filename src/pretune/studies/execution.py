"""Execute a study: prepare its text once, do all runs, several at once on several devices, and resume where it stopped.

OUT/study.yaml                  the study
OUT/sample                      sample data, if the study uses it
OUT/text/DIGEST                 the tokenizer and token store that runs share (several studies may share one folder of them)
OUT/text/tokens                 the tokenized examples of tasks, which runs share, too
OUT/finetuned/DIGEST/seed-N     the fine-tuned models that arms compress, if the budget is for compression
OUT/runs/ARM/BUDGET/seed-N      the runs
OUT/runs/ARM/BUDGET/lr-RATE     the trials of the search over the learning rate
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pretune.compression.benchmark import measure_costs, measure_speed
from pretune.compression.task_model import TrainedModel
from pretune.models.name_resolution import find_folder
from pretune.models.presets import is_preset
from pretune.runtime.atomic_io import remove_temporaries, write_bytes, write_json
from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import json_checksum, read_json
from pretune.runtime.process_pool import device_pool
from pretune.runtime.progress import log_info
from pretune.runtime.recipe import read_recipe, write_recipe
from pretune.sample_data import write_sample_data
from pretune.studies.arm_jobs import (
    ADAPTED,
    PRETRAINED,
    SAMPLE,
    locate,
    locate_arm,
    pretraining_job,
    training_stages,
    trains_on_rows,
)
from pretune.studies.ensembles import ENSEMBLES, read_ensembles, score_ensemble
from pretune.studies.metrics import is_better
from pretune.studies.planning import StudyPlan
from pretune.studies.results import StudyResults
from pretune.studies.study_file import COMPRESSION, Arm, Evaluation, Study, parse_study, run_budget
from pretune.studies.study_run import Outcome, StudyRun, finetune_original, original_folder, read_outcome, run_once
from pretune.studies.study_settings import AFTERWARDS
from pretune.text.corpus.files import find_files
from pretune.training.jobs.pretraining_data import get_store
from pretune.training.jobs.pretraining_settings import PretrainingJob, is_store, split_language
from pretune.training.recipe_sections import Monitoring
from pretune.training.run_folder import finished_run

STUDY, RUNS, TEXT, SAMPLE_FOLDER, LATENCY = "study.yaml", "runs", "text", "sample", "latency.json"
FINETUNED = "finetuned"  # folder of the fine-tuned models that arms compress
TOKENS = "tokens"  # folder of the tokenized examples of tasks


@dataclass
class StudyExecution:
    """The execution of a planned study, which trains and evaluates all of its runs and writes them to a folder."""

    plan: StudyPlan
    content: dict[str, Any]  # of the study file
    out: Path
    device: str | None = None
    devices: int = 1
    retry_failed: bool = False
    keep_models: bool = False
    text: Path | None = None  # the folder of tokenizers and token stores, which studies can share; None: OUT/text
    monitor: Monitoring | None = None  # of pretraining, where arms set nothing
    stores: dict[str, str] = field(default_factory=dict)  # arm → folder of its token store
    adapting_stores: dict[str, str] = field(default_factory=dict)  # arm → folder of that of the text to adapt to

    @property
    def study(self) -> Study:
        """The study whose runs are executed."""
        return self.plan.study

    @property
    def trained(self) -> tuple[Evaluation, ...]:
        """The evaluations that every run makes itself (not latency, for example), with the paths of sample data filled in."""
        ours = [one for one in self.study.evaluations if one.kind not in AFTERWARDS]
        return tuple(replace(one, settings=locate(one.settings, self.out / SAMPLE_FOLDER)) for one in ours)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms (compared recipes) of the study, with the paths of sample data filled in."""
        return tuple(locate_arm(arm, self.out / SAMPLE_FOLDER) for arm in self.study.arms)

    def run(self) -> list[Outcome]:
        """Execute all runs that are not finished yet, and return the outcomes of all runs."""
        began = time.monotonic()
        self.prepare()
        with ExitStack() as stack:
            pool = stack.enter_context(device_pool(self.devices)) if self.devices > 1 else None
            self.finetune_originals(pool)
            trials = self.trials()
            rates = self.choose_rates(trials, list(self.do(trials, pool, "trial")))
            for (name, _), rate in rates.items():
                log_info(f"{name}: the best learning rate of its search is {rate:g}")
            outcomes = list(self.do(self.main_runs(rates), pool, "run"))
        if all(outcome.error for outcome in outcomes):
            log_info(f"all {len(outcomes)} runs failed; the first error is: {outcomes[0].error}")
        if self.measures_latency and not (self.out / LATENCY).is_file():
            self.measure_latency(outcomes)
        self.measure_ensembles()
        log_info(f"the study took {time.monotonic() - began:.0f} s")
        return outcomes

    @property
    def text_folder(self) -> Path:
        """The folder of tokenizers, token stores, and tokenized examples."""
        return self.text or self.out / TEXT

    @property
    def measures_latency(self) -> bool:
        """Whether the study measures the latency of its models, after all runs."""
        return any(one.kind == "latency" for one in self.study.evaluations)

    def prepare(self) -> None:
        """Write the study file and the sample data, check that all files exist, and tokenize the text of all arms."""
        check_same_study(self.out, self.content)
        for run in self.main_runs({}):
            known_outcome(run)  # before anything is written
        write_bytes(self.out / STUDY, write_recipe(self.content).encode())
        remove_temporaries(self.out)
        if SAMPLE in write_recipe(self.content):
            write_sample_data(self.out / SAMPLE_FOLDER)
        self.check_files()
        self.prepare_text()

    def check_files(self) -> None:
        """Raise an error if a file of the study is missing, before anything is trained."""
        for arm in self.arms:
            for path in [path for stage, _ in training_stages(arm) for path in corpus_paths(stage)]:
                if not is_store(path):
                    find_files(path)
        for evaluation in self.trained:
            named = [evaluation.settings.get(key) for key in ("train", "dev", "source", "reference")]
            for file in [*named, *evaluation.settings.get("also", {}).values()]:
                if file is not None and not Path(file).exists():
                    raise PretuneError(f"evaluations.{evaluation.name}: there is no file {file}; check the path")

    def prepare_text(self) -> None:
        """Tokenize the text of all arms; arms with the same tokenizer settings and corpus share one token store."""
        for arm in self.arms:
            stages = [stage for stage, _ in training_stages(arm)]
            if (store := self.prepare_store(stages[0], {})) is not None:
                self.stores[arm.name] = store
                if len(stages) > 1 and (other := self.prepare_store(stages[1], {"tokenizer": store})) is not None:
                    self.adapting_stores[arm.name] = other

    def prepare_store(self, arm: Arm, settings: dict[str, Any]) -> str | None:
        """Tokenize the text of a stage of an arm, unless this is done, and return the folder of its token store.

        `settings` replace those of the arm. The result is None if the arm reads stores, rows, or no text.
        """
        job = self.store_job(arm, settings)
        if job is None:
            return None
        store = job.out / "store"
        if not is_store(store):
            log_info(f"preparing the text of {arm.name}")
            get_store(job)
        return str(store)

    def store_job(self, arm: Arm, settings: dict[str, Any]) -> PretrainingJob | None:
        """Return the job whose text `prepare_store` tokenizes, with the folder of its tokenizer and token store as `out`."""
        if arm.pretrain is None or all(map(is_store, corpus_paths(arm))):
            return None
        job = pretraining_job(arm, run_budget(self.study.unit, self.study.budgets[0]), 0, self.out)
        if trains_on_rows(job) or job.batch.corpus_weights is not None:  # each corpus has a store of its own
            return None
        job = replace(job, **settings)
        described = [job.tokenizer, job.data, job.language, job.split_by, job.text_field, job.encoding_errors]
        return replace(job, out=self.text_folder / json_checksum(described)[:12])

    def finetune_originals(self, pool: Executor | None) -> None:
        """Fine-tune the models that arms compress, once for each seed, before the arms that share them run."""
        jobs = self.original_jobs()
        if not jobs:
            return
        log_info(f"fine-tuning {len(jobs)} model{'s' if len(jobs) > 1 else ''} to compress")
        if pool is None:
            for job in jobs.values():
                finetune_original(*job)
        else:
            for future in [pool.submit(finetune_original, *job) for job in jobs.values()]:
                future.result()

    def original_jobs(self) -> dict[Path, tuple[StudyRun, Evaluation]]:
        """Return the arguments of `finetune_original` for each model to compress that is not fine-tuned yet, by folder."""
        jobs: dict[Path, tuple[StudyRun, Evaluation]] = {}
        for run in self.main_runs({}):
            for evaluation in run.evaluations:
                folder = original_folder(run, evaluation)
                if folder is not None and finished_run(folder) is None and known_outcome(run) is None:
                    jobs.setdefault(folder, (run, evaluation))
        return jobs

    def runs_of(self, arm: Arm, budget: float) -> Path:
        """Return the folder that contains the runs of an arm at one of the study's budgets."""
        return self.out / RUNS / arm.folder / f"{self.study.unit}-{budget:g}"

    def make_run(self, arm: Arm, budget: float, name: str, **more: Any) -> StudyRun:
        """Return a run of an arm in the folder `name`, with the settings that all runs of the study share."""
        steps = self.plan.of(arm, budget).steps
        common: dict[str, Any] = {"seed": 0, "evaluations": self.trained, "budget": budget, "steps": steps, **more}
        store, folder = self.stores.get(arm.name), self.runs_of(arm, budget) / name
        return StudyRun(
            arm,
            unit=self.study.unit,
            folder=folder,
            store=store,
            adapting_store=self.adapting_stores.get(arm.name),
            originals=self.out / FINETUNED if self.study.stage == COMPRESSION else None,
            stage=self.study.stage,
            device=self.device,
            keep_models=self.keep_models,
            monitor=self.monitor,
            token_cache=self.text_folder / TOKENS,
            **common,
        )

    def trials(self) -> list[StudyRun]:
        """Return the trials of the learning rate searches of the study, each with a share of the budget of its arm."""
        trials = []
        for arm, budget in self.searching():
            assert arm.search is not None
            decisive = tuple(one for one in self.trained if one.name == arm.search.by)
            share = arm.search.share
            steps = max(1, round(share * self.plan.of(arm, budget).steps))
            settings: dict[str, Any] = {"budget": share * budget, "evaluations": decisive, "steps": steps}
            for rate in arm.search.rates:
                run = self.make_run(arm, budget, f"lr-{rate:g}")
                trials.append(replace(run, lr=rate, **settings))
        return trials

    def choose_rates(
        self, trials: Sequence[StudyRun], outcomes: Sequence[Outcome | None]
    ) -> dict[tuple[str, float], float]:
        """Return the best learning rate of each search, by name of the arm and budget, given the outcomes of the trials.

        Trials that failed, or have no outcome yet, are left out.
        """
        best: dict[tuple[str, float], float] = {}
        for arm, budget in self.searching():
            assert arm.search is not None
            own = [
                outcome for run, outcome in zip(trials, outcomes, strict=True)
                if run.arm.name == arm.name and run.folder.parent == self.runs_of(arm, budget)
                and outcome is not None and outcome.error is None
            ]  # fmt: skip
            if own:
                chosen = best_outcome(own, arm.search.by)
                assert chosen.lr is not None
                best[arm.name, budget] = chosen.lr
        return best

    def searching(self) -> list[tuple[Arm, float]]:
        """Return the pairs of an arm and a budget for which the study searches a learning rate."""
        return [(arm, budget) for budget in self.study.budgets for arm in self.arms if arm.search is not None]

    def main_runs(self, rates: dict[tuple[str, float], float]) -> list[StudyRun]:
        """Return the runs of the study, ordered by seed, so that all arms have some results early.

        `rates` has the learning rates that a search found, by name of the arm and budget.
        """
        found = []
        for budget in self.study.budgets:
            for seed in range(self.study.seeds):
                for arm in self.arms:
                    run = self.make_run(arm, budget, f"seed-{seed}")
                    found.append(replace(run, seed=seed, lr=rates.get((arm.name, budget))))
        return found

    def do(self, runs: Sequence[StudyRun], pool: Executor | None, what: str) -> Iterator[Outcome]:
        """Execute the runs that have no outcome yet, in parallel if there is a pool, and yield all outcomes in order.

        `what` is what messages call a run, such as "trial".
        """
        outcomes: dict[int, Outcome] = {}
        waiting = []
        for number, run in enumerate(runs):
            known = known_outcome(run)
            if known is None or (known.error is not None and self.retry_failed):
                if known is not None:
                    shutil.rmtree(run.folder)
                waiting.append(number)
            else:
                outcomes[number] = known
        if outcomes:
            log_info(f"{len(outcomes)} of {len(runs)} {what}s are finished already")
        for number, outcome in do_each({number: runs[number] for number in waiting}, pool, what, len(runs)):
            outcomes[number] = outcome
        yield from (outcomes[number] for number in range(len(runs)))

    def measure_ensembles(self) -> None:
        """Score the ensembles of the seeds of all arms at the largest budget, and write the scores to a file."""
        found: dict[str, dict[str, Any]] = {}
        for evaluation in (one for one in self.study.evaluations if one.kind == "ensemble"):
            task = next(one for one in self.trained if one.name == evaluation.settings["of"])
            for arm in self.arms:
                folders = [
                    self.runs_of(arm, self.study.budgets[-1]) / f"seed-{seed}" for seed in range(self.study.seeds)
                ]
                if (scores := score_ensemble(arm, task, folders)) is not None:
                    found.setdefault(evaluation.name, {})[arm.name] = scores
        if found:
            write_json(self.out / ENSEMBLES, found)

    def measure_latency(self, outcomes: Sequence[Outcome]) -> None:
        """Measure size and speed of one model of each arm, taking turns between arms, and write them to a file."""
        models, budget = {}, self.study.budgets[-1]
        failed = {outcome.arm for outcome in outcomes if outcome.error and outcome.seed == 0}
        for run in self.main_runs({}):
            if run.seed == 0 and run.budget == budget and run.arm.name not in failed and (where := final_model(run)):
                models[run.arm.name] = TrainedModel.load(where)
        log_info("measuring latency")
        measured = measure_costs({name: (one.model, one.task, one.folder) for name, one in models.items()})
        costs = {name: cost.describe() for name, cost in measured.items()}
        lengths = [
            n for one in self.study.evaluations if one.kind == "latency" for n in one.settings.get("lengths", ())
        ]
        for length in lengths:
            for name, speed in measure_speed({name: one.model for name, one in models.items()}, length).items():
                costs[name][f"tokens_per_second_{length}"] = speed
        write_json(self.out / LATENCY, costs)


def final_model(run: StudyRun) -> Path | None:
    """Return the folder of the model that a run ends with before or after its first task, or None if it has none.

    It is the compressed model, the pretrained one, or the given one.
    """
    task = next((one for one in run.evaluations if one.kind == "task"), None)
    if run.stage == COMPRESSION and task is not None:
        steps = [f"{task.name}-{number}-{step.verb}" for number, step in enumerate(run.arm.compress, 1)]
        folder = run.folder / steps[-1] if steps else original_folder(run, task)
        return folder if folder is not None and folder.is_dir() else None
    trained = [run.folder / name for name in (ADAPTED, PRETRAINED) if (run.folder / name).is_dir()]
    if trained:
        return trained[0]
    return None if is_preset(run.arm.model) else find_folder(run.arm.model)


def do_each(runs: dict[int, StudyRun], pool: Executor | None, what: str, total: int) -> Iterator[tuple[int, Outcome]]:
    """Execute runs, in parallel if there is a pool; yield the number and the outcome of each run when it finishes.

    `runs` maps numbers to runs; `what` (such as "trial") and `total` are for progress messages.
    """
    if pool is None:
        for number, run in runs.items():
            log_info(f"{what} {number + 1} of {total}: {run.title}")
            yield number, report(run, run_once(run))
        return
    futures = {pool.submit(run_once, run): number for number, run in runs.items()}
    for future in as_completed(futures):
        number = futures[future]
        log_info(f"{what} {number + 1} of {total}: {runs[number].title}")
        yield number, report(runs[number], future.result())


def known_outcome(run: StudyRun) -> Outcome | None:
    """Return the outcome of a run, or None if it is unfinished; raise an error if its settings have changed since."""
    known = read_outcome(run.folder)
    if known is not None and known.digest != run.digest:
        raise PretuneError(f"{run.folder}: this finished run has other settings than the study; choose another --out")
    return known


def report(run: StudyRun, outcome: Outcome) -> Outcome:
    """Log the outcome of a run, and return it."""
    scores = [f"{name} {outcome.value(name):.4g}" for name in outcome.primary]
    found = f"failed: {outcome.error}" if outcome.error else ", ".join(scores)
    log_info(f"{run.title}: {found} ({outcome.seconds:.0f} s)")
    return outcome


def best_outcome(outcomes: Sequence[Outcome], evaluation: str) -> Outcome:
    """Return the outcome with the best primary metric of an evaluation; if several are equally good, the first."""
    best = outcomes[0]
    for outcome in outcomes[1:]:
        first, second = outcome.value(evaluation), best.value(evaluation)
        if first is not None and (second is None or is_better(outcome.primary[evaluation], first, second)):
            best = outcome
    return best


def corpus_paths(arm: Arm) -> list[str]:
    """Return the paths of the text on which an arm (compared recipe) is pretrained."""
    data = (arm.pretrain or {}).get("data", [])
    return [split_language(str(path))[1] for path in ([data] if isinstance(data, str) else data)]


def read_latency(out: Path) -> dict[str, dict[str, float]]:
    """Return the measured size and latency of each arm's model, by name of the arm (compared recipe).

    If they were not measured, the result is empty.
    """
    path = out / LATENCY
    return dict(read_json(path)) if path.is_file() else {}


def read_results(study: Study, outcomes: Sequence[Outcome], out: Path) -> StudyResults:
    """Return the results of a study, given the outcomes of its runs, with what was measured after them in its folder."""
    return StudyResults(study, tuple(outcomes), read_latency(out), read_ensembles(out))


def check_same_study(out: Path, content: dict[str, Any]) -> None:
    """Raise an error if the folder `out` has runs of a study that do not fit the study file with the content `content`.

    The unit of the budget, the evaluations, and the settings of each arm must be the same; the rest may differ.
    """
    path = out / STUDY
    if not path.is_file():
        return
    before, now = (parse_study(one, str(path)) for one in (read_recipe(path), content))
    pairs: dict[str, tuple[object, object]] = {"unit": (before.unit, now.unit)}
    pairs |= {"evaluations": (before.evaluations, now.evaluations)}
    pairs |= {f"arms.{arm.name}": (arm, other) for arm in before.arms for other in now.arms if arm.name == other.name}
    if different := [name for name, (first, second) in pairs.items() if first != second]:
        raise PretuneError(
            f"{out}: this folder contains a study with other settings ({', '.join(different)}); choose another --out"
        )
