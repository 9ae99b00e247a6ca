"""Suites of tasks: reading their declarations, and reading the rows of their files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, get_type_hints

from pretune.evaluation.suites import find_suite_file, suite_names
from pretune.evaluation.suites.layouts import LAYOUTS, layout_of, read_layout
from pretune.runtime.atomic_io import check_file_name
from pretune.runtime.errors import PretuneError, if_option, quote, suggest
from pretune.runtime.parsing import validate_schema
from pretune.runtime.progress import log_info
from pretune.runtime.recipe import merge_recipes, read_recipe

MALFORMED = 0.01  # share of unreadable training rows above which a file is refused
NAMED = 3  # unreadable rows that are reported one by one
EXTRA = ("id", "group", "categories", "gold", "predicate")  # roles that metrics, submissions or options of tasks use
ANSWERS = ("label", "answers")  # roles that test rows may lack
Row = dict[str, Any]
Column = str | int | Sequence[str | int]  # name or number; several columns are joined
Roles = Mapping[str, Column]


@dataclass(frozen=True)
class SuiteTask:
    """A task of a benchmark suite, as declared in the suite's YAML file (fields: see pretune.evaluation.suites)."""

    name: str
    title: str
    kind: str
    metrics: Sequence[str]
    files: Mapping[str, str | Sequence[str]]
    roles: Roles
    splits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    format: str | None = None
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    leave_out: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int | Sequence[int]] = field(default_factory=dict)
    categories: Sequence[str] = ()
    group: str = ""
    length: int | None = None
    scored: str = "dev"  # the split that is reported
    submission: Mapping[str, Any] = field(default_factory=dict)
    prompt: Mapping[str, Any] = field(default_factory=dict)  # for in-context learning, see evaluation/in_context.py
    version: Any = 1
    source: str = ""
    like: str = ""
    language: str = ""
    uses_model_of: str = ""  # the task whose model is used, if this one has no training file

    @property
    def columns(self) -> dict[str, str]:
        """Return the name of the column of each role, such as text, in the task's saved rows, by role.

        Saved rows use the names of roles as column names.
        """
        return {role: role for role in self.roles if role not in EXTRA}

    def named_columns(self, row: Row) -> Row:
        """Return a row with its roles renamed to the columns of the suite's files; other roles keep their names."""
        names = {role: column for role, column in self.roles.items() if isinstance(column, str) and "." not in column}
        return {names.get(role, role): value for role, value in row.items()}

    def find_files(self, split: str, data: Path) -> list[list[Path]]:
        """Return the files of a split in the folder `data`; [] if any file is missing.

        Each inner list has one file, or several files with parallel lines, which are read together.
        """
        given = self.files.get(split)
        names = [] if given is None else [given] if isinstance(given, str) else list(given)
        found = [_first(name, data) for name in names]
        return found if all(found) else []

    def read(self, split: str, data: Path, *, allow_incomplete: bool = False) -> SuiteRows:
        """Read the rows of a split from the folder `data`.

        With `allow_incomplete`, files may have fewer rows than the official ones.
        """
        paths = self.find_files(split, data)
        if not paths:
            raise PretuneError(
                f"{data}: {self.title} needs {self.files.get(split, split)}, which does not exist; add the file to this folder"
            )
        made = SuiteRows(self, split, paths[0][0])
        bad: list[str] = []
        for path, place, row in self._slice(split, paths):
            where = f"{path}, {place}"
            if isinstance(row, PretuneError):
                bad.append(f"{where}: {row}")
            elif row:
                made.rows.append(row)
                made.places.append(where)
        if bad and (split != "train" or len(bad) > max(NAMED, MALFORMED * len(made.rows))):
            more = f" (and {len(bad) - 1} more rows)" if len(bad) > 1 else ""
            raise PretuneError(f"unreadable row in {bad[0]}{more}; correct the file or download it again")
        for message in bad[:NAMED]:
            log_info(f"skipped an unreadable row in {message}")
        if len(bad) > NAMED:
            log_info(f"{paths[0][0]}: {len(bad) - NAMED} more rows could not be read and are skipped")
        made.check_length(allow_incomplete)
        return made

    def _slice(self, split: str, paths: Sequence[Sequence[Path]]) -> Iterable[tuple[Path, str, Row | PretuneError]]:
        """Return (file, place, row) for the rows of a split: all rows of its files, or the part that `rows` declares."""
        start, stop = self.splits.get(split, {}).get("rows", (0, None))
        found = ((together[0], *placed) for together in paths for placed in self._rows(split, together))
        if start < 0 or (stop is not None and stop < 0):
            return list(found)[start:stop]  # counted from the end
        return islice(found, start, stop)

    def _rows(self, split: str, paths: Sequence[Path]) -> Iterator[tuple[str, Row | PretuneError]]:
        """Yield (place such as "line 3", row) for each row of a file, or of several files whose lines are parallel.

        For a row that cannot be read, the second item is an error instead of a row.
        """
        own = self.splits.get(split, {})
        roles = own.get("roles", self.roles)
        layout = own.get("format") or self.format or layout_of(paths[0])
        if layout not in LAYOUTS:
            raise PretuneError(f"{paths[0]}: unknown file format {layout!r}; {suggest(layout, LAYOUTS)}")
        roles = {role: column if isinstance(column, list) else [column] for role, column in roles.items()}
        numbered = any(isinstance(column, int) for columns in roles.values() for column in columns)
        for place, row in read_layout(paths, layout, header=not numbered):
            yield place, row if isinstance(row, PretuneError) else self._in_roles(row, roles, split)

    def _in_roles(self, row: Row, roles: Mapping[str, list[Any]], split: str) -> Row | PretuneError:
        """Return the fields of a row, renamed to the roles of the task, such as text and label.

        The result is {} for a row that the task leaves out (`leave_out`), and an error for a row that cannot be read.
        """
        made: Row = {}
        for role, columns in roles.items():
            cells = [_cell(row, name) for name in columns]
            if None in cells:
                if role in EXTRA or (role in ANSWERS and split == "test"):
                    continue
                missing, listed = columns[cells.index(None)], ", ".join(map(repr, row)) or "none"
                hint = suggest(str(missing), map(str, row), "check the suite's `roles`")
                return PretuneError(f"there is no column {missing!r}; columns are {listed}; {hint}")
            value = cells if role == "choices" and len(cells) > 1 else cells[0]
            if len(cells) > 1 and role != "choices":
                value = " ".join(map(str, cells))
            if isinstance(value, bool):
                value = str(value).lower()
            if role in self.leave_out and value == self.leave_out[role]:
                return {}
            made[role] = self.values.get(role, {}).get(str(value), value)
        if self.categories:
            made["categories"] = {
                name: [part.strip() for part in str(row[name]).split(";") if part.strip()]
                for name in self.categories
                if row.get(name)
            }
        return made


