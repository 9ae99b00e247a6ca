from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.families.encoders.xlnet import XLNET
from pretune.objectives import Data, parse_objective
from pretune.objectives.pretraining.dlm import DLM, truncate_longest_first, turn_windows
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.dialogues import Dialogues
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, TEMPLATE, data, dialogues

ROBERTA = Template(("start", "A", "separator"), ("separator", "B", "separator"), segments=False)


def source(kind: Kind = "wordpiece", rows: Dialogues | None = None, template: Template = TEMPLATE) -> Data:
    return replace(data(kind), rows=dialogues() if rows is None else rows, template=template)


@pytest.mark.not_fast
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
    turns=st.integers(2, 5),
    length=st.sampled_from([24, 64, 200]),
    fake=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_real_turns_are_consecutive_and_fake_turns_come_from_another_dialogue(
    kind: Kind, seed: int, epoch: int, turns: int, length: int, fake: float
) -> None:
    made, objective = source(kind), DLM(max_turns=turns, replace_rate=fake)
    rows = made.rows
    assert isinstance(rows, Dialogues)
    arrangement = objective.arrange(made, Packing(1024, length), EpochRandom(seed, epoch)).arrangement  # type: ignore[attr-defined]
    assert (arrangement.lengths <= length).all()
    tokens = made.token_rows
    turn_at = {int(start): turn for turn, start in enumerate(tokens.starts[:, 0]) if tokens.lengths[turn, 0]}
    used = sorted(turn_at.values())
    dialogue = np.repeat(np.arange(len(rows)), rows.counts)
    label = arrangement.labels["dlm"]
    seen = []
    for row in range(len(arrangement)):
        count = int((arrangement.spans[row] > 0).sum())
        assert count >= 2 and (arrangement.spans[row, count:] == 0).all()
        read = [turn_at[int(start)] for start in arrangement.starts[row, :count]]
        own = int(arrangement.labels["dialogue"][row])
        strangers = [place for place, turn in enumerate(read) if dialogue[turn] != own]
        assert len(strangers) == (label[row] == 1)
        first = next(place for place in range(count) if place not in strangers)
        begin = used.index(read[first]) - first  # where the window begins among the turns that have tokens
        original = used[begin : begin + count]
        assert (dialogue[original] == own).all()
        assert all(read[place] == original[place] for place in range(count) if place not in strangers)
        for place in strangers:
            assert rows.roles[read[place]] == rows.roles[original[place]]
            assert rows.texts[read[place]] != rows.texts[original[place]]
        assert arrangement.columns["segment"][row, :count].tolist() == [rows.roles[turn] for turn in original]
        whole, spans = tokens.lengths[read, 0], arrangement.spans[row, :count]
        if (
            whole.sum() + 1 + turns <= length
        ):  # the turn that is or could be exchanged may be truncated to another length
            assert (spans < whole).sum() <= (label[row] >= 0)
        else:  # the longest turns are truncated first, to a common length
            assert (spans[whole > spans] < spans.max()).sum() <= (label[row] >= 0)
        seen += original
    assert len(set(seen)) == len(seen)  # no turn is in two windows
    if epoch == 0:  # all turns are used, except single ones at the end
        counts = np.bincount(dialogue[used], minlength=len(rows))
        assert len(seen) == int(np.where(counts % turns == 1, counts - 1, counts).sum())
    judged = label[label >= 0]
    assert len(judged) > 0.8 * len(label) and (fake != 0.0 or not judged.any()) and (fake != 1.0 or judged.all())


