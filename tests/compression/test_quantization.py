"""Tests of `pretune quantize`: files are smaller, predictions have the same format, and models are used like any other."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import numpy as np
import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.backbones.onnx_runtime import OnnxBackbone, open_session, padded_inputs
from pretune.compression import onnx_int8, quantization
from pretune.compression.benchmark import Costs, model_bytes, summarize_gains, synthetic_texts
from pretune.compression.onnx_int8 import quantize_graph_dynamic, quantize_graph_learned, quantize_graph_static
from pretune.compression.quantization import QuantizationJob, check_options, choose_backend, write_qat_graph
from pretune.compression.task_model import TrainedModel
from pretune.models.adapt_vocabulary import add_special_token
from pretune.models.length_bucketing import text_batches
from pretune.models.loading import load
from pretune.models.onnx_export import INPUTS, write_graph
from pretune.models.padded_model import PaddedModel
from pretune.nn.linear import Linear
from pretune.nn.quantized import int8
from pretune.nn.quantized.int4 import Int4Linear
from pretune.nn.quantized.int8 import LARGEST_7_BIT
from pretune.nn.quantized.quantization_aware import (
    add_fake_quantization,
    fake_quantize,
    named_linears,
    remove_fake_quantization,
    set_input_ranges,
)
from pretune.objectives import parse_objective
from pretune.objectives.tasks.classify import Pooling
from pretune.objectives.tasks.layer_features import OnLayerFeatures
from pretune.runtime.compressed_tensors import decode_tensors, encode_int8, quantize_rows
from pretune.training.jobs.finetuning import RANGES, SPLIT
from tests.support.one_word_task import start, trained
from tests.support.tiny_models import random_model
from tests.support.tiny_models import small_tokenizer as tokenizer

pytestmark = pytest.mark.usefixtures("briefly")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.mark.not_fast
@pytest.mark.parametrize(
    ("method", "backend"),
    [("dynamic", "onnx"), ("static", "onnx"), ("dynamic", "torch"), ("weight-only", "torch"), ("bf16", None)],
)
def test_quantized_models_are_smaller_and_predict_the_same(method: Any, backend: Any, tmp_path: Path) -> None:
    data = start() / "train.csv"
    measured = {"train": data} if method == "static" else {}
    run = pt.quantize(trained(), method=method, backend=backend, dev=data, out=tmp_path / "small", **measured)
    facts = run.results
    assert facts["compression_ratio"] > (
        1.9 if method == "bf16" else 1.5
    )  # the graph itself is much of the file of so small a model
    assert facts["relative_quality"] >= 0.95
    assert [row["model"] for row in facts["models"]] == ["before", "quantized"]
    before, after = (list(pt.predict(folder, [data])) for folder in (trained(), tmp_path / "small"))
    assert [row.keys() for row in before] == [row.keys() for row in after]
    same = sum(a["predicted_label"] == b["predicted_label"] for a, b in zip(before, after, strict=True))
    assert same >= 61
    assert len(pt.embed(tmp_path / "small", ["good stone"])[0]["vector"]) == 64


@pytest.mark.not_fast
@pytest.mark.parametrize("method", ["dynamic", "static"])
def test_shared_layers_are_stored_once(method: Any, tmp_path: Path) -> None:
    """A matrix that all layers of an ALBERT share is in the graph once, with the same values for all of them."""
    import onnx

    data = start() / "train.csv"
    pt.finetune(
        "albert-tiny", data, dev=data, tokenizer=start() / "start", num_seeds=1, report=False, budget=pt.Budget(steps=30),
        optimizer=pt.Optimizer(lr=3e-3), batch=pt.Batching(size=16), out=tmp_path / "albert",
    )  # fmt: skip
    measured = {"train": data} if method == "static" else {}
    facts = pt.quantize(tmp_path / "albert", method=method, dev=data, out=tmp_path / "small", **measured).results
    assert facts["relative_quality"] >= 0.9 and load(tmp_path / "albert").backbone.depth > 1
    before, after = (list(pt.predict(folder, [data])) for folder in (tmp_path / "albert", tmp_path / "small"))
    assert sum(a["predicted_label"] == b["predicted_label"] for a, b in zip(before, after, strict=True)) >= 60
    graph = onnx.load(tmp_path / "small" / "model.onnx").graph
    constants, config = graph.initializer, load(tmp_path / "albert").config
    if method == "dynamic":
        assert sum(node.op_type == "MatMulInteger" for node in graph.node) >= 4 * config.num_hidden_layers
        assert not any(node.op_type == "Gemm" for node in graph.node)
    assert [config.hidden_size, config.intermediate_size] in [list(one.dims) for one in constants]
    assert len([one for one in constants if list(one.dims) == [config.intermediate_size, config.hidden_size]]) == 1


def aware(out: Path, **options: Any) -> pt.Run:
    """Run quantization-aware training of the small model."""
    data = start() / "train.csv"
    return pt.quantize(
        trained(), method="qat", train=data, dev=data, budget=pt.Budget(steps=10), out=out,
        optimizer=pt.Optimizer(lr=1e-3), batch=pt.Batching(size=16), **options,
    )  # fmt: skip


@pytest.mark.not_fast
def test_quantization_aware_training(tmp_path: Path) -> None:
    """Training rounds weights to the integers in the graph, and the graph uses the learned ranges of activations."""
    import onnx
    from onnx import numpy_helper

    run = aware(tmp_path / "q8")
    rows = {row["model"]: row for row in run.results["models"]}
    assert rows["quantized"]["accuracy"] == rows["trained for int8"]["accuracy"] == 1.0
    assert list(rows) == ["before", "trained for int8", "quantized without that", "quantized"]
    source = load(tmp_path / "q8/intermediate/qat")
    ranges = json.loads((tmp_path / "q8/intermediate/qat" / RANGES).read_text())
    assert list(ranges) == [path for path, _ in named_linears(source.backbone)] and min(ranges.values()) > 0
    graph = onnx.load(tmp_path / "q8" / "model.onnx").graph
    values = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    values |= {n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in graph.node if n.op_type == "Constant"}
    nodes = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    scales = sorted(float(values[node.input[1]]) for node in nodes)
    assert scales == pytest.approx(sorted(largest / 127 for largest in ranges.values()), rel=1e-5)
    assert {(int(values[node.input[2]]), values[node.input[2]].dtype.name) for node in nodes} == {(128, "uint8")}
    assert not any(node.op_type == "DynamicQuantizeLinear" for node in graph.node)
    for path, linear in named_linears(source.backbone):
        whole, scale = quantize_rows(linear.weight.detach(), LARGEST_7_BIT)
        torch.testing.assert_close(whole.float() * scale[:, None], linear.weight.detach(), rtol=1e-5, atol=1e-6)
        assert any(np.array_equal(whole.numpy().T, x) for x in values.values() if x.dtype == np.int8), path
    # Quantizing the trained folder without training again gives the same graph.
    pt.quantize(tmp_path / "q8/intermediate/qat", method="qat", out=tmp_path / "again")
    assert (tmp_path / "again" / "model.onnx").read_bytes() == (tmp_path / "q8" / "model.onnx").read_bytes()


@pytest.mark.not_fast
def test_quantization_aware_graph_matches_the_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs with int8 kernels equal those of the fake-quantized model; with other ranges they do not."""
    model = random_model("bert", tokenizer("wordpiece"), "mlm")
    packed = next(iter(text_batches(model, synthetic_texts(4)))).packed[0]
    add_fake_quantization(model.backbone)
    model.backbone.train()(packed)
    trained_as = model.backbone.eval()(packed).last
    ranges = remove_fake_quantization(model.backbone)
    assert list(ranges) == [path for path, _ in named_linears(model.backbone)]

    def graph_of(ranges: dict[str, float], name: str) -> torch.Tensor:
        set_input_ranges(model.backbone, ranges)
        write_graph(model, tmp_path / "float.onnx", check=False)
        quantize_graph_learned(tmp_path / "float.onnx", tmp_path / name)
        found: torch.Tensor = OnnxBackbone(tmp_path / name, model.backbone)(packed).last
        return found

    largest = float(trained_as.abs().max())
    assert float((graph_of(ranges, "q8.onnx") - trained_as).abs().max()) < 0.03 * largest
    other = graph_of({path: value / 4 for path, value in ranges.items()}, "other.onnx")
    assert float((other - trained_as).abs().max()) > 0.1 * largest
    # A graph that computes something else is rejected.
    monkeypatch.setattr(
        quantization, "quantize_graph_learned", lambda draft, out: shutil.copy(tmp_path / "other.onnx", out)
    )
    for _, linear in named_linears(model.backbone):
        linear.input_quantizer = None
    with pytest.raises(PretuneError, match="differ from those of the trained model"):
        write_qat_graph(model, None, ranges, tmp_path / "float.onnx", tmp_path / "never.onnx")
    # ONNX Runtime multiplies integers, and keeps no matrix as float.
    operators = optimized(tmp_path / "q8.onnx", tmp_path / "optimized.onnx")
    assert operators.count("MatMulIntegerToFloat") == len(ranges)
    assert (tmp_path / "q8.onnx").stat().st_size < (tmp_path / "float.onnx").stat().st_size


