"""Read lists of candidates to re-rank: requests with items, their features, their initial order, and clicks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.text.corpus.files import check_text
from pretune.text.examples.column_roles import MissingLabel
from pretune.text.examples.examples import Examples
from pretune.text.examples.labeled import (
    LabeledTable,
    Row,
    TableChunk,
    advise_options,
    parse_number,
    read_chunks,
    table_rows,
)

REQUESTS = ("request", "request_id", "qid", "query_id", "impression_id", "session", "session_id", "list_id")
ROLES: dict[str, Sequence[str]] = {
    "item": ("item", "item_id", "items", "candidate", "candidate_id", "product", "product_id", "movie_id", "movieid"),
    "label": ("label", "click", "clicked", "relevance", "labels"),
    "position": ("position", "rank", "initial_rank", "order"),
    "score": ("score", "initial_score"),
    "request": REQUESTS,
    "features": (),
}


@dataclass
class CandidateLists(Examples):
    """The requests of a file, such as search queries, each with a list of candidates to re-rank.

    For each request, `items` has the candidates in the order of the file, `orders` their indices in the initial
    ranking, best first, `features` their numeric features, (candidates, features), and `relevances`, if known, their
    relevance. `names` are the names of the features.
    """

    requests: list[str] = field(default_factory=list)
    items: list[list[str]] = field(default_factory=list)
    orders: list[Array] = field(default_factory=list)  # (candidates,) indices, the candidate that was first comes first
    features: list[Array] = field(default_factory=list)  # (candidates, features)
    relevances: list[Array] | None = None  # (candidates,)
    names: tuple[str, ...] = ()  # of the features

    pairs: None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def texts(self) -> list[str]:
        """Return the items of each request as one text, in their initial order."""
        return [" ".join(items[i] for i in order) for items, order in zip(self.items, self.orders, strict=True)]

    def duplicate_key(self, row: int) -> str:
        """Return a key that is equal for requests with the same name and the same candidates."""
        return "\0".join([self.requests[row], *self.items[row]])

    def inputs(self, row: int) -> dict[str, Any]:
        """Return the name of a request and its candidates in their initial order, for reports."""
        return {"request": self.requests[row], "text": self.texts[row]}


def list_rows(file: Path, request: str | None = None) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) for each request of a table, with the values of its candidates as lists in the cells.

    If the table has one row per candidate, the rows with the same value in the column `request` (by default, a column
    with a usual name) are joined. A row whose cells are lists already contains all candidates of a request.
    """
    found: dict[str, tuple[int, Row]] = {}
    for line, row in table_rows(file):
        if any(isinstance(cell, list) for cell in row.values()):
            yield line, row
            continue
        name = request or next((key for key in row if key.lower() in REQUESTS), "")
        if row.get(name) is None:
            known = ", ".join(map(repr, row))
            raise PretuneError(
                f"{file}, line {line}: no column {name or 'request'!r} says which candidates belong together; the columns "
                f"are {known}; rename one to 'request'{advise_options('or choose it', ['request'])}"
            )
        _, columns = found.setdefault(str(row[name]), (line, {name: row[name]}))
        count = max((len(cells) for cells in columns.values() if isinstance(cells, list)), default=0)
        for key in dict.fromkeys((*columns, *row)):
            if key != name:
                cells = columns.setdefault(key, [None] * count)
                cells.append(row.get(key))
    yield from found.values()


