"""Hyperparameter search: run trials of settings for a task until a budget is spent.

    DIR/recipe.yaml    the settings that all trials share
    DIR/trials.json    the settings and the result of each trial: all that is needed to resume the search
    DIR/trials/000     the run folder of each trial, without weights
    DIR/best           the run folder of the best trial, with weights

The settings of a trial are a function of the seed, its number, and the trials before it, so that an interrupted and resumed
search tries the same settings as an uninterrupted one.
"""

from __future__ import annotations

import math
import os
import shutil
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, get_type_hints

from pretune.runtime.atomic_io import TEMPORARY, remove_temporaries, write_json
from pretune.runtime.errors import PretuneError
from pretune.runtime.optional_imports import import_optional
from pretune.runtime.parsing import read_json, validate_schema
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import random_bits
from pretune.training.checkpoints import FOLDER
from pretune.training.run_folder import Run, finished_run

TRIALS, BEST = "trials.json", "best"
STARTUP = 5  # random trials before settings are sampled near the best ones
ENOUGH = 6  # finished trials needed to estimate the importance of settings

Settings = dict[str, Any]


@dataclass(frozen=True)
class SearchRange:
    """The range from `low` to `high` of a hyperparameter: integers if both are integers, else floats.

    Floats are sampled on a logarithmic scale with `log`.
    """

    low: float
    high: float
    step: float | None = None
    log: bool = False


SearchSpace = Mapping[str, SearchRange | tuple[Any, ...]]  # setting → its possible values


