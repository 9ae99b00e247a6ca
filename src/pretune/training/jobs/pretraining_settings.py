"""The settings of a pretraining job, resolved from options, presets, and defaults."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

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
from pretune.training import recipe_sections
from pretune.training.callbacks import Callback
from pretune.training.flops import module_sizes
from pretune.training.jobs.recipe_scaling import GUESSED_PEAK_FLOPS, UTILIZATION, ScalableRecipe, parse_budget, scale_to
from pretune.training.parallel.distributed import ParallelMode, ReduceDtype
from pretune.training.recipe_sections import (
    BackTranslation,
    Batching,
    Budget,
    Monitoring,
    Optimizer,
    Schedule,
    TokenizerTraining,
)

Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PretrainingJob:
    """A pretraining job: model, data, objective, and all training settings."""

    command: ClassVar[str] = "pretrain"  # the command whose recipe it is
    model: str
    data: list[str]
    out: Path
    objective: str
    tokenizer: dict[str, Any] | str | None  # settings to train one, or its folder; None: that of the stores
    language: str = "en"
    init_from: str | None = None  # a model to start from
    budget: Budget
    optimizer: Optimizer
    schedule: Schedule
    batch: Batching
    monitor: Monitoring
    seed: int
    deterministic: bool = False
    device: str | None
    ignore_mismatched: bool = False  # load the model even if tensors are missing or unexpected
    parallel: ParallelMode = "ddp"
    reduce_dtype: ReduceDtype | None = None
    back_translation: BackTranslation | None = None  # texts of the target language to learn to translate from
    word_vectors: str | None = None  # a file of word vectors to initialize embeddings from
    split_by: SplitBy = "auto"  # how .txt files are split into documents
    text_field: str | None = None  # the text field of other files
    encoding_errors: Errors = "strict"  # how to handle invalid UTF-8
    callbacks: tuple[Callback, ...] = ()  # of the user, for the training loop

    def recipe(self) -> dict[str, Any]:
        """Return the settings that determine the result of a pretraining job, named like the command-line options."""
        return recipe_sections.as_recipe(self, leave_out=("out", "device", "parallel", "callbacks"))


def resolve_pretraining(
    model: str,
    data: Sequence[str | Path],
    out: str | Path,
    options: dict[str, Any],
    seed: int,
    device: str | None,
    defaults: Fields | None = None,
) -> PretrainingJob:
    """Return a pretraining job; settings missing in `options` come from `defaults`, the preset, or general defaults."""
    preset = find_preset(model) if is_preset(model) else {}
    if defaults is not None:
        preset = {**merge_recipes(preset, defaults), "budget": defaults["budget"]}
    if options.get("objective"):  # it replaces the objectives of all stages
        batch = {key: value for key, value in preset.get("batch", {}).items() if key != "objective_schedule"}
        preset = {**preset, "batch": batch}
    if options.get("scale_to"):
        preset = scale_preset(preset, model, options, device)
    resolved: Fields = {key.name: options[key.name] for key in fields(PretrainingJob) if options.get(key.name)}
    for name, kind in recipe_sections.SECTIONS.items():
        resolved[name] = recipe_sections.resolve_section(
            kind, options.get(name), preset.get(name), recipe_sections.ON_ROWS
        )
    weights, count = resolved["batch"].corpus_weights, len(data) or 1  # without paths, the data are an open store
    if weights is not None and len(weights) != count:
        raise PretuneError(
            f"batch.corpus_weights has {len(weights)} weights for {count} {'corpus' if count == 1 else 'corpora'}; give one "
            "weight per store, file, or folder of the data, in their order"
        )
    resolved["objective"] = options.get("objective") or preset.get("objective") or "mlm"
    trained = preset.get("tokenizer") or {"kind": "wordpiece", "vocab_size": 30_000}
    given = options.get("tokenizer")
    if not isinstance(given, str):
        given = recipe_sections.convert_values(TokenizerTraining, merge_recipes(trained, given or {}))
        TokenizerTraining(**given)  # checks the numbers
    resolved["tokenizer"] = given
    if data and all(is_store(split_language(str(path))[1]) for path in data):
        resolved["tokenizer"] = None  # stores have one
    resolved |= {"model": model, "data": [str(path) for path in data], "out": Path(out), "seed": seed, "device": device}
    return PretrainingJob(**resolved)


def scale_preset(preset: Fields, model: str, options: Fields, device: str | None) -> Fields:
    """Return the recipe of a preset, scaled down to the budget in the option --scale-to; the changes are logged."""
    if options.get("budget") is not None and options["budget"].limits:
        raise PretuneError("--scale-to already sets the budget; remove --steps, --tokens, --flops, or --seconds")
    if options.get("optimizer") is not None and options["optimizer"].name:  # its learning rates are scaled
        preset = merge_recipes(preset, {"optimizer": {"name": options["optimizer"].name}})
    kinds = {key.name: recipe_sections.SECTIONS[key.name] for key in fields(ScalableRecipe)}
    recipe = ScalableRecipe(
        **{key: recipe_sections.resolve_section(kind, None, preset.get(key)) for key, kind in kinds.items()}
    )
    with torch.device("meta"):
        if preset:
            backbone: Any = make_model(model).backbone
        else:
            family, content = read_config(find_folder(model))
            backbone = family.build(family.read_config(content))
    limit, peak = parse_budget(options["scale_to"]), peak_flops(choose_device(device))
    sizes = module_sizes(backbone)
    scaled_recipe, description = scale_to(
        limit,
        recipe,
        flops_per_token=6.0 * (sizes.matrices + sizes.recurrence),
        flops_per_second=UTILIZATION * (peak or GUESSED_PEAK_FLOPS),
        batch=options["batch"].tokens if options.get("batch") is not None else None,
    )
    log_info(description)
    if limit.seconds and peak is None:
        log_info("the speed of this device is only estimated; measure it with `pretune roofline`")
    return {**preset, **{key: asdict(getattr(scaled_recipe, key)) for key in kinds}}


def split_language(entry: str) -> tuple[str, str]:
    """Split an input LANGUAGE=PATH into its language and its path; the language is "" if only a path is given.

    >>> split_language("en=corpus/*.txt"), split_language("corpus.txt")
    (('en', 'corpus/*.txt'), ('', 'corpus.txt'))
    """
    check_file_name(Path(entry))
    match = re.fullmatch(r"([a-z]{2,3}(?:_\w+)?)=(.+)", entry)
    return (match[1], match[2]) if match and not Path(entry).exists() else ("", entry)


def is_store(path: str | Path) -> bool:
    """Return whether a path is the folder of a token store, a tokenized corpus."""
    return (Path(path) / MANIFEST).is_file()
