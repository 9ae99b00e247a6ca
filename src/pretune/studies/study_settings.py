"""The keys of a study file: those of the file itself, of an arm, of each kind of evaluation, and of an expectation.

Each dataclass lists the allowed keys with their types; `check_settings` checks values against it and names the nearest valid
key for a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from pretune.runtime.errors import PretuneError, quote, suggest
from pretune.runtime.recipe import Values, validate_arguments
from pretune.text.corpus.documents import SplitBy
from pretune.text.corpus.files import Errors
from pretune.training.recipe_sections import Batching, Budget, Monitoring, Optimizer, Schedule


@dataclass(frozen=True, kw_only=True)
class StudyKeys:
    """The allowed keys at the top level of a study file."""

    question: str
    budget: Mapping[str, float | Sequence[float]] | str  # of each run: one unit, and one amount or several
    evaluations: Mapping[str, Mapping[str, Any]]  # by name
    base: Mapping[str, Any] | None = None  # what all arms share
    arms: Mapping[str, Mapping[str, Any] | None] | None = None  # by name
    grid: Mapping[str, Sequence[Any]] | None = None  # dotted key of an arm → values
    about: str | None = None  # what a reader of the report should know, such as what the arms are
    seeds: int = 3
    search: Mapping[str, Any] | None = None  # over the learning rate
    reference: str | None = None  # the arm that the others are compared with; None: all pairs
    expect: Sequence[Mapping[str, Any]] | None = None
    claim: str | None = None  # what the source says
    source: str | None = None
    published: Mapping[str, Any] | None = None  # the source's numbers
    departures: str | None = None  # how the study differs from the source


@dataclass(frozen=True, kw_only=True)
class ArmKeys:
    """The allowed keys of an arm (a compared recipe) in a study file: its model, and how the model is trained."""

    model: str
    pretrain: Mapping[str, Any] | None = None
    adapt: Mapping[str, Any] | None = None  # after pretraining, on other text
    finetune: Mapping[str, Any] | None = None
    compress: Sequence[Mapping[str, Any]] | None = None  # steps after fine-tuning, each {VERB: options}
    control: bool = False  # skip the training that the budget is for: a control that spends nothing of it
    search: Mapping[str, Any] | None = None  # other learning rates than those of the study, but as many


@dataclass(frozen=True, kw_only=True)
class PretrainingKeys:
    """The allowed keys in the section `pretrain` of a study file; they are options of `pretune pretrain`."""

    data: Sequence[str] | str
    objective: str | None = None
    tokenizer: str | dict[str, Any] | None = None
    language: str = "en"
    split_by: SplitBy = "auto"
    text_field: str | None = None
    encoding_errors: Errors = "strict"
    budget: Budget | None = None  # in place of the study's
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    batch: Batching | None = None
    monitor: Monitoring | None = None
    init_from: str | None = None
    word_vectors: str | None = None
    ignore_mismatched: bool = False


@dataclass(frozen=True, kw_only=True)
class AdaptingKeys:
    """The allowed keys in the section `adapt` of a study file: those of `pretrain` that are different on the new text."""

    data: Sequence[str] | str
    share: float = 0.5  # of the budget of the arm; pretraining gets the rest
    objective: str | None = None
    language: str | None = None
    split_by: SplitBy | None = None
    text_field: str | None = None
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    batch: Batching | None = None


@dataclass(frozen=True, kw_only=True)
class CompressionKeys:
    """The training settings of a compression step, which trains on the training data of the task that is evaluated."""

    epochs: float | None = None  # if the budget of the study is for pretraining
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    batch: Batching | None = None
    monitor: Monitoring | None = None


@dataclass(frozen=True, kw_only=True)
class DistillKeys(CompressionKeys):
    """The allowed keys of the step `distill`; they are options of `pretune distill`."""

    student: str
    unlabeled: str | None = None
    temperature: float = 2.0
    alpha: float = 0.5
    loss: Literal["kl", "mse"] = "kl"
    match_layers: str | None = None
    num_augmentations: int = 0


@dataclass(frozen=True, kw_only=True)
class PruneKeys(CompressionKeys):
    """The allowed keys of the step `prune`; they are options of `pretune prune`."""

    drop_layers: str | None = None
    heads: float = 0.0
    ffn_units: float = 0.0
    sparsity: float = 0.0


@dataclass(frozen=True, kw_only=True)
class QuantizeKeys(CompressionKeys):
    """The allowed keys of the step `quantize`; they are options of `pretune quantize`."""

    method: Literal["dynamic", "static", "qat", "weight-only", "bf16", "fp16"] = "dynamic"
    backend: Literal["onnx", "torch"] | None = None
    per_channel: bool = True
    bits: int = 8


@dataclass(frozen=True, kw_only=True)
class FinetuningKeys:
    """The allowed keys in the section `finetune` of a study file; they are options of `pretune finetune`."""

    objective: str | None = None
    layers: str | None = None  # below the head, as in TASK on mix/bilstm
    strategy: str | None = None
    epochs: float | None = None
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    batch: Batching | None = None
    monitor: Monitoring | None = None
    shots: int | None = None
    from_scratch: bool = False
    dropout: dict[str, float] | None = None
    tokenizer: str | None = None
    word_vectors: str | None = None
    budget: Budget | None = None  # in place of the study's


@dataclass(frozen=True, kw_only=True)
class TaskKeys(FinetuningKeys):
    """The allowed keys of an evaluation of the kind `task`, which fine-tunes the model on labeled examples."""

    kind: Literal["task"]
    train: str
    dev: str | None = None  # None: a fifth of the examples is held out, another one for each seed
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    columns: dict[str, str] | None = None
    metric: str | None = None
    also: dict[str, str] | None = None  # further files, by name, that the model is scored on without training


@dataclass(frozen=True, kw_only=True)
class PerplexityKeys:
    """The allowed keys of an evaluation of the kind `perplexity`, which measures bits per byte of texts."""

    kind: Literal["perplexity"]
    data: Sequence[str] | str
    text: str | None = None
    max_length: int | None = None
    stride: int | None = None
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProbeKeys:
    """The allowed keys of an evaluation of the kind `probe`, which trains probing classifiers on the layers."""

    kind: Literal["probe"]
    suite: str
    data: str | None = None
    tasks: Sequence[str] = ()
    layers: Sequence[int] = ()
    pooling: Literal["mean", "cls", "max"] = "mean"
    probe: Literal["linear", "mlp"] = "linear"
    max_examples: int | None = None


@dataclass(frozen=True, kw_only=True)
class SuiteKeys:
    """The allowed keys of an evaluation of the kind `suite`, which runs a benchmark suite with the seed of the run."""

    kind: Literal["suite"]
    suite: str
    data: str
    tasks: Sequence[str] = ()
    epochs: float | None = None
    shots: int | None = None  # examples in the prompt of a generative model, instead of fine-tuning
    allow_incomplete: bool = False


@dataclass(frozen=True, kw_only=True)
class VocabularyKeys:
    """The allowed keys of an evaluation of the kind `vocabulary`, which counts the tokens of the words of texts."""

    kind: Literal["vocabulary"]
    data: Sequence[str] | str
    text_field: str | None = None
    limit: int = 2000  # documents


@dataclass(frozen=True, kw_only=True)
class TranslationKeys:
    """The allowed keys of an evaluation of the kind `translation`, which compares translations with references."""

    kind: Literal["translation"]
    source: str  # a file with one text per line
    reference: str  # a file with the translations of these texts
    num_beams: int = 1
    limit: int | None = None  # texts


@dataclass(frozen=True, kw_only=True)
class LatencyKeys:
    """The allowed keys of an evaluation of the kind `latency`, which measures size and latency after the last run."""

    kind: Literal["latency"]
    lengths: Sequence[int] = ()  # of texts in tokens, to measure tokens per second by length


@dataclass(frozen=True, kw_only=True)
class EnsembleKeys:
    """The allowed keys of an evaluation of the kind `ensemble`, which averages the predictions of an arm's seeds."""

    kind: Literal["ensemble"]
    of: str  # an evaluation of the kind `task`