@pytest.mark.parametrize("template", [TEMPLATE, ROBERTA, XLNET.template])
def test_turns_follow_the_template_and_have_their_roles_as_segments(template: Template) -> None:
    texts = ["how are you", "fine", "and what is this", "a call"]
    rows = Dialogues(Path("x"), [*texts, *reversed(texts)], [0, 1, 1, 0] * 2, [4, 4])
    made, role = source(rows=rows, template=template), data().tokenizer.role
    sequences = DLM(max_turns=4).arrange(made, Packing(256, 64), EpochRandom(0)).pack(0)
    assert sequences.labels["dlm"].tolist() == [-1, -1]  # the sampled partners have different roles
    row = sequences.index.tolist().index(0)
    wanted, roles = [role("start")] * (not template.last), []
    for number, (text, who) in enumerate(zip(rows.texts[:4], rows.roles[:4], strict=True)):
        between = [role("separator")] if number and template is ROBERTA else []
        wanted += [*between, *made.tokenizer.encode(text), role("separator")]
        roles += [who] * (len(wanted) - len(roles))
    wanted, roles = wanted + [role(item) for item in template.last], roles + [2] * len(template.last)
    own = slice(sequences.offsets[row], sequences.offsets[row + 1])
    assert sequences.ids[own].tolist() == wanted
    assert sequences.columns["segment"][own].tolist() == (roles if template.segments else [0] * len(wanted))
    sequences.labels["dlm"] = np.array([-1, 1])  # as if the second sequence had a partner
    judged = DLM().corrupt(sequences, made.tokenizer, EpochRandom(0)).targets["dlm"]
    assert judged[0].tolist() == [sequences.offsets[1]] and judged[1].tolist() == [1]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**40), epoch=st.integers(0, 3))
def test_masked_tokens_of_turns_are_targets_and_boundaries_are_not_masked(kind: Kind, seed: int, epoch: int) -> None:
    made, joint = source(kind), parse_objective("mlm(unit=word)+dlm").joints[0]
    plan = joint.arrange(made, Packing(512, 64), EpochRandom(seed, epoch))
    index = seed % len(plan)
    clean, noisy = plan.pack(index), joint.corrupt(plan.pack(index), made.tokenizer, EpochRandom(seed, epoch))
    at, target = noisy.targets["mlm"]
    assert (target == clean.ids[at]).all() and not clean.columns["special"][at].any()
    assert set(np.flatnonzero(noisy.ids != clean.ids)) <= set(at.tolist())
    free = np.bincount(clean.owner[~clean.columns["special"]], minlength=len(clean.lengths))
    chosen = np.bincount(clean.owner[at], minlength=len(clean.lengths))
    assert (chosen <= np.maximum(1, np.round(0.15 * free))).all()
    room = joint.max_targets(Packing(512, 64, sequences=len(clean.lengths)))
    assert len(at) <= room["mlm"] and len(noisy.targets["dlm"][0]) <= room["dlm"]


def test_half_of_the_windows_are_fake_and_any_turn_may_be_exchanged() -> None:
    labels, places, chats = [], np.zeros(3), source()
    for seed in range(40):
        made: Any = DLM().arrange(chats, Packing(1024, 200), EpochRandom(seed))
        real: Any = DLM(replace_rate=0.0).arrange(chats, Packing(1024, 200), EpochRandom(seed))
        judged = made.arrangement.labels["dlm"]
        labels.append(judged[judged >= 0].mean())
        places += (made.arrangement.starts != real.arrangement.starts).sum(0)
    assert abs(np.mean(labels) - 0.5) < 0.05
    assert places.min() > 0.2 * places.sum()


def test_batches_depend_only_on_seed_epoch_and_index() -> None:
    joint = parse_objective("mlm+dlm").joints[0]

    def contents(draws: EpochRandom, index: int) -> list[Any]:
        plan = joint.arrange(source(), Packing(200, 96), draws)
        noisy = joint.corrupt(plan.pack(index), source().tokenizer, draws)
        return [noisy.ids.tolist(), noisy.lengths.tolist(), noisy.targets["dlm"][1].tolist()]

    first = contents(EpochRandom(3, 1), 1)
    assert first == contents(EpochRandom(3, 1), 1)
    assert all(
        first != contents(draws, index)
        for draws, index in ((EpochRandom(4, 1), 1), (EpochRandom(3, 2), 1), (EpochRandom(3, 1), 2))
    )


