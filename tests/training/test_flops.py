from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pretune.models.model import Network
from pretune.nn.attention.patterns import window
from pretune.nn.operation_counts import attention_pairs
from pretune.objectives import parse_objective
from pretune.packed import Batch, pack, pack_targets
from pretune.text.packing.sequences import Packing
from tests.support.counted_flops import forward_flops, itemize_flops, training_flops
from tests.support.drawn_shapes import image_text_data, small_model
from tests.support.flop_batches import even_batch, small_backbone
from tests.support.tiny_training_cases import bert, encoder_decoder, modern, transformer_xl, xl


@pytest.fixture(autouse=True)
def _plain_attention():  # type: ignore[no-untyped-def]
    with sdpa_kernel(SDPBackend.MATH):  # the FLOP counter does not support the fused CPU kernel
        yield


@pytest.mark.parametrize("kind", ["bert", "modern"])
@pytest.mark.parametrize("shape", [(8, 3), (30, 2), (17, 5)])
def test_formula_equals_the_flop_counter(kind: str, shape: tuple[int, int]) -> None:
    root = Network({"bert": bert, "modern": modern}[kind]())
    mixture = parse_objective("mlm+nsp" if kind == "bert" else "mlm")
    for objective in mixture.objectives:
        root.heads[objective.name] = objective.head(root.backbone)
    batch = even_batch(1, *shape)
    with FlopCounterMode(display=False) as counter:
        loss = root(mixture.joints[0], batch)
    assert counter.get_total_flops() == forward_flops(root, batch)
    with FlopCounterMode(display=False) as counter:
        root(mixture.joints[0], batch).over(batch.counts).backward()
    assert counter.get_total_flops() == training_flops(root, batch)
    assert torch.isfinite(loss.sums["mlm"])


@pytest.mark.parametrize(
    "name", ["rtd", "rtd(generator_size=1,generator_layers=1)+sop", "mlm(unit=span,span_boundary=true)", "item"]
)
@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_formula_for_heads_that_are_networks(name: str, kind: str) -> None:
    root = Network({"bert": bert, "modern": modern}[kind]())
    mixture = parse_objective(name)
    for objective in mixture.objectives:
        root.heads[objective.name] = objective.head(root.backbone)
    rows, length = 4, 12
    batch = even_batch(1, length, rows)
    at = np.arange(0, length * rows, 4)
    targets = {
        "generator": (at, at % 200), "rtd": (np.arange(length * rows), np.arange(length * rows)), "item": (at, at),
        "sop": (np.arange(rows) * length, np.arange(rows) % 2), "mlm": (at, at),
        "boundary": (np.stack([at[1:] - 1, at[1:], at[1:] * 0], axis=1), at[1:]),
    }  # fmt: skip
    wanted = mixture.joints[0].max_targets(Packing(length * rows, length))
    batch.targets = {term: pack_targets(*targets[term]) for term in wanted}
    batch.counts = {term: float(len(targets[term][0])) for term in wanted} | {"tokens": float(length * rows)}
    with FlopCounterMode(display=False) as counter:
        root(mixture.joints[0], batch)
    assert counter.get_total_flops() == forward_flops(root, batch)
    assert set(wanted) <= set(itemize_flops(root, batch))
    with FlopCounterMode(display=False) as counter:
        root(mixture.joints[0], batch).over(batch.counts).backward()
    assert counter.get_total_flops() == training_flops(root, batch)
    others = even_batch(1, length, rows)  # a step of another objective
    assert forward_flops(root, others) < forward_flops(root, batch)


@pytest.mark.parametrize("name", ["rtd", "trtd"])
def test_shared_head_is_counted_once(name: str) -> None:
    root, mixture = Network(bert()), parse_objective("rtd|trtd")
    root.heads["rtd"] = root.heads["trtd"] = mixture.objectives[0].head(root.backbone)
    batch = even_batch(1, 12, 4)
    at, every = np.arange(0, 48, 4), np.arange(48)
    filled = "generator" if name == "rtd" else "trtd_generator"
    batch.targets = {filled: pack_targets(at, at), name: pack_targets(every, every)}
    batch.counts = {filled: float(len(at)), name: 48.0, "tokens": 48.0}
    joint = next(joint for joint in mixture.joints if str(joint) == name)
    with FlopCounterMode(display=False) as counter:
        root(joint, batch)
    assert counter.get_total_flops() == forward_flops(root, batch)
    assert itemize_flops(root, batch)[filled] > 0


