"""Tests of `classify(multi_label=true)` and `classify(class_weight=balanced)`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import pretune as pt
from pretune import PretuneError
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.loading import load_model
from pretune.objectives import Data, parse_objective
from pretune.objectives.tasks.classify import Classify, multi_label_loss
from pretune.packed import pack_targets
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows, split_labels
from pretune.text.packing.sequences import Packing, collate
from pretune.text.tokenizers.tokenizer import Tokenizer
from tests.support.objective_data import COLORS, TEMPLATE, few_words, learn, write
from tests.support.task_rows import multi_label_rows as rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pt.Run:
    folder = tmp_path_factory.mktemp("several")
    train, dev = write(folder / "train.jsonl", rows(180)), write(folder / "dev.jsonl", rows(16, seed=1))
    return learn("classify(multi_label=true)", train, folder / "run", dev, epochs=10)


@pytest.mark.end_to_end
def test_predictions_have_zero_one_or_several_labels(run: pt.Run) -> None:
    assert run.results["dev/exact_match"] > 0.9 and run.results["dev/micro_f1"] > 0.9
    none, two = pt.predict(run, ["i saw dog", "i saw red blue cat"])
    assert none["labels"] == [] and two["labels"] == ["blue", "red"]
    assert set(two["probabilities"]) == set(COLORS[:3])
    assert sum(two["probabilities"].values()) > 1.5


@pytest.mark.not_fast
def test_export_and_import_agree_with_transformers(run: pt.Run, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    assert pt.export(run, out=tmp_path / "out").facts["class"] == "BertForSequenceClassification"
    reference = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert reference.config.problem_type == "multi_label_classification"
    texts = ["i saw red blue cat", "i saw"]
    given = AutoTokenizer.from_pretrained(tmp_path / "out")(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = reference(**given, labels=torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    ours = [list(row["probabilities"].values()) for row in pt.predict(tmp_path / "out", texts)]
    torch.testing.assert_close(torch.tensor(ours), theirs.logits.sigmoid(), atol=1e-5, rtol=1e-5)
    target = pack_targets(np.arange(2), np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    loss = multi_label_loss("classify", theirs.logits, target)
    torch.testing.assert_close(loss.over({"classify": 2.0}), theirs.loss)

    reference.save_pretrained(tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs/config.json").read_text())
    config.pop("pretune", None)
    (tmp_path / "theirs/config.json").write_text(json.dumps(config))
    mixture = stored_objectives(tmp_path / "theirs")
    assert mixture is not None and mixture.objectives[0].multi_label  # type: ignore[attr-defined]
    load_model(tmp_path / "theirs", mixture).save(tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["problem_type"] == "multi_label_classification"


def test_multiple_labels_in_table_cells_are_split(tmp_path: Path) -> None:
    for name, mark in (("a.csv", ";"), ("b.csv", "|"), ("c.tsv", ",")):
        comma = "\t" if name.endswith("tsv") else ","
        lines = [f"text{comma}labels", f"x{comma}red {mark} blue", f"y{comma}", f"z{comma}red"]
        (tmp_path / name).write_text("\n".join(lines))
        assert Classify(multi_label=True).read(tmp_path / name, {}).labels == [("red", "blue"), (), ("red",)]
    table = tmp_path / "d.csv"
    table.write_text("text,labels\na,\nb,\n")
    with pytest.raises(PretuneError, match=r"d\.csv: no row has a label"):
        Classify(multi_label=True).fit(Classify(multi_label=True).read(table, {}))
    listed = write(tmp_path / "e.jsonl", [{"text": "a", "labels": ["x"]}, {"text": "b", "labels": [{"no": 1}]}])
    with pytest.raises(PretuneError, match=r"e\.jsonl, line 2: expected a single label, but found a dict in 'labels'"):
        Classify(multi_label=True).read(listed, {})
    with pytest.raises(PretuneError, match=r"e\.jsonl, line 1: expected a single label, but found a list in 'labels'"):
        Classify().read(listed, {})
    fit = Classify(multi_label=True, labels=("x",))
    with pytest.raises(PretuneError, match=r"dev, line 7: label 'y' was not in training"):
        fit.encode_labels(LabeledRows(Path("dev"), {}, ["a"], labels=[("x", "y")], lines=[7]))
    with pytest.raises(PretuneError, match=r"classify\(class_weight=even\): unknown value; .*balanced"):
        parse_objective("classify(class_weight=even)")


@given(st.lists(st.lists(st.text("abc d", min_size=1).map(str.strip).filter(bool), max_size=4), min_size=1))
def test_split_labels_inverts_joining(labels: list[list[str]]) -> None:
    wanted = [tuple(dict.fromkeys(row)) for row in labels]
    for mark in ";|,":
        assert split_labels([mark.join(row) for row in wanted]) == wanted
    assert split_labels(wanted) == wanted


@pytest.mark.parametrize("multi", [False, True])
def test_balanced_weights_equal_those_of_scikit_learn_and_transformers(multi: bool) -> None:
    from sklearn.utils.class_weight import compute_class_weight

    labels = ["a"] * 6 + ["b"] * 3 + ["c"]
    cells = [(label,) for label in labels] if multi else labels
    table = LabeledRows(Path("x"), {}, ["red cat"] * 10, labels=cells, lines=list(range(10)))
    task = Classify(multi_label=multi, class_weight="balanced").fit(table)
    data = Data(Tokenizer.load(few_words()), TEMPLATE, rows=table)
    sequences = task.corrupt(
        task.arrange(data, Packing(400, 40), EpochRandom(0)).pack(0), data.tokenizer, EpochRandom(0)
    )
    batch = collate(sequences)
    targets, logits = batch.targets["classify"], torch.randn(10, 3)
    if multi:
        loss = multi_label_loss("classify", logits, targets).over(batch.counts)
        positive = torch.tensor([4 / 6, 7 / 3, 9.0])
        expected = F.binary_cross_entropy_with_logits(logits, (targets.target > 0).float(), pos_weight=positive)
    else:
        weights = torch.tensor(compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=labels))
        losses = F.cross_entropy(logits, targets.target, reduction="none")
        loss = (losses * targets.weight).sum() / batch.counts["classify"]
        expected = F.cross_entropy(logits, targets.target, weight=weights.float())
        assert float(targets.weight.sum()) == pytest.approx(batch.counts["classify"])
    torch.testing.assert_close(loss, expected)
