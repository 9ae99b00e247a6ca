"""Tests of the path from ratings to recommendations, on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import pretune as pt
from pretune import PretuneError
from tests.support.cli import run_command
from tests.support.one_word_task import trained
from tests.support.user_histories import ITEMS, stride_ratings

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ratings, titles and a model that was pretrained on the ratings."""
    made = tmp_path_factory.mktemp("recommend")
    (made / "ratings.dat").write_text(stride_ratings(300), encoding="utf-8")
    titles = "".join(f"{item}::Café {item} (2001)::Drama\n" for item in range(ITEMS))
    (made / "movies.dat").write_text(titles, encoding="latin-1")
    pt.histories(made / "ratings.dat", out=made / "histories.txt")
    pt.train_tokenizer(made / "histories.txt", kind="items", vocab_size=100, out=made / "items")
    pt.prepare(made / "histories.txt", tokenizer=made / "items", language="lines", split_by="line", out=made / "store")
    pt.pretrain(
        "bert-tiny",
        data=made / "store",
        objective="item(mask_last_rate=0.5)",
        budget=pt.Budget(steps=150),
        optimizer=pt.Optimizer(lr=0.002),
        batch=pt.Batching(tokens=512, max_length=16),
        out=made / "run",
    )
    return made


def test_users_get_unseen_items_with_titles(folder: Path) -> None:
    out = folder / "recommended.csv"
    run_command(
        "recommend",
        folder / "run",
        folder / "ratings.dat",
        "--titles",
        folder / "movies.dat",
        "--top-k",
        3,
        "--out",
        out,
    )
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    histories: dict[str, set[str]] = {}
    for line in (folder / "ratings.dat").read_text().splitlines():
        user, item, *_ = line.split("::")
        histories.setdefault(user, set()).add(item)
    assert len(rows) == 3 * 300 and {row["user"] for row in rows} == set(histories)
    assert not any(row["item"] in histories[row["user"]] for row in rows)
    assert all(row["title"] == f"Café {row['item']} (2001)" for row in rows)


def test_the_model_learns_what_the_baselines_cannot(folder: Path) -> None:
    """The next item follows from the user's stride, which two items show but one, or popularity, does not."""
    out = folder / "scores.jsonl"
    shown = run_command(
        "recommend", folder / "run", folder / "ratings.dat", "--evaluate", "--num-negatives", 5, "--out", out, "--json"
    )
    assert shown.json()["users"] == 300
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    mrr = {(row["method"], row["candidates"]): row["mrr"] for row in rows}
    assert mrr["model", "all items"] > 1.25 * mrr["co-occurrence", "all items"]
    assert mrr["co-occurrence", "all items"] > mrr["popularity", "all items"]
    for method in ("model", "co-occurrence", "popularity"):  # fewer candidates
        assert mrr[method, "5 sampled by popularity"] > mrr[method, "all items"]


def test_text_files_name_users_by_their_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "users.txt").write_text("1 2 3\n\n4 8 12\n")
    rows = pt.recommend(folder / "run", tmp_path / "users.txt", top_k=1)
    assert [row["user"] for row in rows] == ["1", "3"]
    frame = [{"user": "ann", "item": item} for item in (4, 8, 12)]
    assert pt.recommend(folder / "run", frame, top_k=1)[0]["item"] == rows[1]["item"]


def test_wrong_inputs_are_explained(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("x y z\n")
    with pytest.raises(PretuneError, match="the model knows none of the items in these histories"):
        pt.recommend(folder / "run", tmp_path / "new.txt")
    with pytest.raises(
        PretuneError, match="this model was not trained to predict items; pretrain one on user histories"
    ):
        pt.recommend(trained(), tmp_path / "new.txt")
    with pytest.raises(PretuneError, match=r"out\.dat: unsupported output format"):
        pt.recommend(folder / "run", tmp_path / "new.txt", out=tmp_path / "out.dat")
    with pytest.raises(PretuneError, match=r"expected one of \.csv, \.tsv, \.jsonl, \.parquet$"):
        pt.recommend(folder / "run", tmp_path / "new.txt", out=tmp_path / "out.conll")


def test_items_without_a_title_are_reported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    (tmp_path / "users.txt").write_text("1 2 3\n")
    (tmp_path / "movies.csv").write_text("movieId,title\n1,One\n")
    rows = pt.recommend(folder / "run", tmp_path / "users.txt", top_k=3, titles=tmp_path / "movies.csv")
    assert [row["title"] for row in rows] == [""] * 3
    assert "movies.csv: 3 of the recommended items have no title, such as " in capsys.readouterr().err
