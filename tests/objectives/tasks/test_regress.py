from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune import PretuneError
from pretune.metrics import score
from pretune.metrics.regression import correlations
from pretune.models.checkpoint_heads import stored_objectives
from pretune.nn.linear import Linear
from pretune.objectives import Data, single_objective
from pretune.objectives.tasks.regress import Regress
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.data_streams import DataStream
from tests.support.objective_data import TEMPLATE, few_words, learn, stack, write
from tests.support.task_rows import regress_rows as rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pt.Run:
    folder = tmp_path_factory.mktemp("regress")
    train, dev = write(folder / "train.jsonl", rows(150)), write(folder / "dev.jsonl", rows(30, seed=1))
    return learn("regress", train, folder / "run", dev)


@pytest.mark.end_to_end
def test_regress_learns_numbers_of_any_scale(run: pt.Run) -> None:
    assert run.results["dev/pearson"] > 0.95 and run.results["dev/spearman"] > 0.9
    assert run.results["dev/mse"] < 3000
    assert run.results["regress"] < 0.2  # relative to the variance
    again = pt.predict(run, run.folder.parent / "dev.jsonl")
    expected = np.array([row["score"] for row in rows(30, seed=1)], dtype=float)
    found = np.array([row["value"] for row in again])
    assert np.mean((found - expected) ** 2) == pytest.approx(
        run.results["dev/mse"], rel=1e-3
    )  # the head includes mean and standard deviation


@pytest.mark.not_fast
def test_predictions_and_loss_equal_those_of_transformers(run: pt.Run, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    pt.export(run, out=tmp_path / "out")
    reference, report = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert (reference.config.num_labels, reference.config.problem_type) == (1, "regression")
    texts, pairs = ["red cat", "owl"], ["blue blue dog", "green fox"]
    given = AutoTokenizer.from_pretrained(tmp_path / "out")(texts, pairs, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = reference.eval()(**given, labels=torch.tensor([1120.0, 1010.0]))
    ours = np.array([row["value"] for row in run.predict(texts, pairs=pairs)])
    np.testing.assert_allclose(ours, theirs.logits[:, 0].numpy(), rtol=1e-5)
    assert np.mean((ours - [1120.0, 1010.0]) ** 2) == pytest.approx(float(theirs.loss), rel=1e-4)
    for changed in (
        {"problem_type": None},
        {},
    ):  # one class means regression in `transformers`, whatever the problem type
        config = json.loads((tmp_path / "out/config.json").read_text())
        del config["pretune"]
        (tmp_path / "out/config.json").write_text(json.dumps(config | changed))
        mixture = stored_objectives(tmp_path / "out")
        assert mixture is not None and mixture.objectives == [Regress()]
        (tmp_path / "out/config.json").write_text(json.dumps(config | {"pretune": {}}))
    assert pt.predict(tmp_path / "out", ["red cat"])[0]["value"] > 900


@pytest.mark.not_fast
def test_training_resumes_from_the_existing_head(run: pt.Run, tmp_path: Path) -> None:
    other = [row | {"score": -float(row["score"])} for row in rows(8)]  # type: ignore[arg-type]
    still = pt.Optimizer(lr=1e-12, weight_decay=0.0)
    again = pt.finetune(
        run, write(tmp_path / "a.jsonl", other), out=tmp_path / "b", objective="regress", optimizer=still, epochs=1
    )
    ours, theirs = (model.predict(["red cat"], pairs=["owl"])[0]["value"] for model in (run, again))
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_mean_and_deviation_are_folded_into_the_head(bias: bool) -> None:
    """Families without a bias in the head fold in only the scale."""
    torch.manual_seed(0)
    table = LabeledRows(Path("x"), {}, ["red cat", "owl", "dog"], labels=[5.0, 2.0, 2.0], lines=[1, 2, 3])
    tokenizer = Tokenizer.load(few_words())
    task = Regress(dropout=0.0).fit(table)
    assert (task.mean, task.deviation) == (3.0, pytest.approx(2**0.5))
    backbone = stack(tokenizer.size).eval()
    backbone.classifier = lambda classes: Linear(32, classes, bias=bias)
    head = task.head(backbone).eval()
    stream = DataStream(
        single_objective(task).joints[0], Data(tokenizer, TEMPLATE, rows=table), Packing(64, 16, 8), seed=0
    )
    batch = stream.batch(0, 0, 0.0)
    with torch.no_grad():
        before = task.outputs(head, backbone, batch)
        loss = task.loss(head, backbone, batch).over(batch.counts)
        done = task.finish(head)
        assert done == Regress(dropout=0.0)
        torch.testing.assert_close(done.outputs(head, backbone, batch), before)
        task.begin(head)
        torch.testing.assert_close(task.outputs(head, backbone, batch), before)
        task.finish(head)
    errors = before.numpy()[batch.targets["regress"].at] - batch.targets["regress"].target.numpy()
    assert float(loss) == pytest.approx(np.mean(errors**2) / 2, rel=1e-5)


def test_labels_that_are_not_numbers_are_rejected_with_their_line(tmp_path: Path) -> None:
    table = tmp_path / "a.tsv"
    for cell, message in (
        ("high", "expected a number, but found 'high' in 'score'"),
        ("1e999", "expected a number, but found '1e999'"),
        ("1,5", "expected a number, but found '1,5'"),
    ):
        table.write_text(f"sentence\tscore\na\t1.5\nb\t{cell}\n")
        with pytest.raises(PretuneError, match=rf"a\.tsv, line 3: {message}"):
            Regress().read(table, {})
    listed = write(tmp_path / "b.jsonl", [{"text": "a", "score": 1}, {"text": "b", "score": True}])
    with pytest.raises(PretuneError, match=r"b\.jsonl, line 2: expected a number, but found True in 'score'"):
        Regress().read(listed, {})
    same = write(tmp_path / "c.jsonl", [{"text": "a", "score": 2}] * 3)
    with pytest.raises(PretuneError, match=r"c\.jsonl: every row has the number 2, so there is nothing to learn"):
        Regress().fit(Regress().read(same, {}))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=20), st.integers(1, 5))
def test_correlations_are_bounded_and_invariant_to_affine_maps(pairs: list[tuple[int, int]], scale: int) -> None:
    first, second = zip(*pairs, strict=True)
    found = correlations(first, second)
    assert all(-1.0001 <= value <= 1.0001 for value in found.values())
    moved = correlations(first, [scale * value + 3 for value in second])
    assert moved == pytest.approx(found, abs=1e-6)
    examples = LabeledRows(Path("x"), {}, ["…"] * len(pairs), labels=list(first))
    perfect = score(Regress(), [{"value": value} for value in first], examples)
    assert perfect["mse"] == 0 and perfect["pearson"] in (0.0, pytest.approx(1.0))
