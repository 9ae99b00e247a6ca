"""Tests of predictions for files and by ensembles: one output row per input row, for any size and number of processes."""

from __future__ import annotations

import csv
import json
import shutil
import tracemalloc
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

import pretune as pt
from pretune import PretuneError
from pretune.inference import prediction_table
from pretune.models.loading import load
from pretune.text.examples.labeled import read_chunks
from pretune.verbs.shared_inputs import split_files
from tests.support.cli import run_command
from tests.support.one_word_task import start, tune


@cache
def runs() -> tuple[str, str]:
    """Return two partly trained models with different seeds."""
    folder = Path(mkdtemp())
    return tuple(str(tune(folder / name, steps=6, seed=seed).folder) for seed, name in enumerate("ab"))  # type: ignore


def rows(count: int) -> list[dict[str, str]]:
    return [
        {"id": str(i), "text": ["", "good stone", "bad water bird", "good " * (i % 9)][i % 4], "note": f'"{i}", x'}
        for i in range(count)
    ]


def write_csv(path: Path, count: int) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text", "note"])
        writer.writeheader()
        writer.writerows(rows(count))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [row for part in read_chunks(path, 1000) for _, row in part.rows]


@pytest.mark.not_fast
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_rows_keep_their_order_and_columns(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_table, "ROWS", 7)
    run, _ = runs()
    out = tmp_path / f"out{suffix}"
    written = pt.predict(run, write_csv(tmp_path / "a.csv", 30), out=out, probabilities=True)
    assert written[0] == {"file": str(out), "rows": 30}
    found = read(out)
    assert [{key: row[key] for key in ("id", "text", "note")} for row in found] == rows(30)
    assert list(found[0]) == ["id", "text", "note", "label", "probability", "probability_no", "probability_yes"]
    alone = pt.predict(run, [row["text"] for row in rows(30)])
    assert [row["label"] or None for row in found] == [row["label"] for row in alone]
    for row, other in zip(found, alone, strict=True):
        if not row["text"].strip():
            assert not row["probability"] and not row["probability_yes"] and other["label"] is None
            continue
        assert float(row["probability"]) == pytest.approx(other["probability"], abs=1e-5)
        assert float(row["probability_yes"]) == pytest.approx(other["probabilities"]["yes"], abs=1e-5)


@pytest.mark.not_fast
@pytest.mark.parametrize("suffix", [".tsv", ".jsonl", ".parquet"])
def test_files_of_every_format_are_read(suffix: str, tmp_path: Path) -> None:
    run, _ = runs()
    texts = ["good stone", "", "bad"]
    file = tmp_path / f"in{suffix}"
    if suffix == ".tsv":
        file.write_text("text\n" + "\n".join(texts) + "\n")
    elif suffix == ".jsonl":
        file.write_text("".join(json.dumps({"text": text, "more": {"deep": [1]}}) + "\n" for text in texts))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": texts, "more": [1, 2, 3]}), file)
    answers = pt.predict(run, file)
    assert [row["text"] for row in answers] == texts
    if suffix == ".jsonl":
        assert answers[0]["more"] == {"deep": [1]}
    assert [row["label"] for row in answers] == [row["label"] for row in pt.predict(run, texts)]


@pytest.mark.not_fast
def test_ensembles_average_probabilities(tmp_path: Path) -> None:
    a, b = runs()
    file = write_csv(tmp_path / "a.csv", 12)
    one, other, both = (list(pt.predict(models, file)) for models in (a, b, [a, b]))
    for x, y, z in (rows for rows in zip(one, other, both, strict=True) if rows[0]["text"].strip()):
        means = {label: np.mean([x["probabilities"][label], y["probabilities"][label]]) for label in ("no", "yes")}
        assert z["probabilities"] == pytest.approx(means)
        assert z["label"] == max(means, key=means.__getitem__) and z["probability"] == max(z["probabilities"].values())


def test_predict_reports_scores_of_each_model_and_the_ensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_table, "ROWS", 20)
    a, b = runs()
    file = start() / "train.csv"
    answers = pt.predict([a, b], file, score=True)
    scores = answers.facts["scores"]
    assert [row["model"] for row in scores] == [a, b, "together"]
    for folder, row in zip((a, b), scores, strict=False):
        assert row["accuracy"] == pytest.approx(pt.Run(folder).results["dev/accuracy"])
    right = [row["label"] == row["predicted_label"] for row in answers]  # the label of the file is kept
    assert np.mean(right) == pytest.approx(scores[-1]["accuracy"])
    (alone,) = pt.predict(a, file, score=True, out=tmp_path / "out.csv").facts["scores"]
    assert alone["accuracy"] == pytest.approx(scores[0]["accuracy"])


@pytest.mark.not_fast
def test_several_processes_give_the_same_rows_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_table, "ROWS", 5)
    file = write_csv(tmp_path / "a.csv", 23)
    here, there = (list(pt.predict(runs(), file, processes=count)) for count in (1, 2))
    assert [row["id"] for row in there] == [row["id"] for row in here] == [str(i) for i in range(23)]
    for one, other in zip(here, there, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_row_without_text_is_found_anywhere_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_table, "ROWS", 5)
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n' * 40 + '{"txt": "b"}\n')
    with pytest.raises(PretuneError, match=r"bad\.jsonl, line 41: the field 'text' is missing"):
        pt.predict(runs(), tmp_path / "bad.jsonl")


