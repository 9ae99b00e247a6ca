"""Fit a linear classifier to one or several layers of the encoder as it is, the strategy "frozen features".

For single texts, classifiers on four layers and on the last one are averaged: each is better on some data. For pairs, one of
several encodings is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from pretune.models.language_embeddings import use_language
from pretune.models.loading import load_model
from pretune.objectives.tasks.classify import EXTRACTING
from pretune.runtime.arrays import Array
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import progress, quiet
from pretune.training.jobs.finetuning_defaults import default_pooling
from pretune.training.jobs.head_fitting import layer_starts, pooled_vectors
from pretune.training.jobs.linear_models import cross_validate
from pretune.training.jobs.pretraining_model import check_length
from pretune.training.jobs.strategies.comparison import Attempt, Candidate, Comparison, calibrated_loss, candidate_data

MARGIN = 0.05  # of the loss, by which the last layer alone must be better than several layers, which usually are


def try_features(comparison: Comparison) -> Attempt:
    """Fit linear classifiers to frozen features of the pretrained model, and return the best of them as an attempt."""
    start, plan = time.monotonic(), comparison.plan
    device = choose_device(plan.device)
    with quiet():
        model = load_model(plan.model, None, ignore_mismatched=plan.ignore_mismatched)
        use_language(model, plan.language, plan.model)
    length = check_length(min(plan.batch.max_length or 128, model.longest or 1 << 30), model)
    rows = np.arange(len(comparison.rows))
    found: list[tuple[Candidate, Array, float]] = []
    features: list[tuple[Array, Sequence[int]]] = []
    comparison.depth = model.backbone.depth
    candidates = feature_candidates(comparison)
    with progress("frozen features", total=len(candidates)) as bar:
        for number, candidate in enumerate(candidates):
            task = candidate_data(comparison, candidate, comparison.rows).task
            task = task.with_tokenizer(model.require_tokenizer())
            model.root.heads.clear()
            try:
                model.add_heads([task], plan.seed)
            except PretuneError:  # layers of different widths cannot be concatenated
                comparison.concatenates = False
                continue
            with quiet():
                vectors = pooled_vectors(model, task, comparison.rows, length, device)
            features.append((vectors, layer_starts(model, task, comparison.rows)))
            validated = cross_validate(
                vectors, comparison.targets, comparison.kind, comparison.outputs, comparison.folds,
                weights=comparison.weights, starts=features[-1][1],
            )  # fmt: skip
            found.append((candidate, validated.predicted, calibrated_loss(comparison, validated.predicted, rows)))
            bar.update(number + 1)
            if comparison.rows.pairs is None:  # the last layer is one of the layers
                break
    best = 0
    for number, (_, _, loss) in enumerate(found):
        if loss < (1 - MARGIN) * found[best][2]:
            best = number
    candidate, predicted, _ = found[best]
    comparison.vectors, comparison.starts = features[best]
    return Attempt(candidate, predicted, time.monotonic() - start)


def feature_candidates(comparison: Comparison) -> list[Candidate]:
    """Return the candidates for a linear classifier on frozen features.

    They differ in the layers that the classifier reads, and in how pairs of texts are encoded. For single texts, the second
    is for models whose layers cannot be concatenated.
    """
    plan = comparison.plan
    own = default_pooling(plan.model, [comparison.material.unfitted]) or "mean"
    pooling = own if own not in ("pair", "separate", "attention", *EXTRACTING) else "mean"
    quarters = {max(1, round(comparison.depth * share)) for share in (0.25, 0.5, 0.75, 1.0)}
    several = name_layers(quarters)
    modes = [(several, pooling), ("last", pooling)]
    if comparison.rows.pairs is not None:
        modes = [(several, "separate"), ("last", "separate"), ("last", pooling)]
    name = "frozen features"
    return [Candidate(name, with_features(plan.objective, *mode), "features") for mode in modes]


def with_features(objective: str, layers: str, pooling: str) -> str:
    """Return an objective expression extended by `on LAYERS` and by a pooling, unless it already sets the pooling.

    >>> with_features("classify(class_weight=balanced)", "last", "mean")
    'classify(class_weight=balanced,pooling=mean) on last'
    """
    name, _, options = objective.strip().removesuffix(")").partition("(")
    if "pooling=" not in options.replace(" ", ""):
        options = ",".join(filter(None, (options.strip(), f"pooling={pooling}")))
    return f"{name.strip()}({options}) on {layers}"


def name_layers(numbers: Iterable[int]) -> str:
    """Return the expression for several layers in an objective, such as the end of `classify on layers(4,8)`.

    >>> name_layers({8, 10})
    'layers(8,10)'
    """
    return f"layers({','.join(map(str, sorted(numbers)))})"
