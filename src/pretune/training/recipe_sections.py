"""The sections of a training recipe: budget, optimizer, schedule, batches, and monitoring.

A key that is not set is None; `resolve_section` takes it from the preset, then from DEFAULTS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar, get_type_hints

from pretune.runtime.errors import PretuneError, if_option, quote, suggest
from pretune.runtime.parsing import as_tuples, validate_schema
from pretune.runtime.recipe import RecipeSection
from pretune.runtime.value_ranges import (
    COUNT,
    FRACTION,
    FRACTION_BELOW_1,
    NOT_NEGATIVE,
    POSITIVE,
    Interval,
    check_number,
)

Any_ = TypeVar("Any_", bound=RecipeSection)


RECIPE_KEYS = {
    "Budget": "budget",
    "Optimizer": "optimizer",
    "Schedule": "schedule",
    "Batching": "batch",
    "Monitoring": "watching",
}


def check_numbers(section: RecipeSection, **intervals: Interval) -> None:
    """Raise an error if a number of a section, or one in a tuple, is outside its interval."""
    for name, within in intervals.items():
        value = getattr(section, name)
        for number in value if isinstance(value, tuple) else [value]:
            check_number(f"{RECIPE_KEYS[type(section).__name__]}.{name}", number, within)


def _help(text: str) -> Any:
    return field(default=None, metadata={"help": text})


@dataclass(frozen=True)
class Budget(RecipeSection):
    """The limits of a training; it ends when the first one is reached.

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
        """Raise an error if no limit is set."""
        if not self.limits:
            raise PretuneError(
                f"a training needs a budget{if_option('steps', ': give --steps, --tokens, --flops or --seconds')}"
            )

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: float(value) for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Optimizer(RecipeSection):
    """The optimizer and its settings; `muon` is for hidden matrices, and AdamW updates all other parameters."""

    name: Literal["adamw", "adam", "radam", "adafactor", "lamb", "muon", "sgd", "asgd"] | None = None
    lr: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    # Weight decay, except of norms and biases; decoupled, except for adam, sgd, and asgd, for which the default is 0.
    decay: float | None = None
    clip: float | None = None  # maximum norm of the gradient; 0: no clipping
    matrix_lr: float | None = None  # learning rate of muon for matrices
    momentum: float | None = None  # of muon and sgd
    layer_decay: float | None = None  # the learning rate of each layer relative to that of the layer above it
    head_factor: float | None = None  # learning rate of heads (such as rtd's generator) relative to the backbone
    ema: float | None = None  # decay of an exponential moving average of the weights, which becomes the trained model
    average: float | None = None  # share of the budget, at its end, over which weights are averaged
    meant_for: int | None = None  # reference batch size (tokens or rows); learning rates are scaled in proportion to it

    def __post_init__(self) -> None:
        check_numbers(
            self,
            lr=POSITIVE,
            betas=FRACTION_BELOW_1,
            eps=NOT_NEGATIVE,
            decay=NOT_NEGATIVE,
            clip=NOT_NEGATIVE,
            matrix_lr=POSITIVE,
            momentum=FRACTION_BELOW_1,
            layer_decay=Interval(0, 1, above=True),
            head_factor=POSITIVE,
            ema=FRACTION_BELOW_1,
            average=Interval(0, 1, above=True),
            meant_for=COUNT,
        )


@dataclass(frozen=True)
class Schedule(RecipeSection):
    """The learning rate schedule over the budget, whether that counts steps, tokens, FLOPs, or seconds."""

    kind: Literal["linear", "cosine", "constant", "inverse-sqrt", "triangular", "one-cycle", "stable"] | None = None
    warmup: float | None = None  # share of the budget for warmup
    final: float | None = None  # final learning rate relative to the peak
    decay: float | None = None  # `stable`: share of the budget, at its end, for the decay
    dropout: float | None = None  # share of the budget after which dropout is turned off (ALBERT)

    def __post_init__(self) -> None:
        check_numbers(self, warmup=FRACTION, final=FRACTION, decay=FRACTION, dropout=FRACTION)


