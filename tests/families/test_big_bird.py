"""BigBird against the peer: full attention on ragged batches, blocks on each sequence alone (the peer's blocks are a batch's)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peers import Ragged, close, compare_classifier, compare_gradients, compare_mlm, save_peer
from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.model import Model, load_model
from pretune.nn.layout import Indexed, self_layout
from pretune.nn.scores import BlockSparse, random_plan
from pretune.objectives import parse_objective
from pretune.packed import pack_lists

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 60, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
FULL = {"attention_type": "original_full"}
SPARSE = {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 2}
LENGTHS = (23, 18, 40, 7, 31)  # up to 18 tokens are seen whole; some end within a block


def make_peer(folder: Path, **changes: Any) -> Any:
    from transformers import BigBirdConfig, BigBirdForMaskedLM

    return save_peer(BigBirdForMaskedLM, BigBirdConfig(**(SMALL | changes)), folder)


def one_by_one(peer: Any, batch: Ragged) -> list[Any]:
    """The peer's outputs for each sequence alone; after a short one it would stay with full attention."""
    outputs = []
    for ids, mask, segment in zip(
        batch.input_ids, batch.attention_mask.bool(), batch.columns["token_type_ids"], strict=True
    ):
        peer.bert.set_attention_type("block_sparse")
        outputs.append(peer(input_ids=ids[mask][None], token_type_ids=segment[mask][None], output_hidden_states=True))
    return outputs


def follow(model: Model, plans: list[Tensor]) -> None:
    """Draw no blocks, but take the peer's: (heads, blocks − 2, random) of each layer, of blocks that do not see all."""
    for layer, plan in zip(model.backbone.layers, plans, strict=True):
        part = layer.attention.part
        part.score = BlockSparse(part.score.size, part.score.random, F.pad(plan, (0, 0, 1, 1)))
        part.pattern = part.score.pattern


def peers_plan(peer: Any, length: int) -> list[Tensor]:
    """The blocks that the layers of a peer in training look at in a sequence of so many tokens."""
    plans = []
    for layer in peer.bert.encoder.layer:
        attention = layer.attention.self
        np.random.seed(attention.seed)
        lengths, draws = attention._get_rand_attn_plan(length, 2, 2)
        plan = attention._bigbird_block_rand_mask_with_head(length, length, 2, 2, 4, lengths, draws)
        plans.append(torch.from_numpy(np.stack(plan)).long())
    return plans


@pytest.mark.parametrize("changes", [{}, {"rescale_embeddings": True, "hidden_act": "relu", "layer_norm_eps": 1e-3}])
def test_full_attention_is_the_peers(changes: dict[str, Any], tmp_path: Path) -> None:
    compare_mlm(make_peer(tmp_path, **FULL, **changes), tmp_path, Ragged.make(60))


def test_blocks_are_the_peers(tmp_path: Path) -> None:
    peer, batch = make_peer(tmp_path, **SPARSE), Ragged.make(60, LENGTHS)
    model = load_model(tmp_path, parse_objective("mlm"))
    model.root.eval()
    theirs = one_by_one(peer, batch)
    ours = model.backbone(batch.packed, keep="all")
    for number, layer in enumerate(ours.layers):
        close(layer, torch.cat([output.hidden_states[number][0, :length] for output, length in zip(theirs, LENGTHS)]))  # noqa: B905
    logits = model.root.heads["mlm"](ours.last, model.backbone.embed.tokens)
    expected = torch.cat([output.logits[0] for output in theirs])
    close(logits, expected)
    target, _ = batch.targets(60)
    F.cross_entropy(logits, target).backward()
    F.cross_entropy(expected, target).backward()
    compare_gradients(model, peer)


