"""BigBird against `transformers`: full attention on ragged batches, block-sparse attention on single sequences.

`transformers` gets pretune's random blocks: it samples its own from the first blocks of a sequence only, and none in evaluation.
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
from pretune.nn.attention.big_bird import BlockSparseAttention
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.query_key_layout import TokenColumns, self_layout
from pretune.nn.attention.sparse_layout import random_blocks
from pretune.objectives import parse_objective
from pretune.packed import Packed, pack, pack_lists
from tests.support.family_configs import BIG_BIRD, BIG_BIRD_FULL_ATTENTION
from tests.support.parity import Ragged, close, compare_classifier, compare_gradients, compare_mlm, save_reference

SPARSE = {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 2}
LENGTHS = (23, 18, 40, 7, 31)  # up to 18 tokens have full attention; some sequences end within a block


def make_reference(folder: Path, **changes: Any) -> Any:
    from transformers import BigBirdConfig, BigBirdForMaskedLM

    return save_reference(BigBirdForMaskedLM, BigBirdConfig(**(BIG_BIRD | changes)), folder)


def one_by_one(reference: Any, batch: Ragged) -> list[Any]:
    """Return the outputs of `transformers` for each sequence; a short one would switch the model to full attention for good."""
    outputs = []
    for ids, mask, segment in zip(
        batch.input_ids, batch.attention_mask.bool(), batch.columns["token_type_ids"], strict=True
    ):
        reference.bert.set_attention_type("block_sparse")
        outputs.append(
            reference(input_ids=ids[mask][None], token_type_ids=segment[mask][None], output_hidden_states=True)
        )
    return outputs


def drawn_blocks(attention: BlockSparseAttention, blocks: int) -> Tensor:
    """Return the random blocks of each block of a sequence of `blocks` blocks, (heads, blocks, random)."""
    block, last = torch.arange(blocks), torch.tensor(blocks - 1)
    numbers = [attention.numbers[:, :blocks, draw] for draw in range(attention.random)]
    return torch.stack(random_blocks(numbers, block, last), -1)


def share_random_blocks(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give `transformers` the random blocks of pretune's layers, in training and in evaluation."""
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    def drawn(self: Any, from_seq_length: int, *_: Any, **__: Any) -> list[Any]:
        ours: Any = model.backbone.layers[self.seed]
        part = ours.attention.part
        return list(drawn_blocks(part, from_seq_length // part.size)[:, 1:-1].numpy())

    monkeypatch.setattr(BigBirdBlockSparseAttention, "_bigbird_block_rand_mask_with_head", drawn)


@pytest.mark.parametrize("changes", [{}, {"rescale_embeddings": True, "hidden_act": "relu", "layer_norm_eps": 1e-3}])
def test_full_attention_matches_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    compare_mlm(make_reference(tmp_path, **BIG_BIRD_FULL_ATTENTION, **changes), tmp_path, Ragged.make(60))


@pytest.mark.parametrize("training", [False, True])
def test_block_sparse_attention_matches_transformers_with_the_same_random_blocks(
    training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, batch = make_reference(tmp_path, **SPARSE).train(training), Ragged.make(60, LENGTHS)
    model = load_model(tmp_path, parse_objective("mlm"))
    model.root.train(training)
    share_random_blocks(model, monkeypatch)
    theirs = one_by_one(reference, batch)
    ours = model.backbone(batch.packed, keep="all")
    for number, layer in enumerate(ours.layers):
        close(layer, torch.cat([output.hidden_states[number][0, :length] for output, length in zip(theirs, LENGTHS)]))  # noqa: B905
    logits = model.root.heads["mlm"](ours.last, model.backbone.embed.tokens)
    expected = torch.cat([output.logits[0] for output in theirs])
    close(logits, expected)
    target, _ = batch.targets(60)
    F.cross_entropy(logits, target).backward()
    F.cross_entropy(expected, target).backward()
    compare_gradients(model, reference)


def test_states_in_training_match_those_in_evaluation(tmp_path: Path) -> None:
    make_reference(tmp_path, **SPARSE)
    model, batch = load_model(tmp_path, parse_objective("mlm")), Ragged.make(60, LENGTHS)
    trained, evaluated = (model.backbone.train(mode)(batch.packed).last for mode in (True, False))
    assert torch.equal(trained, evaluated)
    for layer in model.backbone.layers:  # they differ without random blocks
        layer.attention.part.numbers = layer.attention.part.numbers[..., :0]
        layer.attention.part.random = 0
    long = np.repeat(LENGTHS, LENGTHS) > 18
    assert not torch.allclose(model.backbone(batch.packed).last[long], evaluated[long], atol=1e-3)


def test_the_attention_pattern_matches_its_definition() -> None:
    """A block sees its neighbors, both ends and the random blocks of the head; short sequences have full attention."""
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
    """Each block samples uniformly and without replacement from the blocks that it does not see anyway."""
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


@pytest.mark.parametrize("kind", [BIG_BIRD_FULL_ATTENTION, SPARSE])
def test_export_loads_in_transformers_and_a_second_export_is_identical(kind: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    reference, batch = make_reference(tmp_path / "reference", **kind), Ragged.make(60)
    load_model(tmp_path / "reference", parse_objective("mlm")).save(tmp_path / "a")
    load_model(tmp_path / "a", parse_objective("mlm")).save(tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert not (tmp_path / "a" / "head.safetensors").exists()
    again, report = AutoModelForMaskedLM.from_pretrained(tmp_path / "a", output_loading_info=True)
    assert type(again) is type(reference) and again.config.attention_type == kind["attention_type"]
    # `transformers` has a pooler here that it does not use.
    assert set(report["missing_keys"]) <= {"bert.pooler.weight", "bert.pooler.bias"} and not report["unexpected_keys"]
    with torch.no_grad():
        close(again.eval()(**batch.inputs).logits, reference(**batch.inputs).logits, 1e-6)


def test_classifier_round_trips_through_transformers(tmp_path: Path) -> None:
    compare_classifier(
        FAMILIES["big_bird"], BIG_BIRD | BIG_BIRD_FULL_ATTENTION, tmp_path, Ragged.make(60), unused=("pooler",)
    )


def test_unsupported_settings_are_refused() -> None:
    family = FAMILIES["big_bird"]
    for changes, message in (
        (
            {"attention_type": "lsh"},
            'attention_type "lsh" is not supported for big_bird; use a model with attention_type "block_sparse" or "original_full"',
        ),
        ({"use_bias": False}, "use_bias false is not supported"),
    ):
        with pytest.raises(PretuneError, match=message):
            family.build(family.read_config(BIG_BIRD | changes))


@pytest.mark.not_fast
def test_a_layer_compiles_once_without_graph_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no graph break, and other lengths of the same capacity do not recompile."""
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