@dataclass
class SuiteRows:
    """The rows of a split of a benchmark task: mappings from role (such as text) to value.

    `file` is the first file of the split, and `places` has the file and line of each row.
    """

    task: SuiteTask
    split: str
    file: Path
    rows: list[Row] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def expected(self) -> list[int]:
        """Return the row counts that the official file of the split can have; [] if they are unknown."""
        count = self.task.counts.get(self.split, [])
        return [count] if isinstance(count, int) else list(count)

    @property
    def complete(self) -> bool:
        """Return whether the split has as many rows as the official file; True if that number is unknown."""
        return not self.expected or len(self) in self.expected

    @property
    def answered(self) -> bool:
        """Return whether all rows of the split have gold answers."""
        return all(any(role in row for role in ANSWERS) for row in self.rows)

    def check_length(self, allow_incomplete: bool) -> None:
        """Raise an error if a dev or test file is incomplete, unless `allow_incomplete`; log it for a training file."""
        if not self.rows:
            raise PretuneError(f"{self.file}: the file has no rows; download it again")
        if self.complete:
            return
        wanted = f"{self.expected[0]:,} of {self.task.title}'s {self.split} split"
        if self.split == "train" or allow_incomplete:
            log_info(
                f"{self.file}: {len(self):,} rows instead of the {wanted}; scores are not comparable with those on the whole split"
            )
        else:
            raise PretuneError(
                f"{self.file}: {len(self):,} rows instead of the {wanted}; download it again{if_option('allow-incomplete', ', or accept it with --allow-incomplete')}"
            )


