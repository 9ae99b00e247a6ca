"""Guess which columns of a table contain the text, a second text, and the label, by their names and contents."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

Cells = Mapping[str, Any]  # a row: column → cell

CLASSES = (
    "label", "labels", "class", "category", "target", "gold_label", "sentiment", "intent", "topic", "emotion", "polarity",
)  # fmt: skip
SCORES = ("score", "similarity", "rating", "stars")
LABELS = (*CLASSES, *SCORES, "is_duplicate", "quality", "y")
PAIRS = (
    ("text", "pair"), ("text", "text_pair"), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("question", "sentence"), ("question", "passage"), ("question", "answer"), ("question", "context"),
    ("question", "document"), ("query", "passage"), ("query", "document"), ("query", "candidate"), ("query", "answer"),
    ("query", "text"), ("anchor", "positive"), ("#1 string", "#2 string"), ("first", "second"), ("claim", "evidence"),
    ("context", "response"), ("prompt", "response"), ("title", "body"), ("title", "text"), ("title", "content"),
    ("title", "description"), ("title", "abstract"), ("title", "review"), ("headline", "body"), ("headline", "text"),
    ("subject", "body"), ("subject", "message"), ("subject", "text"), ("summary", "text"),
)  # fmt: skip
TEXTS = (
    "text", "sentence", "review", "content", "body", "message", "comment", "tweet", "utterance", "question",
    "document", "title",
)  # fmt: skip
SIDES = (("1", "2"), ("a", "b"), ("first", "second"), ("left", "right"))  # what distinguishes the names of two columns
USUAL: dict[str, Sequence[str]] = {
    "text": (*TEXTS, *(first for first, _ in PAIRS)),
    "pair": [second for _, second in PAIRS],
    "label": LABELS,
}
KNOWN = {name for usual in USUAL.values() for name in usual}  # names that mark a first row as a header
TEXT_WORDS = 4.0  # mean words per cell of a column that contains texts rather than names or codes
NUMBERED_WORDS = 2.0  # the same for a column whose name differs from another one only by its number
SPACELESS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")  # characters of scripts without spaces


def guess_columns(
    sample: Sequence[Cells],
    requested: Mapping[str, str],
    labels: bool = True,
    taken: Collection[str] = (),
    *,
    pairs: bool = True,
    label: Callable[[Any], Any] = str,
) -> dict[str, str]:
    """Return the column of each role: text, pair (a second text) and, if `labels`, label.

    The user's choices in `requested` (role → column) are kept; the other roles are inferred from the rows in `sample`.
    Columns in `taken` are not used. A column for a second text is inferred only if `pairs` is True and the user has not
    chosen the column of the first text. `label` is a function that converts a cell to a label; a column with cells for
    which it raises a ValueError is chosen only if no other column fits.

    >>> guess_columns([{"id": 1, "sentence_A": "A man sings.", "sentence_B": "He is singing.", "score": 5}], {})
    {'text': 'sentence_A', 'pair': 'sentence_B', 'label': 'score'}
    """
    found = dict(requested)
    lower = {name.lower(): name for name in sample[0]}

    def free(*names: str) -> bool:
        used = {*found.values(), *taken}
        return all(name in lower and lower[name] not in used for name in names)

    # A column with a usual name of labels is not a text, whether or not labels are read.
    candidates = label_columns(sample, {*found.values(), *taken}, label)
    if "label" not in found and candidates and named_label(candidates[0]):
        found["label"] = candidates[0]
    if pairs and "text" not in found and "pair" not in found and (two := _pair_by_name(sample, lower, free)):
        found |= {"text": two[0], "pair": two[1]}
    if "text" not in found and (name := next(filter(free, TEXTS), None)):
        found["text"] = lower[name]
    if labels and "label" not in found and (candidates := label_columns(sample, {*found.values(), *taken}, label)):
        found["label"] = candidates[0]
    if "text" not in found:
        used = {*found.values(), *taken}
        texts = text_columns(sample, used)
        if pairs and "pair" not in found and len(texts) == 2:
            found |= {"text": texts[0], "pair": texts[1]}
        elif name := _longest_texts(sample, used if labels else {*requested.values(), *taken}):
            found["text"] = name
    keep = [
        role for role in ("text", "pair", "label") if role in found and (labels or role != "label" or role in requested)
    ]
    return {role: found[role] for role in keep}


def label_columns(sample: Sequence[Cells], taken: Collection[str], label: Callable[[Any], Any] = str) -> list[str]:
    """Return the columns that may contain the label, the most likely one first, except for those in `taken`.

    Columns are found by their names or, if no name fits, by their contents. Columns with cells for which the function
    `label` raises a ValueError come last.
    """
    columns = [name for name in sample[0] if name not in taken]
    named = sorted((name for name in columns if named_label(name)), key=_label_rank)
    if not named:
        values = {name: [str(row.get(name, "")) for row in sample] for name in columns}
        kinds = {name: len(set(cells)) for name, cells in values.items()}
        repeating = [
            name
            for name in columns
            if all(values[name]) and 2 <= kinds[name] <= max(2, len(sample) // 2) and kinds[name] < len(sample)
        ]
        named = sorted(repeating, key=lambda name: kinds[name])
    return sorted(named, key=lambda name: not _is_readable(sample, name, label))


class MissingLabel(ValueError):  # noqa: N818
    """A ValueError that is raised for an empty cell in a column that should contain labels."""


def named_label(name: str) -> bool:
    """Return whether a column has a usual name for labels, such as label, or a name that ends in one.

    An example of the latter is entailment_label.

    >>> named_label("gold_label"), named_label("relatedness_score"), named_label("label_id")
    (True, True, False)
    """
    return name.lower() in LABELS or _last_word(name) in (*CLASSES, *SCORES)


def _label_rank(name: str) -> tuple[int, int]:
    """Return a sort key for the names of label columns: names of classes precede those of scores.

    Within both groups, exact names such as label precede longer names that end in one, such as gold_label.
    """
    exact = name.lower() in LABELS
    usual = name.lower() if exact else _last_word(name)
    return (usual not in CLASSES) * 2 + (not exact), LABELS.index(usual)


def _last_word(name: str) -> str:
    words: list[str] = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return words[-1].lower() if words and name.endswith(words[-1]) else ""


def _is_readable(sample: Sequence[Cells], name: str, label: Callable[[Any], Any]) -> bool:
    """Return whether the function `label` can convert every cell of a column, apart from empty cells."""
    for row in sample:
        try:
            label(row.get(name))
        except MissingLabel:
            continue
        except ValueError:
            return False
    return True


def _pair_by_name(
    sample: Sequence[Cells], lower: Mapping[str, str], free: Callable[..., bool]
) -> tuple[str, str] | None:
    """Return the names of two text columns, or None if the names of the columns do not suggest a pair.

    The names are usual ones, or they differ only in a number or letter, as in text1 and text2. `lower` maps lower-case
    names to columns; the function `free` returns whether the given columns have no other role yet.
    """
    if usual := next((pair for pair in PAIRS if free(*pair)), None):
        return lower[usual[0]], lower[usual[1]]
    for name in lower:
        for one, two in SIDES:
            for other in {name.removesuffix(one) + two, two + name.removeprefix(one)} - {name + two, two + name}:
                columns = lower[name], lower.get(other, "")
                if free(name, other) and all(mean_words(sample, column) >= NUMBERED_WORDS for column in columns):
                    return columns
    usual_texts = [name for name in lower if name in TEXTS and free(name)]
    if len(usual_texts) == 2 and all(mean_words(sample, lower[name]) >= NUMBERED_WORDS for name in usual_texts):
        return lower[usual_texts[0]], lower[usual_texts[1]]
    return None


def text_columns(sample: Sequence[Cells], taken: Collection[str] = ()) -> list[str]:
    """Return the columns, except for those in `taken`, with texts of several words, most of which are distinct."""
    found = []
    for name in sample[0]:
        cells = [row.get(name) for row in sample]
        repeated = len({str(cell) for cell in cells}) * 5 < len(cells)
        if name not in taken and not repeated and mean_words(sample, name) >= TEXT_WORDS:
            found.append(name)
    return found


def mean_words(sample: Sequence[Cells], name: str) -> float:
    """Return the mean number of words per cell of a column; 0 if any cell is not text.

    Words without letters do not count. In scripts without spaces between words, every character counts as a word.
    """
    total = 0
    for row in sample:
        cell = row.get(name)
        if cell is not None and not isinstance(cell, str):
            return 0.0
        characters = len(SPACELESS.findall(cell or ""))
        total += characters or sum(any(map(_is_letter, word)) for word in (cell or "").split())
    return total / len(sample)


def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] == "L"


def _longest_texts(sample: Sequence[Cells], taken: Collection[str]) -> str | None:
    """Return the column not in `taken` that has the longest texts in a sample of rows; None if no column has text."""
    sizes = {
        name: sum(len(row[name]) for row in sample if isinstance(row.get(name), str))
        for name in sample[0]
        if name not in taken
    }
    best = max(sizes, key=lambda name: sizes[name], default=None)
    return best if best is not None and sizes[best] else None