def optimized(graph: Path, out: Path) -> list[str]:
    """Return the operators of a graph after ONNX Runtime's optimization."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(out), 3
    onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(out).graph.node]


@pytest.mark.not_fast
@pytest.mark.parametrize("method", ["dynamic", "static", "qat"])
def test_graphs_do_not_saturate_on_processors_without_vnni(method: Any, tmp_path: Path) -> None:
    """Two products of a weight and an 8-bit activation fit into 16 bits, on whatever machine the graph was made."""
    weights = int8_weights(quantized_graph(method, tmp_path))
    assert len(weights) >= 8  # of two layers
    for name, weight in weights.items():
        assert 60 <= int(np.abs(weight.astype(int)).max()) <= LARGEST_7_BIT, name


@pytest.mark.not_fast
def test_lstm_graphs_do_not_saturate_on_processors_without_vnni(tmp_path: Path) -> None:
    sizes = {"embedding_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "cell": "lstm"}
    model = random_model("bilstm", tokenizer("wordpiece"), "bilm", **sizes)
    write_graph(model, tmp_path / "float.onnx")
    quantize_graph_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx", per_channel=True)
    quantize_graph_learned(tmp_path / "float.onnx", tmp_path / "learned.onnx")
    for name in ("int8.onnx", "learned.onnx"):
        weights = int8_weights(tmp_path / name)
        assert len(weights) >= 4 and all(int(np.abs(w.astype(int)).max()) <= LARGEST_7_BIT for w in weights.values())


def quantized_graph(method: str, folder: Path) -> Path:
    model = random_model("bert", tokenizer("wordpiece"), "mlm")
    batches = list(text_batches(model, synthetic_texts(4)))
    if method == "qat":
        add_fake_quantization(model.backbone)
        model.backbone.train()(batches[0].packed[0])
        set_input_ranges(model.backbone.eval(), remove_fake_quantization(model.backbone))
    write_graph(model, folder / "float.onnx", check=False)
    match method:
        case "dynamic":
            quantize_graph_dynamic(folder / "float.onnx", folder / "int8.onnx", per_channel=True)
        case "static":
            quantize_graph_static(folder / "float.onnx", folder / "int8.onnx", per_channel=True, batches=batches)
        case _:
            quantize_graph_learned(folder / "float.onnx", folder / "int8.onnx")
    return folder / "int8.onnx"


def int8_weights(file: Path) -> dict[str, Any]:
    """Return the signed int8 weights of a graph by name, without embeddings."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(file).graph
    looked_up = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    found = {one.name: numpy_helper.to_array(one) for one in graph.initializer if one.name not in looked_up}
    return {name: weight for name, weight in found.items() if weight.dtype == np.int8 and weight.ndim > 1}


