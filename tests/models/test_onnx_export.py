"""ONNX export: ONNX Runtime gives the same results, for any batch size and length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import pretune as pt
from pretune import PretuneError
from pretune.backbones.onnx_runtime import (
    ALL_TOKENS,
    GRAPH,
    LOGITS,
    MOBILE_GRAPH,
    STATES,
    TOKEN_STATES,
    OnnxBackbone,
    open_session,
    padded_inputs,
)
from pretune.models.loading import load
from pretune.models.onnx_export import check_graph, export_graph, make_states_optional, remove_idle_casts, write_graph
from pretune.models.padded_model import LanguageModel, token_states
from pretune.objectives import parse_objective
from pretune.objectives.tasks.bag_of_words import BagOfWords
from pretune.packed import pack_lists
from tests.support.drawn_shapes import SMALL
from tests.support.one_word_task import start, trained
from tests.support.tiny_models import random_model, small_tokenizer

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
SIZES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 8}, "electra": {"embedding_size": 8}, "distilbert": {"dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2},
    "longformer": {"attention_window": [4, 4]}, "big_bird": {"block_size": 4, "num_random_blocks": 1},
    "deberta-v2": {"relative_attention": True, "share_att_key": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4},
    "xlnet": {"d_inner": 32}, "xlm": {"emb_dim": 16, "n_layers": 2, "n_heads": 2},
}  # fmt: skip


@pytest.mark.not_fast
@pytest.mark.parametrize(
    "family",
    ["bert", "roberta", "albert", "electra", "distilbert", "modernbert", "ernie", "longformer", "big_bird",
     "camembert", "mpnet", "deberta-v2", "xlnet", "xlm", "gpt2", "openai-gpt"],
)  # fmt: skip
def test_every_encoder_exports_to_onnx(family: str, tmp_path: Path) -> None:
    words = small_tokenizer("wordpiece" if family in ("bert", "electra") else "byte-level-bpe")
    model = random_model(family, words, "lm" if "gpt" in family else "mlm", **SIZES.get(family, {}))
    facts = export_graph(model, tmp_path)  # this compares states and logits
    assert (tmp_path / GRAPH).stat().st_size > 1000
    assert facts["outputs"] == ["last_hidden_state", "logits"] and GRAPH in facts["files"]


@pytest.mark.not_fast
@pytest.mark.parametrize(
    ("family", "head"),
    [("bert", "mlm"), ("distilbert", "mlm"), ("albert", "mlm"), ("modernbert", "mlm"), ("gpt2", "lm"), ("openai-gpt", "lm")],
)  # fmt: skip
def test_onnx_logits_of_language_models_match(family: str, head: str, tmp_path: Path) -> None:
    """Logits match those of `transformers` for the same model, at every token of padded rows."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    words = small_tokenizer("wordpiece" if family in ("bert", "distilbert") else "byte-level-bpe")
    random_model(family, words, head, **SIZES.get(family, {})).save(tmp_path / "model")
    facts = pt.export(tmp_path / "model", format="onnx", out=tmp_path / "graph").facts
    assert facts["outputs"] == ["last_hidden_state", "logits"]
    pt.export(tmp_path / "model", out=tmp_path / "hf")
    reference: Any = (AutoModelForMaskedLM if head == "mlm" else AutoModelForCausalLM).from_pretrained(tmp_path / "hf")
    texts = [
        words.encode(text)[:20] for text in ("The ferry leaves at nine.", "Yes, it does, every day but Sunday.", "No.")
    ]
    mask = np.zeros((3, max(map(len, texts))), dtype=np.int64)
    ids = np.zeros_like(mask)
    for row, tokens in enumerate(texts):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    session = open_session(tmp_path / "graph" / GRAPH)
    assert session.get_outputs()[1].shape == ["rows", "length", reference.config.vocab_size]
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    (logits,) = session.run(["logits"], {entry.name: feed[entry.name] for entry in session.get_inputs()})
    with torch.no_grad():
        expected = reference(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).logits.numpy()
    np.testing.assert_allclose(logits[mask > 0], expected[mask > 0], atol=1e-4 * max(1.0, np.abs(expected).max()))
    # Tied embeddings are stored once.
    parameters = sum(p.numel() for p in load(tmp_path / "model").root.parameters())
    assert stored_floats(tmp_path / "graph" / GRAPH) <= 1.02 * parameters


def stored_floats(file: Path) -> int:
    import onnx

    return sum(int(np.prod(one.dims)) for one in onnx.load(file).graph.initializer if one.data_type == 1)