@dataclass(frozen=True, kw_only=True)
class SearchKeys:
    """The allowed keys of the section `search`, a search for the learning rate of every compared recipe.

    Its cost counts as a part of the budget.
    """

    lr: Sequence[float]
    share: float = 0.2  # of the budget, per trial
    by: str | None = None  # an evaluation; None: the first one


@dataclass(frozen=True, kw_only=True)
class BetterKeys:
    """The allowed keys of an expectation in a study file that one arm (compared recipe) is better than another."""

    better: str
    than: str
    metric: str | None = None  # evaluation, or EVALUATION.METRIC; None: the first evaluation
    by: float = 0.0  # at least, in the units of the report


@dataclass(frozen=True, kw_only=True)
class EqualKeys:
    """The allowed keys of an expectation in a study file that two arms (compared recipes) are equally good."""

    equal: Sequence[str]
    within: float  # the largest difference that counts as equal, in the units of the report
    metric: str | None = None


@dataclass(frozen=True, kw_only=True)
class WithinKeys:
    """The allowed keys of an expectation in a study file that one arm is better on one metric than on another."""

    arm: str
    better: str  # evaluation, or EVALUATION.METRIC
    than: str
    by: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GainKeys:
    """The allowed keys of an expectation that the ensemble of an arm's seeds is better than one of its models."""

    ensemble: str  # an evaluation of the kind `ensemble`
    arm: str
    by: float = 0.0


COMPRESSION_KEYS: dict[str, type[Any]] = {"distill": DistillKeys, "prune": PruneKeys, "quantize": QuantizeKeys}

EVALUATION_KEYS: dict[str, type[Any]] = {
    "task": TaskKeys,
    "perplexity": PerplexityKeys,
    "probe": ProbeKeys,
    "suite": SuiteKeys,
    "vocabulary": VocabularyKeys,
    "translation": TranslationKeys,
    "latency": LatencyKeys,
    "ensemble": EnsembleKeys,
}
AFTERWARDS = ("latency", "ensemble")  # kinds of evaluations that are measured after all runs


def check_settings(keys: type[Any], values: Mapping[str, Any], where: str) -> Values:
    """Return values converted to the types in the dataclass `keys`; raise an error for unknown, missing, or wrong keys.

    `where` is the place of the values in the study file, which begins the error message.

    >>> check_settings(SearchKeys, {"lr": [1, 2]}, "search")
    {'lr': [1.0, 2.0]}
    >>> check_settings(SearchKeys, {"lr": [1], "shares": 0.1}, "study.yaml: search")
    Traceback (most recent call last):
    pretune.runtime.errors.PretuneError: study.yaml: search: unknown key 'shares'; did you mean 'share'?
    """
    present = {name: value for name, value in values.items() if value is not None}
    known = {key.name: key for key in fields(keys)}
    if unknown := [name for name in present if name not in known]:
        raise PretuneError(f"{where}: unknown key {quote(unknown[0])}; {suggest(unknown[0], known)}")
    if missing := [name for name, key in known.items() if key.default is MISSING and name not in present]:
        raise PretuneError(f"{where}: the key {missing[0]!r} is missing; add it")
    return validate_arguments(keys, present, where)
