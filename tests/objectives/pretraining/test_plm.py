from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.models.model import Network
from pretune.objectives import Data, parse_objective
from pretune.objectives.pretraining.masking import word_units
from pretune.objectives.pretraining.plm import PLM
from pretune.packed import pack
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences, collate
from pretune.text.tokenizers.training import Kind
from pretune.training.data_streams import DataStream
from pretune.training.jobs.pretraining_data import held_out_batches
from pretune.training.loop import evaluate_loss
from pretune.training.recipe_sections import Monitoring
from tests.support.objective_data import KINDS, TEMPLATES, data
from tests.support.tiny_training_cases import LENGTH, TEMPLATE, store, xl


def corrupted(kind: Kind, objective: PLM, seed: int, epoch: int, template: str) -> tuple[Sequences, Sequences]:
    source, draws = data(kind, template=template), EpochRandom(seed, epoch)
    plan = objective.arrange(source, Packing(512, 64), draws)
    index = seed % len(plan)
    return plan.pack(index), objective.corrupt(plan.pack(index), source.tokenizer, draws)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
    template=st.sampled_from(sorted(TEMPLATES)),
    k=st.sampled_from([1.5, 2, 6, 40]),
    parts=st.integers(1, 4),
    stateful=st.booleans(),
)
def test_text_is_unchanged_and_queries_predict_its_tokens(
    kind: Kind, seed: int, epoch: int, template: str, k: float, parts: int, stateful: bool
) -> None:
    objective = PLM(k=k, num_parts=parts, stateful=stateful)
    clean, made = corrupted(kind, objective, seed, epoch, template)
    query = made.columns["stream"] == 1
    at, target = made.targets["plm"]
    assert (made.ids[~query] == clean.ids).all() and (at == np.flatnonzero(query)).all()
    assert (made.ids[query] == data(kind).tokenizer.role("mask")).all()
    # A query follows its token and has the same position and rank in the order.
    assert (made.ids[at - 1] == target).all() and made.positions is not None
    assert (made.positions[~query] == clean.index_in_sequence).all()
    for column in (made.positions, made.columns["order"], made.owner):
        assert (column[at] == column[at - 1]).all()
    assert not made.columns["special"][at].any()
    assert made.pattern is not None and made.pattern.name == "permutation"
    # Context tokens have even ranks, one per part, before all others of the part; the others have distinct odd ranks.
    order, size = made.columns["order"][~query], np.repeat(clean.lengths, clean.lengths)
    part = sum(clean.index_in_sequence >= size * number // parts for number in range(parts))
    context = order % 2 == 0
    special, fresh = clean.columns["special"], clean.columns.get("document_start", np.zeros(len(clean.ids), dtype=bool))
    assert context[clean.offsets[:-1][clean.lengths > 0]].all() and context[fresh].all()
    predicted = np.zeros(len(clean.ids), dtype=bool)
    predicted[np.cumsum(~query)[at] - 1] = True
    assert not (predicted & context).any() and not (~context & ~predicted & ~special).any()
    assert len(set(order[~context])) == (~context).sum()
    for row in range(len(clean.lengths)):
        own = clean.owner == row
        assert predicted[own].sum() <= max(1, round((~special)[own].sum() / k))
        highest = -1
        for number in np.unique(part[own]):
            inside = own & (part == number)
            assert len(set(order[inside & context])) <= 1
            assert order[inside].min() > highest
            if (inside & context).any() and (inside & ~context).any():
                assert order[inside & context].max() < order[inside & ~context].min()
            highest = order[inside].max()
    room = objective.max_targets(Packing(512, 64))["plm"]
    assert len(at) <= room and (made.lengths - clean.lengths).sum() == len(at)


def test_orders_differ_between_epochs_and_windows() -> None:
    source = data()
    objective = PLM(stateful=True)
    seen = set()
    for epoch in range(2):
        plan = objective.arrange(source, Packing(64, 64), EpochRandom(0, epoch))
        for index in range(3):
            made = objective.corrupt(plan.pack(index), source.tokenizer, EpochRandom(0, epoch))
            seen.add(tuple(made.columns["order"][:60]))
            again = objective.corrupt(plan.pack(index), source.tokenizer, EpochRandom(0, epoch))
            assert all((made.columns[name] == again.columns[name]).all() for name in made.columns)
    assert len(seen) == 6


def test_one_sixth_of_the_tokens_is_predicted_in_ngrams() -> None:
    """The n-grams have one to five words."""
    predicted = text = 0
    sizes = []
    for seed in range(30):
        clean, made = corrupted("wordpiece", PLM(), seed, 0, "bert")
        kept = made.columns["stream"] == 0
        at = np.cumsum(kept)[made.targets["plm"][0]] - 1
        predicted, text = predicted + len(at), text + int((~clean.columns["special"]).sum())
        whole = np.isin(word_units(clean).first, at)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], whole, [0]])))
        sizes += (edges[1::2] - edges[::2]).tolist()
    assert 0.85 / 6 < predicted / text < 1.1 / 6
    assert np.mean(np.array(sizes) == 1) > 0.35 and np.mean(np.array(sizes) > 1) > 0.25


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("stateful", [False, True])
def test_attention_sees_only_earlier_tokens_of_the_permutation(parts: int, stateful: bool) -> None:
    torch.manual_seed(0)
    network = xl(8 if stateful else 0).eval()
    objective = PLM(k=2.5, num_parts=parts, stateful=stateful)
    special = np.isin(np.arange(20), [11, 12, 19])
    columns = {"special": special, "word": np.ones(20, dtype=bool)}
    if stateful:
        columns["document_start"] = np.isin(np.arange(20), [0, 5, 13])
    sequences = Sequences(np.arange(20) + 10, np.array([13, 7]), np.arange(2), columns=columns)
    made = objective.corrupt(sequences, data().tokenizer, EpochRandom(3))
    (packed,) = collate(made).packed
    kept: list[torch.Tensor] = []
    network.embed.register_forward_hook(lambda *parts: kept.append(parts[-1].detach().requires_grad_()) or kept[-1])
    states = network(packed).last
    order, stream, owner = made.columns["order"], made.columns["stream"], made.owner
    document = np.cumsum(made.columns.get("document_start", np.zeros(len(order), dtype=int)))
    for row in range(len(order)):
        (gradient,) = torch.autograd.grad(states[row].square().sum(), kept[0], retain_graph=True)
        seen = gradient.abs().sum(1).numpy() > 0
        same = (owner == owner[row]) & (document == document[row]) & (stream == 0)
        earlier = same & (order < order[row] if stream[row] else order <= order[row])
        earlier[row] = True  # its own input, which for a query contains no information
        assert seen.tolist() == earlier.tolist()


