"""A curriculum of objectives: one after the other over the budget, with the same heads, such as ERNIE's masking stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from pretune.models.model import Model
from pretune.nn.initialization import SkipInitialization
from pretune.objectives import Mixture, parse_objective
from pretune.objectives.pretraining.mlm import MLM
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.text.store.phrase_mining import find_collocations
from pretune.text.store.store import Store

PHRASES = "phrases.txt"  # in a run folder: the phrases of its text that are masked as a whole

ObjectiveStages = list[
    tuple[float, Mixture]
]  # the share of the budget until which a mixture is trained, and the mixture


def parse_objective_schedule(schedule: Sequence[tuple[float, str]], mixture: Mixture) -> ObjectiveStages:
    """Parse the recipe key batch.objective_schedule; its objectives must be among those of `mixture`, by name.

    >>> mixture = parse_objective("mlm+nsp")
    >>> [(until, str(stage)) for until, stage in parse_objective_schedule([(0.5, "mlm"), (1.0, "mlm+nsp")], mixture)]
    [(0.5, 'mlm'), (1.0, 'mlm+nsp')]
    """
    shares = [share for share, _ in schedule]
    if shares and (shares != sorted(set(shares)) or shares[-1] != 1.0):
        raise PretuneError(
            f"batch.objective_schedule: the shares of the budget are {shares}, but they must increase and end at 1, as "
            "in [[0.5, mlm], [1.0, mlm+nsp]]"
        )
    stages = [(share, parse_objective(text)) for share, text in schedule]
    known = {part.name for part in mixture.objectives}
    for (_, text), (_, stage) in zip(schedule, stages, strict=True):
        if missing := sorted({part.name for part in stage.objectives} - known):
            raise PretuneError(
                f"batch.objective_schedule: {text!r} has the objective {missing[0]}, which the objective of the run, "
                f"{mixture}, does not have; add it there, because the model gets its heads from it"
            )
    return stages


def check_heads(stages: ObjectiveStages, model: Model) -> None:
    """Raise an error if an objective of a stage needs a head with other shapes than the model's head of this name."""
    for _, stage in stages:
        for part in stage.objectives:
            with torch.device("meta"), SkipInitialization():  # only shapes are needed
                wanted = shapes_of(part.head(model.backbone))
            if wanted != shapes_of(model.root.heads[part.name]):
                raise PretuneError(
                    f"batch.objective_schedule: the objective {part.name!r} needs a head of another shape in {stage} than in the "
                    "objective of the run; give it the same options in both, such as span_boundary"
                )


def shapes_of(head: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of the parameters of a head, by name."""
    return {name: parameter.shape for name, parameter in head.named_parameters()}


def needs_phrases(mixture: Mixture) -> bool:
    """Return whether an objective masks phrases but names no file of phrases, as `mlm(unit=phrase)` does."""
    return any(isinstance(part, MLM) and part.unit == "phrase" and part.phrases is None for part in mixture.objectives)


def with_phrases(mixture: Mixture, phrases: str | None) -> Mixture:
    """Return a mixture in which objectives that mask phrases, but name no file of phrases, use the file `phrases`.

    If `phrases` is None, they mask whole words instead.
    """
    for part in mixture.objectives:
        if isinstance(part, MLM) and part.unit == "phrase" and part.phrases is None:
            unit = "word" if phrases is None else "phrase"
            mixture = mixture.with_part(replace(part, unit=unit, phrases=phrases))  # type: ignore[arg-type]
    return mixture


def mine_phrases(store: Store | None, folder: Path) -> str | None:
    """Write the collocations of a text to a file in the run folder, unless it exists, and return the file.

    Return None if the text has no collocations.
    """
    file = folder / PHRASES
    if not file.is_file():
        if store is None:
            raise PretuneError(
                "mlm(unit=phrase) finds its phrases in a text corpus, but the data are rows; give a file of phrases, as in "
                "mlm(unit=phrase,phrases=FILE)"
            )
        found = find_collocations(store)
        if found:
            log_info(f"{len(found):,} phrases of the text are masked as a whole; they are listed in {file}")
        else:
            log_info("no phrase is frequent enough in the text; whole words are masked instead")
        write_bytes(file, "".join(row["phrase"] + "\n" for row in found).encode())
    return str(file) if file.stat().st_size else None