@pytest.mark.end_to_end
@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_every_pooling_can_be_quantized_and_exported(pooling: str, tmp_path: Path) -> None:
    # Two texts are distinguished by segments, which ModernBERT does not have.
    model = (
        random_model("bert", tokenizer("wordpiece"), "mlm")
        if pooling == "pair"
        else random_model("modernbert", tokenizer("byte-level-bpe"), "mlm")
    )
    (task,) = parse_objective(f"classify(pooling={pooling})", labels=("no", "yes")).objectives
    if pooling.startswith("extract"):
        model = add_special_token(model, "extract")
    del model.root.heads["mlm"]
    model.add_heads([task])
    model.root.eval()
    model.objective, model.labels = f"classify(pooling={pooling})", ["no", "yes"]
    model.save(tmp_path / "model")
    pt.export(tmp_path / "model", format="onnx", out=tmp_path / "graph")
    pt.quantize(tmp_path / "model", out=tmp_path / "int8")
    texts = synthetic_texts(6)
    pairs = [{"text": text, "pair": other} for text, other in zip(texts, reversed(texts), strict=True)]
    rows: Any = pairs if pooling in ("separate", "extract_both") else texts
    whole, graph, small_one = (
        [row["probability"] for row in pt.predict(tmp_path / name, rows)] for name in ("model", "graph", "int8")
    )
    np.testing.assert_allclose(graph, whole, atol=1e-4)
    np.testing.assert_allclose(small_one, whole, atol=0.2)
    for name, close in (("graph", 1e-4), ("int8", 0.2)):  # the logits of the graph itself, which other programs use
        session = open_session(tmp_path / name / "model.onnx")
        for batch in text_batches(model, texts):
            for feed, *_ in padded_inputs(batch.packed[0]):
                wanted = {entry.name: feed[entry.name] for entry in session.get_inputs()}
                (logits,) = session.run(["logits"], wanted)
                tensors = [torch.from_numpy(feed[key]) for key in INPUTS]
                expected = PaddedModel(model, task)(*tensors)[1].detach()  # type: ignore[arg-type]
                np.testing.assert_allclose(logits, expected, atol=close * max(1.0, float(expected.abs().max())))


