"""The sections of a training recipe: budget, optimizer, schedule, batches, and monitoring.

A key that is not set is None; `resolve_section` takes it from the preset, then from DEFAULTS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Literal, TypeVar, get_type_hints

from pretune.runtime.errors import PretuneError, if_option, quote, suggest
from pretune.runtime.optional_imports import import_optional
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
from pretune.text.tokenizers.kinds import Kind, PairScore
from pretune.text.tokenizers.subword_sampling import SubwordSampling

AUTO: Final = "auto"  # the learning rate that a range test finds
SHARE, COUNT_OR_0 = Interval(0, 1, above=True), Interval(0, 1e12)
Any_ = TypeVar("Any_", bound="TrainingSection")


def _key(within: Interval | None, text: str, option: str = "") -> Any:
    """Declare a key of a recipe section with the help text `text`; a number must lie in the interval `within`.

    `option` is the name of a command-line option that sets the key too.
    """
    metadata = {"help": text, "within": within, "option": option}
    return field(default=None, metadata={name: value for name, value in metadata.items() if value})


class TrainingSection(RecipeSection):
    """A section of a training recipe; it raises an error if a number is outside its allowed interval."""

    recipe_key: ClassVar[str]  # its key in a recipe

    def __post_init__(self) -> None:
        for key in fields(self):  # type: ignore[arg-type]
            value = getattr(self, key.name)
            for number in (value if isinstance(value, tuple) else [value]) if "within" in key.metadata else ():
                if number == AUTO:
                    continue
                check_number(f"{self.recipe_key}.{key.name}", number, key.metadata["within"])


@dataclass(frozen=True)
class Budget(TrainingSection):
    """The limits of a training run, which ends when the first of them is reached.

    >>> Budget(seconds=900)
    Budget(steps=None, tokens=None, flops=None, seconds=900)
    """

    recipe_key: ClassVar[str] = "budget"
    flat: ClassVar[bool] = True
    steps: int | None = _key(POSITIVE, "Maximum number of training steps.")
    tokens: float | None = _key(POSITIVE, "Maximum number of training tokens.")
    flops: float | None = _key(POSITIVE, "Maximum number of floating-point operations of training.")
    seconds: float | None = _key(
        POSITIVE,
        "Maximum training time in seconds, checked after each step; loading, compilation and evaluation are not counted.",
    )

    def check(self) -> None:
        """Raise an error if no limit of the training budget is set."""
        if not self.limits:
            raise PretuneError(
                f"training needs a budget{if_option('steps', ': give --steps, --tokens, --flops or --seconds')}"
            )

    @property
    def limits(self) -> dict[str, float]:
        """The limits of the training budget that are set, by name."""
        return {name: float(value) for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Optimizer(TrainingSection):
    """The optimizer settings of a recipe; with `muon`, AdamW updates all parameters except hidden matrices."""

    recipe_key: ClassVar[str] = "optimizer"
    name: Literal["adamw", "adam", "radam", "adafactor", "lamb", "muon", "sgd", "asgd"] | None = _key(
        None, "Optimizer."
    )
    lr: float | Literal["auto"] | None = _key(
        POSITIVE, "Peak learning rate; auto finds one with a learning rate range test before training.", option="lr"
    )
    betas: tuple[float, float] | None = _key(
        FRACTION_BELOW_1, "Decay rates of the moving averages of the gradient and of its square."
    )
    eps: float | None = _key(NOT_NEGATIVE, "Small number that is added to the denominator of the update.")
    weight_decay: float | None = _key(
        NOT_NEGATIVE,
        "Weight decay of all parameters except norms and biases; decoupled, except for adam, sgd and asgd, for which the "
        "default is 0.",
    )
    max_grad_norm: float | None = _key(NOT_NEGATIVE, "Gradient norm at which gradients are clipped; 0: no clipping.")
    muon_lr: float | None = _key(POSITIVE, "Learning rate of muon for hidden matrices.")
    momentum: float | None = _key(FRACTION_BELOW_1, "Momentum of muon and sgd.")
    layer_decay: float | None = _key(SHARE, "Learning rate of each layer relative to that of the layer above it.")
    head_lr_factor: float | None = _key(
        POSITIVE, "Learning rate of heads (such as rtd's generator) relative to the backbone's."
    )
    ema_decay: float | None = _key(
        FRACTION_BELOW_1, "Decay of an exponential moving average of the weights, which becomes the model."
    )
    average_fraction: float | None = _key(SHARE, "Fraction of the budget, at its end, over which weights are averaged.")
    reference_batch_size: int | None = _key(
        COUNT, "Tokens or rows per step that lr is meant for; with another batch size, lr is scaled."
    )

    @property
    def base_lr(self) -> float:
        """The peak learning rate as a number, or 0 if it is not set; an error is raised while it is still "auto"."""
        if self.lr == AUTO:
            raise PretuneError(
                "optimizer.lr=auto: the learning rate is not known here, before a range test; set optimizer.lr to a number"
            )
        return self.lr or 0.0


@dataclass(frozen=True)
class Schedule(TrainingSection):
    """The learning rate schedule of a recipe; its durations are fractions of the training budget."""

    recipe_key: ClassVar[str] = "schedule"
    kind: (
        Literal[
            "linear", "cosine", "constant", "inverse-sqrt", "slanted-triangular", "one-cycle", "warmup-stable-decay"
        ]
        | None
    ) = _key(None, "Shape of the learning rate over the budget.")
    warmup_ratio: float | None = _key(FRACTION, "Fraction of the budget for warmup.")
    min_lr_ratio: float | None = _key(FRACTION, "Final learning rate relative to the peak.")
    decay_ratio: float | None = _key(
        FRACTION, "Fraction of the budget, at its end, for the decay of warmup-stable-decay."
    )
    dropout_until: float | None = _key(FRACTION, "Fraction of the budget after which dropout is turned off (ALBERT).")


@dataclass(frozen=True)
class Batching(TrainingSection):
    """The sizes of batches and sequences in training."""

    recipe_key: ClassVar[str] = "batch"
    tokens: int | None = _key(COUNT, "Tokens per step.")
    max_length: int | None = _key(COUNT, "Maximum number of tokens per sequence.", option="max_length")
    microbatch_tokens: int | None = _key(
        COUNT, "Tokens per forward pass; gradients are accumulated over the microbatches of a step."
    )
    size: int | None = _key(COUNT, "Labeled rows per step, instead of tokens.", option="batch_size")
    length_schedule: tuple[tuple[float, int], ...] | None = _key(
        None, "Pairs of a fraction of the budget and the maximum length until then, instead of max_length."
    )
    objective_schedule: tuple[tuple[float, str], ...] | None = _key(
        None, "Pairs of a fraction of the budget and the objective until then, instead of the objective of the run."
    )
    gradient_checkpointing: bool | None = _key(None, "Recompute activations in the backward pass to save memory.")
    size_warmup: tuple[float, float] | None = _key(
        FRACTION, "Fraction of a step's tokens at the start, and fraction of the budget until the full size."
    )
    language_alpha: float | None = _key(None, "Power of their share of the text by which languages are sampled.")
    corpus_weights: tuple[float, ...] | None = _key(
        POSITIVE,
        "Share of training of each store, file, or folder of the data, in their order, instead of in proportion to their size.",
        option="corpus_weights",
    )
    bpe_dropout: float | None = _key(
        FRACTION,
        "BPE-dropout: probability with which a merge is skipped when the training texts are tokenized anew in every epoch.",
    )
    unigram_alpha: float | None = _key(
        NOT_NEGATIVE,
        "Unigram sampling: power of the probability of a segmentation to which it is sampled in every epoch.",
    )
    nbest_size: int | None = _key(
        COUNT, "Unigram sampling: number of the most probable segmentations to sample from, instead of all."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for share, length in self.length_schedule or ():
            if share not in SHARE or length not in COUNT:
                raise PretuneError(
                    f"batch.length_schedule={quote(self.length_schedule)}: each entry must be a fraction of the budget, above 0 and "
                    "at most 1, and the maximum sequence length until then, as in [[0.9, 128], [1.0, 512]]"
                )
        for share, objective in self.objective_schedule or ():
            if share not in SHARE or not objective:
                raise PretuneError(
                    f"batch.objective_schedule={quote(self.objective_schedule)}: each entry must be a fraction of the budget, above "
                    "0 and at most 1, and the objective until then, as in [[0.5, mlm], [1.0, mlm+nsp]]"
                )
        if self.language_alpha is not None and not 0 <= self.language_alpha <= 1:
            raise PretuneError(
                f"batch.language_alpha={self.language_alpha:g}: the value must be between 0 (languages are sampled "
                "uniformly) and 1 (in proportion to their text)"
            )

    @property
    def subword_sampling(self) -> SubwordSampling:
        """The settings of subword regularization, which samples segmentations in training."""
        return SubwordSampling(self.bpe_dropout, self.unigram_alpha, self.nbest_size)


@dataclass(frozen=True)
class Monitoring(TrainingSection):
    """The settings for logging, evaluation, checkpoints, spike detection, and early stopping."""

    recipe_key: ClassVar[str] = "monitor"
    log_every: int | None = _key(COUNT, "Steps between log lines.")
    log_to: tuple[Literal["tensorboard", "wandb"], ...] | None = _key(
        None, "Experiment trackers that get the metrics and settings too: tensorboard, wandb.", option="log_to"
    )
    eval_every: int | None = _key(COUNT_OR_0, "Steps between evaluations; 0: only at the end.")
    held_out_fraction: float | None = _key(
        FRACTION_BELOW_1, "Fraction of the documents that is held out for evaluation."
    )
    max_eval_batches: int | None = _key(COUNT, "Maximum number of microbatches of held-out text.")
    save_every: int | None = _key(COUNT_OR_0, "Steps between checkpoints; 0: only when interrupted.")
    save_total_limit: int | None = _key(COUNT, "Number of checkpoints to keep.")
    log_layer_grad_norms: bool | None = _key(None, "Log the gradient norm of each layer.")
    spike_threshold: float | None = _key(
        POSITIVE, "A loss or gradient norm this many times its running mean is a spike; slows down training."
    )
    on_spike: Literal["stop", "skip"] | None = _key(None, "Stop training at a spike, or skip the step.")
    patience: int | None = _key(
        COUNT_OR_0, "Early stopping: evaluations without an improvement; the best parameters are restored."
    )


@dataclass(frozen=True)
class TokenizerTraining(TrainingSection):
    """The settings of a tokenizer that is trained on the text of a pretraining job."""

    recipe_key: ClassVar[str] = "tokenizer"
    kind: Kind | None = _key(None, "Tokenization algorithm.")  # noqa: RUF009
    vocab_size: int | None = _key(COUNT, "Maximum number of tokens in the vocabulary.")
    lowercase: bool | None = _key(None, "Lowercase texts.")
    pair_score: PairScore | None = _key(None, "What WordPiece training merges first.")  # noqa: RUF009
    extra_ids: int | None = _key(COUNT_OR_0, "Number of sentinel tokens.")
    languages: tuple[str, ...] | None = _key(None, "Languages that get a token.")
    language_alpha: float | None = _key(
        FRACTION, "Power of their share of the text by which languages are sampled, for the training of the tokenizer."
    )
    least: int | None = _key(COUNT, "Minimum count of a word, for vocabularies of whole words.")
    target: int | None = _key(COUNT, "Size of a separate vocabulary for translations.")


@dataclass(frozen=True)
class BackTranslation(TrainingSection):
    """The settings of back-translation: texts of the target language, and the model that translates them back.

    >>> BackTranslation(model="runs/de-en", texts=("news.de.txt",)).ratio is None
    True
    """

    recipe_key: ClassVar[str] = "back_translation"
    model: str | None = _key(None, "Run folder or model folder that translates from the target to the source language.")
    texts: tuple[str, ...] | None = _key(None, "Files of text in the target language: .txt, one text per line.")
    ratio: float | None = _key(
        POSITIVE, "Synthetic pairs per real pair in training, by repeating the fewer ones; 1 by default."
    )
    num_beams: int | None = _key(COUNT, "Number of beams of beam search; 1, the default, is greedy decoding.")
    temperature: float | None = _key(POSITIVE, "Sample the translations, with this temperature.")
    tag: str | None = _key(None, "Word to put before each synthetic source, such as <BT>.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model or not self.texts:
            raise PretuneError(
                "back-translation needs a model of the reverse direction and texts of the target language; set "
                "back_translation.model and back_translation.texts"
            )
        if (self.num_beams or 1) > 1 and self.temperature is not None:
            raise PretuneError(
                "back_translation.num_beams and back_translation.temperature cannot be combined: beam search does not "
                "sample; remove one of them"
            )


SECTIONS: dict[str, type[Any]] = {kind.recipe_key: kind for kind in (Budget, Optimizer, Schedule, Batching, Monitoring)}
DEFAULTS: dict[type[TrainingSection], TrainingSection] = {
    Budget: Budget(),
    Optimizer: Optimizer("adamw", 1e-4, (0.9, 0.999), 1e-6, 0.01, 1.0, 0.02),
    Schedule: Schedule("linear", 0.1, 0.0, 0.2),
    Batching: Batching(tokens=8192, max_length=128, microbatch_tokens=16384, language_alpha=0.7),
    Monitoring: Monitoring(
        log_every=10, eval_every=0, held_out_fraction=0.01, max_eval_batches=16, save_every=100, save_total_limit=2
    ),
}


COUPLED = ("adam", "sgd", "asgd")  # weight decay is part of the gradient
ADAPTIVE = ("adamw", "adam", "radam", "lamb", "muon")  # muon uses AdamW for all but hidden matrices

# Keys that apply only to some kinds of optimizer or schedule: section → (key of the kind, key → kinds).
BY_KIND: dict[type[TrainingSection], tuple[str, dict[str, tuple[str, ...]]]] = {
    Optimizer: (
        "name",
        {"betas": ADAPTIVE, "eps": ADAPTIVE, "momentum": ("muon", "sgd"), "muon_lr": ("muon",)},
    ),
    Schedule: (
        "kind",
        {
            "min_lr_ratio": ("linear", "cosine", "slanted-triangular", "one-cycle", "warmup-stable-decay"),
            "decay_ratio": ("warmup-stable-decay",),
        },
    ),
}
# Keys that apply only if another one is set: section → key → the other one.
NEEDS: dict[type[TrainingSection], dict[str, str]] = {
    Monitoring: {
        "on_spike": "spike_threshold",
        "max_eval_batches": "held_out_fraction",
        "eval_every": "held_out_fraction",
    },
    Batching: {"nbest_size": "unigram_alpha"},
}
# Keys that apply only to training on running text, and those that apply only to training on labeled rows.
ON_TEXT: dict[type[TrainingSection], tuple[str, ...]] = {
    Batching: (
        "tokens",
        "microbatch_tokens",
        "length_schedule",
        "objective_schedule",
        "size_warmup",
        "language_alpha",
        "corpus_weights",
    ),
    Monitoring: ("held_out_fraction", "max_eval_batches"),
}
ON_ROWS: dict[type[TrainingSection], tuple[str, ...]] = {Batching: ("size",), Monitoring: ("patience",)}


def resolve_section(
    section: type[Any_],
    given: Any_ | None,
    preset: dict[str, Any] | None = None,
    without: Mapping[type[TrainingSection], tuple[str, ...]] | None = None,
) -> Any_:
    """Return a recipe section whose keys are from `given` (the user), else from the preset, else from the defaults.

    A key that does not apply to the chosen optimizer or schedule is an error if it is in `given`, and is unset
    otherwise. `without` has the names of keys that are always unset, by section.
    """
    if section is Batching and given is not None and given.max_length and given.length_schedule:  # type: ignore[attr-defined]
        raise PretuneError(
            "batch.max_length and batch.length_schedule both set the sequence length; remove one of them"
        )
    if section is Batching and given is not None and given.corpus_weights and given.language_alpha is not None:  # type: ignore[attr-defined]
        raise PretuneError(
            "batch.corpus_weights and batch.language_alpha both set the shares of the data; remove one of them"
        )
    filled: Any = DEFAULTS[section]
    for source in (convert_values(section, preset or {}), asdict(given) if given is not None else {}):  # type: ignore[call-overload]
        known = {key: value for key, value in source.items() if value is not None}
        if section is Budget and known:
            filled = Budget()  # a given limit replaces the preset's, even if it counts something else
        if section is Optimizer and known.get("name") in COUPLED:
            # The default suits decoupled weight decay; as part of the gradient it would dominate.
            filled = replace(filled, weight_decay=0.0)
        if section is Batching and "max_length" in known:
            filled = replace(filled, length_schedule=None)  # a given length replaces the preset's length schedule
        if section is Batching and "corpus_weights" in known:
            filled = replace(filled, language_alpha=None)  # weights of corpora decide on those of languages
        filled = replace(filled, **known)
    trackers = (filled.log_to or ()) if section is Monitoring else ()
    if "tensorboard" in trackers:  # an error now, and not after the data are read
        import_optional("tensorboard", "--log-to tensorboard")
    if "wandb" in trackers:
        import_optional("wandb", "--log-to wandb")
    filled = _applicable(filled, {key for key, value in vars(given or section()).items() if value})
    return replace(filled, **dict.fromkeys((without or {}).get(section, ())))


def convert_values(section: type[TrainingSection], values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values in a preset to the types that a recipe section declares; raise an error for unknown keys."""
    hints = get_type_hints(section)
    types = {key.name: hints[key.name] for key in fields(section)}  # type: ignore[arg-type]
    name = section.recipe_key
    for key in values.keys() - types.keys():
        raise PretuneError(f"the recipe section {name} has no key {quote(key)}; {suggest(key, types)}")
    return {key: validate_schema(as_tuples(value), types[key], f"{name}.{key}") for key, value in values.items()}


