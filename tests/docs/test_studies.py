"""Tests that the studies of docs/studies are valid, can be planned with equal budgets, and are listed with their status."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from pretune.objectives import parse_objective
from pretune.studies.arm_jobs import EvaluationRun, finetuning_job
from pretune.studies.compression_steps import compression_job
from pretune.studies.planning import plan_study
from pretune.studies.study_file import read_study
from tests.support.paths import DOCS

STUDIES = sorted((DOCS / "studies").glob("*.yaml"))


@pytest.mark.not_fast
@pytest.mark.parametrize("file", STUDIES, ids=lambda path: path.stem)
def test_study_is_planned_with_equal_budgets(file: Path) -> None:
    study = read_study(file)
    plan = plan_study(study, "cpu")
    plan.check()
    assert plan.seconds > 0 and all(
        row["steps"] > 0 or row["arm"] in controls(file) for row in (one.row() for one in plan.arms)
    )
    assert study.seeds >= 3 and study.expectations and study.claim and study.source and study.departures


@pytest.mark.not_fast
@pytest.mark.parametrize("file", STUDIES, ids=lambda path: path.stem)
def test_jobs_of_all_tasks_and_compression_steps_of_a_study_can_be_made(file: Path) -> None:
    study, where = read_study(file), Path("folder")
    for arm, evaluation in product(study.arms, study.evaluations):
        if evaluation.kind == "task":
            run = EvaluationRun(arm, evaluation, "pretune-small-en", 0, where)
            parse_objective(finetuning_job(run).objective)
            for step in arm.compress:
                compression_job(replace(run, model="folder"), step)


@pytest.mark.not_fast
@pytest.mark.parametrize("file", sorted((DOCS / "studies" / "cpu").glob("*.yaml")), ids=lambda path: path.stem)
def test_study_for_a_cpu_is_planned_with_equal_budgets(file: Path) -> None:
    plan_study(read_study(file), "cpu").check()


def controls(file: Path) -> set[str]:
    """Return the names of the arms of a study that spend nothing."""
    return {arm.name for arm in read_study(file).arms if arm.control}


def test_every_study_is_listed_once() -> None:
    page = (DOCS / "studies" / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\(([\w-]+\.yaml)\)", page)) == [file.name for file in STUDIES]
    rows = re.findall(
        r"^\| (\d+) \|.*\| (not measured yet|holds|holds in part|does not hold|undecided|no study file yet)[^|]* \|$",
        page,
        re.MULTILINE,
    )
    assert [int(number) for number, _ in rows] == list(range(1, 24))
