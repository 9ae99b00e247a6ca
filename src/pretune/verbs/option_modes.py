"""Modes that several verbs have, as conditions on their options, and the rules that follow from them (see verbs/verb.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pretune.training import settings
from pretune.training.settings import Batching, Watching
from pretune.verbs.verb import Only, Options, never, only

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
    from pretune.models.presets import is_preset

    return is_preset(os.fspath(o.model))


def reads_files(o: Options) -> bool:
    """Return whether the inputs are files, not texts; the first of them may be models."""
    from pretune.verbs.shared_inputs import split_files, split_runs

    _, rest = split_runs(o.model, o.inputs)
    return bool(split_files(rest)[0])


def writes_cells(o: Options) -> bool:
    """Return whether the output is a table in which spreadsheets look for formulas."""
    from pretune.text.corpus.table_writer import UNTYPED

    return o.out is not None and Path(o.out).suffix.lower() in UNTYPED


def reads_plain_text(o: Options) -> bool:
    """Return whether an objective learns from text, and there is a file of it whose language is not named."""
    return bool(text_files(o)) and any(not language for language, _ in data_files(o))


def data_files(o: Options) -> list[tuple[str, str]]:
    """Return language and path of each file or folder of --data that is not a store."""
    from pretune.training.jobs.pretraining_settings import is_store, split_language

    given = [split_language(str(path)) for path in paths(o.data)]
    return [(language, path) for language, path in given if not is_store(path)]


def text_files(o: Options) -> list[str]:
    """Return the files of --data that are running text; beside objectives that learn from rows, text comes from a store."""
    from pretune.models.presets import find_preset
    from pretune.objectives import LearnsFromRows, parse_objective

    objective = o.objective or (find_preset(os.fspath(o.model))["objective"] if starts_from_preset(o) else "mlm")
    if any(isinstance(part, LearnsFromRows) for part in parse_objective(objective).objectives):
        return []
    return [path for _, path in data_files(o)]


def paths(data: Any) -> Sequence[Any]:
    """Return the paths of an option that takes one, several, or a store."""
    from pretune.verbs.shared_inputs import store_and_paths

    store, found = store_and_paths(data)
    return [store.folder] if store is not None else list(found)


def formats(corpus: Any) -> set[str | None]:
    """Return the formats of all files of a corpus."""
    from pretune.text.corpus.files import file_format, find_files

    return {file_format(file) for file in find_files(corpus)} if corpus else set()


def reading(*names: str, files: Callable[[Options], Any], of: str = "") -> list[Only]:
    """Make the rules of `layout`, `column` and `errors`, which say how files of text are read.

    `files` returns these files, and `of` names their option where a command may do without.
    """
    rules = {
        "layout": only("layout", where=f"to .txt files{of}", when=lambda o: ".txt" in formats(files(o))),
        "column": only(
            "column", where=f"to tables{of}, not to .txt files", when=lambda o: bool(formats(files(o)) - {".txt"})
        ),
        "errors": only("errors", where=f"to files of text{of}", when=lambda o: bool(files(o))),
    }
    return [rules[name] for name in names]


FILES = only("text", "pair", "columns", where="to files of rows, not to texts", when=reads_files)
LANGUAGE = only(
    "language", where="to text files whose language is not named (LANGUAGE=PATH), not to stores", when=reads_plain_text
)
OF_CORPUS = reading("layout", "column", files=lambda o: o.corpus)
OF_DATA = [
    *reading("layout", "column", files=text_files),
    only("errors", where="to files, not to stores", when=lambda o: bool(data_files(o))),
]
