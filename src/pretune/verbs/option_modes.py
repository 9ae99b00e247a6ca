"""Conditions on the options of verbs, and rules on options that several verbs share (see verbs/verb.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pretune.training import recipe_sections
from pretune.training.recipe_sections import Batching, Monitoring
from pretune.verbs.verb import OptionRule, Options, never, only

TRAINING = ("optimizer", "schedule", "batch", "monitor")  # sections of a recipe with training settings
BY_BUDGET = ("epochs", "budget", *TRAINING)

# Training on labeled examples takes none of the settings for training on running text, and vice versa.
SECTIONS = {"batch": Batching, "monitor": Monitoring}
TEXT_KEYS, ROW_KEYS = (
    tuple(f"{name}.{key}" for name, section in SECTIONS.items() for key in keys[section])
    for keys in (recipe_sections.ON_TEXT, recipe_sections.ON_ROWS)
)
NO_TEXT_KEYS = never(*TEXT_KEYS, where="to training on running text")
NO_ROW_KEYS = never(*ROW_KEYS, where="to training on labeled examples")

EPOCHS_RULE = only(
    "epochs",
    where="without a budget (--steps, --tokens, --flops or --seconds), which replaces it",
    when=lambda o: not has_budget(o),
)


def has_budget(o: Options) -> bool:
    """Return whether the command-line options `o` limit the training budget, as --steps does."""
    return o.budget is not None and bool(o.budget.limits)


def starts_from_preset(o: Options) -> bool:
    """Return whether the model in the options `o` is a preset, which is randomly initialized."""
    from pretune.models.presets import is_preset

    return is_preset(os.fspath(o.model))


def reads_files(o: Options) -> bool:
    """Return whether the inputs in the options `o` are files rather than texts.

    Models may be listed before the inputs, as in an ensemble; they do not count.
    """
    from pretune.verbs.shared_inputs import split_files, split_models

    _, rest = split_models(o.model, o.inputs)
    return bool(split_files(rest)[0])


def reads_tables(o: Options) -> bool:
    """Return whether the inputs in the options `o` include a table, that is, a file other than .txt."""
    from pretune.text.corpus.files import file_format
    from pretune.verbs.shared_inputs import split_text_files

    return any(file_format(file) != ".txt" for file in split_text_files(o.inputs)[0])


def writes_cells(o: Options) -> bool:
    """Return whether the options `o` write a .csv or .tsv file, in which spreadsheets evaluate formulas."""
    from pretune.text.corpus.table_writer import UNTYPED

    return o.out is not None and Path(o.out).suffix.lower() in UNTYPED


def reads_plain_text(o: Options) -> bool:
    """Return whether the options `o` train on a file of running text without a language prefix (LANGUAGE=PATH)."""
    return bool(text_files(o)) and any(not language for language, _ in data_files(o))


def data_files(o: Options) -> list[tuple[str, str]]:
    """Return (language, path) for each file or folder in --data (of the options `o`) that is not a token store.

    The language is "" if none is given.
    """
    from pretune.training.jobs.pretraining_settings import is_store, split_language

    given = [split_language(str(path)) for path in paths(o.data)]
    return [(language, path) for language, path in given if not is_store(path)]


def text_files(o: Options) -> list[str]:
    """Return the paths in --data (of the options `o`) that are running text and not token stores.

    The list is empty for objectives that read tables, such as pairs of sentences.
    """
    from pretune.models.presets import find_preset
    from pretune.objectives import parse_objective

    objective = o.objective or (find_preset(os.fspath(o.model))["objective"] if starts_from_preset(o) else "mlm")
    if any(part.learns_from_rows for part in parse_objective(objective).objectives):
        return []
    return [path for _, path in data_files(o)]


def paths(data: Any) -> Sequence[Any]:
    """Return the value of --data, which is one path, several paths, or an open store, as a list of paths."""
    from pretune.verbs.shared_inputs import store_and_paths

    store, found = store_and_paths(data)
    return [store.folder] if store is not None else list(found)


def formats(corpus: Any) -> set[str | None]:
    """Return the set of file formats, such as .txt, in a corpus of files and folders; None is an unknown format."""
    from pretune.text.corpus.files import file_format, find_files

    return {file_format(file) for file in find_files(corpus)} if corpus else set()


def reading_rules(*names: str, files: Callable[[Options], Any], of: str = "") -> list[OptionRule]:
    """Return rules that reject an option for formats of files to which it does not apply, such as split_by for tables.

    `names` are the options, and `files` is a function from all options of a command to the files that it reads. `of` is
    a phrase such as " of --corpus", which says in error messages which files are meant.
    """
    rules = {
        "split_by": only("split_by", where=f"to .txt files{of}", when=lambda o: ".txt" in formats(files(o))),
        "text_field": only(
            "text_field", where=f"to tables{of}, not to .txt files", when=lambda o: bool(formats(files(o)) - {".txt"})
        ),
        "encoding_errors": only("encoding_errors", where=f"to text files{of}", when=lambda o: bool(files(o))),
    }
    return [rules[name] for name in names]


TOKENIZER_RULE = only("tokenizer", where="to a preset; a trained model has its own", when=starts_from_preset)
MISMATCH_RULE = only(
    "ignore_mismatched", where="to models with weights, not to a preset", when=lambda o: not starts_from_preset(o)
)
COLUMNS_RULE = only("text", "pair", "columns", where="to files, not to texts", when=reads_files)
TEXT_COLUMN_RULE = only("text", where="to tables, not to texts and .txt files", when=reads_tables)
LANGUAGE_RULE = only(
    "language", where="to text files without a language prefix (LANGUAGE=PATH), not to stores", when=reads_plain_text
)
CORPUS_RULES = reading_rules("split_by", "text_field", files=lambda o: o.corpus)
DATA_RULES = [
    *reading_rules("split_by", "text_field", files=text_files),
    only("encoding_errors", where="to files, not to stores", when=lambda o: bool(data_files(o))),
]
