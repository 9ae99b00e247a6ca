"""Models as graphs: the same answers from ONNX Runtime, for rows of any number and length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretune as pt
from pretune import PretuneError
from pretune.backbones.onnx import GRAPH, open_graph
from pretune.model import load
from pretune.objectives import parse_objective
from pretune.onnx_export import write_graph
from pretune.packed import pack_lists
from small_task import start, trained
from test_refit import small, tokenizer

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
SIZES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 8}, "electra": {"embedding_size": 8}, "distilbert": {"dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2},
    "longformer": {"attention_window": [4, 4]}, "big_bird": {"block_size": 4, "num_random_blocks": 1},
    "deberta-v2": {"relative_attention": True, "share_att_key": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4},
    "xlnet": {"d_inner": 32}, "xlm": {"emb_dim": 16, "n_layers": 2, "n_heads": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    "family",
    ["bert", "roberta", "albert", "electra", "distilbert", "modernbert", "ernie", "longformer", "big_bird",
     "deberta-v2", "xlnet", "xlm", "gpt2", "openai-gpt"],
)  # fmt: skip
def test_every_encoder_is_a_graph(family: str, tmp_path: Path) -> None:
    words = tokenizer("wordpiece" if family in ("bert", "electra") else "byte-bpe")
    model = small(family, words, "lm" if "gpt" in family else "mlm", **SIZES.get(family, {}))
    write_graph(model, tmp_path / GRAPH)  # which compares
    assert (tmp_path / GRAPH).stat().st_size > 1000 and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("family", "cell"), [("bilstm", "lstm"), ("lstm", "gru")])
def test_recurrent_cells_are_a_graph(family: str, cell: str, tmp_path: Path) -> None:
    sizes = {"embedding_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "cell": cell}
    write_graph(
        small(family, tokenizer("wordpiece"), "bilm" if family == "bilstm" else "lm", **sizes), tmp_path / GRAPH
    )
    assert (tmp_path / GRAPH).is_file()


def test_what_has_no_graph_says_so(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="only single stacks"):
        write_graph(small("bart", tokenizer("byte-bpe"), "denoise"), tmp_path / GRAPH)
    with pytest.raises(PretuneError, match="performer: its attention cannot be written as a graph"):
        write_graph(small("performer", tokenizer("byte-bpe"), "mlm", num_random_features=8), tmp_path / GRAPH)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["tag", "answer", "choose"])
def test_tokens_with_global_attention_that_depend_on_texts_have_no_graph(name: str, tmp_path: Path) -> None:
    model = small("longformer", tokenizer("byte-bpe"), "mlm", **SIZES["longformer"])
    (task,) = parse_objective(name, labels=("a", "b")).objectives
    with pytest.raises(PretuneError, match=f"which tokens see all others depends on the texts for {name}"):
        write_graph(model, tmp_path / GRAPH, task)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_an_exported_model_is_used_like_any_other(tmp_path: Path) -> None:
    pt.export(trained(), out=tmp_path / "graph", to="onnx")
    texts = ["good stone water", "bad fire", "good", "tree bird cloud bad red blue green"]
    ours, theirs = (pt.predict(folder, texts) for folder in (trained(), tmp_path / "graph"))
    for one, other in zip(ours, theirs, strict=True):
        assert one["label"] == other["label"] and one["probability"] == pytest.approx(other["probability"], abs=1e-4)
    first, second = (
        np.array([row["vector"] for row in pt.embed(folder, texts)]) for folder in (trained(), tmp_path / "graph")
    )
    np.testing.assert_allclose(first, second, atol=1e-4)
    session = open_graph(tmp_path / "graph" / GRAPH)
    assert [entry.name for entry in session.get_outputs()] == ["last_hidden_state", "logits"]
    model = load(tmp_path / "graph")
    with pytest.raises(PretuneError, match="top layer alone"):
        model.backbone(pack_lists([[5, 6]]), keep=[1])
    with pytest.raises(PretuneError, match="not trained"):
        pt.finetune(tmp_path / "graph", start() / "train.csv", out=tmp_path / "run", seeds=1)
    for verb, options in ((pt.prune, {"units": 0.5}), (pt.quantize, {})):
        with pytest.raises(PretuneError, match="used, not changed"):
            verb(tmp_path / "graph", out=tmp_path / "never", **options)  # type: ignore[operator]
    with pytest.raises(PretuneError, match="is a graph already"):
        pt.export(tmp_path / "graph", to="onnx", out=tmp_path / "never")
    with pytest.raises(PretuneError, match="applies only with --to hf"):
        pt.export(trained(), to="onnx", dtype="float16", out=tmp_path / "never")
    with pytest.raises(PretuneError, match="not changed or saved"):
        model.save(tmp_path / "copy")


@pytest.mark.usefixtures("briefly")
def test_a_pruned_model_is_a_graph_too(tmp_path: Path) -> None:
    """Fewer layers, heads and units, and zeros: every shape that our layout has."""
    asked: dict[str, Any] = {"drop": "even(1)", "heads": 0.4, "units": 0.5, "weights": 0.5}
    pt.prune(trained(), **asked, train=start() / "train.csv", out=tmp_path / "small")
    pt.export(tmp_path / "small", to="onnx", out=tmp_path / "graph")
    texts = ["good stone water", "bad fire", "tree bird cloud bad red blue green"]
    ours, theirs = (pt.predict(tmp_path / name, texts) for name in ("small", "graph"))
    for one, other in zip(ours, theirs, strict=True):
        assert one["label"] == other["label"] and one["probability"] == pytest.approx(other["probability"], abs=1e-4)


def test_a_damaged_graph(tmp_path: Path) -> None:
    (tmp_path / GRAPH).write_bytes(b"no graph")
    with pytest.raises(PretuneError, match="cannot run it"):
        open_graph(tmp_path / GRAPH)