@pytest.mark.parametrize("processes", [1, 2])
def test_empty_texts_have_no_prediction_and_no_row_is_dropped(
    processes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction_table, "ROWS", 3)
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    texts = ["a good film", "", " \t", "a bad film", "\u200b", None]
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pt.predict(runs()[0], file, out=out, processes=processes)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["text"] for row in rows] == texts
    assert [row["label"] is None for row in rows] == [row["probability"] is None for row in rows]
    assert [row["label"] is None for row in rows] == [False, True, True, False, True, True]
    assert "4 of 6 texts are empty and have no prediction" in capsys.readouterr().err
    columns = pt.predict(runs(), file, out=tmp_path / "out.csv", probabilities=True)
    assert columns[0]["rows"] == 6
    with (tmp_path / "out.csv").open(encoding="utf-8") as lines:
        written = list(csv.DictReader(lines))
    assert written[1]["label"] == written[1]["probability_no"] == "" and written[0]["probability_no"]


def test_single_text_must_not_be_empty(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    run = runs()[0]
    for nothing in ("", "  ", "\u200b"):
        with pytest.raises(PretuneError, match="the text is empty, so there is nothing to predict"):
            pt.predict(run, [nothing])
    assert [row["label"] is None for row in pt.predict(run, ["", "a good film"])] == [True, False]
    assert [row["label"] is None for row in pt.Run(run).predict(["", "a good film"])] == [True, False]
    assert capsys.readouterr().err.count("1 of 2 texts is empty and has no prediction") == 2


def test_pair_with_one_empty_text_has_a_prediction() -> None:
    from pretune.inference.predict import rows_without_tokens
    from pretune.text.examples.labeled import LabeledRows

    tokenizer = load(runs()[0]).require_tokenizer()
    rows = LabeledRows(Path("x"), {}, ["", "a", " "], ["b", "", ""])
    assert rows_without_tokens(rows, tokenizer) == [2]


@pytest.mark.not_fast
def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_table, "ROWS", 64)
    run, _ = runs()
    peaks = []
    for count in (128, 128, 2048):  # the first is a warmup
        file = write_csv(tmp_path / f"{count}.csv", count)
        tracemalloc.start()
        pt.predict(run, file, out=tmp_path / "out.csv")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert len(read(tmp_path / "out.csv")) == 2048
    assert peaks[2] < 1.2 * peaks[1] + 100_000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 2}', r"in\.jsonl, line 3: the field 'text' is missing"),
        ("{", r"in\.jsonl, line 3: not valid JSON"),
        ('{"text": "\\ud800"}', r"in\.jsonl, line 3: 'text' contains a lone surrogate"),
    ],
)
def test_row_without_text_is_rejected_and_nothing_is_written(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"id": 1, "text": "a"}\n\n' + line + "\n")
    with pytest.raises(PretuneError, match=message):
        pt.predict(runs()[0], file, out=tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_ensembles_need_models_for_the_same_task(tmp_path: Path) -> None:
    a, b = runs()
    other = shutil.copytree(b, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    config["id2label"]["1"] = "maybe"
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(PretuneError, match=r"other has the labels no, maybe, and .*/a has no, yes"):
        pt.predict([a, other], ["x"])
    with pytest.raises(PretuneError, match="was not trained for a task"):
        pt.predict([a, start() / "start"], ["x"])


def test_texts_files_and_runs_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "a.csv", 2)
    write_csv(tmp_path / "two words.csv", 2)
    long = "x" * 10_000
    assert split_files(["a.csv", "two words.csv", tmp_path / "a.csv"])[1] == []
    assert split_files(["see b.csv", "a.md", "a", "", long, "nul\0"])[1] == [
        "see b.csv",
        "a.md",
        "a",
        "",
        long,
        "nul\0",
    ]
    with pytest.raises(PretuneError, match=r"b\.csv: no such file"):
        split_files(["b.csv"])
    with pytest.raises(PretuneError, match="'runs/b' is neither a model nor a file"):
        pt.predict(runs()[0], ["runs/b", "a.csv"])
    with pytest.raises(PretuneError, match="this file is given twice"):
        split_files(["a.csv", "a.csv"])
    with pytest.raises(PretuneError, match="--out is also an input file"):
        pt.predict(runs()[0], "a.csv", out="./a.csv")
    with pytest.raises(PretuneError, match="unsupported output format"):
        pt.predict(runs()[0], "a.csv", out="a.xlsx")
    with pytest.raises(PretuneError, match="--score applies only to files"):
        pt.predict(runs()[0], "a text", score=True)
    with pytest.raises(PretuneError, match="--processes 0: the number of processes must be at least 1"):
        pt.predict(runs()[0], "a.csv", processes=0)


def test_command_line_averages_runs_and_shows_some_rows(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "a.csv", 40)
    for options in ([], ["--json"]):
        output = run_command("predict", *runs(), file, *options).stdout
        if options:
            assert len(json.loads(output)["predictions"]) == 40
        else:
            assert "rows left out  20" in output and "good stone" in output and "probabilities" not in output
