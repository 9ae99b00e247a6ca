"""Open models: other heads share the parameters in memory, and give what a fresh model gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pretune import PretuneError
from pretune.inference.embed import embed_texts
from pretune.inference.fill import MaskFiller
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.models import loading
from pretune.models.bundled import bundled_folder
from pretune.models.open_model import OpenModel
from pretune.objectives import parse_objective
from tests.support.tiny_models import save_random_model

NAME = "pretune-small-en"


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Record the folders whose weights are read."""
    found: list[Path] = []
    read = loading.read_weights
    monkeypatch.setattr(loading, "read_weights", lambda folder: [found.append(folder), read(folder)][1])
    return found


def test_variants_share_parameters_and_read_the_weights_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_random_model(tmp_path, "bert", "mlm+nsp")
    reads = count_reads(monkeypatch)
    opened = OpenModel(folder)
    assert not reads  # not before the first use
    filler, vectors = MaskFiller.load(opened), embed_texts(opened, ["one", "two"], pooling="max")
    bare = loading.load_model(opened)
    assert len(reads) == 1 and not bare.root.heads
    assert filler.model.backbone is bare.backbone is opened.core.backbone
    own = dict(opened.core.root.heads["mlm"].named_parameters())
    assert own and all(x is own[name] for name, x in filler.model.root.heads["mlm"].named_parameters())
    fresh = MaskFiller.load(folder)
    assert torch.equal(filler.logits([2, 5, 3], [1]), fresh.logits([2, 5, 3], [1]))
    assert (vectors == embed_texts(folder, ["one", "two"], pooling="max")).all()


def test_new_heads_are_read_once_share_the_backbone_and_stay_untrained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_random_model(tmp_path, "bert", "mlm")
    reads = count_reads(monkeypatch)
    opened = OpenModel(folder)
    objectives = parse_objective("classify", labels=("a", "b"))
    model = opened.load(objectives)
    assert opened.load(parse_objective("classify", labels=("a", "b"))) is model and len(reads) == 2
    assert model.backbone is opened.core.backbone and model.untrained
    with pytest.raises(PretuneError, match="untrained"):
        model.require_trained("classify", opened, "fine-tune it first")


def test_heads_that_are_untrained_in_the_folder_stay_so_in_variants(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_random_model(tmp_path, "gpt2", "lm")
    assert TextGenerator.load(OpenModel(folder)).model.untrained == []
    folder = save_random_model(tmp_path / "bert", "bert", "mlm+nsp")
    weights = load_file(folder / "model.safetensors")
    missing = [name for name in weights if name.startswith("cls.predictions.transform")]
    save_file({k: v for k, v in weights.items() if k not in missing}, folder / "model.safetensors")
    opened = OpenModel(folder, ignore_mismatched=True)
    assert missing and opened.core.untrained
    with pytest.raises(PretuneError, match="head for mlm is untrained"):
        MaskFiller.load(opened)
    nsp = opened.load(parse_objective("nsp"))
    assert nsp.untrained == [] and list(nsp.root.heads) == ["nsp"]


def test_training_settings_read_the_folder_again(tmp_path: Path) -> None:
    opened = OpenModel(save_random_model(tmp_path, "bert", "mlm"))
    trained = loading.load_model(opened, parse_objective("mlm"), dropout={"hidden_dropout_prob": 0.5})
    assert trained.backbone is not opened.core.backbone


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = OpenModel(NAME)
    assert (bundled.reference, str(bundled), bundled.folder) == (NAME, NAME, bundled_folder(NAME))
    save_random_model(tmp_path / "mine", "bert", "mlm")
    monkeypatch.chdir(tmp_path)
    opened = OpenModel("mine")
    monkeypatch.chdir("/")
    assert opened.reference == str(opened.folder) == str(tmp_path / "mine") and opened.core.family.name == "bert"
    with pytest.raises(PretuneError, match="no such model folder"):
        OpenModel("no/folder")


def test_a_warm_model_gives_the_same_outputs_up_to_rounding(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, "bert", "mlm")
    cold, warm = OpenModel(folder), OpenModel(folder)
    warm.warm_up()
    first, second = (embed_texts(opened, ["one", "two words"]) for opened in (cold, warm))
    assert np.abs(first - second).max() < 1e-5
    assert warm.core.state().keys() == cold.core.state().keys()  # the copies are not saved


def test_a_network_becomes_ready_once(tmp_path: Path) -> None:
    model = OpenModel(save_random_model(tmp_path, "bert", "mlm")).core
    cpu = torch.device("cpu")
    assert not model.root.ready(cpu).training
    model.add_heads(parse_objective("classify", labels=("a", "b")).objectives)  # its dropout is on
    assert not any(module.training for module in model.root.ready(cpu).modules())
    model.root.train()
    assert not model.root.ready(cpu).backbone.training
