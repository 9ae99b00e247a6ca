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
from pretune.objectives.in_batch_contrast import in_batch_contrastive_loss
from pretune.objectives.tasks.contrast import Contrast
from pretune.packed import pack_targets
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.data_streams import DataStream
from tests.support.objective_data import TEMPLATE, few_words, learn, stack, write
from tests.support.task_rows import positive_pairs as pairs
from tests.support.task_rows import scored_pairs as scored


@pytest.mark.not_fast
def test_contrast_learns_from_pairs(tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.jsonl", pairs(160)), write(tmp_path / "dev.jsonl", pairs(30, seed=1))
    run = learn("contrast", train, tmp_path / "run", dev, epochs=6)
    assert run.results["dev/accuracy"] > 0.9 and run.results["dev/mrr"] > 0.9
    answers = pt.predict(run, dev)
    assert answers[0].keys() == {"anchor", "positive", "similarity", "place"}
    vectors = np.array(
        [row["vector"] for row in pt.embed(run, ["i saw a red cat", "the cat is red .", "the dog is blue ."])]
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    with pytest.raises(PretuneError, match="texts: the task 'contrast' needs pairs of texts"):
        run.predict(["red"])


@pytest.mark.not_fast
def test_contrast_learns_from_scores(tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.jsonl", scored(150)), write(tmp_path / "dev.jsonl", scored(40, seed=1))
    run = learn("contrast", train, tmp_path / "run", dev, epochs=6)
    assert run.results["dev/spearman"] > 0.8


@pytest.mark.not_fast
def test_embed_uses_the_pooling_of_training(tmp_path: Path) -> None:
    run = learn("contrast(embedding_pooling=cls)", write(tmp_path / "a.jsonl", pairs(32)), tmp_path / "run", epochs=1)
    own, start, mean = (
        np.array([row["vector"] for row in pt.embed(run, ["red cat"], **given)])
        for given in ({}, {"pooling": "cls"}, {"pooling": "mean"})  # type: ignore[arg-type]
    )
    assert np.array_equal(own, start) and not np.allclose(own, mean)
    assert pt.export(run, out=tmp_path / "out").facts["class"] == "BertModel"


@settings(max_examples=30)
@given(st.integers(2, 8), st.integers(0, 4), st.integers(0, 99))
def test_unused_slots_and_repeated_texts_are_not_negatives(count: int, spare: int, seed: int) -> None:
    torch.manual_seed(seed)
    similar = torch.randn(count, count)
    numbers = np.arange(2 * count).reshape(count, 2)
    plain = in_batch_contrastive_loss("x", similar, pack_targets(np.zeros((count, 2)), numbers)).over(
        {"x": float(count)}
    )
    order = torch.arange(count)
    expected = (F.cross_entropy(similar, order) + F.cross_entropy(similar.T, order)) / 2
    torch.testing.assert_close(plain, expected)
    wider = torch.randn(count + spare, count + spare)
    wider[:count, :count] = similar
    targets = pack_targets(np.zeros((count, 2)), numbers, capacity=count + spare)
    torch.testing.assert_close(in_batch_contrastive_loss("x", wider, targets).over({"x": float(count)}), plain)
    numbers[1] = numbers[0]  # the same pair twice: the others see it once
    twice = in_batch_contrastive_loss("x", similar, pack_targets(np.zeros((count, 2)), numbers)).over(
        {"x": float(count)}
    )
    assert torch.isfinite(twice) and float(twice) <= float(plain) + 1e-6
    blank = in_batch_contrastive_loss("x", wider, pack_targets(np.zeros((0, 2)), numbers[:0], capacity=count + spare))
    assert float(blank.sums["x"]) == 0


@pytest.mark.parametrize("scores", [None, [0.0, 2.0, 5.0, 1.0, 4.0]])
def test_both_texts_of_a_row_are_in_one_pack_and_shapes_do_not_matter(scores: list[float] | None) -> None:
    texts, others = ["red cat", "owl", "blue dog", "a fox", "green"], ["cat", "the owl is red", "dog", "fox", "owl"]
    table = LabeledRows(Path("x"), {}, texts, others, scores, [1, 2, 3, 4, 5])
    task = Contrast().fit(table)
    tokenizer = Tokenizer.load(few_words())
    backbone = stack(tokenizer.size).eval()
    losses = []
    for packing in (Packing(120, 12, 10), Packing(120, 12, 20, fixed=True, rows=10)):
        stream = DataStream(single_objective(task).joints[0], Data(tokenizer, TEMPLATE, rows=table), packing, seed=0)
        batch = stream.batch(0, 0, 0.0)
        targets = batch.targets["contrast"]
        used = targets.at[targets.weight > 0]
        assert (batch.rows[used[:, 0]] % 2 == 0).all() and (batch.rows[used[:, 1]] == batch.rows[used[:, 0]] + 1).all()
        if scores:
            expected = (np.array(scores)[batch.rows[used[:, 0]] // 2]) / 5
            np.testing.assert_allclose(targets.target[targets.weight > 0], expected)
        with torch.no_grad():
            losses.append(task.loss(task.head(backbone), backbone, batch).over(batch.counts))
    torch.testing.assert_close(losses[0], losses[1])


def test_ranks_are_counted_among_different_texts() -> None:
    table = LabeledRows(Path("x"), {}, ["red", "red", "blue"], ["cat", "cat", "dog"], lines=[1, 2, 3])
    laid = Contrast().tokenize_examples(Data(Tokenizer.load(few_words()), TEMPLATE, rows=table), 12)
    one, two = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    answers = Contrast().answers([one, one, one, one, one, two], laid, table)
    assert [answer["place"] for answer in answers] == [1, 1, 3]
    assert [answer["similarity"] for answer in answers] == pytest.approx([1, 1, 0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("anchor,positive,score\na,b,1\nc,d,?\n", r"a\.csv, line 3: expected a number, but found '\?' in 'score'"),
        ("text\na\n", r"a\.csv: the task 'contrast' needs pairs of texts"),
        ("anchor,positive\na,b\nc,b\n", "'contrast' needs at least two different pairs of texts"),
        ("anchor,positive,score\na,b,2\nc,d,2\n", "every row has the score 2"),
    ],
)
def test_invalid_rows_are_rejected(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(PretuneError, match=message):
        Contrast().fit(Contrast().read(tmp_path / "a.csv", {}))