def test_random_blocks_are_the_peers_by_its_plan(tmp_path: Path) -> None:
    peer, batch = make_peer(tmp_path, **SPARSE).train(), Ragged.make(60, (39,))
    model = load_model(tmp_path, parse_objective("mlm"))
    follow(model, peers_plan(peer, 40))
    (theirs,) = one_by_one(peer, batch)
    logits = model.root.heads["mlm"](model.backbone(batch.packed).last, model.backbone.embed.tokens)
    close(logits, theirs.logits[0])
    model.root.eval()
    other = model.root.heads["mlm"](model.backbone(batch.packed).last, model.backbone.embed.tokens)
    assert not torch.allclose(other, logits, atol=1e-3)


def test_counts_are_those_by_hand() -> None:
    """Blocks of one token; one has drawn itself and counts twice (X)."""
    drawn = """
        xxxxxxxxx ..
        xxx.x...x ..
        xxxx.x..x ..
        x.xxx.x.x ..
        xx.xxx..x ..
        xx..xxx.x ..
        x..x.xxxx ..
        x.....xXx ..
        xxxxxxxxx ..
        ......... xx
        ......... xx
    """
    times = torch.tensor([[".xX".index(place) for place in row.replace(" ", "")] for row in drawn.split("\n")[1:-1]])
    plan = torch.tensor([[[0], [4], [5], [6], [1], [1], [3], [7], [0]]])
    layout = self_layout(pack_lists([[5] * 9, [5] * 2]))
    side = layout.queries
    rows = torch.arange(11)
    query, key = Indexed(side, rows[:, None]), Indexed(side, rows)
    score = BlockSparse(1, 1, plan)
    logits = score(torch.zeros(11, 1, 4), layout)(torch.zeros(11, 11), torch.tensor(0), query, key)
    same = side.sequence[:, None] == side.sequence
    assert torch.equal(logits.exp().round().long() * same, times)
    assert (score.pattern.allow(query, key) | (times == 0)).all()


def test_a_plan_draws_blocks_that_are_not_seen_anyway() -> None:
    plan = random_plan(heads=3, blocks=30, random=3, seed=1)
    assert plan.shape == (3, 30, 3)
    assert ((plan - torch.arange(30)[:, None]).abs() > 1).all() and (plan > 0).all() and (plan < 10).all()
    assert all(len(set(row)) == 3 for head in plan.tolist() for row in head)
    assert torch.equal(plan, random_plan(3, 30, 3, seed=1)) and not torch.equal(plan, random_plan(3, 30, 3, seed=2))


@pytest.mark.parametrize("kind", [FULL, SPARSE])
def test_export_is_loaded_by_the_peer_and_export_import_export_is_stable(kind: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    peer, batch = make_peer(tmp_path / "peer", **kind), Ragged.make(60)
    load_model(tmp_path / "peer", parse_objective("mlm")).save(tmp_path / "a")
    load_model(tmp_path / "a", parse_objective("mlm")).save(tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert not (tmp_path / "a" / "head.safetensors").exists()
    again, report = AutoModelForMaskedLM.from_pretrained(tmp_path / "a", output_loading_info=True)
    assert type(again) is type(peer) and again.config.attention_type == kind["attention_type"]
    # The peer has a pooler here that it makes no use of.
    assert set(report["missing_keys"]) <= {"bert.pooler.weight", "bert.pooler.bias"} and not report["unexpected_keys"]
    with torch.no_grad():
        close(again.eval()(**batch.inputs).logits, peer(**batch.inputs).logits, 1e-6)


def test_a_classifier_goes_both_ways(tmp_path: Path) -> None:
    compare_classifier(FAMILIES["big_bird"], SMALL | FULL, tmp_path, Ragged.make(60), unused=("pooler",))


def test_settings_that_are_not_there_are_refused() -> None:
    family = FAMILIES["big_bird"]
    for changes, message in (
        (
            {"attention_type": "lsh"},
            'attention_type "lsh" is not supported for big_bird; only "block_sparse" or "original_full"',
        ),
        ({"use_bias": False}, "use_bias false is not supported"),
    ):
        with pytest.raises(PretuneError, match=message):
            family.build(family.read_config(SMALL | changes))
