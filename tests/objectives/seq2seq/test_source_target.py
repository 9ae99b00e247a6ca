"""Tests of what all sequence-to-sequence objectives share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from pretune import PretuneError
from pretune.objectives import JointObjective, TwoSided, parse_objective
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences, collate
from pretune.text.tokenizers.training import Kind
from pretune.training.data_streams import DataStream
from tests.support.objective_data import KINDS, SENTINELS, TEMPLATES, data, encoder_decoder, store

NAMES = [
    "spans",
    "spans(noise_density=0.5,mean_span_length=1)",
    "denoise",
    "denoise(rotate=true,mask_rate=0.2,delete_rate=0.2)",
    "mass(mask_replace_prob=1)",
    "mass(mask_replace_prob=1,trim_decoder_input=false)",
    "prefix_seq2seq",
    "shuffle",
    "shuffle(window=2)",
    "shuffle(unit=sentences)",
    "translate",
    "translate(bidirectional=true)",
    "skip_thought",
]
HIDING = (
    "spans",
    "mass",
    "prefix_seq2seq",
    "translate",
    "skip_thought",
)  # objectives whose target tokens are not in the source


def joint(name: str) -> JointObjective:
    return parse_objective(name).joints[0]


def corrupted(name: str, draws: EpochRandom, packing: Packing, index: int, kind: Kind = "wordpiece") -> Sequences:
    source = data(kind, SENTINELS, "t5")
    return joint(name).corrupt(joint(name).arrange(source, packing, draws).pack(index), source.tokenizer, draws)


def parts(sequences: Sequences) -> list[list[int]]:
    return [part.tolist() for part in np.split(sequences.ids, sequences.offsets[1:-1])]


def contents(sequences: Sequences) -> list[object]:
    side = sequences.second
    assert side is not None
    ((at, target),) = side.targets.values()
    arrays = [sequences.ids, sequences.lengths, side.ids, side.lengths, at, target]
    return [array.tolist() for array in arrays] + [None if side.positions is None else side.positions.tolist()]


@pytest.mark.parametrize("name", NAMES)
def test_batches_depend_only_on_seed_epoch_and_index(name: str) -> None:
    packing = Packing(256, 64)
    first = contents(corrupted(name, EpochRandom(3, 1), packing, 1))
    assert first == contents(corrupted(name, EpochRandom(3, 1), packing, 1))
    for draws, index in ((EpochRandom(4, 1), 1), (EpochRandom(3, 2), 1), (EpochRandom(3, 1), 2)):
        assert first != contents(corrupted(name, draws, packing, index))


@pytest.mark.parametrize("name", NAMES)
def test_noise_of_a_sequence_does_not_depend_on_its_pack(name: str) -> None:
    draws, source, found = EpochRandom(5), data("wordpiece", SENTINELS, "t5"), {}
    for tokens in (200, 1024):
        plan = joint(name).arrange(source, Packing(tokens, 64), draws)
        for index in range(len(plan)):
            sequences = joint(name).corrupt(plan.pack(index), source.tokenizer, draws)
            assert sequences.second is not None
            written = parts(sequences.second)
            per = len(written) // len(sequences.lengths)
            for row, (number, read) in enumerate(zip(sequences.index.tolist(), parts(sequences), strict=True)):
                found.setdefault(number, []).append((read, written[per * row : per * row + per]))
    assert all(len(versions) == 2 and versions[0] == versions[1] for versions in found.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_all_tokenizer_kinds_are_supported(name: str, kind: Kind) -> None:
    sequences = corrupted(name, EpochRandom(0), Packing(256, 64), 0, kind)
    assert sequences.second is not None and isinstance(joint(name).objectives[0], TwoSided)
    assert sequences.ids.max() < store(kind, SENTINELS).tokenizer.size and sequences.ids.min() >= 0


@cache
def stream(name: str, template: str, tokens: int, length: int, fixed: bool) -> DataStream:
    source = replace(data("wordpiece", SENTINELS, template))
    return DataStream(joint(name), source, Packing(tokens, length, fixed=fixed), seed=1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("template", "tokens", "length"), [("t5", 512, 64), ("bart", 200, 24), ("bert", 64, 64)])
def test_every_pack_fits_the_fixed_shapes(name: str, template: str, tokens: int, length: int) -> None:
    made = stream(name, template, tokens, length, True)
    shapes = set()
    for epoch in (0, 1):
        for index in range(min(40, len(made.epoch_plan(epoch)))):
            batch = made.batch(epoch, index, 0.0)
            shapes.add(tuple((tuple(p.ids.shape), tuple(p.offsets.shape), p.max_length) for p in batch.packed))
            assert all(p.max_length <= length for p in batch.packed)
    assert len(shapes) == 1
    (read, written) = next(iter(shapes))
    assert written[1][0] - 1 == (read[1][0] - 1) * (2 if name == "skip_thought" else 1)
    if name == "spans" and tokens == 512:  # capacity for the targets, not for another 512 tokens
        assert written[0][0] < 300


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name: str) -> None:
    network = encoder_decoder(store("wordpiece", SENTINELS).tokenizer.size).eval()
    objective = joint(name).objectives[0]
    head = objective.head(network)
    # Packs differ when padding needs space, so take one that both have: the same sequences.
    made = stream(name, "t5", 300, 40, True)
    sequences = made.joint.corrupt(made.epoch_plan(0).pack(0), made.data.tokenizer, EpochRandom(1))
    with torch.no_grad():
        losses = [
            objective.loss(head, network, collate(sequences, capacity)).sums[objective.name]
            for capacity in (None, made.capacity)
        ]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_decoder_never_sees_its_target(name: str) -> None:
    """Check by gradients: a prediction depends on decoder inputs up to its own, on its own source, and on no other."""
    network = encoder_decoder(store("wordpiece", SENTINELS).tokenizer.size).eval()
    objective = joint(name).objectives[0]
    made = stream(name, "t5", 96, 32, False)
    sequences = made.joint.corrupt(made.epoch_plan(0).pack(0), made.data.tokenizer, EpochRandom(1))
    batch, side = collate(sequences), sequences.second
    assert side is not None
    ((at, target),) = side.targets.values()
    kept: dict[str, torch.Tensor] = {}

    def keep(where: str, module: torch.nn.Module) -> None:
        def hook(*parts: torch.Tensor) -> torch.Tensor:
            kept[where] = parts[-1].detach().requires_grad_()
            return kept[where]

        module.register_forward_hook(hook)

    keep("read", network.encoder.embed)
    keep("late", network.embed)
    head = objective.head(network)
    states: list[torch.Tensor] = []
    (head.vocabulary if name == "skip_thought" else head).register_forward_pre_hook(
        lambda _, parts: states.append(parts[0])
    )
    objective.loss(head, network, batch)
    per = len(side.lengths) // len(sequences.lengths)
    for number in range(0, len(at), max(1, len(at) // 12)):
        row = int(at[number])
        gradients = torch.autograd.grad(
            states[0][number].square().sum(), [kept["read"], kept["late"]], retain_graph=True
        )
        read, late = ((g.abs().sum(1) > 0).numpy() for g in gradients)
        own = side.owner == side.owner[row]
        assert late.tolist() == (own & (np.arange(len(side.ids)) <= row)).tolist()
        assert read.tolist() == (sequences.owner == side.owner[row] // per).tolist()
    # The input there is the previous target, never the current one.
    inside = np.flatnonzero(side.owner[at[1:]] == side.owner[at[:-1]]) + 1
    inside = inside[at[inside] == at[inside - 1] + 1]
    assert (side.ids[at[inside]] == target[inside - 1]).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(HIDING)])
def test_target_is_not_in_the_source(name: str) -> None:
    """Another token in a target position changes only the target and the inputs after it."""
    source, draws = data("wordpiece", SENTINELS, "t5"), EpochRandom(2)
    plan = joint(name).arrange(source, Packing(256, 64), draws)
    clean = joint(name).corrupt(plan.pack(0), source.tokenizer, draws)
    assert clean.second is not None
    plain = np.flatnonzero(~source.tokenizer.specials)
    _, target = next(iter(clean.second.targets.values()))
    text = plan.pack(0)
    of_target = text.second if text.second is not None and name.startswith(("translate", "skip")) else text
    checked = 0
    for place in range(0, len(of_target.ids), 7):
        if of_target.columns["special"][place]:
            continue
        other = plan.pack(0)
        changed = other.second if name.startswith(("translate", "skip")) else other
        assert changed is not None
        changed.ids[place] = plain[(int(np.searchsorted(plain, changed.ids[place])) + 5) % len(plain)]
        noisy = joint(name).corrupt(other, source.tokenizer, draws)
        assert noisy.second is not None
        _, now = next(iter(noisy.second.targets.values()))
        if (now == target).all():  # a token of the source, not of the target
            assert (noisy.ids != clean.ids).sum() == 1
            continue
        (number,) = np.flatnonzero(now != target)
        at = int(next(iter(clean.second.targets.values()))[0][number])
        assert (noisy.ids == clean.ids).all()
        assert (noisy.second.ids[: at + 1] == clean.second.ids[: at + 1]).all()
        checked += 1
    assert checked


def test_seq2seq_objectives_cannot_be_joined_with_others() -> None:
    for name in ("spans", "denoise", "mass", "prefix_seq2seq", "shuffle", "translate", "skip_thought"):
        with pytest.raises(PretuneError, match="reads a source and generates a target"):
            parse_objective(f"{name}+lm")
    assert str(parse_objective("0.5*spans|0.5*denoise")) == "0.5*spans|0.5*denoise"
    assert len(TEMPLATES) == 3
