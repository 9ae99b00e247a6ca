"""Tables of predictions: the input rows with predictions as further columns, and the scores of models on labeled files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pretune.inference.ensemble import Predictions, shared_task
from pretune.metrics import score
from pretune.models.name_resolution import ModelReference
from pretune.objectives.task import Answer, Task
from pretune.runtime.errors import PretuneError
from pretune.text.examples.labeled import Row, TableChunk, read_chunks, table_rows

ROWS = 1024  # per excerpt


def read_file_excerpts(files: Iterable[Path], task: Task | None = None) -> Iterator[TableChunk]:
    """Yield the rows of files in order, in chunks of up to 1024 rows.

    Files are read with `task.rows`, the reader of the task, or, without a task, as tables.
    """
    for file in files:
        yield from read_chunks(file, ROWS, table_rows if task is None else task.rows)


class PredictionColumns:
    """A callable that adds predictions to table rows as columns; existing names get the prefix `predicted_`.

    With `probabilities`, the probability of each class gets a column. Otherwise, if `nested`, all probabilities are one
    column of dictionaries; if not, they are left out.

    >>> row = {"text": "…", "label": "no"}
    >>> part = TableChunk(Path("x.csv"), [(2, row)], row)
    >>> PredictionColumns(probabilities=False)(part, [{"label": "yes", "probability": 0.75}])
    [{'text': '…', 'label': 'no', 'predicted_label': 'yes', 'probability': 0.75}]
    """

    def __init__(self, probabilities: bool, nested: bool = False) -> None:
        self.probabilities, self.nested = probabilities, nested
        self.names: dict[str, str] = {}  # key of a prediction → name of its column

    def __call__(self, part: TableChunk, answers: Sequence[Answer], lines: Sequence[int] | None = None) -> list[Row]:
        """Return the rows of a chunk of a table with the predictions, `answers`, added as columns.

        There is one prediction per row, in order. If a row may have several, `lines` has, for each prediction, the line
        number in the file (counted from 1, as in `part.rows`) of the row that the prediction belongs to.
        """
        flat = [self._flat(answer) for answer in answers]
        if lines is not None:
            counts = Counter(lines)
            flat = group_by_row(flat, [counts[line] for line, _ in part.rows])
        known = {name for _, row in part.rows for name in row} if not self.names else set()
        for name in (name for answer in flat for name in answer):
            self.names.setdefault(name, f"predicted_{name}" if name in known else name)
        rows = []
        for (line, row), answer in zip(part.rows, flat, strict=True):
            named = {self.names[name]: value for name, value in answer.items()}
            for name in row.keys() & named.keys():
                raise PretuneError(
                    f"{part.file}, line {line}: the file already has a column named {name!r}, which the predictions need for themselves; "
                    "rename it in the file"
                )
            rows.append({**row, **named})
        return rows

    def _flat(self, answer: Answer) -> Answer:
        """Return a prediction with its class probabilities as columns, as a dictionary, or left out, as configured."""
        classes = answer.get("probabilities")
        if self.probabilities and isinstance(classes, Mapping):
            columns = {f"probability_{label}": value for label, value in classes.items()}
            return {**{name: value for name, value in answer.items() if name != "probabilities"}, **columns}
        return (
            answer if self.nested or self.probabilities else {n: v for n, v in answer.items() if n != "probabilities"}
        )


def group_by_row(answers: Sequence[Answer], counts: Sequence[int]) -> list[Answer]:
    """Group consecutive predictions by row, given the number per row (`counts`), as one dictionary of lists per row.

    >>> group_by_row([{"answer": "a"}, {"answer": "b"}, {"answer": "c"}], [2, 1])
    [{'answer': ['a', 'b']}, {'answer': ['c']}]
    """
    left = iter(answers)
    rows = [list(islice(left, count)) for count in counts]
    return [{name: [answer[name] for answer in row] for name in answers[0]} for row in rows]


class ScoreTable:
    """The scores of one or several models, and of their ensemble, on labeled files."""

    def __init__(self, references: Sequence[ModelReference], name: str | None = None) -> None:
        self.references, self.name = references, name
        self.files: dict[Path, tuple[Mapping[str, str], list[list[Answer]]]] = {}

    def add(self, file: Path, answers: Predictions) -> None:
        """Add predictions for some rows of a labeled file to the score table."""
        by_model = [*answers.by_model, answers.combined] if len(answers.by_model) > 1 else answers.by_model
        _, collected = self.files.setdefault(file, (answers.columns, [[] for _ in by_model]))
        for old, new in zip(collected, by_model, strict=True):
            old += new

    def table(self) -> list[dict[str, Any]]:
        """Return one row of metrics for each file and model, and one for each file and the ensemble."""
        task = shared_task(self.references, self.name)
        names = [*map(str, self.references), "together"]
        rows = []
        for file, (columns, by_model) in self.files.items():
            examples = task.read(file, columns)
            place = {"file": str(file)} if len(self.files) > 1 else {}
            for name, answers in zip(names, by_model, strict=False):
                rows.append({**place, "model": name, **score(task, answers, examples)})
        return rows