@dataclass(frozen=True)
class Batching(RecipeSection):
    """The sizes of batches and sequences."""

    tokens: int | None = None  # per step
    length: int | None = None  # maximum tokens per sequence
    pack: int | None = None  # tokens per forward pass; a step accumulates gradients over as many packs as it needs
    sequences: int | None = None  # per step, for labeled rows; instead of tokens
    stages: tuple[tuple[float, int], ...] | None = None  # (share of the budget, length until then) …; instead of length
    recompute: bool | None = None  # gradient checkpointing: recompute activations in the backward pass
    ramp: tuple[float, float] | None = (
        None  # (initial share of a step's tokens, share of the budget until the full size)
    )
    exponent: float | None = None  # languages are sampled by their share of the text to this power

    def __post_init__(self) -> None:
        check_numbers(self, tokens=COUNT, length=COUNT, pack=COUNT, sequences=COUNT, ramp=FRACTION)
        for share, length in self.stages or ():
            if share not in Interval(0, 1, above=True) or length not in COUNT:
                raise PretuneError(
                    f"batch.stages={quote(self.stages)}: a stage is a share of the budget, above 0 and at most 1, and the "
                    "sequence length until then"
                )
        if self.exponent is not None and not 0 <= self.exponent <= 1:
            raise PretuneError(
                f"batch.exponent={self.exponent:g}: languages are sampled by their share of the text to a power between 0 "
                "(uniformly) and 1 (in proportion)"
            )


@dataclass(frozen=True)
class Monitoring(RecipeSection):
    """The settings for logging, evaluation, checkpoints, spike detection, and early stopping."""

    log: int | None = None  # steps between log lines
    evaluate: int | None = None  # steps between evaluations; 0: only at the end
    held_out: float | None = None  # share of the documents kept for evaluation
    packs: int | None = None  # maximum packs of held-out text
    save: int | None = None  # steps between checkpoints; 0: only when interrupted
    keep: int | None = None  # number of checkpoints to keep
    layers: bool | None = None  # log the gradient norm of each layer
    spike: float | None = None  # a loss or gradient norm this many times its running mean is a spike; slows steps down
    on_spike: Literal["stop", "skip"] | None = None  # what to do about a spike
    patience: int | None = None  # early stopping: evaluations without an improvement; the best parameters are returned

    def __post_init__(self) -> None:
        check_numbers(
            self,
            log=COUNT,
            evaluate=Interval(0, 1e12),
            held_out=FRACTION_BELOW_1,
            packs=COUNT,
            save=Interval(0, 1e12),
            keep=COUNT,
            spike=POSITIVE,
            patience=Interval(0, 1e12),
        )


DEFAULTS: dict[type[RecipeSection], RecipeSection] = {
    Budget: Budget(),
    Optimizer: Optimizer("adamw", 1e-4, (0.9, 0.999), 1e-6, 0.01, 1.0, 0.02),
    Schedule: Schedule("linear", 0.1, 0.0, 0.2),
    Batching: Batching(tokens=8192, length=128, pack=16384, exponent=0.7),
    Monitoring: Monitoring(log=10, evaluate=0, held_out=0.01, packs=16, save=100, keep=2),
}


COUPLED = ("adam", "sgd", "asgd")  # weight decay is part of the gradient
ADAPTIVE = ("adamw", "adam", "radam", "lamb", "muon")  # muon uses AdamW for all but hidden matrices

