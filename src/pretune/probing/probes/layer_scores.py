"""Probe one task: every layer, scalar mixes, controls, and description length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pretune.evaluation.confidence_intervals import COVERAGE, ROUNDS
from pretune.probing.probes.control_tasks import control_targets
from pretune.probing.probes.description_length import online_codelength
from pretune.probing.probes.layer_analysis import center_of_gravity, expected_layer
from pretune.probing.probes.linear_probe import ProbeFeatures, fit_linear_probe
from pretune.probing.probes.mlp_probe import fit_mlp_probe
from pretune.probing.probes.scalar_mix_probe import FittedMixes, fit_scalar_mixes, normalize_layers
from pretune.probing.probing_task import ProbingTask
from pretune.probing.representations import SPLITS, TaskVectors
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError, quote

Probe = Literal["linear", "mlp"]


@dataclass(frozen=True)
class ProbeSettings:
    """Settings of probing: which probe to train (linear or MLP), which controls to compute, and the number of seeds."""

    probe: Probe = "linear"
    controls: bool = True  # random labels, and an untrained model
    mdl: bool = False  # description lengths
    num_seeds: int = 3  # of MLPs, scalar mixes, and control tasks
    seed: int = 0

    @property
    def seeds(self) -> range:
        """The `num_seeds` consecutive seeds for MLP probes, scalar mixes, and control tasks."""
        return range(self.seed, self.seed + self.num_seeds)


@dataclass(frozen=True)
class LayerScores:
    """The accuracy of a probe on one layer, with its controls; values that were not computed are None."""

    layer: int
    accuracy: float
    low: float  # 95 % confidence interval
    high: float
    dev_accuracy: float
    control: float | None = None  # accuracy on the control task
    selectivity: float | None = None
    untrained: float | None = None  # accuracy on the same layer of an untrained model
    codelength: float | None = None  # bits
    compression: float | None = None
    control_compression: float | None = None


@dataclass(frozen=True)
class TaskScores:
    """The results of probing one task: numbers of examples, majority-class baseline, and scores of layers and mixes."""

    task: str
    group: str
    classes: int
    train: int  # numbers of examples
    dev: int
    test: int
    majority: float  # accuracy of the most frequent class of the training set
    layers: list[LayerScores]
    mix: float | None = None  # accuracy of the scalar mix of all layers
    mix_low: float | None = None
    mix_high: float | None = None
    mix_weights: list[float] = field(default_factory=list)  # one per layer
    cumulative: list[float] = field(default_factory=list)  # accuracy of the mixes of layers 0 to k
    center_of_gravity: float | None = None
    expected_layer: float | None = None

    @property
    def best(self) -> LayerScores:
        """The scores of the layer with the highest dev accuracy; ties go to the lowest layer."""
        return max(self.layers, key=lambda layer: layer.dev_accuracy)


def check_task(task: ProbingTask) -> None:
    """Raise an error if a task cannot be probed, because it has only one class or no examples in a split."""
    for split in SPLITS:
        if not task.part(split):
            raise PretuneError(
                f"task {task.name}: there are no {split} examples; add {split} examples, or leave the task out"
            )
    labels = {example.label for example in task.part("train")}
    if len(labels) < 2:
        raise PretuneError(
            f"task {task.name}: all training examples have the label {quote(min(labels))}, but a probe needs at least two "
            "classes; add training examples with another label, or leave the task out"
        )
    if wrong := {len(example.spans) for example in task.examples} - {0, 1, 2}:
        raise PretuneError(f"task {task.name}: an example has {max(wrong)} spans; give at most two spans per example")


def steps(layers: int, settings: ProbeSettings) -> int:
    """Return the number of steps by which the progress bar advances while one task is probed."""
    return layers * (2 if settings.controls else 1) + settings.num_seeds


def probe_task(
    vectors: TaskVectors,
    untrained: TaskVectors | None,
    layers: Sequence[int],
    settings: ProbeSettings,
    advance: Callable[[str], None],
) -> TaskScores:
    """Fit probes to every layer of a task's vectors, with scalar mixes and controls, and return all scores.

    Parameters
    ----------
    vectors
        The task with its vectors.
    untrained
        The vectors of the same task by an untrained model; None for no such control.
    layers
        The layers to probe.
    settings
        What to compute.
    advance
        A function that advances the progress bar; called with a note after each step.
    """
    task, classes = vectors.task, len(vectors.labels)
    targets = {split: vectors.targets(split) for split in SPLITS}
    majority = np.bincount(targets["train"], minlength=classes).argmax()
    scores = []
    for layer in layers:
        features = layer_features(vectors, layer)
        correct, dev_accuracy, strength = fit_probe(features, targets, classes, settings)
        low, high = accuracy_interval(correct, settings.seed)
        found: dict[str, Any] = {"dev_accuracy": dev_accuracy, "low": low, "high": high}
        accuracy = float(correct.mean())
        if settings.controls:
            control = control_accuracy(features, task, classes, settings, strength)
            found |= {"control": control, "selectivity": accuracy - control}
        if settings.mdl:
            code = online_codelength(features, targets["train"], targets["dev"], classes, settings.seed)
            found |= {"codelength": code.codelength, "compression": code.compression}
            if settings.controls:
                drawn = control_targets(task, settings.seed)
                noise = online_codelength(features, drawn["train"], drawn["dev"], classes, settings.seed)
                found["control_compression"] = noise.compression
        advance(f"{task.name}, layer {layer}")
        if untrained is not None:
            other, _, _ = fit_probe(layer_features(untrained, layer), targets, classes, settings)
            found["untrained"] = float(other.mean())
            advance(f"{task.name}, layer {layer} of the untrained model")
        scores.append(LayerScores(layer, accuracy, **found))
    mixes = {}
    if len({vectors.cache.width(layer) for layer in layers}) == 1:  # not so in some recurrent models
        mixes = mix_scores(vectors, targets, layers, settings, advance)
    train, dev, test = (len(targets[split]) for split in SPLITS)
    share = float((targets["test"] == majority).mean())
    return TaskScores(task.name, task.group, classes, train, dev, test, share, scores, **mixes)


def layer_features(vectors: TaskVectors, layer: int) -> ProbeFeatures:
    """Return the standardized features of a layer for all splits."""
    train, dev, test = (vectors.features(split, layer) for split in SPLITS)
    return ProbeFeatures.make(train, dev, test)


def fit_probe(
    features: ProbeFeatures, targets: dict[Any, Array], classes: int, settings: ProbeSettings
) -> tuple[Array, float, float]:
    """Fit a probe, and return which test examples it predicts correctly, its dev accuracy, and its regularization.

    The first result is a boolean array (seeds, n). The solution of a linear probe is unique, so it is fitted once, and
    seeds = 1; for MLPs, the dev accuracy is the mean over seeds, and the regularization is 0.
    """
    if settings.probe == "linear":
        probe = fit_linear_probe(features, targets["train"], targets["dev"], classes)
        right = probe.logits(features.test).argmax(1) == targets["test"]
        return right[None], probe.dev_accuracy, probe.strength
    fitted = [fit_mlp_probe(features, targets["train"], targets["dev"], classes, seed) for seed in settings.seeds]
    right = np.stack([one.test_logits.argmax(1) == targets["test"] for one in fitted])
    return right, float(np.mean([one.dev_accuracy for one in fitted])), 0.0


def control_accuracy(
    features: ProbeFeatures, task: ProbingTask, classes: int, settings: ProbeSettings, strength: float
) -> float:
    """Return a probe's mean test accuracy on control tasks with random labels, one task per seed.

    `strength` is the regularization that was chosen for the linear probe of the real task.
    """
    found = []
    for seed in settings.seeds:
        drawn = control_targets(task, seed)
        if settings.probe == "linear":  # with the same regularization
            probe = fit_linear_probe(features, drawn["train"], drawn["dev"], classes, strengths=(strength,))
            logits = probe.logits(features.test)
        else:
            logits = fit_mlp_probe(features, drawn["train"], drawn["dev"], classes, seed).test_logits
        found.append(float((logits.argmax(1) == drawn["test"]).mean()))
    return float(np.mean(found))


def mix_scores(
    vectors: TaskVectors,
    targets: dict[Any, Array],
    layers: Sequence[int],
    settings: ProbeSettings,
    advance: Callable[[str], None],
) -> dict[str, Any]:
    """Train scalar mixes of layers with each seed, and return their scores, averaged over seeds.

    The keys of the result are the fields of `TaskScores` that describe scalar mixes, such as `mix` and `cumulative`.
    """
    train, dev, test = (vectors.stack(split, layers) for split in SPLITS)
    normalize_layers(train, dev, test)
    fitted: list[FittedMixes] = []
    for seed in settings.seeds:
        given = (train, targets["train"]), (dev, targets["dev"])
        fitted.append(fit_scalar_mixes(*given, test, len(vectors.labels), seed))
        advance(f"{vectors.task.name}, scalar mix")
    right = np.stack([one.test_logits.argmax(-1) == targets["test"] for one in fitted])  # (seeds, mixes, n)
    shares = np.mean([one.shares[-1] for one in fitted], 0).tolist()
    cumulative = right.mean((0, 2)).tolist()
    low, high = accuracy_interval(right[:, -1], settings.seed)
    best = max(cumulative)
    noise = (best * (1 - best) / len(targets["test"])) ** 0.5  # the standard error of the accuracy
    return {
        "mix": cumulative[-1],
        "mix_low": low,
        "mix_high": high,
        "mix_weights": shares,
        "cumulative": cumulative,
        "center_of_gravity": center_of_gravity(layers, shares),
        "expected_layer": expected_layer(layers, cumulative, noise),
    }


def accuracy_interval(correct: Array, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap confidence interval of an accuracy over examples and seeds.

    `correct`, (seeds, n), is true where the prediction for an example with a seed is right; `seed` is that of the
    bootstrap.

    >>> accuracy_interval(np.ones((2, 10), dtype=bool))
    (1.0, 1.0)
    """
    seeds, count = correct.shape
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=ROUNDS) @ correct.T / count  # (rounds, seeds)
    weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=ROUNDS) / seeds
    tail = 100 * (1 - COVERAGE) / 2
    low, high = np.percentile((drawn * weights).sum(1), [tail, 100 - tail])
    return float(low), float(high)


def layer_rows(scores: Sequence[TaskScores]) -> list[dict[str, Any]]:
    """Return the scores of all tasks as rows of a table, one row per task and layer."""
    rows = []
    for task in scores:
        for place, layer in enumerate(task.layers):
            row = {"task": task.task, "group": task.group, **vars(layer), "majority": task.majority}
            row["mix_weight"] = task.mix_weights[place] if task.mix_weights else None
            row["cumulative"] = task.cumulative[place] if task.cumulative else None
            row["differential"] = row["cumulative"] - task.cumulative[place - 1] if place and task.cumulative else None
            rows.append(row)
    return rows
