"""Looking for the settings that suit a task: trial after trial, each a run, until a budget is spent.

    DIR/recipe.yaml    what all trials have in common
    DIR/trials.json    what each tried and what came of it: all that a second start needs to go on
    DIR/trials/000     a run folder for each, without weights
    DIR/best           the run folder of the best, with them

What a trial tries follows from the seed, its number and the trials before it, so that a search that was stopped and went on
comes to the same settings as one that was not.
"""

from __future__ import annotations

import math
import os
import shutil
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from pretune.runtime.atomic_io import TEMPORARY, remove_temporaries, write_json
from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import conform, read_json
from pretune.runtime.progress import say
from pretune.runtime.randomness import hashed
from pretune.training.checkpoints import FOLDER
from pretune.training.run_folder import RECIPE, Run

TRIALS, BEST = "trials.json", "best"
STARTUP = 5  # trials by chance, before the others are drawn near the better ones
ENOUGH = 6  # finished trials, to say which settings mattered

Settings = dict[str, Any]


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`: whole ones if these are, else in steps, or evenly by their logarithms."""

    low: float
    high: float
    step: float | None = None
    log: bool = False


Space = Mapping[str, Range | tuple[Any, ...]]  # setting → what it can be


@dataclass(frozen=True)
class Trial:
    """What was tried, and what came of it."""

    number: int
    settings: Settings
    value: float | None = None  # of the metric that decides
    seconds: float = 0.0
    error: str | None = None

    @property
    def over(self) -> bool:
        """Whether it came to an end, good or bad."""
        return self.value is not None or self.error is not None


def read_trials(path: Path) -> list[Trial]:
    """Return the trials that a search wrote."""
    types = get_type_hints(Trial)
    found = []
    for number, trial in enumerate(conform(read_json(path), list[dict[str, Any]], str(path))):
        where = f"{path}: trial {number}"
        if not {"number", "settings"} <= trial.keys() <= types.keys():
            raise PretuneError(f"{where}: not a trial of a search; the file is damaged")
        found.append(Trial(**{key: conform(value, types[key], f"{where}: {key}") for key, value in trial.items()}))
    return found


@dataclass
class Search:
    """Trials of settings in a space, kept in a folder."""

    out: Path
    space: Space
    usual: Settings  # tried first
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
        """Go on until there are so many trials, or another would take more than so many seconds in all.

        With several at once, each follows from those before it that are over whatever happens: all but the last `at_once` - 1.
        """
        remove_temporaries(self.out)
        going: deque[Callable[[], tuple[Trial, PretuneError | None]]] = deque()
        with ThreadPoolExecutor(at_once) as threads:
            try:
                while True:
                    while len(going) < at_once and not self._spent(trials, seconds, len(going), at_once):
                        act = partial(self._try, attempt, self._next(len(going), at_once))
                        going.append(act if at_once == 1 else threads.submit(act).result)
                    if not going:
                        return
                    trial, error = going.popleft()()
                    if error is not None and not self.finished:  # more likely the data than the settings
                        raise error
                    self._finish(trial)
            except KeyboardInterrupt:
                say(f"{self.out}: the command that began this search goes on with it, from this trial")
                raise

    def _try(self, attempt: Callable[[Settings, Path], Run], trial: Trial) -> tuple[Trial, PretuneError | None]:
        """A trial, and what it came to."""
        folder = self.folder(trial)
        began = time.monotonic()
        try:
            run = Run(folder) if (folder / RECIPE).is_file() else None
            run = run if run is not None and run.finished else attempt(trial.settings, folder)
            value = float(run.results[f"dev/{self.metric}"])
            return replace(trial, value=value, seconds=time.monotonic() - began), None
        except PretuneError as error:
            return replace(trial, error=str(error), seconds=time.monotonic() - began), error

    @property
    def finished(self) -> list[Trial]:
        """The trials that give an answer."""
        return [trial for trial in self.trials if trial.value is not None]

    @property
    def best(self) -> Trial:
        """The one with the highest value; of several, the first."""
        return max(self.finished, key=_worth)

    def folder(self, trial: Trial) -> Path:
        """The run folder of a trial."""
        return self.out / "trials" / f"{trial.number:03d}"

    def mattered(self) -> list[dict[str, Any]]:
        """The share of the differences between trials that each setting explains, and whether more of it is better.

        Functional analysis of variance (Hutter et al., 2014), and rank correlation. Empty where there is too little to tell.
        """
        from scipy.stats import spearmanr

        numbers = [trial for trial in self.finished if math.isfinite(trial.value or 0.0)]
        if len(numbers) < ENOUGH or len({trial.value for trial in numbers}) == 1:
            return []
        optuna = need_optuna()
        study = self._study(numbers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what optuna calls experimental, and of settings that never changed
            judge = optuna.importance.FanovaImportanceEvaluator(seed=self.seed)
            shares = optuna.importance.get_param_importances(study, evaluator=judge)
            values = [trial.value for trial in numbers]
            rows = []
            for name, share in shares.items():
                rank = float(spearmanr([trial.settings[name] for trial in numbers], values).statistic)
                rows.append({"setting": name, "share": share, "correlation": 0.0 if math.isnan(rank) else rank})
        return rows

    def _spent(self, trials: int | None, seconds: float | None, going: int = 0, at_once: int = 1) -> bool:
        over = [trial for trial in self.trials if trial.over]
        if trials is not None and len(over) + going >= trials:
            return True
        used = sum(trial.seconds for trial in over)
        return seconds is not None and bool(over) and used + (going + 1) * used / len(over) > seconds * at_once

    def _next(self, going: int = 0, at_once: int = 1) -> Trial:
        """The next trial, so many being under way: one that was begun and did not end, or a new one."""
        begun = [trial for trial in self.trials if not trial.over]
        if len(begun) > going:
            return begun[going]
        number = len(self.trials)
        settings = self.usual if not self.trials else self._propose(number, max(0, number - at_once + 1))
        self.trials.append(Trial(number, settings))
        self._write()
        return self.trials[-1]

    def _propose(self, number: int, known: int) -> Settings:
        study = self._study([trial for trial in self.trials[:known] if trial.over], number)
        return dict(study.ask(self._distributions()).params)

    def _study(self, trials: Sequence[Trial], number: int = 0) -> Any:
        """These trials as optuna sees them."""
        optuna = need_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = int(hashed(self.seed, "tune", number)) & 0x7FFFFFFF
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in trials:
            worth = _worth(trial)
            came = {"value": worth} if math.isfinite(worth) else {"state": optuna.trial.TrialState.FAIL}
            known = self._distributions()
            study.add_trial(optuna.trial.create_trial(params=trial.settings, distributions=known, **came))
        return study

    def _distributions(self) -> dict[str, Any]:
        kinds = need_optuna().distributions
        found = {}
        for name, values in self.space.items():
            if isinstance(values, tuple):
                found[name] = kinds.CategoricalDistribution(values)
            elif isinstance(values.low, int) and isinstance(values.high, int):
                found[name] = kinds.IntDistribution(values.low, values.high)
            else:
                found[name] = kinds.FloatDistribution(values.low, values.high, log=values.log, step=values.step)
        return found

    def _finish(self, trial: Trial) -> None:
        """Keep the model if it is the best, then write down what came out, then drop the weights: a kill harms nothing."""
        folder = self.folder(trial)
        if trial.value is not None and (not self.finished or _worth(trial) > _worth(self.best)):
            copy = self.out / f"{TEMPORARY}{os.getpid()}-{BEST}"
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(FOLDER))
            shutil.rmtree(self.out / BEST, ignore_errors=True)
            os.rename(copy, self.out / BEST)
        self.trials[trial.number] = trial
        self._write()
        for weights in folder.glob("*.safetensors"):
            weights.unlink()
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        came = f"{self.metric} {trial.value:.4g}" if trial.value is not None else trial.error
        tried = ", ".join(f"{name} {value:.3g}" for name, value in trial.settings.items())
        say(f"trial {trial.number}: {came} ({tried}; {trial.seconds:.0f} s)")

    def _write(self) -> None:
        write_json(self.out / TRIALS, [asdict(trial) for trial in self.trials])


def _worth(trial: Trial) -> float:
    """What a trial is compared by; one that failed, or came to no number, is worth the least."""
    return -math.inf if trial.value is None or math.isnan(trial.value) else trial.value


def need_optuna() -> Any:
    """The library that proposes settings, which is no part of a plain installation."""
    try:
        import optuna
    except ImportError as error:
        raise PretuneError("tuning needs optuna; install it with: pip install 'pretune[tune]'") from error
    return optuna
