"""Tests that every verb that reads running text from files reads it like `prepare`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.cli import VERBS
from pretune.models.loading import load
from pretune.runtime.recipe import parameter_types
from tests.support.tiny_models import read, tiny

LINES = ["the red cat sat", "the old dog ran", "a red dog sat"]
READERS = ("tokenizer train", "prepare", "pretrain", "adapt", "ulmfit", "distill", "neighbors", "vectors train")


class TextWasRead(Exception):  # noqa: N818
    """Raised to end a verb when it has read its text."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("bert-tiny", read([*LINES, "caf\ufffd"]), tmp_path_factory.mktemp("model") / "bert", "mlm")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table whose text is in a column with an unusual name, and partly not UTF-8."""
    rows = "".join(f"{number},{line}\n" for number, line in enumerate(LINES))
    (tmp_path / "notes.csv").write_bytes(f"id,remark\n{rows}".encode() + b"9,caf\xe9 cat\n")
    return tmp_path / "notes.csv"


@pytest.mark.parametrize("name", READERS)
def test_reading_options_are_the_same_for_all_verbs(name: str) -> None:
    known, ours = parameter_types(VERBS["prepare"]), parameter_types(VERBS[name])
    assert {option: ours[option] for option in ("split_by", "text_field", "encoding_errors")} == {
        option: known[option] for option in ("split_by", "text_field", "encoding_errors")
    }


def test_neighbors_applies_reading_options(model: Path, table: Path) -> None:
    with pytest.raises(
        PretuneError, match=r"no field named 'text'; the fields are 'id', 'remark'; choose one with --text-field"
    ):
        pt.neighbors(model, "cat", "the red cat", corpus=table)
    with pytest.raises(PretuneError, match="line 5: not valid UTF-8"):
        pt.neighbors(model, "cat", "the red cat", corpus=table, text_field="remark")
    assert pt.neighbors(
        model, "cat", "the red cat", corpus=table, text_field="remark", encoding_errors="replace", top_k=2
    )


def test_evaluate_applies_reading_options(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "texts.txt"
    text.write_bytes("\n".join(LINES).encode() + b"\ncaf\xe9\n")
    with pytest.raises(PretuneError, match="line 4: not valid UTF-8"):
        pt.evaluate(model, data=text)
    counts = {
        layout: pt.evaluate(model, data=text, split_by=layout, encoding_errors="replace").describe()["texts"]  # type: ignore[arg-type]
        for layout in ("line", "file")
    }
    assert counts == {"line": 4, "file": 1}
    with pytest.raises(PretuneError, match="--split-by applies only without --suite"):
        pt.evaluate(model, data=tmp_path, suite="glue", split_by="line", out=tmp_path / "out")


def test_train_vectors_applies_reading_options(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(documents: Iterator[Any], *_: Any, **__: Any) -> None:
        raise TextWasRead([document.text for document in documents])

    monkeypatch.setattr("pretune.inference.word_vector_models.train_word_vectors", stop)
    with pytest.raises(TextWasRead, match="caf\ufffd cat"):
        pt.train_vectors(table, text_field="remark", encoding_errors="replace", out=tmp_path / "vectors")


@pytest.mark.not_fast
def test_distill_applies_reading_options(model: Path, table: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "student": "layers=1",
        "budget": pt.Budget(steps=1),
        "batch": pt.Batching(tokens=64, max_length=16),
    }
    with pytest.raises(PretuneError, match=r"no field named 'text'; the fields are 'id', 'remark'"):
        pt.distill(model, data=table, out=tmp_path / "a", **options)
    run = pt.distill(model, data=table, text_field="remark", encoding_errors="replace", out=tmp_path / "b", **options)
    assert run.finished and (run.recipe["text_field"], run.recipe["encoding_errors"]) == ("remark", "replace")
    with pytest.raises(PretuneError, match="--text-field applies only to tables of --data"):
        pt.distill(model, train=table, text_field="remark", out=tmp_path / "c", **options)


@pytest.mark.not_fast
def test_prune_applies_reading_options(model: Path, table: Path, tmp_path: Path) -> None:
    run = pt.prune(model, vocabulary_texts=table, text_field="remark", encoding_errors="replace", out=tmp_path / "a")
    kept = load(run).require_tokenizer().vocabulary
    assert len(kept) < len(load(model).require_tokenizer().vocabulary)
    assert run.recipe["text_field"] == "remark" and run.recipe["encoding_errors"] == "replace"
    with pytest.raises(PretuneError, match="--text-field applies only to tables of --vocabulary-texts"):
        pt.prune(model, drop_layers="top(1)", text_field="remark", out=tmp_path / "b")


def test_ulmfit_applies_reading_options(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pretune.training.jobs import ulmfit

    def stop(files: list[Path], tokenizer: Any, out: Path, settings: Any) -> None:
        from pretune.text.corpus.documents import read_documents

        how = {
            "split_by": settings.split_by,
            "text_field": settings.text_field,
            "encoding_errors": settings.encoding_errors,
        }
        raise TextWasRead([document.text for document in read_documents(files, **how)])

    train = tmp_path / "train.csv"
    train.write_text("text,label\ngood film,a\nbad film,b\n", encoding="utf-8")
    monkeypatch.setattr(ulmfit, "reading_direction", lambda model: "forward")
    monkeypatch.setattr(ulmfit, "match_model_vocabulary", lambda *_: None)
    monkeypatch.setattr(ulmfit.Tokenizer, "load", lambda *_: None)
    monkeypatch.setattr(ulmfit, "build_store", stop)
    with pytest.raises(TextWasRead, match=r"good film.*the red cat sat.*caf\ufffd cat"):
        pt.ulmfit(
            "any", train, unlabeled=[table], text_field="remark", encoding_errors="replace", out=tmp_path / "runs"
        )
    with pytest.raises(PretuneError, match="--text-field applies only to tables of --unlabeled"):
        pt.ulmfit("any", train, text_field="remark", out=tmp_path / "other")
