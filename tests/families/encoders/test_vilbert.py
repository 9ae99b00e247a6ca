"""ViLBERT against its released computation, written out with padded batches, and its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.packed import Batch, Capacity, Packed, pack
from tests.support.parity import assert_same

CONFIG: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 36,
    "max_position_embeddings": 30, "v_feature_size": 7, "v_target_size": 5, "v_hidden_size": 16, "v_num_hidden_layers": 3,
    "v_num_attention_heads": 2, "v_intermediate_size": 20, "bi_hidden_size": 12, "bi_num_attention_heads": 4,
    "v_biattention_id": [0, 2], "t_biattention_id": [1, 3], "initializer_range": 0.3,
}  # fmt: skip
OBJECTIVE = "mlm+mrm+itm"
TEXTS, IMAGES = (5, 3, 9), (4, 6, 1)


def make(objective: str = OBJECTIVE, **changes: Any) -> Model:
    family = FAMILIES["vilbert"]
    config = family.read_config(CONFIG | changes)
    torch.manual_seed(0)
    model = Model(family, config, Network(family.build(config)), objective=objective)
    model.add_heads(parse_objective(objective).objectives)
    for parameter in model.root.parameters():  # biases and norms of fresh models would hide mistakes
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.root.eval()
    return model


def inputs(capacity: Capacity | None = None) -> tuple[Packed, Packed]:
    rng = np.random.default_rng(0)
    segments = {"segment": rng.integers(0, 2, sum(TEXTS))}
    text = pack(rng.integers(5, 40, sum(TEXTS)), np.array(TEXTS), columns=segments, capacity=capacity)
    regions = {
        "features": rng.normal(size=(sum(IMAGES), 7)).astype(np.float32),
        "locations": rng.uniform(size=(sum(IMAGES), 5)).astype(np.float32),
    }
    return text, pack(np.zeros(sum(IMAGES), dtype=np.int64), np.array(IMAGES), columns=regions, capacity=capacity)


class Released:
    """The forward pass of the released code, vilbert.py in vilbert-multi-task, on a state dict and a padded batch."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], 1e-12)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, heads: int) -> Tensor:
        q, k, v = (x.view(*x.shape[:2], heads, -1).transpose(1, 2) for x in (q, k, v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + (1.0 - mask.float())[:, None, None] * -10000.0
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def feed_forward(self, x: Tensor, intermediate: str, output: str) -> Tensor:
        inner = F.gelu(self.linear(x, f"{intermediate}.dense"))
        return self.norm(self.linear(inner, f"{output}.dense") + x, f"{output}.LayerNorm")

    def layer(self, x: Tensor, mask: Tensor, name: str, heads: int) -> Tensor:
        q, k, v = (self.linear(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        mixed = self.linear(self.attend(q, k, v, mask, heads), f"{name}.attention.output.dense")
        x = self.norm(mixed + x, f"{name}.attention.output.LayerNorm")
        return self.feed_forward(x, f"{name}.intermediate", f"{name}.output")

    def bridge(self, v: Tensor, v_mask: Tensor, t: Tensor, t_mask: Tensor, name: str, heads: int) -> tuple[Tensor, ...]:
        q1, k1, v1 = (self.linear(v, f"{name}.biattention.{part}1") for part in ("query", "key", "value"))
        q2, k2, v2 = (self.linear(t, f"{name}.biattention.{part}2") for part in ("query", "key", "value"))
        for_text, for_regions = self.attend(q2, k1, v1, v_mask, heads), self.attend(q1, k2, v2, t_mask, heads)
        v = self.norm(self.linear(for_regions, f"{name}.biOutput.dense1") + v, f"{name}.biOutput.LayerNorm1")
        t = self.norm(self.linear(for_text, f"{name}.biOutput.dense2") + t, f"{name}.biOutput.LayerNorm2")
        v = self.feed_forward(v, f"{name}.v_intermediate", f"{name}.v_output")
        return v, self.feed_forward(t, f"{name}.t_intermediate", f"{name}.t_output")

    def __call__(self, ids: Tensor, segments: Tensor, t_mask: Tensor, features: Tensor, where: Tensor, v_mask: Tensor):  # type: ignore[no-untyped-def]
        tables = [
            self.tensors[f"bert.embeddings.{kind}_embeddings.weight"] for kind in ("word", "token_type", "position")
        ]
        t = tables[0][ids] + tables[1][segments] + tables[2][: ids.shape[1]]
        t = self.norm(t, "bert.embeddings.LayerNorm")
        v = self.linear(features, "bert.v_embeddings.image_embeddings")
        v = v + self.linear(where, "bert.v_embeddings.image_location_embeddings")
        v = self.norm(v, "bert.v_embeddings.LayerNorm")
        t_start = v_start = 0
        for count, (v_end, t_end) in enumerate(
            zip(CONFIG["v_biattention_id"], CONFIG["t_biattention_id"], strict=True)
        ):
            for i in range(t_start, t_end):
                t = self.layer(t, t_mask, f"bert.encoder.layer.{i}", CONFIG["num_attention_heads"])
            for i in range(v_start, v_end):
                v = self.layer(v, v_mask, f"bert.encoder.v_layer.{i}", CONFIG["v_num_attention_heads"])
            v, t = self.bridge(v, v_mask, t, t_mask, f"bert.encoder.c_layer.{count}", CONFIG["bi_num_attention_heads"])
            v_start, t_start = v_end, t_end
        for i in range(v_start, CONFIG["v_num_hidden_layers"]):
            v = self.layer(v, v_mask, f"bert.encoder.v_layer.{i}", CONFIG["v_num_attention_heads"])
        for i in range(t_start, CONFIG["num_hidden_layers"]):
            t = self.layer(t, t_mask, f"bert.encoder.layer.{i}", CONFIG["num_attention_heads"])
        pooled = F.relu(self.linear(t[:, 0], "bert.t_pooler.dense")) * F.relu(
            self.linear(v[:, 0], "bert.v_pooler.dense")
        )
        return t, v, pooled

    def transform(self, x: Tensor, name: str) -> Tensor:
        return self.norm(F.gelu(self.linear(x, f"{name}.transform.dense")), f"{name}.transform.LayerNorm")


def padded(x: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    rows = torch.nn.utils.rnn.pad_sequence(list(torch.split(x, list(lengths))), batch_first=True)
    return rows, torch.arange(rows.shape[1]) < torch.tensor(lengths)[:, None]


def run_released(tensors: dict[str, Tensor], text: Packed, regions: Packed) -> tuple[Tensor, Tensor, Tensor]:
    (ids, t_mask), (segments, _) = padded(text.ids, TEXTS), padded(text.columns["segment"], TEXTS)
    (features, v_mask), (where, _) = (padded(regions.columns[name], IMAGES) for name in ("features", "locations"))
    t, v, pooled = Released(tensors)(ids, segments, t_mask, features, where, v_mask)
    return t[t_mask], v[v_mask], pooled


@torch.no_grad()
def test_states_and_logits_match_the_released_code(tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert not (tmp_path / "head.safetensors").exists()
    text, regions = inputs()
    t, v, pooled = run_released(tensors, text, regions)
    states = model.backbone(text, regions)
    torch.testing.assert_close(states.last, t, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(states.regions, v, atol=1e-5, rtol=1e-4)
    released, heads = Released(tensors), model.root.heads
    logits = F.linear(
        released.transform(t, "cls.predictions"), tensors["bert.embeddings.word_embeddings.weight"], tensors["cls.predictions.bias"]
    )  # fmt: skip
    torch.testing.assert_close(heads["mlm"](states.last, model.backbone.embed.tokens), logits, atol=1e-4, rtol=1e-4)
    classes = released.linear(released.transform(v, "cls.imagePredictions"), "cls.imagePredictions.decoder")
    torch.testing.assert_close(heads["mrm"](states.regions), classes, atol=1e-4, rtol=1e-4)
    matches = released.linear(pooled, "cls.bi_seq_relationship")
    torch.testing.assert_close(heads["itm"](states, Batch((text, regions))), matches, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_answers_match_the_released_code(tmp_path: Path) -> None:
    objective = "vqa"
    model = make()
    mixture = parse_objective(objective, labels=["a", "b", "c"])
    model.root.heads.clear()
    model.add_heads(mixture.objectives)
    model.objective, model.labels = objective, ["a", "b", "c"]
    model.root.eval().requires_grad_(False)
    model.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    text, regions = inputs()
    _, _, pooled = run_released(tensors, text, regions)
    released, name = Released(tensors), "vil_prediction.logit_fc"
    inner = released.norm(F.gelu(released.linear(pooled, f"{name}.0")), f"{name}.2")
    logits = model.root.heads["vqa"](model.backbone(text, regions), Batch((text, regions)))
    torch.testing.assert_close(logits, released.linear(inner, f"{name}.3"), atol=1e-4, rtol=1e-4)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["VILBertForVLTasks"]
    assert_same(model.root, load_model(tmp_path, mixture, seed=3).root)


# Names of the released checkpoints, as in pretrained_model.bin of the six-layer model.
PUBLISHED = (
    "bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.weight", "bert.v_embeddings.image_embeddings.weight",
    "bert.v_embeddings.image_location_embeddings.bias", "bert.v_embeddings.LayerNorm.bias", "bert.encoder.layer.3.attention.self.query.weight",
    "bert.encoder.v_layer.2.attention.self.value.bias", "bert.encoder.v_layer.0.output.LayerNorm.weight",
    "bert.encoder.c_layer.1.biattention.query1.weight", "bert.encoder.c_layer.1.biattention.key2.bias", "bert.encoder.c_layer.0.biOutput.dense1.weight",
    "bert.encoder.c_layer.0.biOutput.LayerNorm2.bias", "bert.encoder.c_layer.0.v_intermediate.dense.weight", "bert.encoder.c_layer.0.v_output.dense.bias",
    "bert.encoder.c_layer.0.t_intermediate.dense.weight", "bert.encoder.c_layer.0.t_output.LayerNorm.weight", "bert.t_pooler.dense.weight",
    "bert.v_pooler.dense.bias", "cls.predictions.bias", "cls.predictions.transform.LayerNorm.bias", "cls.bi_seq_relationship.weight",
    "cls.imagePredictions.transform.dense.weight", "cls.imagePredictions.decoder.bias",
)  # fmt: skip


def test_checkpoints_have_the_published_names_and_round_trip(tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    assert set(PUBLISHED) <= set(tensors)
    assert all(name.startswith(("bert.", "cls.")) for name in tensors)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["architectures"] == ["BertForMultiModalPreTraining"] and config["v_biattention_id"] == [0, 2]
    # A released file has two layers that nothing reads, and further heads.
    extra = {
        "bert.encoder.c_layer.0.biOutput.q_dense1.weight": torch.ones(16, 12),
        "bert.encoder.c_layer.0.biOutput.q_dense2.bias": torch.ones(24),
        "vil_logit.weight": torch.ones(1, 12),
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
    }
    save_file(tensors | extra, tmp_path / "a" / "model.safetensors")
    config |= {"fusion_method": "mul", "bi_attention_type": 1, "pooling_method": "mul", "v_initializer_range": 0.02}
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    again = load_model(tmp_path / "a", parse_objective(OBJECTIVE), seed=5)
    assert_same(model.root, again.root)
    again.save(tmp_path / "b")
    saved = load_file(tmp_path / "b" / "model.safetensors")
    assert saved.keys() == tensors.keys() and all(torch.equal(saved[name], tensors[name]) for name in saved)


@pytest.mark.parametrize(
    "change", [{"fusion_method": "sum"}, {"dynamic_attention": True}, {"task_specific_tokens": True}]
)
def test_unsupported_variants_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PretuneError, match=f"{next(iter(change))} .* is not supported for vilbert"):
        FAMILIES["vilbert"].read_config(CONFIG | change)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"v_biattention_id": [0]}, "v_biattention_id has 1 numbers and t_biattention_id 2"),
        ({"t_biattention_id": [3, 1]}, "t_biattention_id is .* must be increasing numbers from 0 to 4"),
        ({"v_biattention_id": [0, 4]}, "v_biattention_id is .* must be increasing numbers from 0 to 3"),
        ({"bi_hidden_size": 13}, "a width of 13 cannot be divided evenly among 4 attention heads"),
    ],
)
def test_impossible_bridges_are_refused(changes: dict[str, Any], message: str) -> None:
    family = FAMILIES["vilbert"]
    with pytest.raises(PretuneError, match=message):
        family.build(family.read_config(CONFIG | changes))


# preset → parameters of the backbone, computed from the shapes in the paper
def count_parameters(t: int, v: int, bi: int, inner: int, v_inner: int) -> int:
    def layer(width: int, inner: int) -> int:
        return 4 * (width * width + width) + 2 * 2 * width + 2 * width * inner + inner + width

    def half_bridge(width: int, other: int, inner: int) -> int:
        across = (width * bi + bi) + 2 * (other * bi + bi) + (bi * width + width)
        return across + 2 * 2 * width + 2 * width * inner + inner + width

    embeddings = (30522 + 512 + 2) * t + 2 * t + (2048 + 1) * v + (5 + 1) * v + 2 * v
    bridges = half_bridge(t, v, inner) + half_bridge(v, t, v_inner)
    return embeddings + 12 * layer(t, inner) + 6 * layer(v, v_inner) + 6 * bridges


def test_parameter_count_of_the_preset() -> None:
    with torch.device("meta"):
        backbone = make_model("vilbert-base").backbone
    assert sum(p.numel() for p in backbone.parameters()) == count_parameters(768, 1024, 1024, 3072, 1024)