@dataclass(frozen=True)
class Trial:
    """One trial of a hyperparameter search: its settings, the metric it reached or its error, and its duration."""

    number: int
    settings: Settings
    value: float | None = None  # of the primary metric
    seconds: float = 0.0
    error: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether a trial of a hyperparameter search has ended, with a result or an error."""
        return self.value is not None or self.error is not None


def read_trials(path: Path) -> list[Trial]:
    """Read the trials of a hyperparameter search from its file trials.json."""
    types = get_type_hints(Trial)
    trials = []
    for number, trial in enumerate(validate_schema(read_json(path), list[dict[str, Any]], str(path))):
        where = f"{path}: trial {number}"
        if not {"number", "settings"} <= trial.keys() <= types.keys():
            raise PretuneError(
                f"{where} does not have the keys of a trial; delete this damaged file to start the search again"
            )
        values = {key: validate_schema(value, types[key], f"{where}: {key}") for key, value in trial.items()}
        trials.append(Trial(**values))
    return trials


@dataclass
class HyperparameterSearch:
    """A hyperparameter search that saves its trials in a folder and can be resumed."""

    out: Path
    space: SearchSpace
    defaults: Settings  # tried first
    metric: str
    seed: int = 0

    def __post_init__(self) -> None:
        need_optuna()
        path = self.out / TRIALS
        self.trials = read_trials(path) if path.is_file() else []

    def run(
        self,
        attempt: Callable[[Settings, Path], Run],
        trials: int | None = None,
        seconds: float | None = None,
        at_once: int = 1,
    ) -> None:
        """Run trials until there are `trials` of them or `seconds` seconds are used, `at_once` of them in parallel.

        `attempt(settings, folder)` runs one trial in a run folder. No trial is started that would probably exceed
        `seconds`. The order in which trials finish does not affect the settings of later trials.
        """
        remove_temporaries(self.out)
        running: deque[Callable[[], tuple[Trial, PretuneError | None]]] = deque()
        with ThreadPoolExecutor(at_once) as threads:
            try:
                while True:
                    while len(running) < at_once and not self._spent(trials, seconds, len(running), at_once):
                        act = partial(self._try, attempt, self._next(len(running), at_once))
                        running.append(act if at_once == 1 else threads.submit(act).result)
                    if not running:
                        return
                    trial, error = running.popleft()()
                    if error is not None and not self.finished:  # the reason is more likely the data than the settings
                        raise error
                    self._finish(trial)
            except KeyboardInterrupt:
                log_info(f"{self.out}: to continue this search, run the same command again")
                raise

    def _try(self, attempt: Callable[[Settings, Path], Run], trial: Trial) -> tuple[Trial, PretuneError | None]:
        """Run or resume a trial by calling `attempt`; return the trial with its result, and the error if it failed."""
        folder = self.folder(trial)
        started = monotonic()
        try:
            run = finished_run(folder) or attempt(trial.settings, folder)
            value = float(run.results[f"dev/{self.metric}"])
            return replace(trial, value=value, seconds=monotonic() - started), None
        except PretuneError as error:
            return replace(trial, error=str(error), seconds=monotonic() - started), error

    @property
    def finished(self) -> list[Trial]:
        """The trials that ended with a result, not with an error."""
        return [trial for trial in self.trials if trial.value is not None]

    @property
    def best(self) -> Trial:
        """The trial with the highest metric; if several trials share it, the first of them."""
        return max(self.finished, key=_objective_value)

    def folder(self, trial: Trial) -> Path:
        """Return the run folder of a trial."""
        return self.out / "trials" / f"{trial.number:03d}"

    def setting_importances(self) -> list[dict[str, Any]]:
        """Return the importance of each hyperparameter, and its rank correlation with the metric, as rows of a table.

        Importance is the share of the variance between trials, by functional ANOVA (Hutter et al., 2014). The list
        is empty if there are too few trials.
        """
        from scipy.stats import spearmanr

        trials = [trial for trial in self.finished if math.isfinite(trial.value or 0.0)]
        values = [trial.value for trial in trials]
        if len(trials) < ENOUGH or len(set(values)) == 1:
            return []
        optuna, rows = need_optuna(), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about experimental parts of optuna, and settings that never changed
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=self.seed)
            shares = optuna.importance.get_param_importances(self._study(trials), evaluator=evaluator)
            for name, share in shares.items():
                rank = float(spearmanr([trial.settings[name] for trial in trials], values).statistic)
                rows.append(
                    {"hyperparameter": name, "importance": share, "correlation": 0.0 if math.isnan(rank) else rank}
                )
        return rows

    def _spent(self, trials: int | None, seconds: float | None, running: int, at_once: int) -> bool:
        """Return whether one more trial would exceed `trials` trials or `seconds` seconds, while `running` trials run.

        `at_once` is the number of trials that may run in parallel.
        """
        done = [trial for trial in self.trials if trial.is_done]
        if trials is not None and len(done) + running >= trials:
            return True
        used = sum(trial.seconds for trial in done)
        return seconds is not None and bool(done) and used + (running + 1) * used / len(done) > seconds * at_once

    def _next(self, running: int, at_once: int) -> Trial:
        """Return the next trial to start, an interrupted or a new one, while `running` trials run.

        `at_once` is the number of trials that may run in parallel.
        """
        unfinished = [trial for trial in self.trials if not trial.is_done]
        if len(unfinished) > running:
            return unfinished[running]
        number, settings = len(self.trials), self.defaults
        if self.trials:
            known = self.trials[: max(0, number - at_once + 1)]
            study = self._study([trial for trial in known if trial.is_done], number)
            settings = dict(study.ask(self._distributions()).params)
        self.trials.append(Trial(number, settings))
        self._write()
        return self.trials[-1]

    def _study(self, trials: Sequence[Trial], number: int = 0) -> Any:
        """Return an optuna study of the given trials; its sampler is seeded for trial `number`, which comes next."""
        optuna = need_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = int(random_bits(self.seed, "tune", number)) & 0x7FFFFFFF
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in trials:
            value = _objective_value(trial)
            outcome = {"value": value} if math.isfinite(value) else {"state": optuna.trial.TrialState.FAIL}
            space = self._distributions()
            study.add_trial(optuna.trial.create_trial(params=trial.settings, distributions=space, **outcome))
        return study

    def _distributions(self) -> dict[str, Any]:
        """Return the search space as a mapping from hyperparameters to optuna distributions."""
        kinds, space = need_optuna().distributions, {}
        for name, values in self.space.items():
            if isinstance(values, tuple):
                space[name] = kinds.CategoricalDistribution(values)
            elif isinstance(values.low, int) and isinstance(values.high, int):
                space[name] = kinds.IntDistribution(values.low, values.high)
            else:
                space[name] = kinds.FloatDistribution(values.low, values.high, log=values.log, step=values.step)
        return space

    def _finish(self, trial: Trial) -> None:
        """Save a trial's result, copy its run to DIR/best if it is the best so far, and delete its weight files."""
        folder = self.folder(trial)
        if trial.value is not None and (not self.finished or _objective_value(trial) > _objective_value(self.best)):
            copy = self.out / f"{TEMPORARY}{os.getpid()}-{BEST}"
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(FOLDER))
            shutil.rmtree(self.out / BEST, ignore_errors=True)
            os.rename(copy, self.out / BEST)
        self.trials[trial.number] = trial
        self._write()
        for weights in folder.glob("*.safetensors"):
            weights.unlink()
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        outcome = f"{self.metric} {trial.value:.4g}" if trial.value is not None else trial.error
        tried = ", ".join(f"{name} {value:.3g}" for name, value in trial.settings.items())
        log_info(f"trial {trial.number} with {tried} took {trial.seconds:.0f} s: {outcome}")

    def _write(self) -> None:
        write_json(self.out / TRIALS, [asdict(trial) for trial in self.trials])


def _objective_value(trial: Trial) -> float:
    return -math.inf if trial.value is None or math.isnan(trial.value) else trial.value


def need_optuna() -> Any:
    """Import and return optuna, or raise an error that says how to install it."""
    return import_optional("optuna", "pretune tune")
