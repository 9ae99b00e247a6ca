"""BigBird against `transformers`: full attention on ragged batches, blocks on each sequence alone (there, blocks are a batch's).

`transformers` is given our random blocks: it draws its own from the first blocks of a sequence, and none in evaluation.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.nn.attention.big_bird import BlockSparseAttention, random_blocks
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.query_key_layout import TokenColumns, self_layout
from pretune.objectives import parse_objective
from pretune.packed import Packed, pack, pack_lists
from tests.support.parity import Ragged, close, compare_classifier, compare_gradients, compare_mlm, save_peer

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


def drawn_blocks(attention: BlockSparseAttention, blocks: int) -> Tensor:
    """(heads, blocks, random): what each block of a sequence of so many blocks draws."""
    block, last = torch.arange(blocks), torch.tensor(blocks - 1)
    numbers = [attention.numbers[:, :blocks, draw] for draw in range(attention.random)]
    return torch.stack(random_blocks(numbers, block, last), -1)


def share_random_blocks(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the peer look at the random blocks of our layers, in training and in evaluation."""
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    def drawn(self: Any, from_seq_length: int, *_: Any, **__: Any) -> list[Any]:
        ours: Any = model.backbone.layers[self.seed]
        part = ours.attention.part
        return list(drawn_blocks(part, from_seq_length // part.size)[:, 1:-1].numpy())

    monkeypatch.setattr(BigBirdBlockSparseAttention, "_bigbird_block_rand_mask_with_head", drawn)


@pytest.mark.parametrize("changes", [{}, {"rescale_embeddings": True, "hidden_act": "relu", "layer_norm_eps": 1e-3}])
def test_full_attention_is_the_peers(changes: dict[str, Any], tmp_path: Path) -> None:
    compare_mlm(make_peer(tmp_path, **FULL, **changes), tmp_path, Ragged.make(60))


@pytest.mark.parametrize("training", [False, True])
def test_blocks_are_the_peers_with_the_same_random_blocks(
    training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, batch = make_peer(tmp_path, **SPARSE).train(training), Ragged.make(60, LENGTHS)
    model = load_model(tmp_path, parse_objective("mlm"))
    model.root.train(training)
    share_random_blocks(model, monkeypatch)
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


def test_states_are_the_same_in_training_and_evaluation(tmp_path: Path) -> None:
    make_peer(tmp_path, **SPARSE)
    model, batch = load_model(tmp_path, parse_objective("mlm")), Ragged.make(60, LENGTHS)
    trained, evaluated = (model.backbone.train(mode)(batch.packed).last for mode in (True, False))
    assert torch.equal(trained, evaluated)
    for layer in model.backbone.layers:  # without random blocks they would be others
        layer.attention.part.numbers = layer.attention.part.numbers[..., :0]
        layer.attention.part.random = 0
    long = np.repeat(LENGTHS, LENGTHS) > 18
    assert not torch.allclose(model.backbone(batch.packed).last[long], evaluated[long], atol=1e-3)


def test_who_sees_whom_is_the_rule_by_hand() -> None:
    """Neighbors, both ends, and the random blocks of the head; a short sequence is seen whole."""
    attention = BlockSparseAttention(6, 3, size=2, random=1, blocks=12, layer=0)
    lengths = [24, 14, 15]
    side = self_layout(pack_lists([[5] * length for length in lengths])).queries
    rows, pattern = torch.arange(sum(lengths)), attention.pattern
    allowed = pattern.allow(TokenColumns(side, rows[:, None], torch.arange(3)[:, None, None]), TokenColumns(side, rows))
    start = 0
    for length in lengths:
        blocks = -(-length // 2)
        drawn = drawn_blocks(attention, blocks)
        for head, query, key in np.ndindex(3, length, length):
            one, other, ends = query // 2, key // 2, (0, blocks - 1)
            seen = length <= 14 or abs(one - other) <= 1 or one in ends or other in ends or other in drawn[head, one]
            assert allowed[head, start + query, start + key] == seen
        start += length


def test_random_blocks_come_from_the_whole_sequence() -> None:
    """Each block draws uniformly and without replacement from all blocks that it does not see anyway."""
    layers, heads, random = 25, 16, 3
    for blocks in (12, 20, 64):
        found = torch.stack(
            [
                drawn_blocks(BlockSparseAttention(32, heads, size=64, random=random, blocks=64, layer=layer), blocks)
                for layer in range(layers)
            ]
        )  # (layers, heads, blocks, random)
        inner = found[:, :, 1:-1]
        assert inner.min() >= 1 and inner.max() <= blocks - 2
        assert ((inner - torch.arange(1, blocks - 1)[:, None]).abs() > 1).all()
        assert (inner.sort(-1).values.diff(dim=-1) > 0).all()
        for block in range(1, blocks - 1):
            allowed = [other for other in range(1, blocks - 1) if abs(other - block) > 1]
            counts = torch.bincount(found[:, :, block].flatten(), minlength=blocks)[allowed].double()
            expected = layers * heads * random / len(allowed)
            spread = (expected * (1 - random / len(allowed))) ** 0.5
            assert (counts - expected).abs().max() < 5.5 * spread + 1
    first, second = (BlockSparseAttention(32, 2, size=64, random=3, blocks=64, layer=layer) for layer in (0, 1))
    again = BlockSparseAttention(32, 2, size=64, random=3, blocks=64, layer=0)
    assert torch.equal(first.numbers, again.numbers) and not torch.equal(first.numbers, second.numbers)
    assert not torch.equal(first.numbers[0], first.numbers[1])


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


def test_a_layer_is_compiled_whole_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: no break in the graph, and other lengths of the same capacity are no other shapes."""
    from torch._dynamo.testing import CompileCounter

    torch.manual_seed(0)
    attention = BlockSparseAttention(8, 2, size=2, random=1, blocks=32, layer=0).eval()

    def layer(x: Tensor, packed: Packed) -> Tensor:
        return attention(x, AttentionContext(self_layout(packed)))

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend=counter)
    x = torch.randn(100, 8)
    with torch.no_grad():
        for lengths in ([60, 5, 35], [30, 50, 20]):
            packed = pack(np.full(100, 5), np.array(lengths))
            packed.max_length = 60
            expected = layer(x, packed)
            with monkeypatch.context() as patch:
                patch.setattr("pretune.nn.attention.scaled_dot_product.choose_backend", lambda *_: "flex")
                torch.testing.assert_close(compiled(x, replace(packed, host_offsets=None)), expected)
    assert counter.frame_count == 1
    torch._dynamo.reset()