def test_predicted_tokens_are_context_in_the_next_segment() -> None:
    torch.manual_seed(0)
    network = xl(8).eval().requires_grad_(False)
    objective, source = PLM(stateful=True), data()
    columns = {name: np.zeros(8, dtype=bool) for name in ("special", "document_start")} | {
        "word": np.ones(8, dtype=bool)
    }
    states = []
    for change in (0, 1):
        carry = None
        for part in range(2):
            ids = np.arange(8) + 10 + 8 * part + change * (part == 0)
            made = Sequences(ids, np.array([8]), np.array([part]), columns=columns)
            (packed,) = collate(objective.corrupt(made, source.tokenizer, EpochRandom(0))).packed
            out = network(packed, state=carry)
            carry = out.state
        states.append(out.last)
    assert carry is not None and carry.used.tolist() == [8]
    assert not torch.allclose(states[0], states[1])


@pytest.mark.parametrize("stateful", ["true", "false"])
def test_fixed_shapes_do_not_change_the_batches(stateful: str) -> None:
    torch.manual_seed(0)
    mixture = parse_objective(f"plm(stateful={stateful})")
    root = Network(xl(8)).eval().requires_grad_(False)
    root.heads["plm"] = mixture.objectives[0].head(root.backbone)
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    plain = DataStream(mixture.joints[0], data, Packing(256, LENGTH), seed=0)
    fixed = DataStream(mixture.joints[0], data, Packing(256, LENGTH, fixed=True), seed=0)
    count = len(fixed.epoch_plan(0))
    shapes = set()
    for index in {0, 1, count - 2, count - 1}:  # windows and packs at the end of an epoch are shorter
        batch = fixed.batch(0, index, 0.0)
        shapes.add((len(batch.packed[0]), batch.packed[0].max_length, batch.packed[0].offsets.shape))
        if stateful == "true":
            found, expected = (root(fixed.joint, b).sums["plm"] for b in (batch, plain.batch(0, index, 0.0)))
            torch.testing.assert_close(found, expected)
    assert len(shapes) == 1


def test_invalid_options_are_rejected() -> None:
    for text, message in [
        ("plm(k=1)", "k=1 leaves no context"),
        ("plm(num_parts=0)", "parts=0: expected a number that is at least 1"),
        ("plm(max_ngram=0)", "max_ngram=0: expected a number that is at least 1"),
        ("plm+nsp", "plm adds tokens to the text"),
        ("plm+mlm", "plm adds tokens to the text"),
    ]:
        with pytest.raises(PretuneError, match=message):
            parse_objective(text)


def test_backbones_without_a_query_vector_use_the_mask_token() -> None:
    """The embedding of the mask token at the position is the query."""
    from tests.support.tiny_training_cases import encoder

    torch.manual_seed(0)
    network = encoder()
    head = PLM().head(network)
    source = data()
    made = PLM().corrupt(
        PLM().arrange(source, Packing(256, 64), EpochRandom(0)).pack(0), source.tokenizer, EpochRandom(0)
    )
    made.ids %= 300
    made.targets["plm"] = (made.targets["plm"][0], made.targets["plm"][1] % 300)
    loss = PLM().loss(head, network, collate(made))
    assert torch.isfinite(loss.sums["plm"]) and loss.state is None
    assert pack(made.ids, made.lengths).max_length >= 1


@pytest.mark.parametrize("name", ["plm(stateful=true)", "lm(stateful=true)"])
def test_state_is_carried_across_held_out_batches_of_little_text(name: str) -> None:
    """Windows of little text are short and are padded, independently of the capacity in training."""
    torch.manual_seed(0)
    (joint,) = parse_objective(name).joints
    root = Network(xl(8)).eval().requires_grad_(False)
    root.heads[joint.objectives[0].name] = joint.objectives[0].head(root.backbone)
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    packing = DataStream(joint, data, Packing(1024, 16, packs_per_step=2, fixed=True), seed=0).packing
    for documents in ([0], [1, 2]):
        few = replace(data, documents=np.array(documents))
        _, found = held_out_batches(joint, few, packing, Monitoring(max_eval_batches=4))
        _, plain = held_out_batches(joint, few, replace(packing, fixed=False), Monitoring(max_eval_batches=4))
        losses = [evaluate_loss(root, joint, batches, torch.device("cpu")) for batches in (found, plain)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