@pytest.mark.not_fast
def test_recurrent_cells_are_quantized(tmp_path: Path) -> None:
    """The cells of a BiLSTM use int8 products, and support quantization-aware training and pruning."""
    import onnx

    data = start() / "train.csv"
    learning: dict[str, Any] = {"optimizer": pt.Optimizer(lr=1e-2), "batch": pt.Batching(size=16)}
    pt.finetune(
        "bilstm-tiny", data, dev=data, tokenizer=start() / "start", num_seeds=1, report=False, strategy="full+int8",
        budget=pt.Budget(steps=15), out=tmp_path / "lstm", **learning,
    )  # fmt: skip
    run = pt.quantize(tmp_path / "lstm", dev=data, out=tmp_path / "int8")
    operators = {node.op_type for node in onnx.load(str(tmp_path / "int8" / "model.onnx")).graph.node}
    assert "DynamicQuantizeLSTM" in operators and "LSTM" not in operators
    assert run.results["compression_ratio"] > 2 and run.results["relative_quality"] > 0.95
    for options, words in (
        ({"backend": "torch"}, "no int8 recurrent cells"),
        ({"method": "static"}, "--method dynamic"),
    ):
        with pytest.raises(PretuneError, match=words):
            pt.quantize(tmp_path / "lstm", out=tmp_path / "never", **options)  # type: ignore[arg-type]
    run = pt.prune(tmp_path / "lstm", sparsity=0.8, out=tmp_path / "sparse")
    assert run.results["zeros"] == pytest.approx(0.8, abs=0.01) and run.results["compression_ratio"] > 2


