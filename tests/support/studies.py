"""Studies that take seconds, and results that were made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pretune.runtime.recipe import merge_recipes
from pretune.studies.results import StudyResults
from pretune.studies.study_file import parse_study
from pretune.studies.study_run import Outcome
from tests.support.one_word_task import start

ARMS: dict[str, Any] = {"mlm": {"pretrain": {"objective": "mlm"}}, "lm": {"pretrain": {"objective": "lm"}}}


def study_content(**changes: Any) -> dict[str, Any]:
    """Return the content of a file of a study of two objectives on made-up text, with some keys replaced."""
    folder = start()
    tiny = {
        "model": "bert-tiny",
        "pretrain": {
            "data": str(folder / "text.txt"),
            "tokenizer": {"vocab_size": 100},
            "batch": {"tokens": 64, "max_length": 16},
        },
    }
    task = {
        "kind": "task",
        "train": str(folder / "train.csv"),
        "dev": str(folder / "train.csv"),
        "budget": {"steps": 3},
        "batch": {"size": 8, "max_length": 16},
    }
    content = {
        "question": "Which objective is better?",
        "budget": {"tokens": 640},
        "seeds": 2,
        "base": tiny,
        "arms": ARMS,
        "evaluations": {"word": task},
    }
    return merge_recipes(content, changes) if "arms" not in changes else {**merge_recipes(content, {}), **changes}


def made_up_results(
    scores: Mapping[str, Sequence[float | None]],
    metric: str = "task.accuracy",
    errors: Mapping[str, str] | None = None,
    **study: Any,
) -> StudyResults:
    """Return the results of a study whose arms have the given scores, one per seed; None stands for a failed run."""
    evaluation, name = metric.split(".")
    content: dict[str, Any] = {
        "question": "Which arm is best?",
        "budget": {"flops": 1e16},
        "seeds": max(map(len, scores.values())),
        "arms": {arm: {"model": "bert-tiny", "pretrain": {"data": "x.txt"}} for arm in scores},
        "evaluations": {evaluation: {"kind": "task", "train": "train.csv", "dev": "dev.csv"}},
        **study,
    }
    outcomes = []
    for arm, values in scores.items():
        for seed, value in enumerate(values):
            cost = {"flops": 1e16, "tokens": 1e6, "seconds": 60.0 + seed, "step": 100.0}
            one = Outcome(
                arm, seed, 1e16, "digest", error=(errors or {}).get(arm, "step 3: the gradient is not a number")
            )
            if value is not None:
                one = Outcome(
                    arm, seed, 1e16, "digest", metrics={metric: value}, primary={evaluation: name}, examples={evaluation: 500}, cost=cost, seconds=90.0,
                    parameters=1000, curve=[{"step": 1.0, "flops": 1e15, "seconds": 1.0, "mlm": 5.0}, {"step": 2.0, "flops": 1e16, "seconds": 2.0, "mlm": 4.0}],
                )  # fmt: skip
            outcomes.append(one)
    return StudyResults(parse_study(content, "made up"), tuple(outcomes))


def written(folder: Path) -> dict[str, float]:
    """Return when each outcome in a folder of a study was written, by its path."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("outcome.json")}
