from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.objectives import Data, parse_objective, single_objective
from pretune.objectives.tasks.rank import Rank
from pretune.text.examples.labeled import LabeledRows
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.data_streams import DataStream
from pretune.training.jobs.finetuning import row_packing
from tests.support.objective_data import TEMPLATE, few_words, learn, write
from tests.support.task_rows import rank_rows as rows


@pytest.mark.end_to_end
@pytest.mark.parametrize("over", ["listwise", "pointwise"])
def test_rank_learns(over: str, tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.jsonl", rows(80)), write(tmp_path / "dev.jsonl", rows(20, seed=1))
    run = learn(f"rank(ranking_loss={over})", train, tmp_path / "run", dev, epochs=9 if over == "listwise" else 12)
    assert run.results["dev/mrr"] > 0.9 and run.results["dev/ndcg@10"] > 0.9 and run.results["dev/map"] > 0.9
    answers = pt.predict(run, dev, text="query", pair="passage")
    assert len(answers) == len(rows(20, seed=1)) and set(answers[0]) == {"qid", "query", "passage", "label", "score"}


@pytest.mark.not_fast
def test_scores_equal_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run = learn("rank", write(tmp_path / "train.jsonl", rows(20)), tmp_path / "run", epochs=1)
    assert pt.export(run, out=tmp_path / "out").facts["class"] == "BertForSequenceClassification"
    reference = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert reference.config.num_labels == 1
    texts, pairs = ["red", "blue"], ["a red cat", "the dog"]
    given = AutoTokenizer.from_pretrained(tmp_path / "out")(texts, pairs, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = reference(**given).logits[:, 0].numpy()
    ours = [row["score"] for row in run.predict(texts, pairs=pairs)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(PretuneError, match="texts: the task 'rank' needs pairs of texts"):
        run.predict(["red"])


def test_queries_are_identified_by_id_or_text(tmp_path: Path) -> None:
    some = [{"id": i % 2, "query": "a", "document": "b", "relevance": 1} for i in range(4)]
    file = write(tmp_path / "a.jsonl", some)
    assert Rank().read(file, {"label": "relevance"}).queries.tolist() == [0, 0, 0, 0]
    assert Rank().read(file, {"label": "relevance", "group": "id"}).queries.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "query,passage,label\na,b,1\na,c,-1\n",
            r"a\.csv, line 3: expected a relevance of 0 or more, but found '-1' in 'label'",
        ),
        ("query,passage,label\na,b,yes\n", r"a\.csv, line 2: expected a number, but found 'yes' in 'label'"),
        (
            "text,label\na,1\nb,0\n",
            r"a\.csv: the task 'rank' needs pairs of texts; name the columns with --text, --pair",
        ),
        (
            "query,passage,label\na,b,1\nb,c,0\n",
            r"every query has only one candidate.*; or name the column of query ids with --columns\.group",
        ),
        ("query,passage,label\na,b,0\na,c,0\n", "no candidate is relevant"),
    ],
)
def test_invalid_rows_are_rejected(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(PretuneError, match=message):
        Rank().fit(Rank().read(tmp_path / "a.csv", {}))
    with pytest.raises(PretuneError, match="ranking_loss='line': input should be 'listwise' or 'pointwise'"):
        parse_objective("rank(ranking_loss=line)")


def test_candidates_of_a_query_share_a_pack_and_a_target() -> None:
    groups = [0, 1, 0, 1, 0, 2, 2]
    labels = [2.0, 0.0, 1.0, 3.0, 1.0, 0.0, 0.0]
    table = LabeledRows(Path("x"), {}, ["red"] * 7, ["cat"] * 7, labels, lines=list(range(7)), extra={"group": groups})
    task = Rank().fit(table)
    assert task.max_candidates == 3
    data = Data(Tokenizer.load(few_words()), TEMPLATE, rows=table)
    packing = row_packing(task.tokenize_examples(data, 12), 2, 12, fixed=True)
    stream = DataStream(single_objective(task).joints[0], data, packing, seed=0)
    found = {}
    for index in range(len(stream.epoch_plan(0))):
        batch = stream.batch(0, index, 0.0)
        targets = batch.targets["rank"]
        for at, target, weight in zip(targets.at, targets.target, targets.weight, strict=True):
            if weight:
                members = batch.rows[at[at >= 0]]
                found[groups[members[0]]] = dict(zip(members.tolist(), target.tolist(), strict=False))
    assert found == {0: {0: 0.5, 2: 0.25, 4: 0.25}, 1: {1: 0.0, 3: 1.0}}  # the third query has no relevant candidate
