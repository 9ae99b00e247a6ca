from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune import PretuneError
from pretune.objectives import Data, single_objective
from pretune.objectives.tasks.candidates import group_loss, group_targets
from pretune.objectives.tasks.choose import Choose
from pretune.packed import pack_targets
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.multiple_choice import ChoiceExample, ChoiceExamples, find_choice, read_choices
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.data_streams import DataStream
from pretune.training.jobs.finetuning import row_packing
from tests.support.objective_data import TEMPLATE, few_words, learn, write
from tests.support.task_rows import choose_rows as rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pt.Run:
    folder = tmp_path_factory.mktemp("choose")
    train, dev = write(folder / "train.jsonl", rows(160)), write(folder / "dev.jsonl", rows(30, seed=1))
    return learn("choose", train, folder / "run", dev)


@pytest.mark.end_to_end
def test_choose_learns_from_varying_numbers_of_choices(run: pt.Run, tmp_path: Path) -> None:
    assert run.results["dev/accuracy"] > 0.9
    asked = [{key: row[key] for key in ("premise", "choices")} for row in rows(6, seed=1)]
    answers = pt.predict(run, write(tmp_path / "new.jsonl", asked))
    right = [answer["choice"] == row["label"] for answer, row in zip(answers, rows(6, seed=1), strict=True)]
    assert sum(right) >= 5
    for answer, row in zip(answers, asked, strict=True):
        assert answer["answer"] == row["choices"][answer["choice"]]  # type: ignore[index]
        assert sum(candidate["probability"] for candidate in answer["candidates"]) == pytest.approx(1)
    with pytest.raises(PretuneError, match=r"cannot infer the choices column.* give a file"):
        run.predict(["red cat"])


def read(folder: Path, name: str, content: str) -> ChoiceExamples:
    (folder / name).write_text(content, encoding="utf-8")
    return read_choices(folder / name)


def test_common_file_formats_are_read(tmp_path: Path) -> None:
    copa = write(
        tmp_path / "copa.jsonl",
        [{"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 1, "idx": 0}],
    )
    group = read_choices(copa).groups[0]
    assert group == ChoiceExample(("a", "b"), ("p", "p"), ("cause a", "cause b"), (1,), display_text="p cause")
    swag = "sent1,sent2,ending0,ending1,ending2,ending3,label\nOne.,He,a,b,c,d,2\n"
    group = read(tmp_path, "swag.csv", swag).groups[0]
    assert group.pairs == ("He a", "He b", "He c", "He d") and group.texts == ("One.",) * 4 and group.correct == (2,)
    race = write(
        tmp_path / "race.jsonl", [{"article": "t", "question": "q?", "options": ["a", "b", "c"], "answer": "C"}]
    )
    assert read_choices(race).groups[0].correct == (2,)
    bare = write(
        tmp_path / "bare.jsonl", [{"choices": ["a", "b"], "label": "b"}, {"choices": ["c", "d", "e"], "label": "c"}]
    )
    table = read_choices(bare)
    assert [group.correct for group in table.groups] == [(1,), (0,)]
    assert table.pairs is None and table.texts == ["a", "b", "c", "d", "e"] and table.owner.tolist() == [0, 0, 1, 1, 1]
    assert table.take([1]).texts == ["c", "d", "e"]
    asked = "question\tanswer_1\tanswer_2\tanswer_10\tlabel\nq\tx\ty\tz\t3\nr\tx\t\tz\t1\n"
    table = read(tmp_path, "counted.tsv", asked)  # labels count from 1, and one row has fewer choices
    assert table.columns["choices"] == "answer_1,answer_2,answer_10"
    assert [group.correct for group in table.groups] == [(2,), (0,)]
    assert table.groups[1].names == ("x", "z") and table.groups[1].pairs == ("x", "z")
    named = read_choices(tmp_path / "counted.tsv", {"choices": "answer_10,answer_1", "label": "label"}, labels=False)
    assert named.groups[0].names == ("z", "x") and not named.answered


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"choices": ["a", "b"], "label": 3}', r"line 1: the label 3 in 'label' is none of the 2 choices"),
        (
            '{"choices": ["a", "b"], "label": 0}\n{"choices": ["a", "b"], "label": 2}',
            "line 2: the label 2 in 'label' is none",
        ),
        ('{"choices": ["a"], "label": 0}', "line 1: expected at least two choices in 'choices'"),
        ('{"choices": "a b", "label": 0}', "line 1: expected a list of choices in 'choices'"),
        ('{"premise": "a b", "label": 0}', "cannot infer the choices column.* choose one with --columns.choices"),
        ('{"choices": ["a", "b"], "odd": 0}', "cannot infer the label column.* choose one with --label"),
        ('{"choices": ["a", "b"], "label": null}', "line 1: the label None in 'label' is none of the 2"),
        ('{"premise": null, "choices": ["a", "b"], "label": 0}', "line 1: the field 'premise' is missing"),
    ],
)
def test_invalid_rows_are_rejected_with_their_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        read(tmp_path, "bad.jsonl", content)