def _applicable(filled: Any_, given: set[str]) -> Any_:
    """Unset the keys of a section that do not apply to its optimizer or schedule; raise an error if `given` has one."""
    kind_of, kinds = BY_KIND.get(type(filled), ("", {}))
    name = filled.recipe_key
    unused = {}
    for key, where in kinds.items():
        if (kind := getattr(filled, kind_of)) not in where:
            unused[key] = f"applies only to {', '.join(where)}, not to {kind_of}={kind}"
    for key, other in NEEDS.get(type(filled), {}).items():
        if not getattr(filled, other):
            unused[key] = f"applies only with {name}.{other}"
    for key, why in unused.items():
        if key in given:
            raise PretuneError(f"the recipe key {name}.{key} {why}; remove it")
    return replace(filled, **dict.fromkeys(unused))  # type: ignore[type-var]


def as_recipe(plan: Any, leave_out: tuple[str, ...]) -> dict[str, Any]:
    """Return the job `plan` as a recipe, a nested mapping of its settings, without the settings named in `leave_out`.

    Settings that are None are left out, too.
    """
    content = {}
    for key in (own.name for own in fields(plan) if own.name not in leave_out):
        value = getattr(plan, key)
        if isinstance(value, RecipeSection):
            value = {name: item for name, item in asdict(value).items() if item is not None}  # type: ignore[call-overload]
        if value is not None:
            content[key.rstrip("_")] = value
    return content
