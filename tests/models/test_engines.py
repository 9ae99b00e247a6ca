"""Engines: both give the same outputs; the faster one is remembered until the model, a package, or the machine changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.inference.embed import embed_texts
from pretune.inference.predict import predict_texts
from pretune.models import engines
from pretune.models.engines import EngineCache, GraphForward, open_with_engine
from pretune.models.open_model import OpenModel
from pretune.nn.attention.patterns import causal
from pretune.packed import pack_lists
from tests.support.one_word_task import trained
from tests.support.tiny_models import save_random_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
TEXTS = ["good stone water", "", "bad", " \t", "naïve ﬁne 🙂 Ünïcode\x00", "tree " * 300, "water bad " * 20]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache folder, and return its folder of engines."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pretune" / "engines"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let ONNX Runtime win every measurement, and return the list to which each measurement is added."""
    found: list[str] = []

    def measure(model: Any, runs: Any) -> dict[str, float]:
        found.append("measured")
        return {"torch": 2.0, "onnxruntime": 1.0}

    monkeypatch.setattr(engines, "measure_engines", measure)
    return found


def encoder(folder: Path) -> Path:
    return save_random_model(folder / "bert", "bert", "mlm")


def test_both_engines_predict_the_same_for_odd_texts() -> None:
    opened = OpenModel(trained())
    assert open_with_engine(opened, "onnxruntime") == "onnxruntime"
    assert isinstance(opened.core.backbone.forward, GraphForward)
    for texts in (TEXTS, TEXTS[:1], TEXTS * 9):
        ours, theirs = (predict_texts(model, texts) for model in (OpenModel(trained()), opened))
        for one, other in zip(ours, theirs, strict=True):
            assert one["label"] == other["label"]
            assert other["probability"] is None or other["probability"] == pytest.approx(one["probability"], abs=1e-5)
    vectors = [embed_texts(model, TEXTS[:1]) for model in (OpenModel(trained()), opened)]
    assert abs(vectors[0] - vectors[1]).max() < 1e-5


def test_calls_that_a_graph_cannot_compute_stay_with_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, plain = OpenModel(encoder(tmp_path)), OpenModel(encoder(tmp_path))
    open_with_engine(opened, "onnxruntime")
    forward = opened.core.backbone.forward
    runs: list[int] = []
    graph = forward.graph.forward
    monkeypatch.setattr(forward.graph, "forward", lambda *x: [runs.append(1), graph(*x)][1])
    backbone, own = opened.core.backbone, plain.core.backbone
    packed, masked, shifted = (
        pack_lists([[5, 6, 7], [8]]),
        pack_lists([[5, 6, 7]], pattern=causal),
        pack_lists([[5, 6]]),
    )
    shifted.positions = shifted.positions + 1
    with torch.no_grad():
        assert torch.allclose(backbone(packed).last, own(packed).last, atol=1e-5)
        assert len(runs) == 1
        assert torch.equal(backbone(packed, keep=[0]).last, own(packed, keep=[0]).last)
        for other in (masked, shifted):
            assert torch.equal(backbone(other).last, own(other).last)
    assert torch.equal(backbone(packed).last, own(packed).last)  # with gradients
    with torch.no_grad():
        for network in (backbone, own):
            network.embed.tokens.mul_(2.0)
        assert torch.equal(backbone(packed).last, own(packed).last)  # with other weights than those of the graph
    assert len(runs) == 1


