"""The default settings of fine-tuning, which suit the model, the task, and the number of examples.

Each setting comes from the first of these that has it: the user, the task, the model's own recipe (`pretune.finetuning`
in its config.json, `finetuning` in a preset), and the rules below. The rules were chosen by measurement; see "Defaults"
in docs/guides/finetune.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import torch

from pretune.models.checkpoint_heads import stored_objectives, text_embedding_of
from pretune.models.hf_config import CONFIG_FILE, read_config
from pretune.models.name_resolution import family_of, find_folder
from pretune.models.presets import find_preset, is_preset
from pretune.objectives import Task
from pretune.objectives.tasks.classify import Pooling
from pretune.runtime.errors import PretuneError, quote, suggest
from pretune.runtime.parsing import validate_schema
from pretune.runtime.value_ranges import FRACTION_BELOW_1, POSITIVE, check_number
from pretune.training import recipe_sections
from pretune.training.jobs.finetuning_strategies import parse_strategy

# The learning rate falls with the square of the width: 3e-4 at 256 (as ELECTRA-Small), 1.3e-4 at 384, 3.3e-5 at 768 and
# 1.9e-5 at 1,024 (Devlin et al., 2019: 2e-5 to 5e-5 for BERT).
REFERENCE_WIDTH, REFERENCE_LR = 256, 3e-4
LOWEST_LR, HIGHEST_LR = 1e-5, 1e-3
# Strategies that train few parameters, all of them new, need larger rates (Hu et al., 2022).
FACTORS = {"lora": 10.0, "frozen": 10.0}
HIGHEST_FACTORED_LR = 2e-3
FEW_ROWS, FEW_ROWS_BATCH, BATCH = 2_000, 16, 32  # small batches for few examples, so that there are more steps
EPOCHS, MOST_EPOCHS = 3.0, 40.0
STEPS = 200  # at least; three epochs of 200 examples would be 20 steps, after which a new head has learned little
SETTINGS: dict[str, dict[str, Any]] = {
    "optimizer": {"weight_decay": 0.01, "max_grad_norm": 1.0},
    "schedule": {"kind": "linear", "warmup_ratio": 0.1},
    "batch": {"max_length": 128},
    "monitor": {"save_every": 0, "log_every": 10},
}
RECIPE_KEYS = ("optimizer", "schedule", "batch", "epochs", "pooling", "dropout")  # of a model's own fine-tuning recipe


@dataclass(frozen=True)
class FinetuningDefaults:
    """Default settings of a fine-tuning job: recipe sections, the number of epochs, and the pooling of classifiers."""

    sections: Mapping[str, Mapping[str, Any]]  # optimizer, schedule, batch, monitor
    epochs: float | None = None  # None: by the number of examples
    pooling: str | None = None  # None: that of the model family


@dataclass(frozen=True)
class ModelRecipe:
    """The fine-tuning recipe stored with a model or preset; settings that it leaves open are missing or None."""

    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    epochs: float | None = None
    pooling: str | None = None
    dropout: Mapping[str, float] | None = None  # replaces that of pretraining, under the names of config.json


def finetuning_defaults(
    model: str, tasks: Iterable[Task] = (), rows: int | None = None, strategy: str = "full"
) -> FinetuningDefaults:
    """Return the default settings for fine-tuning a model, which apply where the user sets nothing.

    Parameters
    ----------
    model
        A model folder, a bundled model, or a preset.
    tasks
        The tasks to fine-tune for; their own settings (such as longer sequences) replace those of the model.
    rows
        The number of training examples; without it, the batch size and the number of epochs are left open, unless the
        model's own recipe sets them.
    strategy
        The fine-tuning strategy; some need larger learning rates.

    >>> found = finetuning_defaults("pretune-small-en", rows=200)
    >>> found.pooling, found.sections["batch"]["size"], found.epochs
    ('mean', 16, 16.0)
    """
    recipe, tasks = read_model_recipe(model), list(tasks)
    sections = {key: dict(values) for key, values in SETTINGS.items()}
    sections["optimizer"]["lr"] = lr_of_width(model_width(model))
    own: list[Mapping[str, Any]] = [recipe.sections, *(task.settings for task in tasks)]
    for source in own:
        for key, values in source.items():
            sections[key] |= values
    factor = max((FACTORS.get(part, 1.0) for part in strategy_parts(strategy)), default=1.0)
    if factor > 1:
        lr = sections["optimizer"]["lr"]
        sections["optimizer"]["lr"] = max(lr, min(lr * factor, HIGHEST_FACTORED_LR))
    epochs = recipe.epochs
    if rows is not None:
        size = sections["batch"].setdefault("size", batch_size_of_rows(rows))
        epochs = epochs or epochs_of_rows(rows, size)
    return FinetuningDefaults(sections, epochs, default_pooling(model, tasks, recipe))


def lr_of_width(width: int) -> float:
    """Return the default learning rate of AdamW for a pretrained model with the given hidden size.

    >>> [lr_of_width(width) for width in (128, 256, 768)]
    [0.001, 0.0003, 3.3e-05]
    """
    rate = REFERENCE_LR * (REFERENCE_WIDTH / width) ** 2
    return float(f"{min(max(rate, LOWEST_LR), HIGHEST_LR):.2g}")


def batch_size_of_rows(rows: int) -> int:
    """Return the default number of examples per step, given the number of training examples.

    >>> batch_size_of_rows(200), batch_size_of_rows(10_000)
    (16, 32)
    """
    return FEW_ROWS_BATCH if rows < FEW_ROWS else BATCH


def epochs_of_rows(rows: int, batch: int) -> float:
    """Return the default number of epochs for `rows` training examples in batches of `batch` examples.

    It is 3, or more if there would be too few training steps.

    >>> epochs_of_rows(100, 16), epochs_of_rows(10_000, 32)
    (32.0, 3.0)
    """
    return float(min(MOST_EPOCHS, max(EPOCHS, -(-STEPS * batch // max(1, rows)))))


def default_pooling(model: str, tasks: Iterable[Task], recipe: ModelRecipe | None = None) -> str | None:
    """Return how the states of a model are pooled into one vector by default; None means the pooling of its family.

    The first of these that exists decides: the pooling of a head that the model has for the same task; the pooling in
    the model's fine-tuning recipe; the pooling of its text embeddings; the mean, where the published layout of the
    family leaves the choice (ModernBERT), because the start token of such a model is not pretrained for this.
    """
    if not is_preset(model):
        kinds = {task.kind for task in tasks}
        for part in stored.objectives if (stored := stored_objectives(model)) is not None else ():
            if isinstance(part, Task) and part.kind in kinds and part.has_option("pooling"):
                return str(part.unwrapped.pooling)
    if (recipe := recipe or read_model_recipe(model)).pooling is not None:
        return recipe.pooling
    embedding = None if is_preset(model) else text_embedding_of(model)
    mode = next((mode for mode in (embedding.pooling if embedding else ()) if mode in get_args(Pooling)), None)
    if mode is not None:
        return mode
    return "mean" if {"cls", "mean"} <= set(family_of(model).poolings.values()) else None


def read_model_recipe(model: str) -> ModelRecipe:
    """Return the fine-tuning recipe stored in a model folder or preset; raise an error if its content is invalid."""
    if is_preset(model):
        content, where = find_preset(model).get("finetuning", {}), f"{model}: finetuning"
    else:
        folder = find_folder(model)
        content = read_config(folder)[1].get("pretune", {}).get("finetuning", {})
        where = f"{folder / CONFIG_FILE}: pretune.finetuning"
    return check_model_recipe(content, where)


def check_model_recipe(content: Mapping[str, Any], where: str) -> ModelRecipe:
    """Return the fine-tuning recipe with the parsed content `content`; raise an error if it is invalid.

    `where` names the file in error messages.

    >>> check_model_recipe({"epochs": 5, "optimizer": {"lr": 3e-4}}, "mine").sections
    {'optimizer': {'lr': 0.0003}}
    """
    if unknown := [key for key in content if key not in RECIPE_KEYS]:
        raise PretuneError(f"{where}: unknown key {quote(unknown[0])}; {suggest(str(unknown[0]), RECIPE_KEYS)}")
    sections: dict[str, Mapping[str, Any]] = {}
    try:
        for key in ("optimizer", "schedule", "batch"):
            if key not in content:
                continue
            kind = recipe_sections.SECTIONS[key]
            values = recipe_sections.convert_values(kind, validate_schema(content[key], dict[str, Any], key))
            for name in recipe_sections.ON_TEXT.get(kind, ()):
                if name in values:
                    raise PretuneError(f"{key}.{name} applies only to training on running text; remove it")
            kind(**values)  # checks the numbers
            sections[key] = values
        epochs, pooling, dropout = (content.get(key) for key in ("epochs", "pooling", "dropout"))
        if epochs is not None:
            epochs = float(validate_schema(epochs, float, "epochs"))
            check_number("epochs", epochs, POSITIVE)
        if pooling is not None and pooling not in get_args(Pooling):
            raise PretuneError(f"unknown pooling {quote(pooling)}; {suggest(str(pooling), get_args(Pooling))}")
        if dropout is not None:
            dropout = {
                name: float(rate) for name, rate in validate_schema(dropout, dict[str, float], "dropout").items()
            }
            for name, rate in dropout.items():
                check_number(f"dropout.{name}", rate, FRACTION_BELOW_1)
    except PretuneError as error:
        raise PretuneError(f"{where}: {error}") from error
    return ModelRecipe(sections, epochs, pooling, dropout)


def strategy_parts(strategy: str) -> Iterable[str]:
    """Return the names of the parts of a fine-tuning strategy; no names for `auto`, which is resolved later."""
    return () if strategy == "auto" else parse_strategy(strategy).parts


def model_width(model: str) -> int:
    """Return the hidden size of a model or preset, without reading weights.

    >>> model_width("bert-tiny"), model_width("pretune-small-en")
    (128, 256)
    """
    family = family_of(model)
    content = find_preset(model)["config"] if is_preset(model) else read_config(find_folder(model))[1]
    with torch.device("meta"):
        backbone: Any = family.build(family.read_config(content))
    return int(backbone.width)
