"""Tests of `pretune compress`: targets, the Pareto front, and the search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.compression import pipeline_search, pruning_job, quantization, task_model
from pretune.compression.benchmark import measure_costs
from pretune.compression.pipeline_search import default_pipelines, parse_pipeline, plot_pareto
from pretune.compression.targets import Candidate, Target, choose_candidate, parse_target
from tests.support.one_word_task import start, trained

pytestmark = pytest.mark.usefixtures("briefly")
pytest.importorskip("onnxruntime")


@pytest.mark.end_to_end
def test_search_keeps_the_best_candidate(tmp_path: Path) -> None:
    data = start() / "train.csv"
    run = pt.compress(
        trained(), target=["quality>=0.5", "size=600KB"], train=data, dev=data, out=tmp_path / "best",
        pipelines=["layers=2 > int8", "layers=2"], budget=pt.Budget(steps=8),
        optimizer=pt.Optimizer(lr=2e-3), batch=pt.Batching(size=16),
    )  # fmt: skip
    facts = run.results
    assert [row["model"] for row in facts["candidates"]] == ["uncompressed", "layers=2 > int8", "layers=2"]
    assert facts["chosen"] in facts["pareto"]["bytes"] + facts["pareto"]["latency"]
    assert (tmp_path / "best/pareto.png").stat().st_size > 1000
    assert sorted(path.name for path in (tmp_path / "best/candidates").iterdir()) == ["layers2", "layers2+int80"]
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    assert pt.predict(tmp_path / "best", ["good stone"])[0]["label"] in ("yes", "no")


@pytest.mark.not_fast
def test_int8_candidates_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[list[str]] = []

    def measure(models: Any, *rest: Any) -> Any:
        measured.append(list(models))
        return measure_costs(models, *rest)

    for module in (pipeline_search, task_model):
        monkeypatch.setattr(module, "measure_costs", measure)
    data = start() / "train.csv"
    out = tmp_path / "best"
    run = pt.compress(trained(), target="quality>=0.01", train=data, dev=data, out=out, pipelines=["int8"])
    assert measured == [["uncompressed", "int8"]]
    assert run.results["candidates"][1]["latency_ms"] > 0


@pytest.mark.not_fast
def test_the_plot_leaves_the_backend_of_notebooks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "backend", "svg")
    plot_pareto([Candidate("a", 100, 0.1, 1.0), Candidate("b", 50, 0.2, 0.9)], tmp_path / "plot.png", "accuracy")
    assert matplotlib.get_backend() == "svg"
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def search(out: Path, *sequences: str) -> pt.Run:
    data = start() / "train.csv"
    return pt.compress(
        trained(), target="quality>=0.01", train=data, dev=data, out=out, pipelines=sequences,
        budget=pt.Budget(steps=2), batch=pt.Batching(size=16),
    )  # fmt: skip


@pytest.mark.not_fast
def test_failed_candidate_is_reported_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(job: pruning_job.PruningJob) -> None:
        tried.append(job.out.name)
        job.out.mkdir(parents=True)
        raise RuntimeError("out of\nmemory")

    def refuse(job: quantization.QuantizationJob) -> None:
        raise PretuneError("as a graph it gives other states")

    monkeypatch.setattr(pruning_job, "run_pruning", fail)
    monkeypatch.setattr(quantization, "run_quantization", refuse)
    run = search(
        tmp_path / "best", "int8", "ffn_units=0.5", "ffn_units=0.5 > sparsity=0.5", "layers=2", "layers=2 > int8"
    )
    rows = {row["model"]: row for row in run.results["candidates"]}
    assert list(rows) == [
        "uncompressed",
        "layers=2",
        "int8",
        "ffn_units=0.5",
        "ffn_units=0.5 > sparsity=0.5",
        "layers=2 > int8",
    ]
    assert rows["int8"]["failed"] == rows["layers=2 > int8"]["failed"] == "as a graph it gives other states"
    assert (
        rows["ffn_units=0.5"]["failed"]
        == rows["ffn_units=0.5 > sparsity=0.5"]["failed"]
        == "RuntimeError: out of memory"
    )
    assert tried == ["ffn_units0.5"]  # a failed step is not repeated
    assert "failed" not in rows["layers=2"] and run.results["chosen"] in ("uncompressed", "layers=2")
    assert [path.name for path in (tmp_path / "best/candidates").iterdir()] == ["layers2"]
    assert pt.predict(tmp_path / "best", ["good stone"])[0]["label"] in ("yes", "no")
    with pytest.raises(
        PretuneError, match="all 2 candidates failed; solve this first error: int8: as a graph it gives other states"
    ):
        search(tmp_path / "none", "int8", "ffn_units=0.5")
    assert not (tmp_path / "none").exists()


def test_targets_are_parsed() -> None:
    assert parse_target("latency<=20ms") == Target("latency", 0.02)
    assert parse_target("size=1.5MB") == Target("size", 1_500_000)
    for text in ("latency=20ms", "size=1500000", "quality>=0.97"):
        assert str(parse_target(text)) == text
    for text, words in (
        ("speed=3", "for example, latency=5ms"),
        ("quality<=0.9", "quality needs >="),
        ("quality>=97", "at most 1"),
        ("latency=fast", "not a latency"),
    ):
        with pytest.raises(PretuneError, match=words):
            parse_target(text)


def test_candidate_is_chosen_by_the_targets() -> None:
    found = [Candidate("whole", 100, 1.0, 1.0), Candidate("half", 50, 0.5, 0.98), Candidate("tiny", 10, 0.1, 0.8)]
    assert choose_candidate(found, [parse_target("quality>=0.97")]) == found[1]
    assert choose_candidate(found, [Target("size", 60)]) == found[1]
    assert choose_candidate(found, [Target("latency", 0.2), Target("quality", 0.9)]) is None


def test_pipelines_are_parsed() -> None:
    assert "layers=6 > int8" in default_pipelines(12)
    for text in default_pipelines(12):
        parse_pipeline(text)
    for text, words in (
        ("int8 > layers=6", "the step 'layers' must be the first"),
        ("layer=6", "did you mean 'layers'"),
        ("heads", "needs a number"),
    ):
        with pytest.raises(PretuneError, match=words):
            parse_pipeline(text)


def test_model_without_a_task_is_rejected(tmp_path: Path) -> None:
    data = start() / "train.csv"
    with pytest.raises(PretuneError, match="compares models by the metric of a task"):
        pt.compress(start() / "start", target="size=1MB", train=data, dev=data, out=tmp_path / "never")
    assert not (tmp_path / "never").exists()
