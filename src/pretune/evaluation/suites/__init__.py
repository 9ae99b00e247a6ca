"""Suites of tasks as data: one YAML file per suite, about a dozen lines per task, with its source.

    NAME:
      title: CoLA
      kind: classify                  an objective, with options in parentheses
      metrics: [matthews]             the official metrics; the score of a task is their mean
      files: {train: CoLA/train.tsv, dev: CoLA/dev.tsv, test: CoLA/test.tsv}
      roles: {text: 4, label: 2}      role → column; by number where a table has no header
      splits: {test: {roles: {…}}}    what differs in a split
      counts: {dev: 1043, test: 1063} numbers of rows in the official files
      prompt:                         for in-context learning: a template with roles in braces and [MASK], and a word per label
        cloze: "{text}\nAcceptable? [MASK]"
        words: {"0": "no", "1": "yes"}
      version: 1

A file is one name, a list of names whose rows are concatenated ([a, b]), the first that exists (`a | b`), or two files with parallel
lines (`train.{en,de}`). A role has a column, or several that are joined by a space ([title, body]); OUTER.INNER is a nested field.
`values` maps values of a role to others; rows with the values in `leave_out` are skipped. A task that is `like` another inherits its
keys, and its model if it has no training file. With `languages`, {language} in file names stands for each language; the model is trained
in the first language and evaluated in every one.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def suite_names() -> tuple[str, ...]:
    """Return the names of all suites."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files(__package__).iterdir() if f.name.endswith(".yaml")))
