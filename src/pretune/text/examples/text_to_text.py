"""Read text-to-text data: source and target, text and summary, or text and label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pretune.runtime.progress import log_info
from pretune.text.corpus.files import find_files
from pretune.text.examples.labeled import (
    FORMATS,
    LABELS,
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
    """Read rows whose labels are target texts; columns are inferred from usual names, or are the only two of the table.

    >>> rows = read_text_to_text("articles.csv", {"text": "body", "label": "headline"})  # doctest: +SKIP
    """
    path = file.file if isinstance(file, TableChunk) else find_files(file, FORMATS)[0]
    names = list(file.first) if isinstance(file, TableChunk) else column_names(path)
    given = {role: name for role, name in columns.items() if name}
    if not given and (given := guess_source_target(names, answered)):
        guessed = ", ".join(f"{role} = {name!r}" for role, name in given.items())
        log_info(f"{path}: {guessed}{advise_options('override', ROLES)}")
    return read_labeled(file, given, labels=answered, drop_invalid=drop_invalid)


def guess_source_target(names: Sequence[str], answered: bool = True) -> dict[str, str]:
    """Return the source and target columns by role, if their names reveal them; else an empty dictionary.

    >>> guess_source_target(["id", "Article", "Highlights"])
    {'text': 'Article', 'label': 'Highlights'}
    """
    lower = {name.lower(): name for name in names}
    for roles in TRIPLES:  # all three, or without the answer
        if set(roles[: 3 if answered else 2]) <= lower.keys():
            found = dict(zip(("text", "pair", "label"), (lower.get(role, "") for role in roles), strict=True))
            return found if answered else {role: found[role] for role in ("text", "pair")}
    for source, target in USUAL:
        if source in lower and not answered:
            return {"text": lower[source]}
        if source in lower and target in lower:
            return {"text": lower[source], "label": lower[target]}
    if answered and len(names) == 2 and not lower.keys() & set(LABELS):
        return dict(zip(("text", "label"), names, strict=True))
    return {}