@pytest.mark.not_fast
def test_a_causal_head_on_an_encoder_sees_no_later_tokens(tmp_path: Path) -> None:
    """A BERT that was trained with `lm` is causal because of its objective, not because of its layers."""
    model = random_model("bert", small_tokenizer("wordpiece"), "lm")
    export_graph(model, tmp_path)
    session, ids = open_session(tmp_path / GRAPH), np.array([[5, 6, 7, 8], [5, 6, 9, 10]])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    (logits,) = session.run(["logits"], {entry.name: feed[entry.name] for entry in session.get_inputs()})
    np.testing.assert_allclose(logits[0, :2], logits[1, :2], atol=1e-5)
    assert np.abs(logits[0, 2] - logits[1, 2]).max() > 1e-3


@pytest.mark.not_fast
def test_logits_are_computed_only_if_requested(tmp_path: Path) -> None:
    model = random_model("bert", small_tokenizer("wordpiece"), "mlm")
    export_graph(model, tmp_path)
    packed = pack_lists([[5, 6, 7], [8, 9]])
    backbone = OnnxBackbone(tmp_path / GRAPH, model.backbone)
    model.save(tmp_path / "model")
    assert pt.export(tmp_path / "model", format="onnx", head="none", out=tmp_path / "bare").facts["outputs"] == [STATES]
    torch.testing.assert_close(backbone(packed).last, model.backbone(packed).last, atol=1e-4, rtol=1e-4)


@pytest.mark.not_fast
@pytest.mark.parametrize("chosen", [None, [1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]])
def test_longformer_graphs_take_a_global_attention_mask(chosen: list[int] | None, tmp_path: Path) -> None:
    """Tokens with global attention are given by the batch: those of a question, the first of each text, or none."""
    model = random_model("longformer", small_tokenizer("byte-level-bpe"), "mlm", **SIZES["longformer"])
    write_graph(model, tmp_path / GRAPH)
    packed = pack_lists([list(range(5, 13)), list(range(20, 24))])
    if chosen is not None:
        packed.columns["global"] = torch.tensor(chosen)
    backbone = OnnxBackbone(tmp_path / GRAPH, model.backbone)
    assert "global_attention_mask" in backbone.inputs
    torch.testing.assert_close(backbone(packed).last, model.backbone(packed).last, atol=1e-4, rtol=1e-4)


TASKS = (
    "classify(hidden_size=8)",
    "regress",
    "choose",
    "entity",
    "rank",
    "match",
    "contrast",
    "tag",
    "answer",
    "prompt",
)


@pytest.mark.not_fast
@pytest.mark.parametrize("text", TASKS)
def test_every_task_exports_to_onnx(text: str, tmp_path: Path) -> None:
    """Logits are compared before the graph is written; the spans of `match` are not inputs."""
    model = random_model("bert", small_tokenizer("wordpiece"), "mlm")
    (task,) = parse_objective(text, labels=("a", "b")).objectives
    model.add_heads([task])
    model.root.eval()
    facts = export_graph(model, tmp_path, [task])  # type: ignore[list-item]
    first = ["first_hidden_state"] if token_states(model) else []
    assert facts["outputs"] == ["last_hidden_state", "logits"][: 1 if text == "match" else 2] + first
    assert bool(first) == (text.partition("(")[0] in ("classify", "regress", "choose", "entity", "rank"))


