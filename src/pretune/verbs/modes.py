"""Modes that several verbs have, as conditions on their options, and the rules that follow from them (see verbs/verb.py)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pretune.training import settings
from pretune.training.settings import Batching, Watching
from pretune.verbs.verb import Options, never, only

TRAINING = ("optimizer", "schedule", "batch", "watching")  # sections of a recipe that say how a model is trained
BY_BUDGET = ("epochs", "budget", *TRAINING)

# A training on rows takes no settings of one on running text, and the other way round.
SECTIONS = {"batch": Batching, "watching": Watching}
TEXT_KEYS, ROW_KEYS = (
    tuple(f"{name}.{key}" for name, section in SECTIONS.items() for key in keys[section])
    for keys in (settings.ON_TEXT, settings.ON_ROWS)
)
ON_ROWS = never(*TEXT_KEYS, where="to training on running text")
ON_TEXT = never(*ROW_KEYS, where="to training on labeled rows")

EPOCHS = only(
    "epochs",
    where="without a budget (--steps, --tokens, --flops or --seconds), which replaces it",
    when=lambda o: not has_budget(o),
)
TOKENIZER = only("tokenizer", where="to a preset, as a trained model has its own", when=lambda o: starts_from_preset(o))
LOADED = only("partial", where="to models that have weights, not to a preset", when=lambda o: not starts_from_preset(o))


def has_budget(o: Options) -> bool:
    """Return whether a limit is set."""
    return o.budget is not None and bool(o.budget.limits)


def starts_from_preset(o: Options) -> bool:
    """Return whether the model is a preset, which has random weights."""
    from pretune.presets import is_preset

    return is_preset(os.fspath(o.model))


def reads_files(o: Options) -> bool:
    """Return whether the inputs are files, not texts; the first of them may be models."""
    from pretune.verbs.inputs import split_files, split_runs

    _, rest = split_runs(o.model, o.inputs)
    return bool(split_files(rest)[0])


def reads_plain_text(o: Options) -> bool:
    """Return whether an objective learns from text, and there is a file of it whose language is not named."""
    from pretune.objectives import LearnsFromRows, parse_objective
    from pretune.presets import find_preset
    from pretune.training.pretraining import is_store, split_language

    objective = o.objective or (find_preset(os.fspath(o.model))["objective"] if starts_from_preset(o) else "mlm")
    joints = parse_objective(objective).joints
    if all(any(isinstance(part, LearnsFromRows) for part in joint.objectives) for joint in joints):
        return False
    given = [split_language(str(path)) for path in paths(o.data)]
    return any(not language and not is_store(path) for language, path in given)


def paths(data: Any) -> Sequence[Any]:
    """Return the paths of an option that takes one, several, or a store."""
    from pretune.verbs.inputs import store_and_paths

    store, found = store_and_paths(data)
    return [store.folder] if store is not None else list(found)


def formats(corpus: Any) -> set[str | None]:
    """Return the formats of all files of a corpus."""
    from pretune.text.files import file_format, find_files

    return {file_format(file) for file in find_files(corpus)}


FILES = only("text", "pair", "columns", where="to files of rows, not to texts", when=reads_files)
LANGUAGE = only(
    "language", where="to text files whose language is not named (LANGUAGE=PATH), not to stores", when=reads_plain_text
)
LAYOUT = only("layout", where="to .txt files", when=lambda o: ".txt" in formats(o.corpus))
COLUMN = only("column", where="to tables, not to .txt files", when=lambda o: formats(o.corpus) != {".txt"})
