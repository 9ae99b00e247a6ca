"""`pretune quantize`: artifacts are really smaller, answer in the same format, and are used like any model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.compression.measuring import Costs, bytes_of, verdict
from pretune.model import load
from pretune.nn import int8
from pretune.nn.fake_int8 import add_rounding, keep_rounded, rounded
from pretune.nn.int4 import Int4Linear
from pretune.nn.int8 import Int8Linear, choose_engine
from pretune.nn.linear import Linear
from pretune.storage import as_int8, restored, to_int8
from small_task import start, trained
from test_refit import small, tokenizer

pytestmark = pytest.mark.usefixtures("briefly")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(
    ("how", "engine"),
    [("dynamic", "onnx"), ("static", "onnx"), ("dynamic", "torch"), ("weights", "torch"), ("bf16", None)],
)
def test_smaller_with_the_same_answers(how: Any, engine: Any, tmp_path: Path) -> None:
    data = start() / "train.csv"
    measured = {"train": data} if how == "static" else {}
    run = pt.quantize(trained(), how=how, engine=engine, dev=data, out=tmp_path / "small", **measured)
    facts = run.results
    assert facts["times_smaller"] > (1.9 if how == "bf16" else 1.5)  # a graph of so small a model is much of the file
    assert facts["share_of_quality"] >= 0.95
    assert [row["model"] for row in facts["beside"]] == ["before", "quantized"]
    before, after = (list(pt.predict(folder, [data])) for folder in (trained(), tmp_path / "small"))
    assert [row.keys() for row in before] == [row.keys() for row in after]
    same = sum(a["predicted_label"] == b["predicted_label"] for a, b in zip(before, after, strict=True))
    assert same >= 61
    assert len(pt.embed(tmp_path / "small", ["good stone"])[0]["vector"]) == 64


@pytest.mark.parametrize("how", ["dynamic", "static"])
def test_layers_that_share_their_matrices(how: Any, tmp_path: Path) -> None:
    """An ALBERT: a matrix that several layers use is in the graph once, and the same for all of them."""
    import onnx

    data = start() / "train.csv"
    pt.finetune(
        "albert-tiny", data, dev=data, tokenizer=start() / "start", seeds=1, report=False, budget=pt.Budget(steps=30),
        optimizer=pt.Optimizer(lr=3e-3), batch=pt.Batching(sequences=16), out=tmp_path / "albert",
    )  # fmt: skip
    measured = {"train": data} if how == "static" else {}
    facts = pt.quantize(tmp_path / "albert", how=how, dev=data, out=tmp_path / "small", **measured).results
    assert facts["share_of_quality"] >= 0.9 and load(tmp_path / "albert").backbone.depth > 1
    before, after = (list(pt.predict(folder, [data])) for folder in (tmp_path / "albert", tmp_path / "small"))
    assert sum(a["predicted_label"] == b["predicted_label"] for a, b in zip(before, after, strict=True)) >= 60
    graph = onnx.load(tmp_path / "small" / "model.onnx").graph
    constants, config = graph.initializer, load(tmp_path / "albert").config
    if how == "dynamic":
        assert sum(node.op_type == "MatMulInteger" for node in graph.node) >= 4 * config.num_hidden_layers
        assert not any(node.op_type == "Gemm" for node in graph.node)
    assert [config.hidden_size, config.intermediate_size] in [list(one.dims) for one in constants]
    assert len([one for one in constants if list(one.dims) == [config.intermediate_size, config.hidden_size]]) == 1


def test_training_with_8_bits_in_mind(tmp_path: Path) -> None:
    data = start() / "train.csv"
    run = pt.quantize(
        trained(), how="aware", engine="torch", train=data, dev=data, budget=pt.Budget(steps=10), out=tmp_path / "q8",
        optimizer=pt.Optimizer(lr=1e-3), batch=pt.Batching(sequences=16),
    )  # fmt: skip
    rows = {row["model"]: row for row in run.results["beside"]}
    assert rows["quantized"]["accuracy"] == rows["trained with 8 bits in mind"]["accuracy"] == 1.0
    assert list(rows) == ["before", "trained with 8 bits in mind", "quantized without that", "quantized"]
    weight = load(tmp_path / "q8/intermediate/aware").backbone.layers[0].attention.part.output.weight
    whole, scale = to_int8(weight.detach())
    torch.testing.assert_close(whole.float() * scale[:, None], weight.detach(), rtol=1e-5, atol=1e-6)


def test_cells_of_8_bits(tmp_path: Path) -> None:
    """A BiLSTM: its cells are multiplied as integers too, and are rounded and made sparse while it learns."""
    import onnx

    data = start() / "train.csv"
    learning: dict[str, Any] = {"optimizer": pt.Optimizer(lr=1e-2), "batch": pt.Batching(sequences=16)}
    pt.finetune(
        "bilstm-tiny", data, dev=data, tokenizer=start() / "start", seeds=1, report=False, strategy="full+int8",
        budget=pt.Budget(steps=15), out=tmp_path / "lstm", **learning,
    )  # fmt: skip
    run = pt.quantize(tmp_path / "lstm", dev=data, out=tmp_path / "int8")
    operators = {node.op_type for node in onnx.load(str(tmp_path / "int8" / "model.onnx")).graph.node}
    assert "DynamicQuantizeLSTM" in operators and "LSTM" not in operators
    assert run.results["times_smaller"] > 2 and run.results["share_of_quality"] > 0.95
    for options, words in (({"engine": "torch"}, "ONNX Runtime's"), ({"how": "static"}, "--how dynamic")):
        with pytest.raises(PretuneError, match=words):
            pt.quantize(tmp_path / "lstm", out=tmp_path / "never", **options)  # type: ignore[arg-type]
    run = pt.prune(tmp_path / "lstm", weights=0.8, out=tmp_path / "sparse")
    assert run.results["zeros"] == pytest.approx(0.8, abs=0.01) and run.results["times_smaller"] > 2


def test_rounding_and_back() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8, requires_grad=True)
    out = rounded(x, torch.tensor(1.0))
    assert len(out.detach().unique()) <= 255 and float(out.detach().abs().max()) <= 1.0
    (slope,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(slope, torch.ones_like(x))
    linear = Linear(8, 4)
    add_rounding(linear)
    linear.train()(x.detach())
    assert float(linear.input_range.largest) == float(x.detach().abs().max())  # type: ignore[union-attr]
    linear(2 * x.detach())
    assert float(linear.input_range.largest) == pytest.approx(1.1 * float(x.detach().abs().max()))  # type: ignore[union-attr]
    keep_rounded(linear)
    assert set(dict(linear.named_parameters())) == {"weight", "bias"} and not list(linear.named_buffers())


@pytest.mark.parametrize("kind", ["dynamic", "weights"])
def test_integers_are_close_to_what_they_stand_for(kind: str) -> None:
    torch.manual_seed(0)
    linear = Linear(64, 48, stacked=3)
    x = torch.randn(7, 64)
    made = Int8Linear.of(linear, kind)
    assert made.weight.dtype == torch.int8
    assert float((made(x) - linear(x)).detach().abs().max()) < 0.1


def test_4_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    linear, x = Linear(64, 96, stacked=3), torch.randn(2, 7, 64)
    made = Int4Linear.of(linear)
    assert float((made.whole() - linear.weight).detach().abs().max()) < 0.012  # 15 steps over a quarter, and some
    torch.testing.assert_close(made(x), torch.nn.functional.linear(x, made.whole(), linear.bias), atol=0.02, rtol=0.02)
    model = small("gpt2", tokenizer("byte-bpe"), "lm", n_embd=32, n_head=2)
    model.save(tmp_path / "gpt")
    pt.quantize(tmp_path / "gpt", how="weights", bits=4, out=tmp_path / "small")
    again = load(tmp_path / "small")
    assert again.shape.linear == "int4" and isinstance(again.backbone.layers[0].attention.part.output, Int4Linear)
    assert bytes_of(tmp_path / "small") < 0.5 * bytes_of(tmp_path / "gpt")
    again.save(tmp_path / "copy")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("small", "copy")]
    assert weights[0] == weights[1]
    assert len(list(pt.generate(tmp_path / "small", ["An assignment"], tokens=4))) == 1


def test_vectors_of_tokens_in_files() -> None:
    rows = torch.randn(20, 8)
    back = restored(as_int8({"w": rows, "b": torch.zeros(3)}, ["w", "not there"]))
    assert float((back["w"] - rows).abs().max()) < 0.02 and back.keys() == {"w", "b"}


def test_a_model_that_writes(tmp_path: Path) -> None:
    model = small("gpt2", tokenizer("byte-bpe"), "lm")
    model.save(tmp_path / "gpt")
    run = pt.quantize(tmp_path / "gpt", how="weights", out=tmp_path / "small")
    assert run.results["engine"] == "torch" and run.results["times_smaller"] > 1.5
    assert len(list(pt.generate(tmp_path / "small", ["An assignment"], tokens=4))) == 1
    for act in (
        lambda out: pt.quantize(tmp_path / "small", out=out),
        lambda out: pt.prune(tmp_path / "small", units=0.5, out=out),
    ):
        with pytest.raises(PretuneError, match="not changed any more"):
            act(tmp_path / "never")
    with pytest.raises(PretuneError, match="matrices are of 8 bits"):
        pt.export(tmp_path / "small", out=tmp_path / "hf")


def test_machines_take_their_quickest_kernels_and_all_kernels_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    linear, x, said = Linear(64, 32), torch.randn(50, 64), []
    monkeypatch.setattr(int8.platform, "machine", lambda: "aarch64")
    for engines in (["qnnpack", "onednn", "none"], ["qnnpack"]):
        monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", engines)
        assert choose_engine() == ("onednn" if "onednn" in engines else "qnnpack")
        said.append(Int8Linear.of(linear, "dynamic")(x))
    torch.testing.assert_close(said[0], said[1], atol=1e-5, rtol=1e-5)


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, words in (
        ({"how": "aware"}, "give rows with --train"),
        ({"how": "weights", "engine": "onnx"}, "leave --engine out"),
        ({"how": "int3"}, "there are dynamic, static"),
        ({"bits": 4}, "--bits applies only with --how weights"),
        ({"how": "weights", "bits": 3}, "or 4 with --how weights"),
    ):
        with pytest.raises(PretuneError, match=words):
            pt.quantize(trained(), out=tmp_path / "never", **options)  # type: ignore[arg-type]
    monkeypatch.setattr(int8.platform, "machine", lambda: "abacus")
    monkeypatch.setitem(int8.ENGINES, "other", ())
    with pytest.raises(PretuneError, match="no kernels for 8-bit integers"):
        choose_engine()
    with pytest.raises(PretuneError, match="no kernels for 8-bit integers"):
        pt.quantize(trained(), engine="torch", out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_what_is_not_better_is_said() -> None:
    old, new = Costs(100, 0.5, 10.0), Costs(120, 0.6, 9.0)
    assert verdict(old, new)["but"] == "it is not smaller on disk; it is not faster on this machine"
    assert "but" not in verdict(new, old)
