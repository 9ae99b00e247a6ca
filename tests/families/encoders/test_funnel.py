"""Funnel-Transformer against `transformers`: every layer, heads, gradients, both ways of attention, pooling in packs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.nn.attention.patterns import causal
from pretune.nn.attention.pooled_layout import TokenPooling, upsample
from pretune.nn.attention.query_key_layout import token_layout
from pretune.objectives import parse_objective
from pretune.packed import Capacity, Packed, pack, pack_lists
from tests.support.counted_flops import forward_flops
from tests.support.family_configs import FUNNEL
from tests.support.flop_batches import even_batch, small_backbone
from tests.support.parity import (
    Ragged,
    assert_same,
    close,
    compare_classifier,
    compare_export,
    compare_gradients,
    save_reference,
)

LENGTHS = (12, 7, 3, 2, 1, 9)
VARIATIONS: dict[str, dict[str, Any]] = {
    "published": {},
    "factorized": {"attention_type": "factorized"},
    "without truncation": {"truncate_seq": False},
    "without a separate token": {"separate_cls": False},
    "pooled keys, maximum": {"pool_q_only": False, "pooling_type": "max"},
    "repeated layers": {"block_repeats": [1, 2, 3], "hidden_act": "relu"},
}


def make_reference(folder: Path, kind: str = "FunnelForMaskedLM", **changes: Any) -> Any:
    import transformers

    return save_reference(getattr(transformers, kind), transformers.FunnelConfig(**FUNNEL | changes), folder)


def even(length: int = 12, rows: int = 2) -> Ragged:
    """Return sequences of one length: `transformers` pools padding together with tokens."""
    return Ragged.make(60, (length,) * rows)


def make(**changes: Any) -> Model:
    family = FAMILIES["funnel"]
    config = family.read_config(FUNNEL | changes)
    model = Model(family, config, Network(family.build(config)), objective="mlm")
    model.add_heads(parse_objective("mlm").objectives)
    torch.manual_seed(0)
    for parameter in model.root.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.root.eval()
    return model


def packed_of(lengths: tuple[int, ...] = LENGTHS, **options: Any) -> Packed:
    rng = np.random.default_rng(0)
    segments = rng.integers(0, 2, sum(lengths))
    return pack(rng.integers(5, 60, sum(lengths)), np.array(lengths), columns={"segment": segments}, **options)


@pytest.mark.parametrize("length", [12, 7])
@pytest.mark.parametrize("changes", VARIATIONS.values(), ids=VARIATIONS)
def test_layers_logits_loss_and_gradients_match_transformers(
    changes: dict[str, Any], length: int, tmp_path: Path
) -> None:
    reference, batch = make_reference(tmp_path, **changes), even(length)
    model = load_model(tmp_path, parse_objective("mlm"))
    model.root.eval()
    theirs = reference(**batch.inputs, output_hidden_states=True)
    ours = model.backbone(batch.packed, keep="all").layers
    repeats = changes.get("block_repeats", [1, 1, 1])
    encoder = 1 + sum(size * times for size, times in zip(FUNNEL["block_sizes"], repeats, strict=True))
    # `transformers` also returns the input of the decoder.
    expected = [*theirs.hidden_states[:encoder], *theirs.hidden_states[encoder + 1 :]]
    assert len(ours) == len(expected) == model.backbone.depth + 1
    pooling = TokenPooling(changes.get("separate_cls", True), changes.get("truncate_seq", True))
    side, index = token_layout(batch.packed), torch.arange(2 * length)
    for layer, states in zip(ours, expected, strict=True):
        if len(states[0]) not in (length, len(side) // 2):  # the first layer of a block
            pooled = pooling.pool(side)
            side, index = pooled.layout, pooled.follow(index)
        close(layer, states.flatten(0, 1) if len(states[0]) == length else upsample(states.flatten(0, 1), index))
    logits = model.root.heads["mlm"](ours[-1], model.backbone.embed.tokens)
    close(logits, theirs.logits.flatten(0, 1), 2e-5)
    target, labels = batch.targets(60)
    expected_loss, loss = reference(**batch.inputs, labels=labels).loss, F.cross_entropy(logits, target)
    close(loss, expected_loss)
    expected_loss.backward()
    loss.backward()
    compare_gradients(model, reference)


@torch.no_grad()
@pytest.mark.parametrize("changes", VARIATIONS.values(), ids=VARIATIONS)
def test_packed_sequences_match_single_ones_and_filler_is_ignored(changes: dict[str, Any]) -> None:
    model, packed = make(**changes), packed_of()
    together = model.backbone(packed, keep="all").layers
    parts = zip(packed.ids.split(LENGTHS), packed.columns["segment"].split(LENGTHS), strict=True)
    alone = [
        model.backbone(pack(ids.numpy(), np.array([len(ids)]), columns={"segment": segment.numpy()}), keep="all").layers
        for ids, segment in parts
    ]
    filled = packed_of(capacity=Capacity(64, 12, 16), filler=9)
    filled.host_offsets = None  # as on a GPU: the number of pooled tokens follows from the shapes
    fixed = model.backbone(filled, keep="all").layers
    for number, layer in enumerate(together):
        close(layer, torch.cat([layers[number] for layers in alone]))
        close(layer, fixed[number][: len(layer)])


def test_no_gradient_crosses_from_one_sequence_to_another() -> None:
    model, packed = make(), packed_of()
    x = model.backbone.embed(packed).detach().requires_grad_()
    model.backbone.embed.forward = lambda _: x  # type: ignore[method-assign]
    start = sum(LENGTHS[:1])
    model.backbone(packed).last[start + 3, 0].backward()
    assert x.grad is not None
    seen = x.grad.abs().sum(1).nonzero().flatten().tolist()
    assert seen == list(range(start, start + LENGTHS[1]))


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 13), min_size=1, max_size=5), separate=st.booleans(), truncate=st.booleans())
def test_pooling_equals_that_of_each_sequence_by_itself(lengths: list[int], separate: bool, truncate: bool) -> None:
    pooling, packed = TokenPooling(separate, truncate), pack_lists([[1] * length for length in lengths])
    x = torch.arange(float(sum(lengths)))[:, None] ** 2
    pooled = pooling.pool(token_layout(packed))
    expected, maxima, counts = [], [], []
    for part in x.split(lengths):
        values = part[:, 0].tolist()
        if len(values) > (2 if separate else 1):
            values = values[:1] + values if separate else values
            values = values[:-1] if separate and truncate else values
            pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        else:
            pairs = [[value] for value in values]
        expected += [sum(pair) / len(pair) for pair in pairs]
        maxima += [max(pair) for pair in pairs]
        counts.append(len(pairs))
    assert pooled.layout.offsets.diff().tolist() == counts == pooling.lengths(np.array(lengths)).tolist()
    assert (
        pooled.layout.host_offsets is not None and pooled.layout.host_offsets.tolist() == pooled.layout.offsets.tolist()
    )
    assert max(counts) <= pooled.layout.max_length
    assert pooled.mean(x)[:, 0].tolist() == expected
    assert pooled.max(x)[:, 0].tolist() == maxima
    for token, place in enumerate(pooled.index.tolist()):
        # Published models give a dropped token the state of the token before it, if that has the same place.
        assert place < 0 or pooled.first[place] <= token <= pooled.last[place] + 1


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("FunnelForPreTraining", "rtd"),
        ("FunnelForTokenClassification", "tag"),
        ("FunnelForQuestionAnswering", "answer"),
    ],
)
@torch.no_grad()
def test_heads_on_the_decoder_match_transformers(kind: str, head: str, tmp_path: Path) -> None:
    make_reference(tmp_path, kind)
    reference, batch = make_reference(tmp_path, kind), even(11)
    labels = {"labels": tuple(reference.config.id2label.values())} if head == "tag" else {}
    model = load_model(tmp_path, parse_objective(head, **labels))
    model.root.eval()
    theirs = reference(**batch.inputs)
    logits = theirs.logits if head != "answer" else torch.stack([theirs.start_logits, theirs.end_logits], -1)
    close(model.root.heads[head](model.backbone(batch.packed).last), logits.flatten(0, 1), 2e-5)


def test_the_encoder_alone_classifies_and_round_trips(tmp_path: Path) -> None:
    base = FAMILIES["funnel"].variant("FunnelBaseModel")
    compare_classifier(base, FUNNEL, tmp_path, even(10))
    reference = make_reference(tmp_path / "base", "FunnelBaseModel")
    model, batch = load_model(tmp_path / "base"), even(10)
    assert model.family.classes == base.classes
    with torch.no_grad():
        theirs = reference(**batch.inputs).last_hidden_state  # (2, 3, width)
    ours = model.backbone(batch.packed).last.view(2, 10, -1)
    close(ours[:, 0], theirs[:, 0])
    close(ours[:, 1], theirs[:, 1])
    assert not ours[:, -1].any()  # dropped by truncation


def test_export_loads_in_transformers_and_a_second_export_is_identical(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    reference = make_reference(tmp_path / "reference")
    compare_export(reference, tmp_path / "reference", tmp_path, even(), AutoModelForMaskedLM)


def test_a_model_without_heads_loads(tmp_path: Path) -> None:
    reference = make_reference(tmp_path / "whole")
    reference.funnel.save_pretrained(tmp_path / "bare")
    assert_same(load_model(tmp_path / "whole").root, load_model(tmp_path / "bare").root)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(PretuneError, match="there are 3 block_sizes and 2 block_repeats"):
        FAMILIES["funnel"].read_config(FUNNEL | {"block_repeats": [1, 2]})
    with pytest.raises(PretuneError, match="supports only full attention, but not the pattern 'causal'"):
        make().backbone(packed_of(pattern=causal))


@pytest.mark.parametrize("changes", VARIATIONS.values(), ids=VARIATIONS)
def test_flops_are_those_of_the_counter(changes: dict[str, Any]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    root = Network(small_backbone("funnel", **FUNNEL | {"vocab_size": 300} | changes))
    mixture = parse_objective("mlm")
    root.heads["mlm"] = mixture.objectives[0].head(root.backbone)
    batch = even_batch(1, 11, 3)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        root(mixture.joints[0], batch)
    assert counter.get_total_flops() == forward_flops(root, batch)


@pytest.mark.not_fast
@pytest.mark.parametrize("name", ["small", "medium", "xlarge"])
def test_parameter_counts_of_presets_are_those_of_transformers(name: str) -> None:
    import transformers

    with torch.device("meta"):
        model = make_model(f"funnel-{name}")
        config = {key: list(x) if isinstance(x, tuple) else x for key, x in asdict(model.config).items()}
        theirs = transformers.FunnelModel(transformers.FunnelConfig(**config))
    assert sum(p.numel() for p in model.backbone.parameters()) == sum(p.numel() for p in theirs.parameters())
