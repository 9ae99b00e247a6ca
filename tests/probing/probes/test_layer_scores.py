"""Probes find a planted layer, controls stay at chance, and tasks that cannot be probed are refused by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pretune.probing.probes.layer_scores import ProbeSettings, accuracy_interval, check_task, layer_rows, probe_task
from pretune.probing.probing_task import ProbingExample, ProbingTask
from pretune.runtime.errors import PretuneError
from tests.support.probing import planted_vectors, random_task


@pytest.mark.not_fast
@pytest.mark.parametrize("probe", ["linear", "mlp"])
def test_planted_layer_is_found_and_controls_stay_at_chance(probe: str, tmp_path: Path) -> None:
    task = random_task(count=600 if probe == "linear" else 300)
    vectors = planted_vectors(task, tmp_path / "planted", layers=4, planted=[2])
    noise = planted_vectors(task, tmp_path / "noise", layers=4, planted=[])
    notes: list[str] = []
    settings = ProbeSettings(probe, num_seeds=2 if probe == "linear" else 1, mdl=probe == "linear")  # type: ignore[arg-type]
    scores = probe_task(vectors, noise, [0, 2, 3], settings, notes.append)
    assert [layer.layer for layer in scores.layers] == [0, 2, 3] and scores.best.layer == 2
    planted = scores.layers[1]
    assert planted.accuracy > 0.95 and planted.low > 0.9 and planted.high <= 1
    for layer in scores.layers:
        assert layer.untrained is not None and abs(layer.untrained - 0.5) < 0.25
        assert layer.control is not None and abs(layer.control - 0.5) < 0.25
        assert layer.selectivity == pytest.approx(layer.accuracy - layer.control)
        if layer.layer != 2:
            assert abs(layer.accuracy - 0.5) < 0.25 and abs(layer.selectivity) < 0.3
    assert scores.expected_layer == pytest.approx(2, abs=0.5) and scores.mix is not None and scores.mix > 0.9
    assert (
        scores.mix_low is not None and scores.mix_high is not None and scores.mix_low <= scores.mix <= scores.mix_high
    )
    assert len(notes) == 2 * 3 + settings.num_seeds
    if settings.mdl:
        assert (planted.compression or 0) > 3 > 1.1 > (scores.layers[0].compression or 9)
        assert 0.8 < (planted.control_compression or 0) < 1.1


def test_rows_have_differential_scores(tmp_path: Path) -> None:
    vectors = planted_vectors(random_task(), tmp_path, layers=2, planted=[1])
    settings = ProbeSettings(controls=False, num_seeds=1)
    rows = layer_rows([probe_task(vectors, None, [0, 1], settings, lambda note: None)])
    assert [row["layer"] for row in rows] == [0, 1] and rows[0]["differential"] is None
    assert rows[1]["differential"] == pytest.approx(rows[1]["cumulative"] - rows[0]["cumulative"])
    assert rows[1]["control"] is None and rows[1]["untrained"] is None


def test_tasks_that_cannot_be_probed_are_refused_by_name() -> None:
    def task(*cells: tuple[str, str]) -> ProbingTask:
        return ProbingTask("odd", "surface", [ProbingExample("a", label, split) for label, split in cells])  # type: ignore[arg-type]

    with pytest.raises(
        PretuneError, match=r"task odd: all training examples have the label 'x', .* at least two classes"
    ):
        check_task(task(("x", "train"), ("y", "dev"), ("y", "test")))
    with pytest.raises(PretuneError, match="task odd: there are no dev examples"):
        check_task(task(("x", "train"), ("y", "train"), ("y", "test")))
    spans = ProbingTask("many", "syntax", [ProbingExample("abc", label, split, ((0, 1),) * 3) for label, split in
                                           (("x", "train"), ("y", "train"), ("x", "dev"), ("x", "test"))])  # type: ignore[arg-type] # fmt: skip
    with pytest.raises(PretuneError, match="task many: an example has 3 spans"):
        check_task(spans)
    check_task(task(("x", "train"), ("y", "train"), ("y", "dev"), ("z", "test")))


def test_intervals_cover_the_accuracy_and_widen_with_differing_seeds() -> None:
    rng = np.random.default_rng(0)
    right = rng.random((1, 400)) < 0.8
    low, high = accuracy_interval(right)
    assert low < right.mean() < high and 0.04 < high - low < 0.14
    differing = np.stack([np.ones(400, dtype=bool), np.zeros(400, dtype=bool)])
    assert accuracy_interval(differing) == (0.0, 1.0)


def test_random_tasks_have_every_split() -> None:
    assert set(Counter(example.split for example in random_task().examples)) == {"train", "dev", "test"}
