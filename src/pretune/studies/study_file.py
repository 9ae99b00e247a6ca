"""Read a study file: its arms, budget, evaluations, and expectations, strictly checked.

    question: Which objective is best for my text?
    budget: 2e11flops
    seeds: 3
    base:
      model: bert-tiny
      pretrain: {data: corpus/*.txt}
    arms:
      mlm: {pretrain: {objective: mlm}}
      rtd: {pretrain: {objective: rtd}}
    evaluations:
      task: {kind: task, train: train.csv, dev: dev.csv}
    expect:
      - {better: rtd, than: mlm}

docs/reference/studies.md has all keys.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.evaluation.suites.declaration import find_suite
from pretune.objectives import parse_objective
from pretune.runtime.errors import PretuneError, quote, suggest
from pretune.runtime.plugins import yaml_files
from pretune.runtime.recipe import Values, merge_recipes, read_recipe
from pretune.runtime.value_ranges import COUNT, NOT_NEGATIVE, POSITIVE, Interval, check_number
from pretune.studies.study_settings import (
    AFTERWARDS,
    COMPRESSION_KEYS,
    EVALUATION_KEYS,
    AdaptingKeys,
    ArmKeys,
    BetterKeys,
    EqualKeys,
    FinetuningKeys,
    GainKeys,
    PretrainingKeys,
    SearchKeys,
    StudyKeys,
    TaskKeys,
    WithinKeys,
    check_settings,
)
from pretune.training.jobs.recipe_scaling import parse_budget
from pretune.training.recipe_sections import Budget

UNITS = ("flops", "tokens", "seconds")
PRETRAINING, COMPRESSION, FINETUNING = "pretraining", "compression", "fine-tuning"
MOST_ARMS = 100
SHARE_OF_TRIAL = Interval(0, 1, above=True)
SHARE_OF_ADAPTING = Interval(0, 1, above=True, below=True)


@dataclass(frozen=True)
class LearningRateSearch:
    """A search for the learning rate of an arm (compared recipe).

    It has the rates to try, the share of the budget that each trial gets, and the evaluation that decides.
    """

    rates: tuple[float, ...]
    share: float
    by: str

    @property
    def cost(self) -> float:
        """The cost of the whole search as a fraction of the budget of one run."""
        return len(self.rates) * self.share


@dataclass(frozen=True)
class CompressionStep:
    """A step of compression after fine-tuning: the verb (distill, prune, or quantize) and its options."""

    verb: str
    settings: Values

    def trains(self, control: bool) -> bool:
        """Return whether the step trains the model; pruning in a control only removes parts of it."""
        return self.verb == "distill" or self.settings.get("method") == "qat" or (self.verb == "prune" and not control)


@dataclass(frozen=True)
class Arm:
    """An arm of a study, one of the compared recipes: its name, and the settings of its stages of training.

    The stages are pretraining, adapting to other text, fine-tuning on the task of an evaluation, and compression.
    """

    name: str
    model: str
    pretrain: Values | None = None
    adapt: Values | None = None
    finetune: Values | None = None
    compress: tuple[CompressionStep, ...] = ()
    control: bool = False
    search: LearningRateSearch | None = None

    @property
    def folder(self) -> str:
        """The name of the folder for the runs of the arm."""
        return re.sub(r"[^\w.=-]+", "-", self.name).strip("-.") or "arm"

    def describe(self) -> Values:
        """Return the settings that determine the results of the arm."""
        search = None if self.search is None else {"lr": list(self.search.rates), "share": self.search.share}
        settings = {"model": self.model, "pretrain": self.pretrain, "finetune": self.finetune, "search": search}
        further: Values = {} if self.adapt is None else {"adapt": self.adapt}
        further |= {"compress": [[step.verb, step.settings] for step in self.compress]} if self.compress else {}
        return {**settings, **further, "control": self.control}


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of a study: its name, its kind, and its settings as in the file."""

    name: str
    kind: str
    settings: Values


