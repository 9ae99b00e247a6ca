"""Features for tasks: ELMo's scalar mix with task word vectors, CoVe with word vectors, biattentive layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.families import FAMILIES
from pretune.models.loading import load
from pretune.models.model import Model, Network
from pretune.nn.layer_mixing import Biattentive, LayerFeatures
from pretune.objectives import parse_objective
from pretune.packed import pack_lists

TEXTS = [[5, 6, 7, 8], [9], [4, 5, 6]]


def test_elmo_concatenates_task_word_vectors_and_a_scalar_mix() -> None:
    torch.manual_seed(0)
    features = LayerFeatures(6, 2, "elmo4", "", vocabulary=20)
    packed, layers = pack_lists(TEXTS), [torch.randn(8, 6) for _ in range(3)]
    features.mix.weights.data = torch.tensor([0.0, 1.0, 2.0])
    features.mix.scale.data.fill_(0.5)
    shares = torch.tensor([0.0, 1.0, 2.0]).softmax(0)
    out = features(layers, packed)
    assert features.width == 10 and features.keep == "all"
    torch.testing.assert_close(out[:, :4], features.words[packed.ids])
    torch.testing.assert_close(out[:, 4:], 0.5 * sum(s * x for s, x in zip(shares, layers, strict=True)))
    assert LayerFeatures(6, 2, "elmo", "bilstm", vocabulary=20).words.shape == (20, 100)


def test_cove_concatenates_word_vectors_and_the_top_layer() -> None:
    features = LayerFeatures(6, 2, "cove", "", words=3)
    twice, top = torch.randn(8, 6), torch.randn(8, 6)
    assert features.width == 9
    torch.testing.assert_close(features([twice, top], pack_lists(TEXTS)), torch.cat([twice[:, :3], top], 1))


def test_biattentive_layers_see_only_their_own_text() -> None:
    torch.manual_seed(0)
    layers, packed = Biattentive(6, 8), pack_lists(TEXTS)
    x = torch.randn(8, 6, requires_grad=True)
    out = layers(x, packed)
    assert out.shape == (8, 8)
    alone = layers(x[:4], pack_lists(TEXTS[:1]))
    torch.testing.assert_close(out[:4], alone)
    (gradient,) = torch.autograd.grad(out[1].sum(), x)
    assert (gradient.abs().sum(1) > 0).tolist() == [True] * 4 + [False] * 4


def test_mixing_layers_of_different_widths_raises_an_error() -> None:
    family = FAMILIES["lstm"]
    config = family.read_config({"vocab_size": 20, "embedding_size": 4, "hidden_size": 6, "num_hidden_layers": 2})
    task = parse_objective("classify on mix").objectives[0]
    with pytest.raises(pt.PretuneError, match="layers of one width"):
        task.head(family.build(config))
    with pytest.raises(pt.PretuneError, match="'cove' features need the encoder of a translation model"):
        parse_objective("classify on cove").objectives[0].head(family.build(config))


def start(kind: str, folder: Path) -> Path:
    lines = ["text,label", *(f"a {'good' if i % 2 else 'bad'} film {'ab'[i % 3 // 2]},{i % 2}" for i in range(60))]
    (folder / "train.csv").write_text("\n".join(lines), encoding="utf-8")
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    sizes: dict[str, Any] = {
        "elmo": {"hidden_size": 12, "projection_size": 8, "filters": [[1, 4], [2, 6]], "highways": 1},
        "seq2seq": {
            "embedding_size": 8,
            "hidden_size": 8,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "bidirectional": True,
            "initializer_range": 0.7,
        },
    }
    tokenizer = pt.train_tokenizer(folder / "text.txt", kind="characters" if kind == "elmo" else "words", vocab_size=20)
    family = FAMILIES[kind]
    torch.manual_seed(0)
    config = family.read_config({"vocab_size": 20, **sizes[kind]})
    Model(family, config, Network(family.build(config)), tokenizer).save(folder / "start")
    return folder / "start"


@pytest.mark.not_fast
@pytest.mark.parametrize(
    ("kind", "objective"),
    [
        ("elmo", "classify(pooling=mean) on elmo16/bilstm"),
        ("elmo", "classify(pooling=concat) on elmo16/biattentive"),
        ("seq2seq", "classify(pooling=max) on cove/biattentive"),
    ],
)
def test_a_task_trains_on_features_of_a_frozen_model(kind: str, objective: str, tmp_path: Path) -> None:
    begun = start(kind, tmp_path)
    (tmp_path / "v.txt").write_text("good " + " ".join(["1"] * 16) + "\nbad " + " ".join(["-1"] * 16), encoding="utf-8")
    vectors = {"word_vectors": tmp_path / "v.txt"} if kind == "elmo" else {}
    task = pt.finetune(
        begun, tmp_path / "train.csv", dev=tmp_path / "train.csv", out=tmp_path / "task", strategy="frozen", epochs=6,
        objective=objective, optimizer=pt.Optimizer(lr=2e-2), num_seeds=1, report=False, **vectors,
    )  # fmt: skip
    assert task.results["dev/accuracy"] > 0.95
    again = load(task.folder)
    assert all(
        torch.equal(x, y) for x, y in zip(again.backbone.parameters(), load(begun).backbone.parameters(), strict=True)
    )
    assert [row["label"] for row in task.predict(["a good film a", "a bad film b"])] == ["1", "0"]


@pytest.mark.not_fast
def test_a_tagger_trains_on_elmo_features_with_task_word_vectors(tmp_path: Path) -> None:
    begun = start("elmo", tmp_path)
    lines = [f"a O\n{'good' if i % 2 else 'bad'} B-X\nfilm O\nzebra{i} {'B-Y' if i % 2 else 'O'}\n" for i in range(40)]
    (tmp_path / "train.conll").write_text("\n".join(lines), encoding="utf-8")
    task = pt.finetune(
        begun, tmp_path / "train.conll", dev=tmp_path / "train.conll", out=tmp_path / "task", strategy="frozen", epochs=12, batch=pt.Batching(size=8),
        objective="tag on elmo16/bilstm", optimizer=pt.Optimizer(lr=2e-2), num_seeds=1, report=False,
    )  # fmt: skip
    assert task.results["dev/accuracy"] > 0.9, task.results
