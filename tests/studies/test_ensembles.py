"""Tests of ensembles: their scores, the interval of their gain, expectations about them, and their place in reports."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t

from pretune import PretuneError
from pretune.studies.ensembles import ENSEMBLES, EnsembleComparison, read_ensembles
from pretune.studies.execution import StudyExecution, read_results
from pretune.studies.planning import plan_study
from pretune.studies.study_file import parse_study
from pretune.studies.study_report import render_report, render_summary
from pretune.studies.verdict import sentence
from pretune.training.jobs.finetuning import DEV_PREDICTIONS
from tests.support.studies import ARMS, study_content

ENSEMBLE = {"kind": "ensemble", "of": "word"}


def with_ensemble(**changes: Any) -> dict[str, Any]:
    """Return the content of a study with an ensemble of its task."""
    content = study_content(seeds=3, **changes)
    content["evaluations"]["together"] = ENSEMBLE
    return content


def test_the_interval_of_a_gain_is_that_of_the_jackknife() -> None:
    one = EnsembleComparison(
        "an ensemble", "one", "x.accuracy", (80.0,) * 3, (70.0, 72.0, 74.0), without=(78.0, 77.0, 75.0)
    )
    gains = [78 - 73, 77 - 72, 75 - 71]
    center = sum(gains) / 3
    error = math.sqrt(2 / 3 * sum((gain - center) ** 2 for gain in gains))
    assert one.difference == pytest.approx(8.0)
    assert one.standard_error == pytest.approx(error)
    assert one.half_width == pytest.approx(t.ppf(0.975, 2) * error)
    assert one.conclusion == "better"
    assert "an ensemble beats one by 8.0 ± 2.9" in sentence(one)


def test_an_ensemble_without_scores_says_so() -> None:
    one = EnsembleComparison("an ensemble of a", "a single model of a", "x.accuracy", (), ())
    assert one.conclusion == "open"
    assert "not scored, which takes three seeds" in sentence(one)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evaluations": {"together": {"kind": "ensemble", "of": "nothing"}}}, "'nothing' is unknown"),
        ({"expect": [{"ensemble": "word", "arm": "mlm"}]}, "'word' is unknown"),
        ({"expect": [{"ensemble": "together", "arm": "rtd"}]}, "'rtd' is unknown"),
        ({"expect": [{"better": "mlm", "than": "lm", "metric": "together"}]}, "'together' is unknown"),
    ],
)
def test_wrong_ensembles_are_refused(change: dict[str, Any], message: str) -> None:
    content = with_ensemble()
    content["evaluations"] |= change.pop("evaluations", {})
    with pytest.raises(PretuneError, match=message):
        parse_study({**content, **change}, "study.yaml")


def test_an_ensemble_needs_the_same_dev_examples_for_all_seeds() -> None:
    content = with_ensemble()
    del content["evaluations"]["word"]["dev"]
    with pytest.raises(PretuneError, match="under the key 'dev' of 'word'"):
        parse_study(content, "study.yaml")


def test_an_ensemble_of_compressed_models_is_refused() -> None:
    arms = {"small": {"compress": [{"prune": {"heads": 0.5}}]}, "whole": {"control": True}}
    content = {**with_ensemble(), "arms": arms, "base": {"model": "pretune-small-en"}}
    with pytest.raises(PretuneError, match="not of compressed ones"):
        parse_study(content, "study.yaml")


@pytest.mark.not_fast
def test_ensembles_of_a_study_average_the_predictions_of_its_seeds(tmp_path: Path) -> None:
    content = with_ensemble(expect=[{"ensemble": "together", "arm": "mlm"}])
    content["arms"] = {**ARMS, "none": {"control": True}}
    plan = plan_study(parse_study(content, "x"), "cpu")
    execution = StudyExecution(plan, content, tmp_path, "cpu")
    outcomes = execution.run()
    found = read_ensembles(tmp_path)["together"]
    assert set(found) == {"mlm", "lm", "none"}
    for arm, scores in found.items():
        own = sorted((one for one in outcomes if one.arm == arm), key=lambda one: one.seed)
        assert scores["single"] == pytest.approx([one.metrics["word.accuracy"] for one in own])
        assert len(scores["without"]) == 3
    results = read_results(plan.study, outcomes, tmp_path)
    assert len(results.judged) == 1 and str(results.judged[0].expectation) == "an ensemble of mlm beats a single model"
    for text in (
        render_summary(results, {"machine": "x", "threads": 1, "date": "today", "pretune": "0", "packages": {}}),
    ):
        assert text.count("an ensemble of mlm") >= 2
    page = render_report(results, {"machine": "x", "threads": 1, "date": "today", "pretune": "0", "packages": {}})
    assert "an ensemble of lm" in page
    # Of two seeds, no ensemble is left without one of them.
    for file in tmp_path.glob(f"runs/lm/*/seed-2/word/{DEV_PREDICTIONS}"):
        file.unlink()
    execution.measure_ensembles()
    assert set(json.loads((tmp_path / ENSEMBLES).read_text())["together"]) == {"mlm", "none"}