@dataclass(frozen=True)
class Expectation:
    """An expected result: the arm (compared recipe) `first` is better than `second` by `amount`.

    With `equal`, the expectation is that they differ by at most `amount`. With `other_metric`, both are the same arm,
    which is better on `metric` than on `other_metric`. With `ensemble`, `metric` is an evaluation of the kind `ensemble`,
    and the ensemble of the arm's seeds is better than one of its models.
    """

    first: str
    second: str
    metric: str  # EVALUATION, or EVALUATION.METRIC
    amount: float
    equal: bool = False
    other_metric: str | None = None
    ensemble: bool = False

    def __str__(self) -> str:
        if self.ensemble:
            least = f" by at least {self.amount:g}" if self.amount else ""
            return f"an ensemble of {self.first} beats a single model{least}"
        if self.other_metric is not None:
            least = f" by at least {self.amount:g}" if self.amount else ""
            return f"{self.first} is better on {self.metric} than on {self.other_metric}{least}"
        if self.equal:
            return f"{self.first} and {self.second} are equal on {self.metric}, within {self.amount:g}"
        least = f" by at least {self.amount:g}" if self.amount else ""
        return f"{self.first} beats {self.second} on {self.metric}{least}"


@dataclass(frozen=True)
class Study:
    """A study: its question, the arms (compared recipes), their common budget, the seeds, and the evaluations."""

    question: str
    arms: tuple[Arm, ...]
    unit: str  # of the budget: flops, tokens, or seconds
    budgets: tuple[float, ...]  # of each run, smallest first
    seeds: int
    evaluations: tuple[Evaluation, ...]
    expectations: tuple[Expectation, ...] = ()
    reference: str | None = None
    claim: str | None = None
    source: str | None = None
    published: Values | None = None
    departures: str | None = None
    about: str | None = None

    @property
    def stage(self) -> str:
        """The stage of training that the budget is for: pretraining, compression, or fine-tuning.

        It is the first of these stages that an arm has; the later ones are the same for all arms.
        """
        if any(arm.pretrain is not None for arm in self.arms):
            return PRETRAINING
        return COMPRESSION if any(arm.compress for arm in self.arms) else FINETUNING

    @property
    def metric(self) -> str:
        """The name of the evaluation that ranks the arms: the first one."""
        return self.evaluations[0].name


def builtin_studies() -> Mapping[str, Path]:
    """Return the study files that are part of pretune, by name.

    >>> sorted(builtin_studies())
    ['quick']
    """
    return yaml_files(Path(__file__).parent / "builtin")


def find_study(name: str | Path) -> Path:
    """Return the path of a study file, given its path or the name of a study that is part of pretune."""
    if (file := builtin_studies().get(str(name))) is not None and not Path(name).exists():
        return file
    if not Path(name).is_file():
        hint = suggest(str(name), builtin_studies())
        raise PretuneError(f"{name}: there is no such study file; check the path, or use a built-in study ({hint})")
    return Path(name)


def read_study(file: str | Path) -> Study:
    """Read a study file; raise an error if a part of it is unknown, missing, or contradicts another part."""
    path = find_study(file)
    return parse_study(read_recipe(path), str(path))


def parse_study(content: Values, where: str) -> Study:
    """Return the study with the parsed content of a study file; `where` is the name of the file in errors."""
    keys = check_settings(StudyKeys, content, where)
    check_number(f"{where}: seeds", keys.get("seeds", 3), COUNT)
    evaluations = tuple(parse_evaluation(name, one, where) for name, one in keys["evaluations"].items())
    if not [one for one in evaluations if one.kind not in AFTERWARDS]:
        raise PretuneError(
            f"{where}: none of the evaluations measures quality; add an evaluation of the kind 'task' or 'perplexity'"
        )
    if evaluations[0].kind in AFTERWARDS:
        raise PretuneError(
            f"{where}: the first evaluation decides between arms, but {evaluations[0].name!r} does not measure quality; put an evaluation of quality first"
        )
    check_ensembles(evaluations, where)
    names = [one.name for one in evaluations]
    unit, budgets = parse_budgets(keys["budget"], where)
    arms = parse_arms(keys, names, where)
    reference = keys.get("reference")
    if reference is not None:
        check_name(reference, [arm.name for arm in arms], f"{where}: reference")
    expectations = tuple(
        parse_expectation(one, arms, evaluations, f"{where}: expect {number}")
        for number, one in enumerate(keys.get("expect", ()), 1)
    )
    further = {name: keys.get(name) for name in ("claim", "source", "published", "departures", "about")}
    study = Study(
        keys["question"], arms, unit, budgets, keys.get("seeds", 3), evaluations, expectations, reference, **further
    )
    check_arms(study, where)
    return study


