"""Figures are drawn for partial results, too, and equal results give equal files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pretune.probing.probe_figures import write_figures
from pretune.probing.probes.layer_scores import LayerScores, TaskScores

LAYERS = [LayerScores(layer, 0.5 + layer / 10, 0.4, 0.9, 0.5, control=0.5, untrained=0.55) for layer in range(4)]
SCORES = TaskScores(
    "tense", "syntax", 2, 80, 10, 10, 0.5, LAYERS, 0.8, 0.7, 0.9, [0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], 2.0, 2.5
)


def test_equal_results_give_equal_files(tmp_path: Path) -> None:
    tasks = [
        SCORES,
        replace(SCORES, task="costs $5 or $6, 비용", expected_layer=None),
        *[replace(SCORES, task=f"t{i}") for i in range(3)],
    ]
    written = write_figures(tasks, tmp_path / "a")
    assert set(written) == {"layers", "controls", "expected-layers"}
    assert all(html.count("<svg") == 1 and "<?xml" not in html for html in written.values())
    assert write_figures(tasks, tmp_path / "b") == written
    first, second = (sorted(file.read_bytes() for file in (tmp_path / name).iterdir()) for name in "ab")
    assert first == second and sum(content.startswith(b"\x89PNG") for content in first) == 3
    assert "비용" in written["layers"]


def test_results_without_mixes_and_controls(tmp_path: Path) -> None:
    bare = [LayerScores(0, 0.3, 0.2, 0.4, 0.3)]
    scores = [replace(SCORES, layers=bare, mix=None, mix_weights=[], cumulative=[])]
    assert set(write_figures(scores, tmp_path)) == {"layers", "controls"}


def test_a_single_layer_has_no_expected_layer(tmp_path: Path) -> None:
    assert set(write_figures([replace(SCORES, layers=LAYERS[:1])], tmp_path)) == {"layers", "controls"}
