"""The content of config.json: a model's family, its class in `transformers`, its labels, and the section `pretune`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from typing_extensions import TypedDict

from pretune.families import find_family
from pretune.families.detection import detect_family
from pretune.families.family import Family
from pretune.models.weight_files import read_shapes
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.parsing import read_mapping, validate_schema
from pretune.runtime.progress import log_info

CONFIG_FILE = "config.json"
DEFAULT_MAX_LENGTH = 512  # the maximum number of tokens of a sequence, for models without a limit
MOST_LABELS = 1_000_000
Labels = Annotated[int, Ge(0), Le(MOST_LABELS)]
Finite = Annotated[float, Ge(-1e30), Le(1e30)]
Size = Annotated[int, Ge(1), Le(1 << 26)]


class ShapeSection(TypedDict, total=False):
    """The entry `shape` of a config.json: the layers, heads, and feed-forward units that remain after pruning."""

    layers: list[Annotated[int, Ge(0)]]
    heads: dict[str, Size]
    units: dict[str, Size]
    linear: str


class TaskOptionsSection(TypedDict, total=False):
    """The entry `options` of a config.json: settings of a task that were fitted to its training examples."""

    labels: list[str]
    label_weights: list[Finite]
    threshold: Finite
    scored: bool
    lowest: Finite
    highest: Finite
    mean: Finite
    deviation: Finite
    max_candidates: Annotated[int, Ge(0), Le(1 << 26)]
    ids: list[int]
    mask: int


class PretuneSection(TypedDict, total=False):
    """The section `pretune` of a config.json, for settings that the format of `transformers` has no keys for."""

    objective: str
    options: TaskOptionsSection
    tasks: dict[str, TaskOptionsSection]
    shape: ShapeSection
    embedding: dict[str, Any]
    max_length: Size
    language: str
    finetuning: dict[str, Any]
    engine: str
    graph_sha256: str


# The suffixes of the classes of `transformers` whose outputs have labels.
LABELED = ("ForSequenceClassification", "ForTokenClassification")
# Maps `problem_type` to our objective.
PROBLEMS = {
    "single_label_classification": "classify",
    "multi_label_classification": "classify(multi_label=true)",
    "regression": "regress",
}


def read_config(folder: Path) -> tuple[Family, dict[str, Any]]:
    """Return the family of the model in a folder, and the content of its config.json."""
    path = folder / CONFIG_FILE
    content = read_mapping(path, "a model's configuration")
    check_section(content, path)
    if content.get("model_type"):
        return find_family(str(content["model_type"]), str(path), published_class(content)), content
    family, evidence = detect_family(content, published_class(content), lambda: read_shapes(folder), str(path))
    log_once(f"{path}: there is no model_type; the model is read as {family.name}, because of {evidence}")
    return family, content


@cache
def log_once(line: str) -> None:
    """Log a line the first time that it occurs in this process, and ignore repetitions."""
    log_info(line)


def published_class(content: Mapping[str, Any]) -> str:
    """Return the class of `transformers` that a config.json names under `architectures`, or "" if it names none."""
    names = content.get("architectures") or [""]
    return str(names[0]) if isinstance(names, list) else ""


def config_labels(content: Mapping[str, Any], where: Path) -> list[str]:
    """Return the class labels in a config.json, in order, or LABEL_0, LABEL_1, … if it has only their number.

    >>> config_labels({"num_labels": 3}, Path("config.json"))
    ['LABEL_0', 'LABEL_1', 'LABEL_2']
    """
    count, names = content.get("num_labels"), content.get("id2label") or {}
    if count is not None:
        validate_schema(count, Labels, f"{where}: num_labels")
    valid = isinstance(names, dict) and all(re.fullmatch(r"[0-9]{1,6}", number) for number in names)
    if not valid:
        raise PretuneError(f"{where}: id2label must map class numbers to names, as in {{'0': 'no'}}")
    named = {int(number): str(name) for number, name in names.items()}
    if named and sorted(named) != list(range(len(named))):
        raise PretuneError(f"{where}: the classes in id2label are {sorted(named)}; they must start at 0 without gaps")
    if named and count is not None and count != len(named):
        raise PretuneError(
            f"{where}: num_labels is {count}, but id2label has {len(named)} classes; correct one of them"
        )
    return [name for _, name in sorted(named.items())] if named else default_labels(count or 0)


def check_section(content: Mapping[str, Any], where: Path) -> None:
    """Raise an error if the section `pretune` of a config.json does not conform to its schema."""
    if "pretune" in content:
        validate_schema(content["pretune"], PretuneSection, f"{where}: pretune")


def default_labels(count: int) -> list[str]:
    """Return the labels that `transformers` gives to `count` unnamed classes: LABEL_0, LABEL_1, …"""
    return [f"LABEL_{number}" for number in range(count)]


def stored_labels(folder: Path, family: Family, content: Mapping[str, Any], where: Path) -> list[str]:
    """Return the class labels of a stored model; if config.json has none, default labels, one per logit of its head."""
    labels, class_name = config_labels(content, where), published_class(content)
    if labels or not class_name.endswith(LABELED) or "pretune" in content:
        return labels
    shapes = read_shapes(folder)
    current = {new: shapes[old] for old, new in family.table.current_names(shapes).items()}
    outputs = [
        name
        for head in family.heads_of(class_name)
        for name in family.table.published_names(f"heads.{head}.output.weight") or ()
    ]
    return default_labels(next((current[name][0] for name in outputs if name in current), 2))


def problem_objective(content: Mapping[str, Any], labels: list[str], where: Path) -> str:
    """Return the name of the task for the `problem_type` in a config.json; by default, one label means regression."""
    problem = content.get("problem_type") or ("regression" if len(labels) == 1 else "single_label_classification")
    if problem not in PROBLEMS:
        raise PretuneError(f"{where}: unknown problem_type {problem!r}; {suggest(str(problem), PROBLEMS)}")
    if problem == "regression" and len(labels) > 1:
        problem = f"the problem_type 'regression' supports only one output, but there are {len(labels)}"
        raise PretuneError(f"{where}: {problem}; change problem_type, or keep one label")
    return PROBLEMS[problem]
