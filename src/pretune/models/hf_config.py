"""What a config.json says of a model's heads: its class, its kind of problem, and the names of its classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from typing_extensions import TypedDict

from pretune.families.family import Family
from pretune.models.weights import read_shapes
from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import conform

MOST_LABELS = 1_000_000
Labels = Annotated[int, Ge(0), Le(MOST_LABELS)]
Finite = Annotated[float, Ge(-1e30), Le(1e30)]
Size = Annotated[int, Ge(1), Le(1 << 26)]


class ShapeSection(TypedDict, total=False):
    """What `Shape.write` writes."""

    layers: list[Annotated[int, Ge(0)]]
    heads: dict[str, Size]
    units: dict[str, Size]
    linear: str


class Options(TypedDict, total=False):
    """Options of a task that were fitted to its examples."""

    labels: list[str]
    balance: list[Finite]
    threshold: Finite
    scored: bool
    lowest: Finite
    highest: Finite
    mean: Finite
    deviation: Finite
    most: Annotated[int, Ge(0), Le(1 << 26)]
    ids: list[int]
    mask: int


class Section(TypedDict, total=False):
    """What the section `pretune` of a config.json holds."""

    objective: str
    options: Options
    tasks: dict[str, Options]
    shape: ShapeSection
    embedding: dict[str, Any]
    max_length: Size
    engine: str
    graph_sha256: str


# How the classes of `transformers` end whose outputs have labels.
LABELED = ("ForSequenceClassification", "ForTokenClassification")
# `problem_type` → what it is with us.
PROBLEMS = {
    "single_label_classification": "classify",
    "multi_label_classification": "classify(multi=true)",
    "regression": "regress",
}


def class_in(content: Mapping[str, Any]) -> str:
    """Return the class of `transformers` that a config.json names."""
    names = content.get("architectures") or [""]
    return str(names[0]) if isinstance(names, list) else ""


def labels_in(content: Mapping[str, Any], where: Path) -> list[str]:
    """Return the labels that a config.json names, in order, or LABEL_0, LABEL_1 … where it says only how many there are.

    >>> labels_in({"num_labels": 3}, Path("config.json"))
    ['LABEL_0', 'LABEL_1', 'LABEL_2']
    """
    count, names = content.get("num_labels"), content.get("id2label") or {}
    if count is not None:
        conform(count, Labels, f"{where}: num_labels")
    if not isinstance(names, dict) or not all(map(_is_class, names)):
        raise PretuneError(f"{where}: id2label must give a name to each number of a class, such as {{'0': 'no'}}")
    named = {int(number): str(name) for number, name in names.items()}
    if named and sorted(named) != list(range(len(named))):
        raise PretuneError(f"{where}: id2label names classes {sorted(named)}; number them from 0 without gaps")
    if named and count is not None and count != len(named):
        raise PretuneError(
            f"{where}: num_labels is {count}, but id2label names {len(named)} classes; correct one of them"
        )
    return [name for _, name in sorted(named.items())] if named else default_labels(count or 0)


def _is_class(number: str) -> bool:
    return number.isascii() and number.isdecimal() and len(number) < len(str(MOST_LABELS))


def check_section(content: Mapping[str, Any], where: Path) -> None:
    """Refuse a section `pretune` of config.json that is not as `pretune.models.model` writes it."""
    if "pretune" in content:
        conform(content["pretune"], Section, f"{where}: pretune")


def default_labels(count: int) -> list[str]:
    """Return the labels that `transformers` gives to classes without names."""
    return [f"LABEL_{number}" for number in range(count)]


def labels_of(folder: Path, family: Family, content: Mapping[str, Any], where: Path) -> list[str]:
    """Return the labels of the model in a folder; where config.json says nothing of them, as many as its head has outputs."""
    labels, kind = labels_in(content, where), class_in(content)
    if labels or not kind.endswith(LABELED) or "pretune" in content:
        return labels
    shapes = read_shapes(folder)
    modern = {new: shapes[old] for old, new in family.table.current_names(shapes).items()}
    outputs = [
        name
        for head in family.heads_of(kind)
        for name in family.table.published_names(f"heads.{head}.output.weight") or ()
    ]
    return default_labels(next((modern[name][0] for name in outputs if name in modern), 2))


def problem_in(content: Mapping[str, Any], labels: list[str], where: Path) -> str:
    """Return the objective of a classifier by its `problem_type`; one class is a number, to `transformers` too."""
    problem = content.get("problem_type") or ("regression" if len(labels) == 1 else "single_label_classification")
    if problem not in PROBLEMS:
        raise PretuneError(f"{where}: unknown problem_type {problem!r}; known: {', '.join(PROBLEMS)}")
    if problem == "regression" and len(labels) > 1:
        raise PretuneError(
            f"{where}: problem_type regression with {len(labels)} numbers is not supported; only with one"
        )
    return PROBLEMS[problem]
