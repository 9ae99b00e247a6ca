"""Run the jobs of several studies on shared workers: prepare text, fine-tune originals, search learning rates, and do the runs.

A job starts as soon as it can, in this order: all studies with the first seeds before any with further seeds; then studies by their priority;
then arms that no other worker is running, because seeds of one arm share compiled code. Outcomes are files in the folders of the
studies; `on_outcome` is called after each of them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from study_attempts import finetune_original_attempt, is_unexpected, run_attempt
from study_pool import DIED, Ended, Worker, WorkerPool

from pretune.runtime.atomic_io import write_json
from pretune.runtime.recipe import Values
from pretune.studies.arm_jobs import training_stages
from pretune.studies.execution import LATENCY, StudyExecution, final_model, known_outcome
from pretune.studies.planning import plan_study
from pretune.studies.study_file import COMPRESSION, parse_study
from pretune.studies.study_run import OUTCOME, Outcome, StudyRun, original_folder
from pretune.training.recipe_sections import Monitoring

PREPARING = 4  # studies whose text is prepared at a time, each by as many processes as there are cores
ATTEMPTS = 3  # of a job that fails unexpectedly
MORE_MEMORY = 3.0  # times the usual share of the GPU memory, for a job that ran out of it
UNKNOWN_SECONDS = 40.0  # duration of a job of which no similar one has ended
WITHOUT_MPS = 3  # crashes after which new workers do without MPS
SHOWN = 300  # characters of an error
# Runs take seconds on a GPU: checkpoints, and evaluations during pretraining, would take longer than the steps.
MONITOR = Monitoring(save_every=0, eval_every=0, max_eval_batches=4)


@dataclass
class StudyState:
    """What is known about a study that is being executed."""

    name: str
    execution: StudyExecution
    first_seeds: int
    prepared: bool = False
    error: str | None = None  # why its text could not be prepared
    outcomes: dict[Path, Outcome] = field(default_factory=dict)  # by folder of the run
    originals: dict[Path, tuple[StudyRun, Any]] = field(default_factory=dict)  # that are not fine-tuned yet

    @property
    def finished(self) -> bool:
        """Whether all runs of the study have outcomes, or can have none."""
        return self.error is not None or (
            self.prepared and all(run.folder in self.outcomes for run in self.execution.main_runs({}))
        )


@dataclass(frozen=True)
class Job:
    """A call for a worker, with what decides when it runs."""

    key: str
    study: str
    kind: str  # prepare, original, trial or run
    label: str  # jobs with the same label share compiled code
    rank: tuple[int, ...]
    call: Callable[..., Any]
    arguments: tuple[Any, ...]


def prepare_study(content: Values, out: Path, text: Path, device: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """Prepare a study in a worker; return the folders of the token stores of its arms, and of the texts to adapt to."""
    execution = make_execution(content, out, text, device)
    execution.prepare()
    return execution.stores, execution.adapting_stores


def make_execution(content: Values, out: Path, text: Path, device: str | None) -> StudyExecution:
    """Return the execution of a study in the folder `out`, whose token stores are in the folder `text`."""
    plan = plan_study(parse_study(content, out.name), "cpu")
    return StudyExecution(plan, content, out, device, text=text, monitor=MONITOR)


def store_folders(execution: StudyExecution) -> set[Path]:
    """Return the folders of the token stores that a study needs."""
    found = set()
    for arm in execution.arms:
        settings: Values = {}
        for stage, _ in training_stages(arm):
            if (job := execution.store_job(stage, settings)) is not None:
                found.add(job.out)
                settings = {"tokenizer": str(job.out / "store")}
    return found


class Schedule:
    """The jobs of several studies, most important first, and the workers that run them."""

    def __init__(
        self,
        studies: list[StudyState],
        pool: WorkerPool,
        on_outcome: Callable[[StudyState], None],
        on_finished: Callable[[StudyState], None],
        report: Callable[[str], None] = lambda text: print(text, flush=True),
    ) -> None:
        """Prepare to run the jobs of `studies` on the workers of `pool`."""
        self.studies, self.pool = studies, pool
        self.on_outcome, self.on_finished, self.report = on_outcome, on_finished, report
        self.jobs: dict[str, Job] = {}  # that are running
        self.attempts: dict[str, int] = {}
        self.seconds: dict[tuple[str, str], float] = {}  # of the longest job so far, by study and kind
        self.needs_memory: set[str] = set()  # keys of jobs that ran out of GPU memory
        self.crashes = 0
        self.folders = {state.name: store_folders(state.execution) for state in studies}
        self.done: set[str] = set()  # names of finished studies
        self.failed: list[str] = []  # lines about failed jobs
        self.changed = {state.name for state in studies}  # studies that may have been finished

    def run(
        self,
        deadline: float,
        poll: float = 0.5,
        now: Callable[[], float] = time.monotonic,
        limit: float | None = None,
    ) -> bool:
        """Run jobs until all studies are finished or the deadline is reached; return whether all are finished.

        A job that takes longer than `limit` seconds counts as crashed.
        """
        while True:
            self._notice_finished()
            if len(self.done) == len(self.studies):
                return True
            left = deadline - now()
            if left <= 0:
                return False
            started = [self._start(worker, left) for worker in self.pool.idle]
            if not any(started) and not self.pool.running:
                return False  # what is left needs more time
            for ended in self.pool.poll(min(poll, left), limit):
                self._end(ended)

    def _start(self, worker: Worker, left: float) -> bool:
        """Let a worker run the most urgent job that can start and that ends in time; return whether there is one."""
        running = {job.label for job in self.jobs.values()}
        best: tuple[tuple[int, ...], Job] | None = None
        for job in self.ready():
            if best is not None and best[0][0] == 0 and job.rank[1] > best[0][1]:
                break  # jobs come by study, and those of this study can only have further seeds or a lower priority
            if job.key in self.jobs or self.seconds.get((job.study, job.kind), UNKNOWN_SECONDS) > left:
                continue
            near = 0 if job.label == worker.label else 1 if job.label not in running else 2
            urgency = (*job.rank[:3], near, *job.rank[3:])
            if best is None or urgency < best[0]:
                best = urgency, job
        if best is None:
            return False
        job = best[1]
        if job.key in self.needs_memory:
            self.pool.restart(worker, min(0.95, MORE_MEMORY / self.pool.size))
        self.jobs[job.key] = job
        self.attempts[job.key] = self.attempts.get(job.key, 0) + 1
        arguments = job.arguments if job.kind == "prepare" else (*job.arguments, self.attempts[job.key])
        self.pool.submit(worker, job.key, job.label, job.call, *arguments)
        return True

    def ready(self) -> Iterator[Job]:
        """Yield the jobs that can run now; a lower rank is more urgent."""
        preparing = {job.study for job in self.jobs.values() if job.kind == "prepare"}
        busy = {folder for name in preparing for folder in self.folders[name]}
        for number, state in enumerate(self.studies):
            if state.name in self.done or state.name in preparing:
                continue
            if not state.prepared:
                if (
                    len(preparing) < PREPARING and not self.folders[state.name] & busy
                ):  # else two would prepare the same
                    one = state.execution
                    arguments = (one.content, one.out, one.text, one.device)
                    key = f"{state.name}/prepare"
                    yield Job(key, state.name, "prepare", key, (0, number, 0), prepare_study, arguments)
                continue
            yield from self._jobs_of(state, number)

    def _jobs_of(self, state: StudyState, number: int) -> Iterator[Job]:
        """Yield the jobs of a prepared study that can run now."""
        execution = state.execution
        for folder, (run, evaluation) in state.originals.items():
            late = int(run.seed >= state.first_seeds)
            label = f"{state.name}/{evaluation.name}"
            rank = (late, number, 0, run.seed)
            call = finetune_original_attempt
            yield Job(str(folder), state.name, "original", label, rank, call, (run, evaluation))
        trials = execution.trials()
        found = [state.outcomes.get(trial.folder) for trial in trials]
        for trial, outcome in zip(trials, found, strict=True):
            if outcome is None:
                yield self._run_job(state, trial, "trial", (0, number, 0, 0))
        rates = execution.choose_rates(trials, found) if trials else {}
        searching = {
            (trial.arm.name, trial.folder.parent) for trial, one in zip(trials, found, strict=True) if one is None
        }
        for run in execution.main_runs(rates):
            waits = (run.arm.name, run.folder.parent) in searching or any(
                original_folder(run, evaluation) in state.originals for evaluation in run.evaluations
            )
            if run.folder not in state.outcomes and not waits:
                yield self._run_job(state, run, "run", (int(run.seed >= state.first_seeds), number, 1, run.seed))

    def _run_job(self, state: StudyState, run: StudyRun, kind: str, rank: tuple[int, ...]) -> Job:
        label = f"{state.name}/{run.arm.name}"
        return Job(str(run.folder), state.name, kind, label, rank, run_attempt, (run,))

    def _end(self, ended: Ended) -> None:
        """Take note of a job that has ended; repeat it once if the device or its worker failed."""
        job = self.jobs.pop(ended.key)
        self.changed.add(job.study)
        state = next(one for one in self.studies if one.name == job.study)
        at = (job.study, job.kind)
        self.seconds[at] = max(self.seconds.get(at, 0.0), ended.seconds)
        outcome = ended.result if isinstance(ended.result, Outcome) else None
        error = ended.error or (outcome.error if outcome is not None else None)
        name = job.key if job.kind == "prepare" else f"{job.study} {job.kind} {describe(job)}"
        if (error is not None and is_unexpected(error)) or ended.crashed:
            assert error is not None
            self._recover(job, error, ended)
            if self.attempts[job.key] < ATTEMPTS:
                if isinstance(job.arguments[0], StudyRun) and job.kind != "original":
                    shutil.rmtree(job.arguments[0].folder, ignore_errors=True)
                self.report(f"{name}: attempt {self.attempts[job.key]} of {ATTEMPTS} failed, {error[:SHOWN]}")
                return
        self._keep(job, state, ended, outcome)
        shown = f"FAILED, {error[:SHOWN]}" if error else ""
        if error:
            self.failed.append(f"{name}: {error[:SHOWN]}")
        if outcome is not None and not error:
            shown = ", ".join(f"{name} {outcome.value(name):.4g}" for name in outcome.primary)
            if "seconds" in outcome.cost:
                shown += f"; {outcome.cost.get('step', 0):.0f} steps in {outcome.cost['seconds']:.1f} s"
        self.report(f"{name}: {shown or 'done'} ({ended.seconds:.0f} s)")

    def _recover(self, job: Job, error: str, ended: Ended) -> None:
        """Replace the worker of a job after an error of the device, which may make it unusable."""
        if "out of memory" in error:
            self.needs_memory.add(job.key)
        elif DIED in error or "CUDA error" in error:
            self.crashes += 1
            if self.crashes == WITHOUT_MPS and self.pool.variables:
                self.report("new workers do without MPS")
                self.pool.variables = {
                    name: value for name, value in self.pool.variables.items() if not name.startswith("CUDA_MPS")
                }
        if not ended.crashed:  # else it has been replaced already
            self.pool.restart(ended.worker)

    def _keep(self, job: Job, state: StudyState, ended: Ended, outcome: Outcome | None) -> None:
        """Keep the result of a job."""
        if job.kind == "prepare":
            if ended.error is not None:
                state.error = ended.error
                self._fail_all(state, ended.error)
            else:
                state.execution.stores, state.execution.adapting_stores = ended.result
                self._load(state)
            return
        if job.kind == "original":
            del state.originals[Path(job.key)]  # a failure is reported by the runs that need it
            return
        run: StudyRun = job.arguments[0]
        if outcome is None:
            outcome = Outcome(run.arm.name, run.seed, run.budget, run.digest, run.lr, error=ended.error)
            write_outcome(run.folder, outcome)
        state.outcomes[run.folder] = outcome
        self.on_outcome(state)

    def _load(self, state: StudyState) -> None:
        """Read the outcomes of a prepared study that exist already, and find the models that are to be fine-tuned first."""
        state.prepared = True
        for run in [*state.execution.trials(), *state.execution.main_runs({})]:
            if (outcome := known_outcome(run)) is not None:
                state.outcomes[run.folder] = outcome
        if state.execution.study.stage == COMPRESSION:
            state.originals = state.execution.original_jobs()
        self.on_outcome(state)

    def _fail_all(self, state: StudyState, error: str) -> None:
        """Write the error as the outcome of all runs of a study whose text could not be prepared."""
        for run in state.execution.main_runs({}):
            if run.seed < state.first_seeds and known_outcome(run) is None:
                write_outcome(run.folder, Outcome(run.arm.name, run.seed, run.budget, run.digest, error=error))
        self.on_outcome(state)

    def _notice_finished(self) -> None:
        """Report the studies that have been finished since the last call."""
        for state in self.studies:
            if state.name in self.changed and state.name not in self.done and state.finished:
                self.done.add(state.name)
                self.on_finished(state)
        self.changed.clear()


def describe(job: Job) -> str:
    """Return a description of a job in a few words."""
    run: StudyRun = job.arguments[0]
    return f"{run.title}, {run.budget:g} {run.unit}"


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write an outcome into the folder of its run."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / OUTCOME, asdict(outcome))


def measure_latency(state: StudyState) -> None:
    """Measure the latency of the models of a study, if all runs of the first seed were done on this machine."""
    one = state.execution
    if not one.measures_latency or (one.out / LATENCY).is_file():
        return
    runs = [run for run in one.main_runs({}) if run.seed == 0 and run.budget == one.study.budgets[-1]]
    outcomes = [state.outcomes[run.folder] for run in runs if run.folder in state.outcomes]
    failed = {outcome.arm for outcome in outcomes if outcome.error is not None}
    if len(outcomes) == len(runs) and all(run.arm.name in failed or final_model(run) for run in runs):
        one.measure_latency(outcomes)
