"""An exported folder is loaded again and compared before `export` reports success."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import pretune as pt
from pretune import PretuneError
from pretune.models import model as model_module
from pretune.models.loading import load
from pretune.models.reload_check import check_reloaded
from tests.support.tiny_models import save_random_model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_faithful_exports_pass(dtype: str, tmp_path: Path) -> None:
    run = save_random_model(tmp_path / "run", "bert", "mlm")
    assert pt.export(run, out=tmp_path / "out", dtype=dtype).facts["dtype"] == dtype  # type: ignore[arg-type]


def test_changed_weights_are_found(tmp_path: Path) -> None:
    run = save_random_model(tmp_path / "run", "bert", "mlm")
    pt.export(run, out=tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("attention.output.dense.weight"))
    tensors[name] = 2 * tensors[name]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(PretuneError, match="the exported model, loaded again, differs from the original by"):
        check_reloaded(load(run), tmp_path / "out", torch.float32)


def test_export_does_not_report_success_for_a_wrong_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, export = save_random_model(tmp_path / "run", "bert", "mlm"), model_module.export_model

    def with_other_weights(model: model_module.Model, *options: object) -> str:
        kind: str = export(model, *options)  # type: ignore[arg-type]
        with torch.no_grad():
            next(model.root.backbone.layers.parameters()).mul_(3.0)
        return kind

    monkeypatch.setattr(model_module, "export_model", with_other_weights)
    with pytest.raises(PretuneError, match="differs from the original"):
        pt.export(run, out=tmp_path / "out")