def test_formula_for_bidirectional_stacks() -> None:
    backbone = small_backbone(
        "elmo-transformer", hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    mixture = parse_objective("bilm")
    root = Network(backbone, [("bilm", mixture.objectives[0].head(backbone))])
    batch = even_batch(1, 12, 4)
    at = np.stack([np.arange(0, 48, 3), np.arange(0, 48, 3) % 2], 1)
    batch.targets, batch.counts = {"bilm": pack_targets(at, at[:, 0])}, {"bilm": float(len(at)), "tokens": 48.0}
    with FlopCounterMode(display=False) as counter:
        root(mixture.joints[0], batch)
    assert counter.get_total_flops() == forward_flops(root, batch)


STACKS = {"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40}


@pytest.mark.parametrize(
    "make",
    [
        encoder_decoder,
        partial(small_backbone, "t5", d_kv=6, d_ff=48, num_layers=2, num_heads=4, num_decoder_layers=1),
        partial(small_backbone, "mt5", d_kv=6, d_ff=48, num_layers=2, num_heads=4),
        partial(small_backbone, "bart", **STACKS),
    ],
)
def test_formula_for_encoder_decoders(make: Any) -> None:
    backbone = make()
    root = Network(backbone, [("mlm", backbone.vocabulary_head())]).eval()
    batch = even_batch(2, 12, 3)
    with FlopCounterMode(display=False) as counter:
        states = root.backbone(*batch.packed).last[batch.targets["mlm"].at]
        root.heads["mlm"](states, root.backbone.embed.tokens)
    assert counter.get_total_flops() == forward_flops(root, batch)


def test_padding_costs_nothing() -> None:
    from pretune.packed import Capacity

    root = Network(bert())
    chance = np.random.default_rng(0)
    ids, lengths = chance.integers(5, 200, 20), np.array([12, 8])
    counts = {"tokens": 20.0}
    plain = Batch((pack(ids, lengths),), counts=counts, rows=np.arange(2))
    padded = Batch((pack(ids, lengths, capacity=Capacity(90, 12, 30)),), counts=counts, rows=np.arange(2))
    assert forward_flops(root, plain) == forward_flops(root, padded) > 0


def test_items_sum_to_the_total_and_windows_count_only_visible_pairs() -> None:
    root = Network(bert())
    mixture = parse_objective("mlm+nsp")
    for objective in mixture.objectives:
        root.heads[objective.name] = objective.head(root.backbone)
    items = itemize_flops(root, even_batch(1, 30, 2))
    assert set(items) == {"matrices", "attention", "recurrence", "memory", "positions", "mlm", "nsp"}
    assert sum(items.values()) == forward_flops(root, even_batch(1, 30, 2))
    for length in (1, 2, 7, 40):
        for reach in ((0, 0), (3, 3), (5, 2), (50, 50)):
            places = np.arange(length)
            apart = places[None] - places[:, None]
            seen = ((apart >= -reach[0]) & (apart <= reach[1])).sum()
            assert attention_pairs(np.array([float(length)]), reach)[0] == seen
    for part in root.backbone.modules():
        if hasattr(part, "pattern"):
            part.pattern = window(3)
    assert itemize_flops(root, even_batch(1, 30, 2))["attention"] < 0.3 * items["attention"]


@pytest.mark.parametrize("name", ["spans", "translate", "skip_thought"])
def test_formula_for_source_and_target_of_different_lengths(name: str) -> None:
    mixture = parse_objective(name)
    root = Network(encoder_decoder())
    for objective in mixture.objectives:
        root.heads[objective.name] = objective.head(root.backbone)
    rows, per, read, written = 4, 2 if name == "skip_thought" else 1, 11, 5
    chance = np.random.default_rng(0)
    lengths = np.full(rows, read), np.full(per * rows, written)
    packed = tuple(pack(chance.integers(5, 200, side.sum()), side) for side in lengths)
    at = np.arange(0, per * rows * written, 2)
    batch = Batch(
        packed,
        {name: pack_targets(at, at % 200)},
        {name: float(len(at)), "tokens": float(sum(side.sum() for side in lengths))},
        rows=np.arange(rows),
        lengths=lengths,
    )
    with FlopCounterMode(display=False) as counter:
        root(mixture.joints[0], batch)
    assert counter.get_total_flops() == forward_flops(root, batch)
    with FlopCounterMode(display=False) as counter:
        root(mixture.joints[0], batch).over(batch.counts).backward()
    assert counter.get_total_flops() == training_flops(root, batch)


def test_padding_on_both_sides_costs_nothing() -> None:
    from pretune.text.packing.sequences import Packing, Sequences, collate

    joint = parse_objective("translate").joints[0]
    root = Network(encoder_decoder(), [("translate", joint.objectives[0].head(encoder_decoder()))])
    second = Sequences(
        np.arange(9) + 5, np.array([5, 4]), np.arange(2), targets={"translate": (np.arange(9), np.arange(9))}
    )
    sequences = Sequences(np.arange(20) + 5, np.array([12, 8]), np.arange(2), second=second)
    plain, padded = (
        collate(sequences, joint.capacity(Packing(90, 30, sequences=12, fixed=fixed))) for fixed in (False, True)
    )
    assert len(padded.packed[1].ids) == 90
    assert forward_flops(root, plain) == forward_flops(root, padded) > 0


@pytest.mark.parametrize("kind", ["xlnet", "transformer-xl"])
@pytest.mark.parametrize("columns", [(), ("segment",), ("document_start",)])
def test_formula_with_relative_positions_and_memory(kind: str, columns: tuple[str, ...]) -> None:
    root, mixture = Network(xl(6) if kind == "xlnet" else transformer_xl()), parse_objective("lm")
    root.heads["lm"] = mixture.objectives[0].head(root.backbone)
    batch = even_batch(1, 12, 4)
    batch.packed[0].columns |= {name: torch.zeros(48, dtype=torch.long) for name in columns}
    batch.targets, batch.counts = {"lm": batch.targets["mlm"]}, {"lm": batch.counts["mlm"], "tokens": 48.0}
    root.requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        loss = root(mixture.joints[0], batch)
    assert counter.get_total_flops() == forward_flops(root, batch)
    assert (loss.state is not None) == ("document_start" in columns) == (itemize_flops(root, batch)["memory"] > 0)


@pytest.mark.parametrize("kind", ["deberta", "deberta-v2"])
@pytest.mark.parametrize("max_distance", [5, 40])
def test_formula_with_relative_position_embeddings(kind: str, max_distance: int) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    positions = {"relative_attention": True, "pos_att_type": "c2p|p2c", "max_relative_positions": max_distance}
    backbone = small_backbone(kind, **sizes, **positions, position_buckets=4, share_att_key=True, conv_kernel_size=3)
    root, mixture = Network(backbone, [("mlm", backbone.vocabulary_head())]), parse_objective("mlm")
    batch = even_batch(1, 12, 4)
    with FlopCounterMode(display=False) as counter:
        root(mixture.joints[0], batch)
    assert counter.get_total_flops() == forward_flops(root, batch)
    with FlopCounterMode(display=False) as counter:
        root(mixture.joints[0], batch).over(batch.counts).backward()
    assert counter.get_total_flops() == training_flops(root, batch)


def test_recurrence_counts_every_gate_once_per_token() -> None:
    from tests.support.tiny_training_cases import rnn, two_lstms

    batch = even_batch(1, 8, 3)
    batch.targets, batch.counts = {}, {"tokens": 24.0}
    gates = 4 * 64 * (32 + 32) + 32 * 64  # of one layer, with its projection
    assert itemize_flops(Network(two_lstms()), batch)["recurrence"] == 2 * 4 * gates * 24
    batch = even_batch(2, 8, 3)
    batch.targets, batch.counts = {}, {"tokens": 48.0}
    items = itemize_flops(Network(rnn()), batch)
    layer = 4 * 32 * (32 + 32)
    assert items["recurrence"] == 2 * (2 * layer + layer) * 24
    assert items["cross attention"] == 4 * 64 * 3 * 8 * 8


@pytest.mark.parametrize("objective", ["mlm", "mlm+mrm+itm"])
def test_formula_for_two_streams(objective: str) -> None:
    joint = parse_objective(objective).joints[0]
    root = small_model(image_text_data(4).tokenizer, joint.objectives).root
    rows, length, regions = 3, 8, 5
    rng = np.random.default_rng(0)
    columns = {"features": rng.normal(size=(rows * regions, 19)), "locations": rng.uniform(size=(rows * regions, 5))}
    image = pack(np.zeros(rows * regions, dtype=int), np.full(rows, regions), columns=columns)
    text = pack(rng.integers(5, 60, rows * length), np.full(rows, length))
    at = np.arange(0, rows * regions, 4)
    targets = {
        "mlm": pack_targets(at, at), "mrm": pack_targets(at, np.full((len(at), 9), 1 / 9)),
        "itm": pack_targets(np.arange(rows), np.arange(rows) % 2),
    }  # fmt: skip
    counts = {"mlm": float(len(at)), "mrm": float(len(at)), "itm": float(rows)}
    batch = Batch((text, image) if "mrm" in objective else (text,), targets, counts, rows=np.arange(rows))
    with FlopCounterMode(display=False) as counter:
        root(joint, batch)
    assert counter.get_total_flops() == forward_flops(root, batch)
