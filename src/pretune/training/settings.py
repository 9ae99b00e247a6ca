"""The sections of a training recipe. A key that is not given is None, and filled from the preset, then from DEFAULTS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar, get_type_hints

from pretune.runtime.errors import PretuneError, if_option, nearest, quote
from pretune.runtime.parsing import as_tuples, conform
from pretune.runtime.recipe import Section
from pretune.runtime.value_ranges import BELOW_1, COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Interval, check_number

Any_ = TypeVar("Any_", bound=Section)


RECIPE_KEYS = {
    "Budget": "budget",
    "Optimizer": "optimizer",
    "Schedule": "schedule",
    "Batching": "batch",
    "Watching": "watching",
}


def check_numbers(section: Section, **intervals: Interval) -> None:
    """Refuse a number of a section that is out of its interval; those of a tuple have the same."""
    for name, within in intervals.items():
        value = getattr(section, name)
        for number in value if isinstance(value, tuple) else [value]:
            check_number(f"{RECIPE_KEYS[type(section).__name__]}.{name}", number, within)


def _help(text: str) -> Any:
    return field(default=None, metadata={"help": text})


@dataclass(frozen=True)
class Budget(Section):
    """How much a training may cost; whichever limit is reached first ends it.

    >>> Budget(seconds=900)
    Budget(steps=None, tokens=None, flops=None, seconds=900)
    """

    flat: ClassVar[bool] = True
    steps: int | None = _help("Maximum number of training steps.")
    tokens: float | None = _help("Maximum number of training tokens.")
    flops: float | None = _help("Maximum number of floating-point operations of training.")
    seconds: float | None = _help(
        "Maximum training time in seconds, checked after each step; evaluation is not counted."
    )

    def __post_init__(self) -> None:
        check_numbers(self, steps=POSITIVE, tokens=POSITIVE, flops=POSITIVE, seconds=POSITIVE)

    def check(self) -> None:
        """Refuse a budget without a limit."""
        if not self.limits:
            raise PretuneError(
                f"a training needs a budget{if_option('steps', ': give --steps, --tokens, --flops or --seconds')}"
            )

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set."""
        return {name: float(value) for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Optimizer(Section):
    """How parameters move. `muon` moves the hidden matrices of backbone and heads, with AdamW for all others."""

    name: Literal["adamw", "adam", "radam", "adafactor", "lamb", "muon", "sgd", "asgd"] | None = None
    lr: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    decay: float | None = (
        None  # of weights, never of norms and biases; decoupled but for adam, sgd and asgd, where it is 0
    )
    clip: float | None = None  # largest norm of the gradient; 0: none
    matrix_lr: float | None = None  # muon's rate for matrices
    momentum: float | None = None  # muon's, and SGD's
    layer_decay: float | None = None  # each layer's rate is this share of that of the layer above it
    head_factor: float | None = (
        None  # learning rates of the heads (rtd's generator is in one) relative to the backbone's
    )
    ema: float | None = None  # the model that comes out is an exponential mean of all steps, with this decay
    average: float | None = None  # it is the plain mean over this share of the budget, at its end
    meant_for: int | None = None  # the batch (tokens of a step, or rows) that rates are meant for; they grow with it

    def __post_init__(self) -> None:
        check_numbers(
            self,
            lr=POSITIVE,
            betas=BELOW_1,
            eps=NOT_NEGATIVE,
            decay=NOT_NEGATIVE,
            clip=NOT_NEGATIVE,
            matrix_lr=POSITIVE,
            momentum=BELOW_1,
            layer_decay=Interval(0, 1, above=True),
            head_factor=POSITIVE,
            ema=BELOW_1,
            average=Interval(0, 1, above=True),
            meant_for=COUNT,
        )


@dataclass(frozen=True)
class Schedule(Section):
    """How the rates change over the budget, whatever it counts: steps, tokens, operations or seconds."""

    kind: Literal["linear", "cosine", "constant", "inverse-sqrt", "triangular", "one-cycle", "stable"] | None = None
    warmup: float | None = None  # share of the budget during which rates rise
    final: float | None = None  # share of the peak that is left at the end
    decay: float | None = None  # `stable`: share of the budget, at its end, during which rates fall
    dropout: float | None = None  # share of the budget after which there is no dropout (ALBERT)

    def __post_init__(self) -> None:
        check_numbers(self, warmup=SHARE, final=SHARE, decay=SHARE, dropout=SHARE)


@dataclass(frozen=True)
class Batching(Section):
    """How much data a step takes."""

    tokens: int | None = None  # in a step
    length: int | None = None  # of a sequence, at most
    pack: int | None = None  # tokens that go through the model at once; a step takes as many packs as it needs
    sequences: int | None = None  # in a step, for labeled rows; instead of tokens
    stages: tuple[tuple[float, int], ...] | None = None  # (share of the budget, length until then) …; instead of length
    recompute: bool | None = None  # keep only what goes into each layer, and compute the rest again in the backward
    ramp: tuple[float, float] | None = (
        None  # (share of its tokens that a step starts with, share of the budget to grow)
    )
    exponent: float | None = None  # of several languages, each is drawn by its share of the text to this power

    def __post_init__(self) -> None:
        check_numbers(self, tokens=COUNT, length=COUNT, pack=COUNT, sequences=COUNT, ramp=SHARE)
        for share, length in self.stages or ():
            if share not in Interval(0, 1, above=True) or length not in COUNT:
                raise PretuneError(
                    f"batch.stages={quote(self.stages)}: a stage is a share of the budget, above 0 and at most 1, and the "
                    "length of sequences until then"
                )
        if self.exponent is not None and not 0 <= self.exponent <= 1:
            raise PretuneError(
                f"batch.exponent={self.exponent:g}: languages are drawn by their share to a power between 0 (all alike) "
                "and 1 (as they are)"
            )


@dataclass(frozen=True)
class Watching(Section):
    """Logging, evaluation, checkpoints."""

    log: int | None = None  # steps between log lines
    evaluate: int | None = None  # steps between evaluations; 0: at the end alone
    held_out: float | None = None  # share of the documents kept for evaluation
    packs: int | None = None  # of held-out text, at most
    save: int | None = None  # steps between checkpoints; 0: only when stopped
    keep: int | None = None  # checkpoints kept
    layers: bool | None = None  # log the gradient norm of each layer
    spike: float | None = None  # a loss or gradient norm so many times the usual is a bad step; the host waits for each
    on_spike: Literal["stop", "skip"] | None = None  # what to do about a bad step
    patience: int | None = (
        None  # evaluations without a better one after which a task ends; the best parameters come out
    )

    def __post_init__(self) -> None:
        check_numbers(
            self,
            log=COUNT,
            evaluate=Interval(0, 1e12),
            held_out=BELOW_1,
            packs=COUNT,
            save=Interval(0, 1e12),
            keep=COUNT,
            spike=POSITIVE,
            patience=Interval(0, 1e12),
        )


DEFAULTS: dict[type[Section], Section] = {
    Budget: Budget(),
    Optimizer: Optimizer("adamw", 1e-4, (0.9, 0.999), 1e-6, 0.01, 1.0, 0.02),
    Schedule: Schedule("linear", 0.1, 0.0, 0.2),
    Batching: Batching(tokens=8192, length=128, pack=16384, exponent=0.7),
    Watching: Watching(log=10, evaluate=0, held_out=0.01, packs=16, save=100, keep=2),
}


COUPLED = ("adam", "sgd", "asgd")  # whose decay is part of the gradient
ADAPTIVE = ("adamw", "adam", "radam", "lamb", "muon")  # muon leaves all but hidden matrices to AdamW

# Keys that apply only to some kinds of optimizer or schedule: section → (key of the kind, key → kinds).
BY_KIND: dict[type[Section], tuple[str, dict[str, tuple[str, ...]]]] = {
    Optimizer: (
        "name",
        {"betas": ADAPTIVE, "eps": ADAPTIVE, "momentum": ("muon", "sgd"), "matrix_lr": ("muon",)},
    ),
    Schedule: (
        "kind",
        {"final": ("linear", "cosine", "triangular", "one-cycle", "stable"), "decay": ("stable",)},
    ),
}
# Keys that apply only where another is set: section → key → the other.
NEEDS: dict[type[Section], dict[str, str]] = {
    Watching: {"on_spike": "spike", "packs": "held_out", "evaluate": "held_out"},
}
# Keys that apply only to training on running text, and those that apply only to training on labeled rows.
ON_TEXT: dict[type[Section], tuple[str, ...]] = {
    Batching: ("tokens", "pack", "stages", "ramp", "exponent"),
    Watching: ("held_out", "packs"),
}
ON_ROWS: dict[type[Section], tuple[str, ...]] = {Batching: ("sequences",), Watching: ("patience",)}


def fill(
    section: type[Any_],
    given: Any_ | None,
    preset: dict[str, Any] | None = None,
    without: Mapping[type[Section], tuple[str, ...]] | None = None,
) -> Any_:
    """Fill a section: with what is given, then with the preset's values, then with the defaults.

    A key that does not apply to the chosen kind is refused where it was given, and left out where it was not. `without` names
    keys that the training has no use for.
    """
    if section is Batching and given is not None and given.length and given.stages:  # type: ignore[attr-defined]
        raise PretuneError("batch.length and batch.stages both say how long sequences are; leave one of them out")
    filled: Any = DEFAULTS[section]
    for source in (typed(section, preset or {}), asdict(given) if given is not None else {}):  # type: ignore[call-overload]
        known = {key: value for key, value in source.items() if value is not None}
        if section is Budget and known:
            filled = Budget()  # a limit that is given replaces the preset's, whatever it counts
        if section is Optimizer and known.get("name") in COUPLED:
            filled = replace(
                filled, decay=0.0
            )  # the usual one is for decay apart from the gradient, which this would drown
        if section is Batching and "length" in known:
            filled = replace(filled, stages=None)  # so does a length
        filled = replace(filled, **known)
    filled = _applicable(filled, {key for key, value in vars(given or section()).items() if value})
    return replace(filled, **dict.fromkeys((without or {}).get(section, ())))


def typed(section: type[Section], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a section's keys, as a preset has them, in the types that the section declares."""
    hints = get_type_hints(section)
    types = {key.name: hints[key.name] for key in fields(section)}  # type: ignore[arg-type]
    name = RECIPE_KEYS[section.__name__]
    for key in values.keys() - types.keys():
        raise PretuneError(f"unknown key {quote(key)} of {name}; {nearest(key, types)}")
    return {key: conform(as_tuples(value), types[key], f"{name}.{key}") for key, value in values.items()}


def _applicable(filled: Any_, given: set[str]) -> Any_:
    """Return a section without the keys that do not apply to its kind; refuse those that were given."""
    kind_of, kinds = BY_KIND.get(type(filled), ("", {}))
    name = type(filled).__name__.lower()
    unused = {}
    for key, where in kinds.items():
        if (kind := getattr(filled, kind_of)) not in where:
            unused[key] = f"applies only to {', '.join(where)}, not to {kind_of}={kind}"
    for key, other in NEEDS.get(type(filled), {}).items():
        if not getattr(filled, other):
            unused[key] = f"applies only with {name}.{other}"
    for key, why in unused.items():
        if key in given:
            raise PretuneError(f"{name}.{key} {why}; leave it out")
    return replace(filled, **dict.fromkeys(unused))  # type: ignore[type-var]


def as_recipe(plan: Any, leave_out: tuple[str, ...]) -> dict[str, Any]:
    """A plan's fields as a recipe: sections without what is not set, `from_` as `from`."""
    content = {}
    for key, value in asdict(plan).items():
        if isinstance(getattr(plan, key), Section):
            value = {name: item for name, item in value.items() if item is not None}
        if key not in leave_out and value is not None:
            content[key.rstrip("_")] = value
    return content