def parse_budgets(given: Any, where: str) -> tuple[str, tuple[float, ...]]:
    """Return the unit and the amounts of a study's budget, with the amounts sorted.

    >>> parse_budgets("10min", "study.yaml"), parse_budgets({"flops": [2e9, 1e9]}, "study.yaml")
    (('seconds', (600.0,)), ('flops', (1000000000.0, 2000000000.0)))
    """
    if isinstance(given, str):
        given = parse_budget(given, f"{where}: budget").limits
    if len(given) != 1:
        raise PretuneError(
            f"{where}: 'budget' has {len(given)} units; give one of {', '.join(UNITS)}, the same for all arms"
        )
    ((unit, amounts),) = given.items()
    check_name(unit, UNITS, f"{where}: budget")
    amounts = amounts if isinstance(amounts, Sequence) else [amounts]
    for amount in amounts:
        check_number(f"{where}: budget.{unit}", amount, POSITIVE)
    if not amounts or len(set(amounts)) < len(amounts):
        raise PretuneError(f"{where}: budget.{unit} must be one amount above 0, or a list of different amounts")
    return unit, tuple(sorted(float(amount) for amount in amounts))


def parse_evaluation(name: str, content: Mapping[str, Any], where: str) -> Evaluation:
    """Return an evaluation from its part of a study file; raise an error if its keys are wrong."""
    place = f"{where}: evaluations.{name}"
    if not re.fullmatch(r"[\w-]+", name):
        raise PretuneError(
            f"{place}: the name of an evaluation may only have letters, digits, - and _; rename the evaluation"
        )
    if not isinstance(content, Mapping) or "kind" not in content:
        raise PretuneError(f"{place}: the key 'kind' is missing; give one of {', '.join(EVALUATION_KEYS)}")
    check_name(content["kind"], EVALUATION_KEYS, f"{place}: kind")
    keys = check_settings(EVALUATION_KEYS[content["kind"]], content, place)
    if content["kind"] == "suite":
        find_suite(keys["suite"]).select_tasks(list(keys.get("tasks", ())))  # an error for an unknown name
    return Evaluation(name, content["kind"], dict(content))


def check_ensembles(evaluations: Sequence[Evaluation], where: str) -> None:
    """Raise an error unless each ensemble among the evaluations of a study averages the predictions for a task."""
    tasks = {one.name: one for one in evaluations if one.kind == "task"}
    for one in evaluations:
        if one.kind == "ensemble":
            check_name(one.settings["of"], tasks, f"{where}: evaluations.{one.name}: of")
            if "dev" not in tasks[one.settings["of"]].settings:
                raise PretuneError(
                    f"{where}: evaluations.{one.name}: the models of an ensemble predict for the same examples; name their file "
                    f"under the key 'dev' of {one.settings['of']!r}"
                )


def parse_arms(keys: Values, evaluations: Sequence[str], where: str) -> tuple[Arm, ...]:
    """Return the arms (compared recipes) of a study: the settings of `base`, extended by those of each arm in `arms`.

    If the study file has a `grid`, there is one such arm for each combination of its values.
    """
    if not keys.get("arms") and not keys.get("grid"):
        raise PretuneError(
            f"{where}: there is nothing to compare; add variants under the key 'arms', or a grid of settings under the key 'grid'"
        )
    own = keys.get("arms") or {"": None}
    arms = []
    for name, settings in own.items():
        if settings is not None and not isinstance(settings, Mapping):
            raise PretuneError(
                f"{where}: arms.{name}: an arm is a mapping of keys to values; see docs/reference/studies.md"
            )
        for more, values in expand_grid(keys.get("grid") or {}):
            title = ", ".join(filter(None, (name, more)))
            content = merge_recipes(merge_recipes(keys.get("base") or {}, settings or {}), values)
            arms.append(parse_arm(title, content, keys.get("search"), evaluations, f"{where}: arms.{title}"))
    if len(arms) > MOST_ARMS:
        raise PretuneError(
            f"{where}: the grid makes {len(arms)} arms, more than {MOST_ARMS}; remove some values from the grid"
        )
    folders = [arm.folder for arm in arms]
    if twice := [arm.name for arm in arms if folders.count(arm.folder) > 1]:
        raise PretuneError(
            f"{where}: the arms {' and '.join(map(quote, twice))} have names that lead to the same folder; rename one of these arms"
        )
    return tuple(arms)


