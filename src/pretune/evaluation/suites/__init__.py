r"""Suites of tasks as data: one YAML file per suite, about a dozen lines per task, with its source.

    NAME:
      title: CoLA
      kind: classify                  an objective, with options in parentheses
      metrics: [matthews]             the official metrics; the score of a task is their mean
      files: {train: CoLA/train.tsv, dev: CoLA/dev.tsv, test: CoLA/test.tsv}
      roles: {text: 4, label: 2}      role → column; by number where a table has no header
      splits: {test: {roles: {…}}}    what differs in a split; rows: [0, 80] takes a part of its files' rows
      counts: {dev: 1043, test: 1063} numbers of rows in the official files
      prompt:                         for in-context learning: a template with roles in braces and [MASK], and a word per label
        template: "{text}\nAcceptable? [MASK]"
        verbalizer: {"0": "no", "1": "yes"}
      version: 1

A file is one name, a list of names whose rows are concatenated ([a, b]), the first that exists (`a | b`), or two files with parallel
lines (`train.{en,de}`). A role has a column, or several that are joined by a space ([title, body]); OUTER.INNER is a nested field.
`values` maps values of a role to others; rows with the values in `leave_out` are skipped. A task that is `like` another inherits its
keys, and its model if it has no training file. The suite's `averages` and `sums` map names to the columns that are averaged or summed.
With `languages`, {language} in file names stands for each language; the model is trained in the first language and evaluated in all.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pretune.runtime.errors import PretuneError
from pretune.runtime.plugins import entry_point_files, yaml_files

GROUP = "pretune.suites"
_registered: dict[str, Path] = {}


def register_suite(file: str | Path) -> Path:
    """Register a YAML file as a suite under the name of the file without its suffix, and return its path.

    Published results of the suite are read from `references/NAME.yaml` beside the file, if it exists. An installed package
    can register its suites by an entry point instead, which names a package (or the path of a folder) with YAML files:

        [project.entry-points."pretune.suites"]
        my-package = "my_package.suites"
    """
    path = Path(file).resolve()
    if path.suffix != ".yaml" or not path.is_file():
        raise PretuneError(f"{file}: a suite must be an existing .yaml file; check the path")
    if path.stem in built_in_suites() or _registered.setdefault(path.stem, path) != path:
        raise PretuneError(f"{file}: a suite named {path.stem!r} is already registered; choose another file name")
    return path


@cache
def built_in_suites() -> dict[str, Path]:
    """Return the YAML files of the benchmark suites that are part of pretune, by suite name."""
    return yaml_files(Path(__file__).parent)


def find_suite_file(name: str) -> Path | None:
    """Return the YAML file of a benchmark suite, or None if no suite has this name."""
    if name in built_in_suites():  # also while a package with other suites is broken
        return built_in_suites()[name]
    return {**entry_point_files(GROUP), **_registered}.get(name)


def suite_names() -> tuple[str, ...]:
    """Return the names of all suites, sorted: built-in suites, registered suites, and suites of installed packages."""
    return tuple(sorted({**entry_point_files(GROUP), **_registered, **built_in_suites()}))
