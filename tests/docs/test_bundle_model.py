"""Tests of script/bundle_model.py: models in 16 or 8 bits compute nearly the same, and their cards have scores and limits."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.models.loading import load
from tests.support.paths import ROOT
from tests.support.tiny_models import read, tiny

SPEC = spec_from_file_location("bundle_model", ROOT / "script" / "bundle_model.py")
assert SPEC is not None and SPEC.loader is not None
bundle_model: Any = module_from_spec(SPEC)
SPEC.loader.exec_module(bundle_model)
TEXTS = ["red yes blue no .", "it was red ."]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a tiny model with a head for masked tokens, and the costs of its training."""
    folder = Path(tiny("bert-tiny", read(TEXTS * 4), tmp_path / "run", "mlm"))
    (folder / "results.json").write_text(json.dumps({"tokens": 1e6, "seconds": 60.0}))
    return folder


def bundle(run: Path, out: Path, *words: str) -> Path:
    bundle_model.main([str(run), "tiny", "--about", str(ROOT / "script/cards/en.md"), "--out", str(out), *words])
    return out


def vectors(folder: Path) -> torch.Tensor:
    return torch.tensor([row["vector"] for row in pt.embed(str(folder), TEXTS)])


@pytest.mark.not_fast
@pytest.mark.parametrize("method", ["bf16", "fp16", "int8"])
def test_bundled_weights_are_smaller_and_compute_nearly_the_same(run: Path, tmp_path: Path, method: str) -> None:
    out = bundle(run, tmp_path / "out", "--method", method)
    before, after = (sum(file.stat().st_size for file in folder.glob("model.safetensors")) for folder in (run, out))
    assert after < before * (0.35 if method == "int8" else 0.6)
    cosine = torch.nn.functional.cosine_similarity(vectors(run), vectors(out)).min()
    assert cosine > 0.999
    assert "mlm" in load(out).root.heads


def test_the_card_has_costs_scores_text_and_limits(run: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    rows = [{"key": f"record-cola-{n}", "model": "record", "task": "cola", "score": 40.0 + n} for n in range(3)]
    rows += [{"key": "x", "model": "pilot-1-mlm", "task": "cola", "score": 99.0}, {"key": "y", "error": "it failed"}]
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    card = (bundle(run, tmp_path / "out", "--scores", str(results)) / "README.md").read_text()
    assert card.startswith("---\nlanguage: en\nlicense: cc-by-sa-4.0\n")
    assert "| cola | 40.0, 41.0, 42.0 | 41.0 |" in card and "99.0" not in card
    assert "| tokens | 1e+06 |" in card and "## Text" in card and "## License and limits" in card


def test_models_that_are_too_large_are_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_model, "MAX_BYTES", 1000)
    with pytest.raises(SystemExit, match="more than 1,000 bytes"):
        bundle(run, tmp_path / "out")
