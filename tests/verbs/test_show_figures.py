"""Tests of the figures of `show --plot`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.models.create_model import make_model
from pretune.nn.attention.patterns import causal, full, window
from pretune.objectives import parse_objective
from pretune.objectives.demo import SENTENCE, corrupt_demo, make_demo_data
from pretune.verbs.show_figures import attention_mask, layer_patterns, mask_columns

PNG = b"\x89PNG"


def test_masks_of_plain_patterns() -> None:
    columns = {"position": torch.arange(6)}
    query, key = np.indices((6, 6))
    assert (attention_mask(full, columns) == 1).all()
    assert (attention_mask(causal & window(2), columns) == ((key <= query) & (query - key <= 2))).all()


def test_the_mask_of_a_permutation_hides_each_predicted_token_from_itself(tmp_path: Path) -> None:
    material = make_demo_data(SENTENCE, tmp_path)
    (joint,) = parse_objective("plm").joints
    _, sequences, _ = corrupt_demo(joint, material, 0)
    assert sequences.pattern is not None
    columns = mask_columns(sequences)
    mask = attention_mask(sequences.pattern, columns)
    queries = columns["stream"].numpy() == 1
    assert queries.any() and not mask[:, queries].any() and mask[queries].any()
    content = np.flatnonzero(~queries)
    assert mask[content, content].all()


@pytest.mark.parametrize(
    ("preset", "objective", "reaches"),
    [
        ("gpt3-tiny", "lm", [(-1, 0), (31, 0)]),
        ("bert-tiny", "mlm", [(-1, -1)]),
        ("xlnet-tiny", "plm", [(-1, -1)]),
        ("lstm-lm-tiny", "lm", []),
    ],
)
def test_patterns_of_layers(preset: str, objective: str, reaches: list[tuple[int, int]]) -> None:
    batch = parse_objective(objective).objectives[0].pattern
    with torch.device("meta"):
        found = layer_patterns(make_model(preset).backbone, batch)
    assert [pattern.reach for pattern in found.values()] == reaches
    assert all(" & causal & " not in title and title.count("causal") < 2 for title in found)


@pytest.mark.not_fast
@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("transformer-tiny", ["attention", "positions", "schedule"]),
        ("lstm-lm-tiny", ["schedule"]),
        ("mlm+nsp", ["mask"]),
        ("spans", ["mask"]),
    ],
)
def test_figures_are_written(what: str, names: list[str], tmp_path: Path) -> None:
    found = pt.show(what, plot=tmp_path / "plots").facts["plots"]
    expected = sorted(str(tmp_path / "plots" / f"{name}.{kind}") for name in names for kind in ("svg", "png"))
    assert sorted(found) == expected == sorted(map(str, (tmp_path / "plots").iterdir()))
    assert all(Path(file).read_bytes().startswith(PNG) for file in found if file.endswith("png"))


def test_only_presets_and_objectives_are_plotted(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="applies only to a preset, such as bert-base"):
        pt.show("presets", plot=tmp_path / "plots")
