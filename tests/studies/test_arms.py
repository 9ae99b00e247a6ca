"""Tests of what arms and evaluations can be: adapted, compressed, scored on further files, and measured in other ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pretune import PretuneError
from pretune.studies.arm_jobs import training_stages
from pretune.studies.execution import StudyExecution, read_latency
from pretune.studies.planning import plan_study
from pretune.studies.results import StudyResults
from pretune.studies.study_file import parse_study
from tests.support.one_word_task import start
from tests.support.studies import ARMS, study_content, written

COMPRESSED: dict[str, Any] = {
    "original": {"control": True},
    "int8": {"control": True, "compress": [{"quantize": {"method": "dynamic"}}]},
    "pruned": {"compress": [{"prune": {"drop_layers": "top(8)"}}]},
    "distilled, then pruned": {
        "compress": [{"distill": {"student": "layers=2", "alpha": 1.0}}, {"prune": {"ffn_units": 0.5}}]
    },
}


def compression_study(**changes: Any) -> dict[str, Any]:
    """Return the content of a file of a study that compares ways to compress the bundled model."""
    content = study_content(arms=COMPRESSED, seeds=1) | {"base": {"model": "pretune-small-en"}}
    content["budget"] = {"tokens": 400}
    content["evaluations"]["word"]["budget"] = {"steps": 2}
    content["evaluations"]["word"]["also"] = {"again": str(start() / "train.csv")}
    return {**content, **changes}


def execute(content: dict[str, Any], out: Path, **options: Any) -> StudyResults:
    """Do a study in a folder, and return its results."""
    plan = plan_study(parse_study(content, "x"), "cpu")
    plan.check()
    outcomes = StudyExecution(plan, content, out, "cpu", **options).run()
    return StudyResults(plan.study, tuple(outcomes), read_latency(out))


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)  # on busy processors
def test_compressed_arms_share_the_fine_tuned_model_and_its_cost_is_not_counted(tmp_path: Path) -> None:
    content = compression_study()
    content["evaluations"]["speed"] = {"kind": "latency", "lengths": [16, 32]}
    results = execute(content, tmp_path / "out")
    assert [outcome.error for outcome in results.outcomes] == [None] * 4
    by_arm = {outcome.arm: outcome for outcome in results.outcomes}
    assert len(list(tmp_path.glob("out/finetuned/*/seed-0/recipe.yaml"))) == 1
    assert not by_arm["original"].cost and not by_arm["int8"].cost
    for name in ("pruned", "distilled, then pruned"):
        assert by_arm[name].cost["tokens"] >= 400
    for outcome in results.outcomes:
        assert outcome.metrics["word.again/accuracy"] == pytest.approx(outcome.metrics["word.accuracy"])
    latency = read_latency(tmp_path / "out")
    assert latency["int8"]["megabytes"] < latency["original"]["megabytes"]
    assert latency["pruned"]["megabytes"] < latency["original"]["megabytes"]
    assert all({"tokens_per_second_16", "tokens_per_second_32"} <= costs.keys() for costs in latency.values())
    before = written(tmp_path / "out")
    assert execute(content, tmp_path / "out").outcomes == results.outcomes and written(tmp_path / "out") == before


@pytest.mark.not_fast
def test_an_arm_is_adapted_after_pretraining_within_the_same_budget(tmp_path: Path) -> None:
    adapted = {"adapt": {"data": str(start() / "text.txt"), "share": 0.2, "objective": "mlm(unit=word)"}}
    content = study_content(arms={**ARMS, "adapted": {"pretrain": {"objective": "mlm"}, **adapted}}, seeds=1)
    results = execute(content, tmp_path / "out")
    assert [outcome.error for outcome in results.outcomes] == [None] * 3
    by_arm = {outcome.arm: outcome for outcome in results.outcomes}
    assert by_arm["adapted"].cost["tokens"] == pytest.approx(by_arm["mlm"].cost["tokens"], rel=0.2)
    runs = tmp_path / "out" / "runs" / "adapted"
    recipes = {path.parent.name: path.read_text(encoding="utf-8") for path in runs.glob("*/seed-0/*/recipe.yaml")}
    assert "unit=word" in recipes["adapted"] and "unit=word" not in recipes["pretrained"]
    assert len(list((tmp_path / "out" / "text").iterdir())) == 2  # the second has the tokenizer of the first


def test_the_stages_of_an_arm_share_its_budget() -> None:
    content = study_content(
        arms={"a": {}, "b": {"adapt": {"data": "new.txt", "share": 0.3, "batch": {"max_length": 8}}}}
    )
    plain, adapted = parse_study(content, "x").arms
    assert [share for _, share in training_stages(plain)] == [1.0]
    (first, rest), (second, share) = training_stages(adapted)
    assert (rest, share) == (0.7, 0.3) and first.adapt is None
    assert second.pretrain is not None and second.pretrain["data"] == "new.txt"
    assert second.pretrain["batch"] == {"tokens": 64, "max_length": 8}
    plan = plan_study(parse_study(content, "x"), "cpu")
    assert [(one.steps, one.spent) for one in plan.arms] == [(10, 640), (10, 640)]


@pytest.mark.not_fast
def test_a_vocabulary_is_measured_by_its_tokens(tmp_path: Path) -> None:
    content = study_content(
        arms={"small": {"pretrain": {"tokenizer": {"vocab_size": 60}}}, "large": {"control": True}}, seeds=1
    )
    content["base"]["pretrain"]["objective"] = "mlm"
    content["budget"] = {"tokens": 64}
    content["evaluations"]["fertility"] = {"kind": "vocabulary", "data": str(start() / "text.txt")}
    small, large = execute(content, tmp_path / "out").outcomes
    assert small.error is None and large.error is None
    assert small.metrics["fertility.vocabulary"] < large.metrics["fertility.vocabulary"]
    assert small.metrics["fertility.tokens_per_word"] > large.metrics["fertility.tokens_per_word"] >= 1


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)  # on busy processors
def test_a_generative_model_is_prompted_with_examples(tmp_path: Path) -> None:
    data = tmp_path / "data" / "RTE"
    data.mkdir(parents=True)
    rows = "".join(
        f"{n}\tIt rains.\tIt is wet.\t{label}\n" for n, label in enumerate(["entailment", "not_entailment"] * 4)
    )
    for name in ("train.tsv", "dev.tsv"):
        (data / name).write_text(f"index\tsentence1\tsentence2\tlabel\n{rows}", encoding="utf-8")
    content = study_content(arms={"lm": {"pretrain": {"objective": "lm"}}, "none": {"control": True}}, seeds=1)
    content["base"]["model"] = "gpt2-tiny"
    shots = {
        "kind": "suite",
        "suite": "glue",
        "data": str(tmp_path / "data"),
        "tasks": ["rte"],
        "allow_incomplete": True,
    }
    content["evaluations"] = {f"shots_{count}": {**shots, "shots": count} for count in (0, 1)}
    content["expect"] = [{"arm": "lm", "better": "shots_1", "than": "shots_0"}]
    results = execute(content, tmp_path / "out")
    assert [outcome.error for outcome in results.outcomes] == [None, None]
    assert all(0 <= outcome.metrics["shots_1.mean"] <= 1 for outcome in results.outcomes)
    (judged,) = results.judged
    assert str(judged.expectation) == "lm is better on shots_1 than on shots_0" and judged.verdict == "undecided"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"compress": [{"prune": {}, "quantize": {}}]},
            "a step must have exactly one of the keys distill, prune, quantize",
        ),
        ({"compress": [{"squeeze": {}}]}, "compress 1: 'squeeze' is unknown"),
        ({"compress": [{"prune": {"head": 0.5}}]}, "unknown key 'head'; did you mean 'heads'"),
        ({"compress": [{"distill": {"student": "layers=2"}}], "control": True}, "but the step 'distill' trains"),
        ({"compress": [{"quantize": {"method": "dynamic"}}]}, "is not trained after fine-tuning.* add 'control: true'"),
        ({"compress": [{"prune": {"heads": 0.5, "epochs": 1}}]}, "applies to compression and replaces 'epochs'"),
        ({"adapt": {"data": "x.txt"}}, "'adapt' follows pretraining, but the arm has none"),
    ],
)
def test_arms_that_do_not_make_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        parse_study(compression_study(arms={**COMPRESSED, "odd": changes}), "x")


def test_compressed_models_need_the_same_examples_to_be_compared_on() -> None:
    content = compression_study()
    del content["evaluations"]["word"]["dev"]
    with pytest.raises(PretuneError, match=r"evaluations.word: .* name their file under the key 'dev'"):
        parse_study(content, "x")


def test_an_expectation_can_name_a_metric_of_a_further_file() -> None:
    content = compression_study(expect=[{"better": "original", "than": "int8", "metric": "word.again/accuracy"}])
    (expectation,) = parse_study(content, "x").expectations
    assert json.dumps(str(expectation)) == '"original beats int8 on word.again/accuracy"'