@dataclass(frozen=True)
class Suite:
    """A benchmark suite: its tasks, in the order of the results table, and how they are averaged.

    `averages` and `sums` map names to the columns that are averaged or summed, `scale` is the printed value of a perfect
    score, and `file` is the YAML file that the suite was read from, if it was not found by name.
    """

    name: str
    title: str
    source: str
    tasks: Mapping[str, SuiteTask]
    averages: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    sums: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    scale: int = 100  # the printed value of a perfect score
    file: str = ""  # absolute path, if it was read from a YAML file instead of found by name

    def select_tasks(self, names: Sequence[str]) -> Suite:
        """Return the suite with only the tasks in `names`, or with all tasks if there are no names.

        The name of a multilingual task selects the task in all of its languages.
        """
        known = {*self.tasks, *(task.like for task in self.tasks.values() if task.language)}
        for name in names:
            if name not in known:
                raise PretuneError(f"{self.title} has no task {name!r}; {suggest(name, known)}")
        wanted = {
            name: task
            for name, task in self.tasks.items()
            if not names or name in names or (task.language and task.like in names)
        }
        return replace(self, tasks=wanted)

    def available_tasks(self, data: Path, learned: bool = True) -> tuple[dict[str, SuiteTask], dict[str, str]]:
        """Return the tasks whose files are in the folder `data`, and for every other task the reason why it is missing.

        With `learned`, a task needs a training file, too, because a model is to be trained on it.
        """
        here: dict[str, SuiteTask] = {}
        missing: dict[str, str] = {}
        for name, task in self.tasks.items():
            # A task that uses another task's model is useful for the submission alone.
            judged = (
                task.scored
                if not task.uses_model_of or task.find_files(task.scored, data) or not task.submission
                else "test"
            )
            needed = [judged] if task.uses_model_of or not learned else ["train", judged]
            lacking = [split for split in needed if not task.find_files(split, data)]
            if lacking:
                missing[name] = "no " + ", no ".join(
                    str(task.files.get(task.scored if split == judged else split, f"file for {split}"))
                    for split in lacking
                )
            else:
                here[name] = task
        for name, task in list(here.items()):
            if task.uses_model_of and task.uses_model_of not in here:
                missing[name] = f"it uses the model of {task.uses_model_of}, which is missing"
                del here[name]
        if not here:
            example = next(iter(next(iter(self.tasks.values())).files.values()), "a file")
            raise PretuneError(
                f"{data}: no files of {self.title}'s tasks were found; put the official files there, for example {example}"
            )
        return here, missing


# Keys of a suite and of a task, and their types.
KEYS: dict[str, Any] = {
    "title": str,
    "source": str,
    "tasks": dict[str, dict[str, Any]],
    "averages": dict[str, list[Any]],
    "sums": dict[str, list[Any]],
    "scale": int | float,
}
SUBMISSION, PROMPT = (
    {"file": str, "labels": list[Any], "range": list[float]},
    {"template": str, "verbalizer": dict[str, str] | None},
)
SPLIT = {"roles": Roles, "format": str, "rows": list[int | None]}


def _check_task(content: Mapping[str, Any], where: str) -> None:
    """Raise an error if a task's declaration has an unknown key or a value of the wrong type.

    `content` is the declaration, and `where` names the file and the task.
    """
    types = {**get_type_hints(SuiteTask), "languages": list[str]}
    for key, value in content.items():
        if key not in types or key in ("name", "uses_model_of"):
            raise PretuneError(f"{where}: the task has the unknown key {quote(key)}; {suggest(str(key), types)}")
        if key not in ("splits", "submission", "prompt"):
            validate_schema(value, types[key], f"{where}: {key}")
    for key, known in (("submission", SUBMISSION), ("prompt", PROMPT)):
        _check_keys(content.get(key, {}), known, f"{where}: {key}")
    for split, own in validate_schema(content.get("splits", {}), dict[str, Any], f"{where}: splits").items():
        _check_keys(own, SPLIT, f"{where}: splits.{split}")
    for split, own in content.get("splits", {}).items():
        if "rows" in own and (len(own["rows"]) != 2 or own["rows"][0] is None):
            raise PretuneError(
                f"{where}: splits.{split}.rows needs the first row and the row after the last, as in [0, 80] or [-100, null]"
            )
    for roles in (content.get("roles", {}), *(own.get("roles", {}) for own in content.get("splits", {}).values())):
        for role, column in roles.items():
            if column == []:
                raise PretuneError(f"{where}: the role {role!r} has no column; name one or more columns")
    submission = content.get("submission", {})
    if len(submission.get("range", (0, 1))) != 2:
        raise PretuneError(f"{where}: submission.range needs two numbers, the lowest and the highest, as in [0, 5]")
    file = submission.get("file", "")
    if Path(file).name != file:
        raise PretuneError(f"{where}: submission.file: {quote(file)} must be a file name without a folder")


def _check_keys(values: Any, types: Mapping[str, Any], where: str) -> None:
    """Raise an error if a key's value has another type than `types` declares; `where` names the file and task."""
    for key, value in validate_schema(values, dict[str, Any], where).items():
        if key in types:
            validate_schema(value, types[key], f"{where}.{key}")