def read_candidate_lists(
    file: str | Path | TableChunk,
    columns: Mapping[str, str] | None = None,
    *,
    request: str | None = None,
    features: Sequence[str] = (),
    labels: bool = True,
) -> CandidateLists:
    """Read requests with their candidates and, if `labels`, the relevance of each candidate.

    The initial ranking of candidates is that of the column `position` if there is one, else that of the column `score`,
    highest first, else the order of the file. `request` is the column that identifies requests. `features` are the
    columns of numeric features; by default, all numeric columns without another role, and the score.
    """
    if not isinstance(file, TableChunk):
        path, request = Path(file), (columns or {}).get("request") or request
        rows = [row for chunk in read_chunks(path, 1024, lambda path: list_rows(path, request)) for row in chunk.rows]
        file = TableChunk(path, rows, rows[0][1])
    table = LabeledTable.open(file, columns or {}, ROLES, "strict")
    found = table.find_columns({role: names for role, names in ROLES.items() if labels or role != "label"})
    found |= {"request": request} if request else {}
    names = tuple(table.split_names(found["features"])) if "features" in found else tuple(features)
    if not names:
        # The initial score is a feature, too.
        others = {**table.find_columns(ROLES), **found}
        names = numeric_columns(table.sample, {name for role, name in others.items() if role != "score"})
    found |= {"features": ",".join(names)} if names else {}
    table.check_columns(found, needed=("item", "label") if labels else ("item",))
    examples = CandidateLists(table.path, found, names=names, relevances=[] if labels else None)
    for line, row in table.rows():
        place = f"{table.path}, line {line}"
        items = row.get(found["item"])
        if not isinstance(items, list) or not items:
            raise PretuneError(f"{place}: expected a list of items in {found['item']!r}; give one or more")
        for item in items:
            if item is None or check_text(str(item), f"{place}: an item in {found['item']!r}").split() != [str(item)]:
                raise PretuneError(
                    f"{place}: the item {item!r} in {found['item']!r} is empty or contains spaces; rename it"
                )
        values = {name: read_numbers(row, name, len(items), place) for name in names}
        order = np.arange(len(items))
        if "position" in found:
            order = np.argsort(read_numbers(row, found["position"], len(items), place), kind="stable")
        elif "score" in found:
            order = np.argsort(-read_numbers(row, found["score"], len(items), place), kind="stable")
        if examples.relevances is not None:
            relevances = read_numbers(row, found["label"], len(items), place)
            if (relevances < 0).any():
                raise PretuneError(
                    f"{place}: a label in {found['label']!r} is negative; give 0 for candidates not clicked"
                )
            examples.relevances.append(relevances)
        examples.lines.append(line)
        examples.requests.append(str(row.get(found.get("request", ""), line)))
        examples.items.append([str(item) for item in items])
        examples.orders.append(order)
        examples.features.append(np.stack([*values.values()], 1) if names else np.zeros((len(items), 0)))
    return examples


def numeric_columns(rows: Sequence[Row], without: set[str]) -> tuple[str, ...]:
    """Return the columns of `rows` that contain only numbers or lists of numbers, except for those in `without`.

    >>> numeric_columns([{"a": [1, "2.5"], "b": ["x", 1], "c": 3}], {"c"})
    ('a',)
    """

    def is_number(cell: Any) -> bool:
        try:
            parse_number(float(cell) if isinstance(cell, bool) else cell)
        except (ValueError, MissingLabel):
            return False
        return True

    def is_numeric(name: str) -> bool:
        cells = [row.get(name) for row in rows]
        return all(is_number(x) for cell in cells for x in (cell if isinstance(cell, list) else [cell]))

    return tuple(name for name in rows[0] if name not in without and is_numeric(name))


def read_numbers(row: Row, name: str, count: int, place: str) -> Array:
    """Return the numbers in the column `name` of a request, (count,), one per candidate; a single number is repeated.

    `place` is the file and line of the request, for errors.

    >>> read_numbers({"price": 3, "age": [1, "2"]}, "age", 2, "a.csv, line 2").tolist()
    [1.0, 2.0]
    """
    cells = row.get(name)
    cells = cells if isinstance(cells, list) else [cells] * count
    if len(cells) != count:
        raise PretuneError(
            f"{place}: {name!r} has {len(cells)} values for {count} candidates; give one number per candidate, or one for all"
        )
    numbers = []
    for number, cell in enumerate(cells, 1):
        try:
            numbers.append(parse_number(float(cell) if isinstance(cell, bool) else cell))
        except (ValueError, MissingLabel) as error:
            raise PretuneError(
                f"{place}, candidate {number}: expected a number in {name!r}, but found {cell!r}; correct it, or remove the "
                "request"
            ) from error
    return np.array(numbers)
