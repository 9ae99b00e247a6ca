"""Repeat a run that failed unexpectedly in another way of executing its steps, so that a fault of one way does not cost the result.

Attempt 1 records steps as CUDA graphs and compiles long trainings only; attempt 2 does neither; attempt 3 compiles all pretraining, and
does not record. On a CPU, all attempts are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pretune.studies.study_file import Evaluation
from pretune.studies.study_run import Outcome, StudyRun, finetune_original, run_once
from pretune.training import loop
from pretune.training.jobs import pretraining

UNEXPECTED = re.compile(r"[A-Z]\w*(Error|Exception|Failed|Unsupported|OutOfResources)\b|Unsupported:|OutOfResources:")


def is_unexpected(error: str) -> bool:
    """Return whether an error is a fault of the program or of the machine, and not one in the settings.

    >>> is_unexpected("RuntimeError: operation not permitted when stream is capturing"), is_unexpected("x.tsv: no such file")
    (True, False)
    """
    return UNEXPECTED.match(error) is not None


def run_attempt(run: StudyRun, attempt: int) -> Outcome:
    """Do a run; from the second attempt on, without CUDA graphs, and in the third, with compilation."""
    with executing(attempt):
        return run_once(run)


def finetune_original_attempt(run: StudyRun, evaluation: Evaluation, attempt: int) -> None:
    """Fine-tune a model that arms compress, with the same attempts as a run."""
    with executing(attempt):
        finetune_original(run, evaluation)


@contextmanager
def executing(attempt: int) -> Iterator[None]:
    """Return a context manager in which training steps are executed in the way of an attempt, counted from 1."""
    prepare = loop.prepare_execution

    def prepare_plain(training: loop.Training, *others: Any) -> Any:
        training.cuda_graphs = False
        return prepare(training, *others)

    if attempt == 1:
        yield
        return
    with (
        patch.object(loop, "prepare_execution", prepare_plain),
        patch.object(pretraining, "pays_to_compile", lambda job, model: attempt > 2),
    ):
        yield