def find_suite(name: str | Path, language: str = "") -> Suite:
    """Return a suite by name, or from a YAML file; `language` is the training language of multilingual tasks.

    >>> list(find_suite("superglue").tasks)[:3]
    ['boolq', 'cb', 'copa']
    """
    file = ""
    if Path(name).suffix in (".yaml", ".yml"):
        content, file = read_recipe(name), str(Path(name).resolve())
    elif known := find_suite_file(str(name)):
        content = read_recipe(known)
    else:
        raise PretuneError(f"unknown suite {str(name)!r}; {suggest(str(name), suite_names())}")
    for key in content.keys() - KEYS.keys():
        raise PretuneError(f"{name}: the suite has the unknown key {quote(key)}; {suggest(str(key), KEYS)}")
    for key, value in content.items():
        validate_schema(value, KEYS[key], f"{name}: {key}")
    declared = content.get("tasks", {})
    if not declared:
        raise PretuneError(f"{name}: the suite has no tasks; list its tasks under `tasks`")
    tasks: dict[str, SuiteTask] = {}
    for own in declared:
        for task in _declare(own, declared, language, str(name)):
            tasks[task.name] = task
    return Suite(
        Path(name).stem, content.get("title", str(name)), content.get("source", ""), tasks,
        content.get("averages", {}), content.get("sums", {}), content.get("scale", 100), file,
    )  # fmt: skip


def _declare(name: str, declarations: Mapping[str, Any], language: str, suite: str) -> list[SuiteTask]:
    """Return the task declared as `name` in a suite's YAML file or, if it is multilingual, one task per language.

    `declarations` has the declarations of all tasks by name, and `suite` is the suite's name for error messages.
    """
    if not name or name.startswith(".") or Path(name).name != name:
        raise PretuneError(
            f"{suite}: {quote(name)} cannot be the name of a task, because it cannot be the name of the task's folder; choose another name"
        )
    content, taught = _inherited(name, declarations, suite), ""
    _check_task(content, f"{suite}, {name}")
    at = name
    while not _inherited(at, declarations, suite).get("files", {}).get("train") and declarations[at].get("like"):
        at = taught = declarations[at]["like"]
    languages = content.pop("languages", None)
    try:
        if not languages:
            return [SuiteTask(name=name, **{**content, "uses_model_of": taught})]
        first = language or languages[0]
        made = []
        for tongue in dict.fromkeys([first, *languages]):
            own = {split: _in_language(file, tongue) for split, file in content["files"].items()}
            if tongue != first:
                own.pop("train", None)
            told = {"title": f"{content['title']} {tongue}", "like": name, "language": tongue}
            taught = "" if tongue == first else f"{name}-{first}"
            made.append(
                SuiteTask(name=f"{name}-{tongue}", **{**content, **told, "files": own, "uses_model_of": taught})
            )
        return made
    except (KeyError, TypeError) as error:
        missing = ", ".join(re.findall(r"'(\w+)'", str(error)))
        raise PretuneError(
            f"{suite}: the task {name!r} lacks the keys {missing}; add these keys to the file"
        ) from error


def _inherited(name: Any, declarations: Mapping[str, Any], suite: str, via: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a task's declaration with the keys that it inherits from the task named under `like`.

    The keys `files`, `splits` and `counts` are not inherited. `via` are the tasks that led to this one, to detect
    cycles.
    """
    if not isinstance(name, str) or name not in declarations:
        raise PretuneError(f"{suite}: `like` names the unknown task {quote(name)}; {suggest(str(name), declarations)}")
    if name in via:
        raise PretuneError(
            f"{suite}: {' is like '.join([*via, name])}: a task cannot inherit from itself; change `like` in one of these tasks"
        )
    content = dict(declarations[name])
    if not content.get("like"):
        return content
    other = _inherited(content["like"], declarations, suite, (*via, name))
    own = {key: content.get(key, {}) for key in ("files", "counts", "splits")}
    return {
        **merge_recipes(other, content),
        **own,
        "roles": content.get("roles", other.get("roles")),
        "like": content["like"],
    }


def _in_language(name: Any, language: str) -> Any:
    if isinstance(name, list):
        return [_in_language(one, language) for one in name]
    return name.replace("{language}", language)


def _first(name: str, data: Path) -> list[Path]:
    """Return the paths of the first alternative in a name such as `a | b.{en,de}` whose files all exist, or []."""
    for choice in name.split("|"):
        names = _expand(choice.strip())
        for one in names:
            check_file_name(Path(one))
        paths = [data / one for one in names]
        if all(path.exists() for path in paths):
            return paths
    return []


def _expand(name: str) -> list[str]:
    """Return the file names that a name with braces stands for.

    >>> _expand("train.{en,de}")
    ['train.en', 'train.de']
    """
    before, brace, rest = name.partition("{")
    inside, _, after = rest.partition("}")
    return [before + part + after for part in inside.split(",")] if brace else [name]


def _cell(row: Row, name: Any) -> Any:
    """Return the field `name` of a row, where OUTER.INNER names a nested field; None if the field is missing."""
    if str(name) in row:
        return row[str(name)]
    outer, dot, inner = str(name).partition(".")
    return _cell(row[outer], inner) if dot and isinstance(row.get(outer), dict) else None