# Keys that apply only to some kinds of optimizer or schedule: section → (key of the kind, key → kinds).
BY_KIND: dict[type[RecipeSection], tuple[str, dict[str, tuple[str, ...]]]] = {
    Optimizer: (
        "name",
        {"betas": ADAPTIVE, "eps": ADAPTIVE, "momentum": ("muon", "sgd"), "matrix_lr": ("muon",)},
    ),
    Schedule: (
        "kind",
        {"final": ("linear", "cosine", "triangular", "one-cycle", "stable"), "decay": ("stable",)},
    ),
}
# Keys that apply only if another one is set: section → key → the other one.
NEEDS: dict[type[RecipeSection], dict[str, str]] = {
    Monitoring: {"on_spike": "spike", "packs": "held_out", "evaluate": "held_out"},
}
# Keys that apply only to training on running text, and those that apply only to training on labeled rows.
ON_TEXT: dict[type[RecipeSection], tuple[str, ...]] = {
    Batching: ("tokens", "pack", "stages", "ramp", "exponent"),
    Monitoring: ("held_out", "packs"),
}
ON_ROWS: dict[type[RecipeSection], tuple[str, ...]] = {Batching: ("sequences",), Monitoring: ("patience",)}


def resolve_section(
    section: type[Any_],
    given: Any_ | None,
    preset: dict[str, Any] | None = None,
    without: Mapping[type[RecipeSection], tuple[str, ...]] | None = None,
) -> Any_:
    """Fill a section with the given values, then the preset's, then the defaults.

    A key that does not apply to the chosen kind raises an error if it was given, and is set to None otherwise. `without`
    names keys that this training does not use.
    """
    if section is Batching and given is not None and given.length and given.stages:  # type: ignore[attr-defined]
        raise PretuneError("batch.length and batch.stages both set the sequence length; remove one of them")
    filled: Any = DEFAULTS[section]
    for source in (convert_values(section, preset or {}), asdict(given) if given is not None else {}):  # type: ignore[call-overload]
        known = {key: value for key, value in source.items() if value is not None}
        if section is Budget and known:
            filled = Budget()  # a given limit replaces the preset's, even if it counts something else
        if section is Optimizer and known.get("name") in COUPLED:
            # The default suits decoupled weight decay; as part of the gradient it would dominate.
            filled = replace(filled, decay=0.0)
        if section is Batching and "length" in known:
            filled = replace(filled, stages=None)  # a given length replaces the preset's stages
        filled = replace(filled, **known)
    filled = _applicable(filled, {key for key, value in vars(given or section()).items() if value})
    return replace(filled, **dict.fromkeys((without or {}).get(section, ())))


def convert_values(section: type[RecipeSection], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a preset's values of a section, converted to the types the section declares."""
    hints = get_type_hints(section)
    types = {key.name: hints[key.name] for key in fields(section)}  # type: ignore[arg-type]
    name = RECIPE_KEYS[section.__name__]
    for key in values.keys() - types.keys():
        raise PretuneError(f"{name} has no key {quote(key)}; {suggest(key, types)}")
    return {key: validate_schema(as_tuples(value), types[key], f"{name}.{key}") for key, value in values.items()}


def _applicable(filled: Any_, given: set[str]) -> Any_:
    """Return a section without the keys that do not apply to its kind; raise an error if one of them was given."""
    kind_of, kinds = BY_KIND.get(type(filled), ("", {}))
    name = RECIPE_KEYS[type(filled).__name__]
    unused = {}
    for key, where in kinds.items():
        if (kind := getattr(filled, kind_of)) not in where:
            unused[key] = f"applies only to {', '.join(where)}, not to {kind_of}={kind}"
    for key, other in NEEDS.get(type(filled), {}).items():
        if not getattr(filled, other):
            unused[key] = f"applies only with {name}.{other}"
    for key, why in unused.items():
        if key in given:
            raise PretuneError(f"{name}.{key} {why}; remove it")
    return replace(filled, **dict.fromkeys(unused))  # type: ignore[type-var]


def as_recipe(plan: Any, leave_out: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a job as a recipe: sections without unset keys, and `from_` as `from`."""
    content = {}
    for key, value in asdict(plan).items():
        if isinstance(getattr(plan, key), RecipeSection):
            value = {name: item for name, item in value.items() if item is not None}
        if key not in leave_out and value is not None:
            content[key.rstrip("_")] = value
    return content
