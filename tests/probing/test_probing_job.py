"""A property planted in layer k of a model is found at layer k; interrupted jobs resume; all files are written."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pretune.inference.hidden_states import compute_states
from pretune.probing import probing_job
from pretune.probing.probes.layer_scores import ProbeSettings
from pretune.probing.probing_job import ProbingJob, read_scores, summary_rows, untrained_copy
from pretune.probing.probing_task import ProbingTask
from pretune.runtime.errors import PretuneError
from tests.support.probing import planted_model, random_task
from tests.support.tiny_models import random_model, small_tokenizer

QUICK = ProbeSettings(controls=False, num_seeds=1)


@pytest.mark.not_fast
@pytest.mark.parametrize("layer", [1, 3])
def test_property_of_layer_k_of_a_model_is_found_at_layer_k(layer: int, tmp_path: Path) -> None:
    task = random_task()
    job = ProbingJob(planted_model(task, layer), "planted", [task], tmp_path, ProbeSettings(num_seeds=1))
    [scores] = job.run()
    assert scores.best.layer == layer and scores.best.accuracy > 0.95
    for found in scores.layers:
        assert found.untrained is not None and found.untrained < 0.75
        assert found.control is not None and found.control < 0.75
        assert (found.accuracy > 0.9) == (found.layer >= layer)
    assert scores.expected_layer == pytest.approx(layer, abs=0.6)
    assert sum(scores.mix_weights[:layer]) < 0.5
    [row] = summary_rows([scores])
    assert row["best_layer"] == layer and row["selectivity"] > 0.2


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ProbingJob:
    tasks = [random_task("first", 120), random_task("=second/task", 120, seed=1)]
    job = ProbingJob(planted_model(tasks[0], 1, layers=2), "tiny", tasks[:1], tmp_path_factory.mktemp("out"), QUICK)
    job = replace(job, tasks=tasks[:1])
    job.run()
    return job


def test_tables_figures_and_report_are_written(finished: ProbingJob) -> None:
    rows = list(csv.DictReader((finished.out / "scores.csv").open(encoding="utf-8")))
    assert [row["layer"] for row in rows] == ["0", "1", "2"] and {row["task"] for row in rows} == {"first"}
    content = json.loads((finished.out / "scores.json").read_text(encoding="utf-8"))
    assert content["model"] == "tiny" and content["scores"][0]["layers"][1]["accuracy"] == float(rows[1]["accuracy"])
    for name in ("layers", "controls", "expected-layers"):
        assert (finished.out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (finished.out / f"{name}.svg").read_bytes()
    page = (finished.out / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3 and "first" in page and "<?xml" not in page


def test_finished_tasks_are_kept_unless_something_changed(
    finished: ProbingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    original = probing_job.probe_task

    def counted(vectors: Any, *rest: Any) -> Any:
        calls.append(vectors.task.name)
        return original(vectors, *rest)

    monkeypatch.setattr(probing_job, "probe_task", counted)
    before = finished.run()
    assert calls == [] and before[0].task == "first"
    file = finished.task_file(finished.tasks[0])
    file.write_bytes(file.read_bytes()[:-20])  # damaged
    assert finished.run() == before and calls == ["first"]
    replace(finished, layers=[0, -1]).run()
    assert calls == ["first", "first"]


def test_interrupted_job_keeps_finished_tasks(
    finished: ProbingJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = finished.tasks[0]
    other = ProbingTask("=second/task", "random", task.examples)
    job = replace(finished, tasks=[task, other], out=tmp_path, cache=finished.out / "representations", layers=[0])
    original = probing_job.probe_task

    def interrupted(vectors: Any, *rest: Any) -> Any:
        if vectors.task.name != task.name:
            raise KeyboardInterrupt
        return original(vectors, *rest)

    monkeypatch.setattr(probing_job, "probe_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job.run()
    assert (
        read_scores(job.task_file(task), job.task_key(task, [0])) is not None and not (tmp_path / "scores.csv").exists()
    )
    assert not (tmp_path / "representations").exists()  # the cache is elsewhere
    monkeypatch.setattr(probing_job, "probe_task", lambda vectors, *rest: original(vectors, *rest))
    assert [scores.task for scores in job.run()] == ["first", "=second/task"]
    assert "'=second/task" in (tmp_path / "scores.csv").read_text(encoding="utf-8")  # not a formula in spreadsheets


def test_wrong_layers_and_tasks_are_refused_before_texts_are_read(finished: ProbingJob, tmp_path: Path) -> None:
    job = replace(finished, out=tmp_path / "new")
    with pytest.raises(PretuneError, match=r"--layers 3: .* from 0 \(the embeddings\) to 2"):
        replace(job, layers=[0, 3]).run()
    one = ProbingTask("constant", "random", [replace(example, label="x") for example in finished.tasks[0].examples])
    with pytest.raises(PretuneError, match="task constant"):
        replace(job, tasks=[one]).run()
    assert not (tmp_path / "new").exists()


def test_layers_of_an_untrained_model_depend_on_the_context_even_if_outputs_start_at_zero() -> None:
    model = random_model("modernbert", small_tokenizer("byte-level-bpe"), "mlm", zero_outputs=True)
    assert not any(
        bool(weight.any()) for name, weight in model.random_backbone(0).named_parameters() if "output" in name
    )
    copy, again = (untrained_copy(model, seed=1) for _ in range(2))
    first, second, *_ = compute_states(copy, ["a class of objects"], hidden_states=True).hidden_states or ()
    assert float((first - second).norm() / first.norm()) > 1e-3  # 0 if nothing were drawn
    states = [compute_states(one, ["a class"]).last_hidden_state for one in (copy, again, model)]
    assert torch.equal(states[0], states[1]) and not torch.allclose(states[0], states[2])
