"""Tests that verbs take tables in memory wherever they take files of rows or text."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pretune as pt
from pretune.cli import VERBS
from pretune.runtime.recipe import table_parameters
from tests.support.one_word_task import start

# Parameters that name files or texts. All others name models, folders, stores, or files of other kinds.
TABLES = {
    "train_tokenizer": {"corpus"}, "prepare": {"corpus"}, "histories": {"files"}, "train_vectors": {"corpus"},
    "pretrain": {"data"}, "adapt": {"data"}, "finetune": {"train", "dev", "unlabeled"}, "tune": {"train", "dev"},
    "ulmfit": {"train", "dev", "unlabeled"}, "evaluate": {"data"}, "compress": {"train", "dev"},
    "distill": {"train", "dev", "unlabeled", "data"}, "prune": {"train", "dev", "vocabulary_texts"},
    "quantize": {"train", "dev"}, "label": {"inputs", "answers"}, "predict": {"inputs"}, "embed": {"inputs"}, "search": {"inputs"}, "ask": {"inputs", "examples"},
    "translate": {"inputs", "references"}, "neighbors": {"corpus"}, "attention": {"importance", "inputs"}, "bench": {"inputs"},
    "project": {"inputs"}, "similarity": {"inputs"}, "study": {"data", "labels", "dev"}, "recommend": {"histories", "titles"},
}  # fmt: skip
TINY: dict[str, Any] = {"budget": pt.Budget(steps=2), "batch": pt.Batching(size=8), "num_seeds": 1, "report": False}


def rows() -> list[dict[str, Any]]:
    with (start() / "train.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def weights(run: pt.Run) -> bytes:
    return (run.folder / "model.safetensors").read_bytes()


def test_every_parameter_that_names_rows_takes_tables() -> None:
    found = {function.__name__: set(table_parameters(function)) for function in VERBS.values()}
    assert {name: names for name, names in found.items() if names} == TABLES


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pt.Run:
    """Return a run on a DataFrame."""
    out = tmp_path_factory.mktemp("run") / "run"
    return pt.finetune(start() / "start", pd.DataFrame(rows()), dev=iter(rows()), out=out, **TINY)


@pytest.mark.not_fast
def test_a_run_on_a_table_equals_the_run_on_its_file(run: pt.Run, tmp_path: Path) -> None:
    file = start() / "train.csv"
    assert weights(run) == weights(pt.finetune(start() / "start", file, dev=file, out=tmp_path / "run", **TINY))
    assert Path(run.recipe["train"]).name.startswith("in-memory-table-64-rows-")
    assert run.recipe["train"] == run.recipe["dev"]


def test_an_interrupted_run_on_a_table_resumes_with_the_same_data_only(run: pt.Run, tmp_path: Path) -> None:
    out = shutil.copytree(run.folder, tmp_path / "run")
    (out / "results.json").unlink()  # as if it had been interrupted
    with pytest.raises(pt.PretuneError, match=r"other settings \(train\)"):
        pt.finetune(start() / "start", rows()[1:], dev=rows(), out=out, resume=True, **TINY)
    assert weights(pt.finetune(start() / "start", rows(), dev=rows(), out=out, resume=True, **TINY)) == weights(run)


def test_predict_adds_its_columns_to_the_rows_of_a_table(run: pt.Run) -> None:
    table = pd.DataFrame(rows()[:3])
    predicted = pt.predict(run, table)
    assert [row["text"] for row in predicted] == table["text"].tolist()
    assert [row["label"] for row in predicted] == table["label"].tolist()  # as it was; the prediction has another name
    alone = pt.predict(run, table["text"].tolist())
    assert [row["predicted_label"] for row in predicted] == [row["label"] for row in alone]
    assert [row["label"] for row in pt.predict(run, table["text"])] == [row["label"] for row in alone]
    assert "accuracy" in pt.predict(run, table, score=True).facts["scores"][0]


def test_embed_takes_tables_and_arrays_of_texts() -> None:
    texts = [row["text"] for row in rows()[:3]]
    expected = [row["vector"] for row in pt.embed(start() / "start", texts)]
    for given in (pd.Series(texts), pd.DataFrame({"text": texts}), [{"text": text} for text in texts], iter(texts)):
        assert [row["vector"] for row in pt.embed(start() / "start", given)] == expected


def test_several_tasks_take_tables_by_name(tmp_path: Path) -> None:
    table = pd.DataFrame(rows())
    train = {"first": table, "second": start() / "train.csv"}
    run = pt.finetune(start() / "start", train, dev={"first": rows(), "second": table}, out=tmp_path / "run", **TINY)
    assert set(run.recipe["train"]) == {"first", "second"}
    assert {"dev/first/accuracy", "dev/second/accuracy"} <= run.results.keys()


@pytest.mark.not_fast
def test_text_for_pretraining_is_a_column_of_a_table(tmp_path: Path) -> None:
    texts = pd.DataFrame({"body": [row["text"] for row in rows()], "id": range(64)})
    pieces = pt.train_tokenizer(texts, vocab_size=100)
    store = pt.prepare([texts, start() / "text.txt"], pieces, tmp_path / "store")
    assert store.describe()["documents"] == 64 + 65
    budget = pt.Budget(steps=2)
    adapted = pt.adapt(start() / "start", texts, out=tmp_path / "adapted", budget=budget, text_field="body")
    assert set(adapted.before) == set(adapted.after)
    assert pt.evaluate(tmp_path / "adapted", data=texts, text="body", limit=2).describe()
    by_language = pt.pretrain(
        "bert-tiny", {"en": texts}, objective="mlm", tokenizer=start() / "start", budget=budget, out=tmp_path / "en"
    )
    assert by_language.recipe["data"][0].startswith("en=")


@pytest.mark.not_fast
def test_compression_takes_tables(run: pt.Run, tmp_path: Path) -> None:
    small = pt.prune(run, drop_layers="top(1)", dev=pd.DataFrame(rows()[:8]), out=tmp_path / "small")
    assert small.results
    student = pt.distill(
        run, student="bert-tiny", train=rows(), dev=rows()[:8], out=tmp_path / "student", budget=pt.Budget(steps=1)
    )
    assert student.finished


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([{"text": "a"}, ["b"]], "train: row 2 is a list, not a dict"),
        ([], "train: the data has no rows"),
        ([{"text": "a", "label": "x"}, {"text": "b"}], "column names differ between rows"),
    ],
)
def test_errors_come_at_the_call(train: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(pt.PretuneError, match=message):
        pt.finetune("no such model", train, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_no_inputs_stay_no_inputs(run: pt.Run) -> None:
    with pytest.raises(pt.PretuneError, match="no inputs were given"):
        pt.predict(run, [])
