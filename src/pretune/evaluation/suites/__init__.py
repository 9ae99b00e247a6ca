"""Suites of tasks as data: one YAML file a suite, about a dozen lines a task, with its source.

    NAME:
      title: CoLA
      kind: classify                  an objective, options in brackets
      metrics: [matthews]             the official ones; a task's score is their mean
      files: {train: CoLA/train.tsv, dev: CoLA/dev.tsv, test: CoLA/test.tsv}
      roles: {text: 4, label: 2}      role → column; by number where a table has no header
      splits: {test: {roles: {…}}}    what is different in a split
      counts: {dev: 1043, test: 1063} rows of the official files
      prompt:                         how it is asked of a model that learned nothing: roles in braces, a gap, and words
        cloze: "{text}\nAcceptable? [MASK]"
        words: {"0": "no", "1": "yes"}
      version: 1

A file is one name, several that are read one after the other ([a, b]), the first that exists (`a | b`), or two that are read
line by line side by side (`train.{en,de}`). A role has a column, or several joined by a space ([title, body]); OUTER.INNER is a
field inside another. `values` are other names for values of a role, `leave_out` values whose rows are no examples. A task that is
`like` another has its keys, and its model too if it has no training file of its own. With `languages`, {language} in the names of
files stands for each; the model learns in the first, and is a task in every one.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def suite_names() -> tuple[str, ...]:
    """The names of all suites."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files(__package__).iterdir() if f.name.endswith(".yaml")))
