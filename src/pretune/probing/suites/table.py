"""A probing task from a table: .csv, .tsv, .jsonl, or .parquet with the columns text and label.

column            content
text, label       required
split             train, dev, or test; without it, a tenth of the texts each is held out for dev and test
begin, end        a span of the text, in characters
begin2, end2      a second span
pair              a second text; the last span is in that one
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pretune.probing.probing_task import ProbingExample, ProbingTask, Span, Split
from pretune.runtime.errors import PretuneError, quote
from pretune.text.examples.column_roles import MissingLabel
from pretune.text.examples.labeled import LabeledRows, LabeledTable, parse_label
from pretune.text.examples.splits import split_examples

ROLES = {name: (name,) for name in ("text", "label", "split", "begin", "end", "begin2", "end2", "pair")}
SPANS = (("begin", "end"), ("begin2", "end2"))
SPLIT_NAMES: dict[str, Split] = {
    "train": "train", "tr": "train", "training": "train",
    "dev": "dev", "va": "dev", "valid": "dev", "validation": "dev",
    "test": "test", "te": "test",
}  # fmt: skip
HELD_OUT = 0.2  # share of the examples for dev and test, if there is no column for the split


def load_table(data: Path | None, seed: int = 0) -> list[ProbingTask]:
    """Read a table as one probing task, named after the file; raise an error that names the line of a bad cell.

    Parameters
    ----------
    data
        A .csv, .tsv, .jsonl, or .parquet file with the columns that the docstring of this module lists.
    seed
        The seed of the split, if the table has no column for it.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "tense.csv"
    >>> _ = file.write_text("text,label,split\\nIt rains.,present,train\\nIt rained.,past,test\\n")
    >>> [task] = load_table(file)
    >>> task.name, task.labels, task.examples[1].split
    ('tense', ['past', 'present'], 'test')
    """
    if data is None:
        raise PretuneError(
            "the suite 'table' needs a table with texts and labels; give a .csv, .tsv, .jsonl, or .parquet file"
        )
    table = LabeledTable.open(data, {}, ROLES, "strict")
    columns = table.find_columns(ROLES)
    for role in ("text", "label"):
        if role not in columns:
            listed = ", ".join(map(repr, table.first))
            raise PretuneError(
                f"{table.path}: there is no column {role!r}; the columns are {listed}; rename one to {role!r}"
            )
    for begin, end in SPANS:
        if (begin in columns) != (end in columns):
            given, absent = (begin, end) if begin in columns else (end, begin)
            raise PretuneError(
                f"{table.path}: there is a column {given!r}, but none named {absent!r}; add a column {absent!r}"
            )
    if "begin2" in columns and "begin" not in columns:
        raise PretuneError(
            f"{table.path}: there is a column 'begin2', but none named 'begin'; rename 'begin2' to 'begin' and 'end2' to 'end'"
        )
    examples = [_example(table, columns, row, line) for line, row in table.rows()]
    if "split" not in columns:
        examples = split_randomly(examples, seed)
    return [ProbingTask(Path(data).name.partition(".")[0], "table", examples)]


def _example(table: LabeledTable, columns: dict[str, str], row: dict[str, Any], line: int) -> ProbingExample:
    """Return the probing example in a row of a table; raise an error for a bad cell."""
    where = f"{table.path}, line {line}"
    text = table.text(row, columns["text"], line)
    pair = table.text(row, columns["pair"], line) if "pair" in columns else None
    try:
        label = table.cell(row, columns["label"], line, parse_label)
    except MissingLabel:
        raise PretuneError(f"{where}: the label is empty; fill it in, or delete the line") from None
    split: Split = "train"
    if "split" in columns:
        given = str(row.get(columns["split"])).strip().lower()
        if given not in SPLIT_NAMES:
            raise PretuneError(f"{where}: {quote(given)} is not a split; write train, dev, or test")
        split = SPLIT_NAMES[given]
    used = [names for names in SPANS if names[0] in columns]
    spans: list[Span] = []
    for names in used:
        begin, end = (_position(row.get(columns[name]), name, where) for name in names)
        owner = pair if pair is not None and names == used[-1] else text
        if not 0 <= begin < end <= len(owner):
            raise PretuneError(
                f"{where}: the span from {begin} to {end} is not inside the text, which has {len(owner)} characters; correct "
                f"{names[0]} and {names[1]}"
            )
        spans.append((begin, end))
    return ProbingExample(text, label, split, tuple(spans), pair)


def _position(value: Any, name: str, where: str) -> int:
    """Return the character position in a cell as an integer; raise an error for any other value."""
    try:
        number = float(value)
        if number == int(number):
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise PretuneError(
        f"{where}: {quote(value)} in {name!r} is not the position of a character; write an integer "
        "that counts characters from 0"
    )


def split_randomly(examples: list[ProbingExample], seed: int) -> list[ProbingExample]:
    """Return examples with random splits, a tenth each for dev and test, stratified by label.

    Examples that have the same text get the same split.

    >>> made = split_randomly([ProbingExample(f"text {i}", "ab"[i % 2], "train") for i in range(40)], seed=0)
    >>> [sum(example.split == split for example in made) for split in ("train", "dev", "test")]
    [32, 4, 4]
    """
    rows = LabeledRows(
        Path("examples"), {}, [example.text for example in examples], labels=[example.label for example in examples]
    )
    _, held_out = split_examples(rows, HELD_OUT, seed)
    dev, test = split_examples(rows.take(held_out), 0.5, seed)
    split: dict[int, Split] = dict.fromkeys((held_out[row] for row in dev), "dev")
    split.update(dict.fromkeys((held_out[row] for row in test), "test"))
    return [
        ProbingExample(example.text, example.label, split.get(row, "train"), example.spans, example.pair)
        for row, example in enumerate(examples)
    ]