@given(st.lists(st.text("xyz", min_size=2), min_size=2, max_size=6, unique=True), st.data())
def test_choices_are_found_by_number_letter_or_text(names: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(names) - 1))
    assert {find_choice(label, names, 0) for label in (at, str(at), "ABCDEF"[at], "abcdef"[at], names[at])} == {at}
    assert find_choice(at + 1, names, 1) == at
    assert find_choice(len(names), names, 0) is None and find_choice("w", names, 0) is None


@settings(max_examples=40)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 99), st.integers(0, 3))
def test_each_group_has_its_own_softmax(sizes: list[int], seed: int, spare: int) -> None:
    chance = np.random.default_rng(seed)
    groups = chance.permutation(np.repeat(np.arange(len(sizes)) * 3, sizes))
    shares = np.zeros(len(groups), dtype=np.float32)
    for group in np.unique(groups):
        shares[chance.choice(np.flatnonzero(groups == group))] = 1.0
    at, share = group_targets(groups, shares, most=5)
    assert at.shape == share.shape == (len(sizes), 5)
    scores = torch.randn(len(groups) + 2, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    targets = pack_targets(at, share, capacity=len(sizes) + spare)
    loss = group_loss("x", scores, targets).over({"x": float(len(sizes))})
    expected = []
    for group in np.unique(groups):
        own = np.flatnonzero(groups == group)
        expected.append(F.cross_entropy(scores[own][None], torch.tensor([int(shares[own].argmax())])))
    torch.testing.assert_close(loss, torch.stack(expected).mean())
    loss.backward()
    assert scores.grad is not None and torch.isfinite(scores.grad).all()
    assert not group_targets(groups, np.zeros_like(shares), 5)[0].size  # no correct choice: no target


@pytest.mark.parametrize("rows_per_step", [1, 12])
def test_fixed_shapes_fit_every_batch(rows_per_step: int, tmp_path: Path) -> None:
    table = read_choices(write(tmp_path / "a.jsonl", rows(60)))
    task = Choose().fit(table)
    assert task.max_candidates == 4
    data = Data(Tokenizer.load(few_words()), TEMPLATE, rows=table)
    packing = row_packing(task.tokenize_examples(data, 16), rows_per_step, 16, fixed=True)
    stream = DataStream(single_objective(task).joints[0], data, packing, seed=0)
    shapes, seen = set(), []
    for epoch in range(2):
        for index in range(len(stream.epoch_plan(epoch))):
            batch = stream.batch(epoch, index, 0.0)
            targets, packed = batch.targets["choose"], batch.packed[0]
            shapes.add((packed.ids.shape, packed.offsets.shape, targets.at.shape, targets.target.shape))
            assert float(targets.weight.sum()) == batch.counts["choose"] > 0
            used = targets.at[targets.weight > 0]
            assert sorted(used[used >= 0].tolist()) == list(range(len(batch.rows)))
            seen += table.owner[batch.rows].tolist()
    assert len(shapes) == 1
    assert sorted(seen) == sorted(2 * table.owner.tolist())


def test_other_rows_are_rejected() -> None:
    with pytest.raises(PretuneError, match="'choose' needs rows with candidates"):
        Choose().tokenize_examples(
            Data(Tokenizer.load(few_words()), TEMPLATE, rows=LabeledRows(Path("x"), {}, ["a"])), 16
        )