@pytest.mark.not_fast
def test_a_graph_with_different_outputs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One operator is exported incorrectly, and one cannot run in ONNX Runtime."""
    model = random_model("bert", small_tokenizer("wordpiece"), "mlm")
    (task,) = parse_objective("classify(pooling=mean)", labels=("no", "yes")).objectives
    model.add_heads([task])
    model.root.eval()
    monkeypatch.setattr("pretune.models.onnx_export.index_add", lambda graph, x, *rest: x)
    with pytest.raises(PretuneError, match="logits of the graph differ"):
        write_graph(model, tmp_path / GRAPH, task)  # type: ignore[arg-type]

    def impossible(graph: Any, x: Any, dim: Any, index: Any, source: Any, alpha: Any) -> Any:
        return graph.op("Gather", x, graph.op("Add", index, graph.op("Constant", value_t=torch.tensor(1000))))

    monkeypatch.setattr("pretune.models.onnx_export.index_add", impossible)
    with pytest.raises(PretuneError, match="ONNX Runtime cannot run its graph"):
        write_graph(model, tmp_path / GRAPH, task)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.not_fast
@pytest.mark.parametrize(("family", "cell"), [("bilstm", "lstm"), ("lstm", "gru")])
def test_recurrent_networks_export_to_onnx(family: str, cell: str, tmp_path: Path) -> None:
    sizes = {"embedding_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "cell": cell}
    write_graph(
        random_model(family, small_tokenizer("wordpiece"), "bilm" if family == "bilstm" else "lm", **sizes),
        tmp_path / GRAPH,
    )
    assert (tmp_path / GRAPH).is_file()


@pytest.mark.not_fast
def test_models_without_onnx_support_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="encoder-decoders cannot be exported"):
        write_graph(random_model("bart", small_tokenizer("byte-level-bpe"), "denoise"), tmp_path / GRAPH)
    with pytest.raises(PretuneError, match="funnel: models that pool tokens cannot be exported as an ONNX graph"):
        write_graph(
            random_model("funnel", small_tokenizer("byte-level-bpe"), "mlm", block_sizes=[1, 1]), tmp_path / GRAPH
        )
    sizes = {key: value for key, value in SMALL.items() if key != "vocab_size"}
    with pytest.raises(PretuneError, match="vilbert: models that read images cannot be exported as an ONNX graph"):
        write_graph(random_model("vilbert", small_tokenizer("wordpiece"), "mlm", **sizes), tmp_path / GRAPH)
    with pytest.raises(PretuneError, match="performer: this model cannot be exported as an ONNX graph"):
        write_graph(
            random_model("performer", small_tokenizer("byte-level-bpe"), "mlm", num_random_features=8), tmp_path / GRAPH
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("family", "pooling"), [("bert", "cls"), ("gpt2", "last"), ("modernbert", "last")])
def test_graphs_compute_the_states_of_single_tokens(
    family: str, pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(family, small_tokenizer("wordpiece"), f"regress(pooling={pooling})")
    write_graph(model, tmp_path / GRAPH)
    make_states_optional(tmp_path / GRAPH)
    check_graph(model, None, tmp_path / GRAPH)
    graph = OnnxBackbone(tmp_path / GRAPH, model.backbone)
    fetched: list[str] = []
    run = graph._run
    monkeypatch.setattr(graph, "_run", lambda names, *x: fetched.extend(names) or run(names, *x))
    packed = pack_lists([[21, 30, 40, 25], [22], [23, 50, 60]])
    first, last = packed.offsets[:-1].long(), packed.offsets[1:].long() - 1
    expected = model.backbone(packed, keep="all").layers[-1]
    output = TOKEN_STATES[pooling]
    for at, name in ((first, "cls"), (last, "last"), (torch.tensor([0, 2, 7]), "")):
        fetched.clear()
        torch.testing.assert_close(graph(packed).last_at(at), expected[at], rtol=0, atol=1e-5)
        assert set(fetched) == {output if name == pooling else STATES}
    torch.testing.assert_close(graph(packed).last, expected, rtol=0, atol=1e-5)
    feed, *_ = next(padded_inputs(packed))
    feed = {name: rows for name, rows in feed.items() if name in graph.inputs}
    states, chosen = graph.session.run([STATES, output], feed | {ALL_TOKENS: np.array(False)})
    assert states.size == 0 and chosen.shape == (
        len(feed["input_ids"]),
        16,
    )  # the branch with most of the top layer did not run


@pytest.mark.not_fast
def test_an_exported_model_predicts_like_any_other(tmp_path: Path) -> None:
    pt.export(trained(), out=tmp_path / "graph", format="onnx")
    texts = ["good stone water", "bad fire", "good", "tree bird cloud bad red blue green"]
    ours, theirs = (pt.predict(folder, texts) for folder in (trained(), tmp_path / "graph"))
    for one, other in zip(ours, theirs, strict=True):
        assert one["label"] == other["label"] and one["probability"] == pytest.approx(other["probability"], abs=1e-4)
    first, second = (
        np.array([row["vector"] for row in pt.embed(folder, texts)]) for folder in (trained(), tmp_path / "graph")
    )
    np.testing.assert_allclose(first, second, atol=1e-4)
    session = open_session(tmp_path / "graph" / GRAPH)
    names = ["last_hidden_state", "logits", "first_hidden_state"]
    assert [entry.name for entry in session.get_outputs()] == names
    model = load(tmp_path / "graph")
    with pytest.raises(PretuneError, match="only the hidden states of its top layer"):
        model.backbone(pack_lists([[5, 6]]), keep=[1])
    with pytest.raises(PretuneError, match="cannot be trained"):
        pt.finetune(tmp_path / "graph", start() / "train.csv", out=tmp_path / "run", num_seeds=1)
    for verb, options in ((pt.prune, {"ffn_units": 0.5}), (pt.quantize, {})):
        with pytest.raises(PretuneError, match="an ONNX graph cannot be changed"):
            verb(tmp_path / "graph", out=tmp_path / "never", **options)  # type: ignore[operator]
    with pytest.raises(PretuneError, match="is an ONNX graph already"):
        pt.export(tmp_path / "graph", format="onnx", out=tmp_path / "never")
    with pytest.raises(PretuneError, match="an ONNX graph cannot be saved"):
        model.save(tmp_path / "copy")


@pytest.mark.not_fast
@pytest.mark.parametrize("layers", ["layers(1,2)", "layers(0,1)", "mix"])
def test_a_graph_outputs_the_layers_that_a_head_reads(tmp_path: Path, layers: str) -> None:
    """The classifiers on frozen features read several layers; ONNX Runtime and pretune predict the same with their graphs."""
    words = small_tokenizer("wordpiece")
    model, labels = random_model("bert", words, "mlm"), ["no", "yes"]
    model.objective, model.labels = f"classify(pooling=mean) on {layers}", labels
    model.add_heads(parse_objective(model.objective, labels=tuple(labels)).objectives)
    model.save(tmp_path / "model")
    facts = pt.export(tmp_path / "model", format="onnx", out=tmp_path / "graph").facts
    lower = {"layers(1,2)": [1], "layers(0,1)": [0, 1], "mix": [0, 1]}[layers]
    assert facts["outputs"] == [STATES, LOGITS, *(f"hidden_states.{number}" for number in lower)]
    assert "parameters" not in (tmp_path / "graph" / "README.md").read_text(encoding="utf-8").split("## Use")[0]
    texts = ["good stone water", "yes", "a good bird in the tree"]
    expected = pt.predict(tmp_path / "model", texts)
    given = AutoTokenizer.from_pretrained(tmp_path / "graph")(texts[0], return_tensors="np")
    session = open_session(tmp_path / "graph" / GRAPH)
    (logits,) = session.run(["logits"], {entry.name: given[entry.name] for entry in session.get_inputs()})
    shares = np.exp(logits[0] - logits[0].max())
    assert [expected[0]["probabilities"][label] for label in labels] == pytest.approx(shares / shares.sum(), abs=1e-5)
    for ours, theirs in zip(expected, pt.predict(tmp_path / "graph", texts), strict=True):
        assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)
    if 0 not in lower:
        with pytest.raises(PretuneError, match="of the layers that its heads read"):
            load(tmp_path / "graph").backbone(pack_lists([[5, 6]]), keep=[0])


@pytest.mark.not_fast
def test_a_head_that_reads_word_vectors_is_for_onnx_runtime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRETUNE_PROGRESS", "plain")
    model, labels = random_model("bert", small_tokenizer("wordpiece"), "mlm"), ["no", "yes"]
    model.objective, model.labels = "classify on elmo", labels
    model.add_heads(parse_objective(model.objective, labels=tuple(labels)).objectives)
    model.save(tmp_path / "model")
    pt.export(tmp_path / "model", format="onnx", out=tmp_path / "graph")
    assert "the graph runs in ONNX Runtime alone" in capsys.readouterr().err
    with pytest.raises(PretuneError, match="use the model from which the graph was exported"):
        pt.predict(tmp_path / "graph", ["good stone water"])


@pytest.mark.not_fast
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_graph_keeps_the_bag_of_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setenv("PRETUNE_PROGRESS", "plain")
    model, labels = random_model("bert", small_tokenizer("wordpiece"), "mlm"), ["no", "yes"]
    model.objective, model.labels = "classify(pooling=mean) on layers(1,2)", labels
    model.add_heads(parse_objective(model.objective, labels=tuple(labels)).objectives)
    weight = np.array([[-2.0, 2.0], [2.0, -2.0]])
    model.bag_of_words = BagOfWords(
        {"words": ["good", "bad"]}, {"words": np.ones(2)}, weight, np.zeros(2), "classes", share
    )
    model.save(tmp_path / "model")
    pt.export(tmp_path / "model", format="onnx", out=tmp_path / "graph")
    said = capsys.readouterr().err
    assert ("replaces its predictions by those of a bag of words" if share == 1 else "(50%)") in said
    texts = ["good stone", "bad bird"]
    for ours, theirs in zip(pt.predict(tmp_path / "model", texts), pt.predict(tmp_path / "graph", texts), strict=True):
        assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)


@pytest.mark.not_fast
@pytest.mark.usefixtures("briefly")
def test_a_pruned_model_exports_to_onnx(tmp_path: Path) -> None:
    """Fewer layers, heads and units, and zero weights: every way of pruning."""
    options: dict[str, Any] = {"drop_layers": "even(1)", "heads": 0.4, "ffn_units": 0.5, "sparsity": 0.5}
    pt.prune(trained(), **options, train=start() / "train.csv", out=tmp_path / "small")
    pt.export(tmp_path / "small", format="onnx", out=tmp_path / "graph")
    texts = ["good stone water", "bad fire", "tree bird cloud bad red blue green"]
    ours, theirs = (pt.predict(tmp_path / name, texts) for name in ("small", "graph"))
    for one, other in zip(ours, theirs, strict=True):
        assert one["label"] == other["label"] and one["probability"] == pytest.approx(other["probability"], abs=1e-4)


@pytest.mark.not_fast
@pytest.mark.parametrize("format", ["onnx", "ort"])
def test_int8_graphs_predict_like_the_model(format: Any, tmp_path: Path) -> None:
    facts = pt.export(trained(), out=tmp_path / "int8", format=format, dtype="int8").facts
    pt.export(trained(), out=tmp_path / "float", format=format)
    files = {"onnx": {GRAPH}, "ort": {MOBILE_GRAPH, "required_operators.config"}}[format]
    assert {*files, "tokenizer.json", "config.json", "README.md"} <= set(facts["files"])
    texts = ["good stone water", "bad fire", "good", "tree bird cloud bad red blue green"]
    ours, exact, rounded = (pt.predict(folder, texts) for folder in (trained(), tmp_path / "float", tmp_path / "int8"))
    for one, other, third in zip(ours, exact, rounded, strict=True):
        assert one["label"] == other["label"] == third["label"]
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)
        assert one["probability"] == pytest.approx(third["probability"], abs=0.2)
    (file,) = (tmp_path / "int8").glob("model.*")
    session = open_session(file)
    ids = AutoTokenizer.from_pretrained(tmp_path / "int8")(texts, padding=True, return_tensors="np")
    logits = session.run(["logits"], {entry.name: ids[entry.name] for entry in session.get_inputs()})[0]
    assert logits.argmax(1).tolist() == [list(row["probabilities"]).index(row["label"]) for row in ours]


@pytest.mark.not_fast
def test_an_int8_graph_with_wrong_outputs_is_not_written(tmp_path: Path) -> None:
    """The quantizer returns the graph of another model, as if its kernels computed something else."""
    model, other = (random_model("bert", small_tokenizer("wordpiece"), "mlm") for _ in range(2))
    for parameter in other.backbone.layers.parameters():
        parameter.mul_(2.0)

    def quantize(graph: Path, out: Path, per_channel: bool) -> None:
        write_graph(other, out, LanguageModel("mlm"))

    with pytest.raises(PretuneError, match="of the int8 graph differ from the model's by"):
        export_graph(model, tmp_path, quantize=quantize)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("format", "dtype"), [("onnx", "float16"), ("ort", "bfloat16"), ("hf", "int8")])
def test_data_types_that_a_format_does_not_have_are_refused(format: Any, dtype: Any, tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=f"--dtype {dtype} does not apply with --format {format}; choose float32"):
        pt.export(trained(), format=format, dtype=dtype, out=tmp_path / "never")


def test_a_damaged_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / GRAPH).write_bytes(b"no graph")
    with pytest.raises(PretuneError, match="ONNX Runtime cannot load the graph"):
        open_session(tmp_path / GRAPH)


def test_idle_casts_are_removed(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.eye(3, dtype=np.float32), "weight")
    count = numpy_helper.from_array(np.array([2], dtype=np.int64), "count")
    nodes = [
        helper.make_node("Cast", ["weight"], ["same"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["count"], ["other"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "same"], ["product"]),
        helper.make_node("Cast", ["product"], ["again"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["again"], ["and again"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["and again", "other"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 3]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [weight, count])
    file = tmp_path / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), file)
    remove_idle_casts(file)
    left = onnx.load(file).graph.node
    assert [node.op_type for node in left] == ["Cast", "MatMul", "Mul"] and list(left[1].input) == ["x", "weight"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(open_session(file).run(None, {"x": x})[0], 2 * x)
