"""Read text-to-text data: source and target, text and summary, or text and label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pretune.runtime.progress import log_info
from pretune.text.corpus.files import find_files
from pretune.text.examples.column_roles import LABELS
from pretune.text.examples.labeled import (
    FORMATS,
    ROLES,
    LabeledRows,
    TableChunk,
    advise_options,
    column_names,
    read_labeled,
)

USUAL = (
    ("source", "target"), ("input", "output"), ("inputs", "targets"), ("text", "summary"), ("document", "summary"),
    ("article", "highlights"), ("article", "summary"), ("dialogue", "summary"), ("prompt", "completion"),
    ("question", "answer"), ("text", "target"), ("text", "output"),
)  # fmt: skip
TRIPLES = (("question", "context", "answer"), ("question", "context", "answers"), ("instruction", "input", "output"))


def read_text_to_text(
    file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True, drop_invalid: bool = False
) -> LabeledRows:
    """Read source texts and, if `answered`, target texts, which are returned as labels.

    `columns` maps the roles text (source) and label (target) to columns; columns that are not given are inferred from
    their names.
    """
    path = file.file if isinstance(file, TableChunk) else find_files(file, FORMATS)[0]
    names = list(file.first) if isinstance(file, TableChunk) else column_names(path)
    requested = {role: name for role, name in columns.items() if name}
    if not requested and (requested := guess_source_target(names, answered)):
        guessed = ", ".join(f"{role} = {name!r}" for role, name in requested.items())
        log_info(f"{path}: using the columns {guessed}{advise_options('override', ROLES)}")
    return read_labeled(file, requested, labels=answered, drop_invalid=drop_invalid)


def guess_source_target(names: Sequence[str], answered: bool = True) -> dict[str, str]:
    """Return the source column as `text` and, if `answered`, the target column as `label`.

    The result is empty if the column names are not usual ones.

    >>> guess_source_target(["id", "Article", "Highlights"])
    {'text': 'Article', 'label': 'Highlights'}
    """
    lower = {name.lower(): name for name in names}
    for triple in TRIPLES:  # all three, or without the answer
        used = triple[: 3 if answered else 2]
        if set(used) <= lower.keys():
            return {role: lower[name] for role, name in zip(ROLES, used, strict=False)}
    for source, target in USUAL:
        if source in lower and not answered:
            return {"text": lower[source]}
        if source in lower and target in lower:
            return {"text": lower[source], "label": lower[target]}
    if answered and len(names) == 2 and not lower.keys() & set(LABELS):
        return dict(zip(("text", "label"), names, strict=True))
    return {}