def test_turn_windows_match_worked_examples() -> None:
    made = turn_windows(np.array([0, 0, 0, 0, 1, 2, 2, 2, 2, 2]), 3, EpochRandom(0))
    assert made.tolist() == [[0, 1, 2], [5, 6, 7], [8, 9, -1]]  # 3 and 4 would be windows of one turn
    later = {tuple(turn_windows(np.zeros(7, dtype=int), 3, EpochRandom(0, epoch))[0]) for epoch in range(1, 12)}
    assert later == {(0, 1, 2), (0, 1, -1), (1, 2, 3)}


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=5), st.integers(3, 40))
def test_turns_are_truncated_longest_first(spans: list[list[int]], room: int) -> None:
    before = np.array(spans)
    after = truncate_longest_first(before, room)
    assert (after.sum(1) <= room).all() and (after <= before).all()
    assert (after == before)[before.sum(1) <= room].all()
    cut = before.sum(1) > room
    assert (after[cut].sum(1) > room - 3).all()  # only the remainder of the division is unused


def test_turns_with_the_same_text_are_not_negatives() -> None:
    rows = Dialogues(Path("x"), ["yes", "no"] * 6, [0, 1] * 6, [2] * 6)
    with pytest.raises(
        PretuneError,
        match="x: the objective 'dlm' exchanges turns between dialogues, but no two dialogues have turns of the same role",
    ):
        DLM().arrange(source(rows=rows), Packing(256, 32), EpochRandom(0))


def test_fake_turns_have_the_role_and_source_of_the_turn_they_replace() -> None:
    """Otherwise the role or the file would give the label away, instead of the content."""
    texts = [f"{word} {number}" for number in range(40) for word in ("why", "so", "and")]
    rows = Dialogues(Path("x"), texts, [0, 1, 1] * 40, [3] * 40, files=[number % 3 for number in range(40)])
    files = np.repeat(rows.files, 3)
    for seed in range(10):
        made: Any = DLM(replace_rate=1.0).arrange(source(rows=rows), Packing(256, 32), EpochRandom(seed))
        turn_at = {int(start): turn for turn, start in enumerate(source(rows=rows).token_rows.starts[:, 0])}
        for starts, own, label in zip(
            made.arrangement.starts, made.arrangement.labels["dialogue"], made.arrangement.labels["dlm"], strict=True
        ):
            read = [turn_at[int(start)] for start in starts]
            assert sum(turn // 3 != own for turn in read) == (label == 1)
            assert [rows.roles[turn] for turn in read] == [0, 1, 1]
            assert {int(files[turn]) for turn in read} == {rows.files[own]}


def test_invalid_use_is_rejected() -> None:
    for text, message in {
        "dlm(max_turns=1)": "at least 2 turns",
        "dlm(replace_rate=2)": "the share must be between 0 and 1",
    }.items():
        with pytest.raises(PretuneError, match=message):
            parse_objective(text)
    with pytest.raises(PretuneError, match="nsp and dlm each need their own arrangement"):
        parse_objective("nsp+dlm")
    with pytest.raises(PretuneError, match="'dlm' learns from dialogues"):
        DLM().arrange(data(), Packing(256, 64), EpochRandom(0))
    one = Dialogues(Path("x"), ["a", "b"], [0, 1], [2])
    with pytest.raises(PretuneError, match="x: the objective 'dlm' exchanges turns between dialogues"):
        DLM().arrange(source(rows=one), Packing(256, 64), EpochRandom(0))
    with pytest.raises(PretuneError, match="x: no dialogue has two turns"):
        DLM().arrange(source(rows=Dialogues(Path("x"), ["a", "b"], [0, 1], [1, 1])), Packing(256, 64), EpochRandom(0))
    with pytest.raises(PretuneError, match="leave no room for 3 turns"):
        DLM().arrange(source(), Packing(256, 6), EpochRandom(0))