def expand_grid(grid: Mapping[str, Sequence[Any]]) -> list[tuple[str, Values]]:
    """Return all combinations of the values in a grid, each as a name and nested settings.

    >>> expand_grid({"pretrain.batch.tokens": [512, 1024]})[0]
    ('tokens=512', {'pretrain': {'batch': {'tokens': 512}}})
    >>> expand_grid({})
    [('', {})]
    """
    found = []
    for values in itertools.product(*grid.values()):
        settings: Values = {}
        for key, value in zip(grid, values, strict=True):
            nested: Any = value
            for part in reversed(key.split(".")):
                nested = {part: nested}
            settings = merge_recipes(settings, nested)
        pairs = zip(grid, values, strict=True)
        found.append((", ".join(f"{key.rsplit('.', 1)[-1]}={shown(value)}" for key, value in pairs), settings))
    return found


def shown(value: Any) -> str:
    """Return the value of a setting as it appears in the name of an arm (compared recipe).

    >>> shown(0.001), shown("mlm(mask_rate=0.4)")
    ('0.001', 'mlm(mask_rate=0.4)')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_arm(name: str, content: Values, search: Any, evaluations: Sequence[str], where: str) -> Arm:
    """Return an arm (compared recipe) with the given settings; raise an error if its keys are wrong."""
    keys = check_settings(ArmKeys, content, where)
    for part, kind in (("pretrain", PretrainingKeys), ("adapt", AdaptingKeys), ("finetune", FinetuningKeys)):
        if part in keys:
            check_settings(kind, keys[part], f"{where}.{part}")
    if objective := (keys.get("pretrain") or {}).get("objective"):
        parse_objective(str(objective))
    if (adapt := keys.get("adapt")) is not None:
        check_number(f"{where}.adapt.share", adapt.get("share", 0.5), SHARE_OF_ADAPTING)
        if not keys.get("pretrain"):
            raise PretuneError(
                f"{where}: 'adapt' follows pretraining, but the arm has none; to continue the pretraining of a model with weights, "
                "use the section 'pretrain'"
            )
    own = {**(search or {}), **(keys.get("search") or {})}
    control, steps = keys.get("control", False), parse_steps(keys.get("compress") or (), where)
    if control and not keys.get("pretrain") and (training := [step.verb for step in steps if step.trains(True)]):
        raise PretuneError(
            f"{where}: 'control: true' skips the training, but the step {training[0]!r} trains; remove 'control', or this step"
        )
    found = parse_search(own, evaluations, f"{where}: search") if own and not control else None
    return Arm(
        name, keys["model"], keys.get("pretrain"), keys.get("adapt"), keys.get("finetune"), steps, control, found
    )


def parse_steps(content: Sequence[Mapping[str, Any]], where: str) -> tuple[CompressionStep, ...]:
    """Return the steps of compression of an arm from its part of a study file, after a check of their keys.

    >>> parse_steps([{"quantize": {"method": "static"}}], "study.yaml: arms.int8")
    (CompressionStep(verb='quantize', settings={'method': 'static'}),)
    """
    steps = []
    for number, step in enumerate(content, 1):
        place = f"{where}.compress {number}"
        if len(step) != 1:
            raise PretuneError(
                f"{place}: a step must have exactly one of the keys {', '.join(COMPRESSION_KEYS)}; write one step per key"
            )
        ((verb, settings),) = step.items()
        check_name(verb, COMPRESSION_KEYS, place)
        if settings is not None and not isinstance(settings, Mapping):
            raise PretuneError(
                f"{place}.{verb}: options are a mapping of keys to values; see docs/reference/studies.md"
            )
        check_settings(COMPRESSION_KEYS[verb], settings or {}, f"{place}.{verb}")
        steps.append(CompressionStep(verb, dict(settings or {})))
    return tuple(steps)


def parse_search(content: Values, evaluations: Sequence[str], where: str) -> LearningRateSearch:
    """Return a search for the learning rate from its part of a study file, after a check of its keys."""
    keys = check_settings(SearchKeys, content, where)
    share, by = keys.get("share", 0.2), keys.get("by", evaluations[0])
    check_number(f"{where}.share", share, SHARE_OF_TRIAL)
    check_name(by, evaluations, f"{where}.by")
    if len(set(keys["lr"])) < 2:
        raise PretuneError(
            f"{where}.lr: a search needs at least two different learning rates; for a single rate, remove the search and set optimizer.lr"
        )
    for rate in keys["lr"]:
        check_number(f"{where}.lr", rate, POSITIVE)
    return LearningRateSearch(tuple(keys["lr"]), share, by)


def parse_expectation(content: Any, arms: Sequence[Arm], evaluations: Sequence[Evaluation], where: str) -> Expectation:
    """Return an expectation from its part of a study file, after a check of its keys and of the arms it names."""
    names, known = [arm.name for arm in arms], [one.name for one in evaluations if one.kind not in AFTERWARDS]
    if isinstance(content, Mapping) and "ensemble" in content:
        keys = check_settings(GainKeys, content, where)
        check_name(keys["arm"], names, f"{where}: arm")
        check_name(keys["ensemble"], [one.name for one in evaluations if one.kind == "ensemble"], f"{where}: ensemble")
        check_number(f"{where}: by", keys.get("by", 0.0), NOT_NEGATIVE)
        return Expectation(keys["arm"], keys["arm"], keys["ensemble"], keys.get("by", 0.0), ensemble=True)
    if isinstance(content, Mapping) and "arm" in content:
        keys = check_settings(WithinKeys, content, where)
        check_name(keys["arm"], names, where)
        for key in ("better", "than"):
            check_name(keys[key].split(".")[0], known, f"{where}: {key}")
        check_number(f"{where}: by", keys.get("by", 0.0), NOT_NEGATIVE)
        return Expectation(keys["arm"], keys["arm"], keys["better"], keys.get("by", 0.0), other_metric=keys["than"])
    equal = isinstance(content, Mapping) and "equal" in content
    keys = check_settings(EqualKeys if equal else BetterKeys, content, where)
    sides = list(keys["equal"]) if equal else [keys["better"], keys["than"]]
    if len(sides) != 2 or sides[0] == sides[1]:
        raise PretuneError(f"{where}: an expectation compares two different arms; name two arms")
    for name in sides:
        check_name(name, names, where)
    metric = keys.get("metric", known[0])
    check_name(metric.split(".")[0], known, f"{where}: metric")
    amount = keys["within"] if equal else keys.get("by", 0.0)
    check_number(f"{where}: {'within' if equal else 'by'}", amount, NOT_NEGATIVE)
    return Expectation(sides[0], sides[1], metric, amount, equal)


def check_arms(study: Study, where: str) -> None:
    """Raise an error if the arms (compared recipes) of a study cannot be compared fairly.

    There must be at least two arms, and all of them except controls must use the budget of the study. `where` is the
    name of the study file in error messages.
    """
    if len(study.arms) < 2:
        raise PretuneError(f"{where}: a study compares at least two arms; add another arm")
    if all(arm.control for arm in study.arms):
        raise PretuneError(
            f"{where}: all arms are controls, which are not trained; remove 'control' from at least one arm"
        )
    if study.stage == PRETRAINING and (idle := [arm.name for arm in study.arms if arm.pretrain is None]):
        raise PretuneError(
            f"{where}: the arm {idle[0]!r} has no pretraining, so it does not use the budget; add the section 'pretrain' to it, "
            "and 'control: true' if the model is to stay untrained"
        )
    if study.stage == COMPRESSION:
        for arm in study.arms:
            if not arm.control and not any(step.trains(False) for step in arm.compress):
                raise PretuneError(
                    f"{where}: the arm {arm.name!r} is not trained after fine-tuning, so it does not use the budget; add 'control: true'"
                )
    elif study.stage == FINETUNING and (idle := [arm.name for arm in study.arms if arm.control]):
        raise PretuneError(
            f"{where}: arms.{idle[0]}: 'control: true' skips pretraining or compression, but the arms have neither; remove 'control'"
        )
    if study.stage != PRETRAINING and not [one for one in study.evaluations if one.kind == "task"]:
        raise PretuneError(
            f"{where}: no arm is pretrained or fine-tuned; add the section 'pretrain' to the arms, or an evaluation of the kind 'task'"
        )
    if any(one.kind == "ensemble" for one in study.evaluations) and any(arm.compress for arm in study.arms):
        raise PretuneError(
            f"{where}: an ensemble averages predictions of fine-tuned models, not of compressed ones; remove the evaluation of the "
            "kind 'ensemble', or the sections 'compress'"
        )
    for evaluation in study.evaluations:
        for arm in study.arms if evaluation.kind == "task" else ():
            keys = check_settings(TaskKeys, task_settings(evaluation, arm), f"{where}: arms.{arm.name}.finetune")
            if arm.compress and "dev" not in keys:
                raise PretuneError(
                    f"{where}: evaluations.{evaluation.name}: compressed models are compared on the same examples; name their file under the key 'dev'"
                )
            for key in ("epochs", "budget"):
                if key in keys and study.stage == FINETUNING:
                    raise PretuneError(
                        f"{where}: arms.{arm.name}: the budget of the study applies to fine-tuning and replaces {key!r}; remove {key!r}"
                    )
    for arm in study.arms:
        if study.stage == COMPRESSION and [step for step in arm.compress if "epochs" in step.settings]:
            raise PretuneError(
                f"{where}: arms.{arm.name}: the budget of the study applies to compression and replaces 'epochs'; remove 'epochs'"
            )
    for arm in study.arms:
        if arm.search is not None and (arm.pretrain or {}).get("budget"):
            raise PretuneError(
                f"{where}: arms.{arm.name}: the trials of a search get a share of the budget of the study, so an arm with a search "
                "cannot have a budget of its own; remove 'pretrain.budget'"
            )


def task_settings(evaluation: Evaluation, arm: Arm) -> Values:
    """Return the settings for fine-tuning an arm (compared recipe) in an evaluation.

    Settings of the arm have precedence over those of the evaluation.
    """
    return merge_recipes(evaluation.settings, arm.finetune or {})


def check_name(name: Any, known: Any, where: str) -> None:
    """Raise an error if a name is not among the names in `known`; `where` is its place in the study file."""
    if name not in known:
        raise PretuneError(f"{where}: {quote(name)} is unknown; {suggest(str(name), known)}")


def run_budget(unit: str, amount: float) -> Budget:
    """Return a training budget with one limit, which is given as a unit and an amount.

    >>> run_budget("flops", 1e9).limits
    {'flops': 1000000000.0}
    """
    return Budget(**{unit: amount})  # type: ignore[arg-type]


def format_amount(unit: str, amount: float) -> str:
    """Return an amount in a unit of budgets as text.

    >>> format_amount("flops", 1e16), format_amount("seconds", 90.0), format_amount("tokens", 2.5e6)
    ('1e16 FLOPs', '90 s', '2.5e6 tokens')
    """
    if unit == "seconds":
        return f"{amount:,.0f} s" if amount >= 10 else f"{amount:.2g} s"
    digits, _, exponent = f"{amount:.2e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    power = math.floor(float(exponent))
    number = f"{digits}e{power}" if power >= 5 else f"{amount:,.0f}"
    return f"{number} {'FLOPs' if unit == 'flops' else unit}"
