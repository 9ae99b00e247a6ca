"""The settings of a pretraining job, resolved from options, presets, and defaults."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pretune.models.create_model import make_model
from pretune.models.hf_config import read_config
from pretune.models.name_resolution import find_folder
from pretune.models.presets import find_preset, is_preset
from pretune.runtime.atomic_io import check_file_name
from pretune.runtime.devices import choose_device, peak_flops
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.runtime.recipe import merge_recipes
from pretune.text.corpus.documents import SplitBy
from pretune.text.corpus.files import Errors
from pretune.text.store.store import MANIFEST
from pretune.training.flops import module_sizes
from pretune.training.jobs.recipe_scaling import GUESSED_PEAK_FLOPS, UTILIZATION, ScalableRecipe, parse_budget, scale_to
from pretune.training.parallel.distributed import ParallelMode, ReduceDtype
from pretune.training.recipe_sections import (
    ON_ROWS,
    Batching,
    Budget,
    Monitoring,
    Optimizer,
    Schedule,
    as_recipe,
    resolve_section,
)

Fields = dict[str, Any]


@dataclass(frozen=True)
class PretrainingJob:
    """A pretraining job with all settings resolved."""

    model: str
    data: list[str]
    out: Path
    objective: str
    tokenizer: dict[str, Any] | str | None  # settings to train one, or its folder; None: that of the stores
    language: str
    init_from: str | None  # a model to start from
    budget: Budget
    optimizer: Optimizer
    schedule: Schedule
    batch: Batching
    monitor: Monitoring
    seed: int
    deterministic: bool
    device: str | None
    ignore_mismatched: bool = False  # load the model even if tensors are missing or unexpected
    parallel: ParallelMode = "ddp"
    reduce_dtype: ReduceDtype | None = None
    word_vectors: str | None = None  # a file of word vectors to initialize embeddings from
    split_by: SplitBy = "auto"  # how .txt files are split into documents
    text_field: str | None = None  # the text field of other files
    encoding_errors: Errors = "strict"  # how to handle invalid UTF-8

    def recipe(self) -> dict[str, Any]:
        """Return all settings that determine the result, under the names of the verb's options."""
        return as_recipe(self, leave_out=("out", "device", "parallel"))


def resolve_pretraining(
    model: str,
    data: Sequence[str | Path],
    out: str | Path,
    given: dict[str, Any],
    seed: int,
    device: str | None,
    usual: Fields | None = None,
) -> PretrainingJob:
    """Resolve all settings, in this order: given options, the verb's `usual` settings, the preset's recipe, the defaults."""
    preset = find_preset(model) if is_preset(model) else {}
    if usual is not None:
        preset = {**merge_recipes(preset, usual), "budget": usual["budget"]}
    if given.get("scale_to"):
        preset = scale_preset(preset, model, given, device)
    return PretrainingJob(
        model=model,
        data=[str(path) for path in data],
        out=Path(out),
        objective=given.get("objective") or preset.get("objective") or "mlm",
        tokenizer=choose_tokenizer(
            given.get("tokenizer"), preset.get("tokenizer") or {"kind": "wordpiece", "vocab_size": 30_000}, data
        ),
        language=given.get("language") or "en",
        init_from=given.get("init_from"),
        budget=resolve_section(Budget, given.get("budget"), preset.get("budget")),
        optimizer=resolve_section(Optimizer, given.get("optimizer"), preset.get("optimizer")),
        schedule=resolve_section(Schedule, given.get("schedule"), preset.get("schedule")),
        batch=resolve_section(Batching, given.get("batch"), preset.get("batch"), ON_ROWS),
        monitor=resolve_section(Monitoring, given.get("monitor"), preset.get("monitor"), ON_ROWS),
        seed=seed,
        deterministic=bool(given.get("deterministic")),
        device=device,
        ignore_mismatched=bool(given.get("ignore_mismatched")),
        parallel=given.get("parallel") or "ddp",
        reduce_dtype=given.get("reduce_dtype"),
        word_vectors=given.get("word_vectors"),
        split_by=given.get("split_by") or "auto",
        text_field=given.get("text_field"),
        encoding_errors=given.get("encoding_errors") or "strict",
    )


def choose_tokenizer(given: str | Fields | None, usual: Fields, data: Sequence[str | Path] = ()) -> str | Fields | None:
    """Return the folder of a tokenizer, or the settings to train one (given ones over `usual`); None for stores."""
    if data and all(is_store(split_language(str(path))[1]) for path in data):
        return None
    return given if isinstance(given, str) else merge_recipes(usual, given or {})


def scale_preset(preset: Fields, model: str, given: Fields, device: str | None) -> Fields:
    """Return a preset's recipe scaled to the requested budget, and report how it was scaled."""
    if given.get("budget") is not None and given["budget"].limits:
        raise PretuneError("--scale-to already sets the budget; remove the other limit")
    kinds = {"budget": Budget, "optimizer": Optimizer, "schedule": Schedule, "batch": Batching}
    if given.get("optimizer") is not None and given["optimizer"].name:  # its learning rates are scaled
        preset = merge_recipes(preset, {"optimizer": {"name": given["optimizer"].name}})
    course = ScalableRecipe(**{key: resolve_section(kind, None, preset.get(key)) for key, kind in kinds.items()})
    with torch.device("meta"):
        if preset:
            backbone: Any = make_model(model).backbone
        else:
            family, content = read_config(find_folder(model))
            backbone = family.build(family.read_config(content))
    limit, peak = parse_budget(given["scale_to"]), peak_flops(choose_device(device))
    sizes = module_sizes(backbone)
    scaled_recipe, description = scale_to(
        limit,
        course,
        flops_per_token=6.0 * (sizes.matrices + sizes.recurrence),
        flops_per_second=UTILIZATION * (peak or GUESSED_PEAK_FLOPS),
        batch=given["batch"].tokens if given.get("batch") is not None else None,
    )
    log_info(description)
    if limit.seconds and peak is None:
        log_info("(the speed of this device is a guess; measure it with `pretune bench device`)")
    return {**preset, **{key: asdict(getattr(scaled_recipe, key)) for key in kinds}}


def split_language(entry: str) -> tuple[str, str]:
    """Return the language named before a path, or "", and the path.

    >>> split_language("en=corpus/*.txt"), split_language("corpus.txt")
    (('en', 'corpus/*.txt'), ('', 'corpus.txt'))
    """
    check_file_name(Path(entry))
    match = re.fullmatch(r"([a-z]{2,3}(?:_\w+)?)=(.+)", entry)
    return (match[1], match[2]) if match and not Path(entry).exists() else ("", entry)


def is_store(path: str | Path) -> bool:
    """Return whether a path is a token store."""
    return (Path(path) / MANIFEST).is_file()
