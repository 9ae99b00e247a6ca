"""Objectives: what a model is trained for, self-supervised or supervised.

`objective` and `task` hold the contracts, `registry` the names, `expression` the language in which users combine them, and
`joint` their combinations. The objectives themselves are in `pretraining`, `seq2seq`, `tasks` and `distillation`.
"""

from __future__ import annotations

from pretune.objectives.expression import add_task_options, parse_objective
from pretune.objectives.joint import JointObjective, Mixture, single_objective
from pretune.objectives.objective import AddsTokens, Data, LearnsFromRows, Loss, Objective, TwoSided
from pretune.objectives.registry import OBJECTIVES, register_objective, register_task, task_names
from pretune.objectives.task import Task
from pretune.objectives.tasks.renamed_task import RenamedTask

__all__ = [
    "OBJECTIVES",
    "AddsTokens",
    "Data",
    "JointObjective",
    "LearnsFromRows",
    "Loss",
    "Mixture",
    "Objective",
    "RenamedTask",
    "Task",
    "TwoSided",
    "add_task_options",
    "parse_objective",
    "register_objective",
    "register_task",
    "single_objective",
    "task_names",
]