def test_fake_quantization_is_reversible() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8, requires_grad=True)
    out = fake_quantize(x, torch.tensor(1.0))
    assert len(out.detach().unique()) <= 255 and float(out.detach().abs().max()) <= 1.0
    (slope,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(slope, torch.ones_like(x))
    linear, values = Linear(8, 4), x.detach()
    add_fake_quantization(linear)
    linear.train()(values)
    assert float(linear.input_quantizer.largest) == float(values.abs().max())  # type: ignore[arg-type, union-attr]
    linear(2 * values)
    quantize_graph_learned = 1.1 * float(values.abs().max())
    rounded_twice = linear.eval()(3 * values)  # ranges are learned only in training
    assert remove_fake_quantization(linear) == {"": pytest.approx(quantize_graph_learned)}
    assert set(dict(linear.named_parameters())) == {"weight", "bias"} and not list(linear.named_buffers())
    set_input_ranges(linear, {"": quantize_graph_learned})
    torch.testing.assert_close(linear(3 * values), rounded_twice)  # including values outside the range


def test_input_of_a_fused_feed_forward_network_is_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, the first linear layer and its activation function are one kernel."""
    from pretune.nn import feed_forward

    kernels = ModuleType("pretune.nn.kernels.gelu")  # the real one needs Triton
    kernels.bias_gelu = lambda x, bias: torch.nn.functional.gelu(x + bias)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    network, x = feed_forward.FeedForward(8, 16), torch.randn(5, 8)
    add_fake_quantization(network)
    monkeypatch.setattr(feed_forward, "supports_custom_kernels", lambda x: True)
    fused = network.train()(x)
    assert remove_fake_quantization(network)["inner"] == float(x.abs().max())
    monkeypatch.setattr(feed_forward, "supports_custom_kernels", lambda x: False)
    assert not torch.equal(network(x), fused)


@pytest.mark.not_fast
def test_int4_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    linear, x = Linear(64, 96, stacked=3), torch.randn(2, 7, 64)
    made = Int4Linear.from_linear(linear)
    assert (
        float((made.dequantize() - linear.weight).detach().abs().max()) < 0.012
    )  # 15 steps over a quarter, with a margin
    torch.testing.assert_close(
        made(x), torch.nn.functional.linear(x, made.dequantize(), linear.bias), atol=0.02, rtol=0.02
    )
    model = random_model("gpt2", tokenizer("byte-level-bpe"), "lm", n_embd=32, n_head=2)
    model.save(tmp_path / "gpt")
    pt.quantize(tmp_path / "gpt", method="weight-only", bits=4, out=tmp_path / "small")
    again = load(tmp_path / "small")
    assert again.shape.linear == "int4" and isinstance(again.backbone.layers[0].attention.part.output, Int4Linear)
    assert model_bytes(tmp_path / "small") < 0.5 * model_bytes(tmp_path / "gpt")
    again.save(tmp_path / "copy")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("small", "copy")]
    assert weights[0] == weights[1]
    assert len(list(pt.generate(tmp_path / "small", ["An assignment"], max_new_tokens=4))) == 1


def test_embeddings_are_stored_as_int8() -> None:
    rows = torch.randn(20, 8)
    back = decode_tensors(encode_int8({"w": rows, "b": torch.zeros(3)}, ["w", "not there"]))
    assert float((back["w"] - rows).abs().max()) < 0.02 and back.keys() == {"w", "b"}


@pytest.mark.not_fast
def test_generative_models_keep_int8_weights(tmp_path: Path) -> None:
    model = random_model("gpt2", tokenizer("byte-level-bpe"), "lm")
    model.save(tmp_path / "gpt")
    run = pt.quantize(tmp_path / "gpt", method="weight-only", out=tmp_path / "small")
    assert run.results["backend"] == "torch" and run.results["compression_ratio"] > 1.5
    assert len(list(pt.generate(tmp_path / "small", ["An assignment"], max_new_tokens=4))) == 1
    for act in (
        lambda out: pt.quantize(tmp_path / "small", out=out),
        lambda out: pt.prune(tmp_path / "small", ffn_units=0.5, out=out),
    ):
        with pytest.raises(PretuneError, match="int8 weights cannot be changed"):
            act(tmp_path / "never")
    with pytest.raises(PretuneError, match="cannot describe int8 weights"):
        pt.export(tmp_path / "small", out=tmp_path / "hf")


def test_invalid_options_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, words in (
        ({"method": "qat"}, "give examples with --train"),
        ({"method": "qat", "backend": "torch", "train": start() / "train.csv"}, "only the onnx backend supports"),
        (
            {"method": "qat", "per_channel": False, "train": start() / "train.csv"},
            "--per-channel applies only|--no-per-channel applies only",
        ),
        ({"method": "weight-only", "backend": "onnx"}, "use --backend torch"),
        ({"method": "int3"}, "--method int3: unknown method; known: bf16, dynamic, "),
        ({"bits": 4}, "--bits applies only with --method weight-only"),
        ({"method": "weight-only", "bits": 3}, "or, with --method weight-only, 4"),
    ):
        with pytest.raises(PretuneError, match=words):
            pt.quantize(trained(), out=tmp_path / "never", **options)  # type: ignore[arg-type]
    monkeypatch.setattr(int8, "multiplies_exactly", lambda engine: False)
    with pytest.raises(PretuneError, match="no int8 kernels that give exact results"):
        pt.quantize(trained(), backend="torch", out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


@pytest.mark.not_fast
def test_only_measured_speed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A processor without int8 instructions may still be faster with int8."""
    (tmp_path / "cpuinfo").write_text("flags : fpu sse4_2 avx2")
    monkeypatch.setattr(onnx_int8, "CPU", tmp_path / "cpuinfo", raising=False)
    monkeypatch.setattr(
        "pretune.compression.task_model.measure_costs",
        lambda models, examples: {name: Costs(100 - i, 1.0 / (1 + i), 1.0 + i) for i, name in enumerate(models)},
    )
    monkeypatch.setenv("PRETUNE_PROGRESS", "plain")
    results = pt.quantize(trained(), out=tmp_path / "small").results
    assert results["latency_speedup"] == 2.0 and "but" not in results
    told = "".join(capsys.readouterr())
    assert "faster" not in told and "quality was not measured; give labeled examples with --dev" in told


@pytest.mark.parametrize("objective", ["prompt(verbalizer=no/yes)", "on"])
def test_heads_that_a_graph_cannot_feed_use_torch(objective: str) -> None:
    model = random_model("bert", tokenizer("wordpiece"), "mlm")
    (task,) = parse_objective("classify", labels=("no", "yes")).objectives
    task = (
        OnLayerFeatures(task, "elmo")
        if objective == "on"
        else parse_objective("prompt", labels=("no", "yes")).objectives[0]
    )  # type: ignore[assignment, arg-type]
    source = TrainedModel(Path("run"), model, task)  # type: ignore[arg-type]
    assert choose_backend("dynamic", source) == "torch" and choose_backend("static", source) == "onnx"
    job = QuantizationJob(model="run", out=Path("out"), backend="onnx")
    with pytest.raises(PretuneError, match="cannot be used with an ONNX graph: its head"):
        check_options(job, "onnx", source)


def test_heads_on_several_layers_are_quantized_as_graphs() -> None:
    (task,) = parse_objective("classify on layers(1,2)", labels=("no", "yes")).objectives
    source = TrainedModel(Path("run"), random_model("bert", tokenizer("wordpiece"), "mlm"), task)  # type: ignore[arg-type]
    assert choose_backend("dynamic", source) == "onnx"
    check_options(QuantizationJob(model="run", out=Path("out")), "onnx", source)


@pytest.mark.not_fast
def test_training_rows_among_the_dev_rows_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRETUNE_PROGRESS", "plain")
    model = shutil.copytree(trained(), tmp_path / "model")
    data = Path(pt.Run(model).recipe["train"])
    lines = data.read_text().splitlines()
    dev, other = tmp_path / "dev.csv", tmp_path / "other.csv"
    held_out = json.loads((model / SPLIT).read_text())["dev_rows"] if (model / SPLIT).is_file() else []
    learned = [line for row, line in enumerate(lines[1:]) if row not in held_out]
    dev.write_text("\n".join([lines[0], learned[0], "good new words,yes", learned[1]]))
    pt.quantize(model, method="bf16", dev=dev, out=tmp_path / "leaking")
    assert "2 of 3 examples of" in (found := capsys.readouterr().err) and "are also in" in found
    other.write_text("\n".join([lines[0], "good new words,yes", *(lines[1 + row] for row in held_out)]))
    pt.quantize(model, method="bf16", dev=other, out=tmp_path / "clean")
    assert "are also in" not in capsys.readouterr().err
    pt.quantize(model, method="static", train=other, dev=other, out=tmp_path / "calibrated")
    assert "examples of" in (found := capsys.readouterr().err) and f"are also in {other}" in found
    for number, damaged in enumerate(
        ("train: nowhere.csv", f"train: {data}\ncolumns: [1]", f"train: {data}\ntext: 3", "1")
    ):
        (model / "recipe.yaml").write_text(damaged)
        pt.quantize(model, method="bf16", dev=dev, out=tmp_path / f"unknown-{number}")
        assert "are also in" not in capsys.readouterr().err


@pytest.mark.not_fast
def test_a_failed_quantization_does_not_block_its_repetition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise PretuneError("the graph cannot be quantized")

    with monkeypatch.context() as patch:
        patch.setattr(quantization, "quantize_graph_dynamic", fail)
        with pytest.raises(PretuneError, match="cannot be quantized"):
            pt.quantize(trained(), backend="onnx", out=tmp_path / "small")
    assert not (tmp_path / "small").exists()
    assert pt.quantize(trained(), backend="onnx", out=tmp_path / "small").finished


def test_missing_gains_are_reported() -> None:
    old, new = Costs(100, 0.5, 10.0), Costs(120, 0.6, 9.0)
    assert summarize_gains(old, new)["warning"] == "it is not smaller on disk; it is not faster on this machine"
    assert "but" not in summarize_gains(new, old)