def test_the_faster_engine_is_remembered_until_something_changes(
    tmp_path: Path, measured: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = encoder(tmp_path)
    for _ in range(2):
        assert open_with_engine(OpenModel(folder), "auto") == "onnxruntime"
    assert len(measured) == 1
    os.utime(folder / "model.safetensors", ns=(1, 1))  # other weights
    assert open_with_engine(OpenModel(folder), "auto") == "onnxruntime" and len(measured) == 2
    monkeypatch.setattr(engines, "installed_version", lambda package: "another")
    assert open_with_engine(OpenModel(folder), "auto") == "onnxruntime" and len(measured) == 3
    monkeypatch.setattr(engines, "machine", lambda: "another machine")
    assert open_with_engine(OpenModel(folder), "auto") == "onnxruntime" and len(measured) == 4
    (choices,) = (
        json.loads(file.read_text()) for file in cache.glob("*/choices.json") if "another" in file.read_text()
    )
    assert len(choices) == 2  # both machines


def test_a_slower_graph_is_not_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "measure_engines", lambda *_: {"torch": 1.0, "onnxruntime": 2.0})
    folder = encoder(tmp_path)
    for _ in range(2):
        opened = OpenModel(folder)
        assert open_with_engine(opened, "auto") == "torch"
        assert "forward" not in vars(opened.core.backbone)
    assert not list(cache.glob("*/model.onnx"))


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"%s": 3}', '{"%s": {"engine": "abacus"}}', "\x00\xff"])
def test_a_damaged_choice_is_measured_again(content: str, tmp_path: Path, measured: list[str]) -> None:
    opened = OpenModel(encoder(tmp_path))
    file = EngineCache.of(opened).folder / "choices.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(content.replace("%s", engines.machine()).encode("latin-1"))
    assert open_with_engine(opened, "auto") == "onnxruntime" and measured
    assert EngineCache.of(opened).choice() == "onnxruntime"


def test_a_damaged_graph_is_exported_again(tmp_path: Path, measured: list[str]) -> None:
    folder = encoder(tmp_path)
    open_with_engine(OpenModel(folder), "auto")
    graph = EngineCache.of(OpenModel(folder)).graph
    whole = graph.read_bytes()
    other = save_random_model(tmp_path / "other", "bert", "mlm", hidden_size=32)
    open_with_engine(OpenModel(other), "onnxruntime")
    for damaged in (
        b"",
        whole[:1000],
        whole[:-1000] + bytes(1000),
        EngineCache.of(OpenModel(other)).graph.read_bytes(),
    ):
        graph.write_bytes(damaged)
        opened = OpenModel(folder)
        assert open_with_engine(opened, "auto") == "onnxruntime"
        with torch.no_grad():
            expected = OpenModel(folder).core.backbone(pack_lists([[5, 6]])).last
            assert torch.allclose(opened.core.backbone(pack_lists([[5, 6]])).last, expected, atol=1e-5)


def test_old_graphs_are_removed(tmp_path: Path, cache: Path, measured: list[str]) -> None:
    for number in range(engines.KEPT + 2):
        folder = save_random_model(tmp_path / str(number), "bert", "mlm")
        open_with_engine(OpenModel(folder), "auto")
    assert len(list(cache.iterdir())) == engines.KEPT


def test_without_onnx_runtime_auto_is_torch_and_a_request_is_an_error(
    tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = encoder(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    monkeypatch.setattr(engines, "installed_version", lambda name: None if name == "onnxruntime" else "1")
    assert open_with_engine(OpenModel(folder), "auto") == "torch" and not measured
    with pytest.raises(PretuneError, match=r"cannot be the engine of this model: .*onnxruntime"):
        open_with_engine(OpenModel(folder), "onnxruntime")


def test_models_without_a_graph_stay_with_torch(tmp_path: Path, measured: list[str]) -> None:
    folder = save_random_model(tmp_path, "t5", "spans")
    for _ in range(2):
        assert open_with_engine(OpenModel(folder), "auto") == "torch"
    with pytest.raises(PretuneError, match="encoder-decoders cannot be exported"):
        open_with_engine(OpenModel(folder), "onnxruntime")


def test_the_real_measurement_chooses_one_of_both(tmp_path: Path) -> None:
    opened = OpenModel(encoder(tmp_path))
    assert open_with_engine(opened, "auto") in ("torch", "onnxruntime")
    (entry,) = EngineCache.of(opened)._choices().values()
    assert entry["engine"] == min(entry["seconds"], key=entry["seconds"].get)


def test_predict_and_embed_take_an_engine(tmp_path: Path) -> None:
    for engine in ("torch", "onnxruntime", "auto"):
        assert (
            pt.predict(trained(), ["good stone"], engine=engine)[0]["label"]
            == pt.predict(trained(), ["good stone"])[0]["label"]
        )
        assert len(pt.embed(trained(), ["good", "bad stone"], engine=engine)) == 2
    with pytest.raises(PretuneError, match="engine"):
        pt.predict(trained(), ["good"], engine="abacus")
