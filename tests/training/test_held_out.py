from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretune as pt
from pretune import PretuneError
from pretune.text.store.store import Store, join_stores
from pretune.training.held_out import FEWEST, hold_out_documents
from pretune.training.jobs.adapting import default_settings
from tests.support.tiny_models import read, tiny

WORDS = ["the", "old", "cat", "sat", "on", "a", "warm", "mat", "near", "my", "door", "while", "one", "dog", "ran"]
FEW = {"batch": pt.Batching(tokens=128, max_length=32), "device": "cpu"}


def sentences(count: int, seed: int = 0) -> list[str]:
    chance = np.random.default_rng(seed)
    return [" ".join(chance.choice(WORDS, 8)) + f" {seed}x{number}." for number in range(count)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return read([" ".join(sentences(300)), *map(str, range(10))], size=300)


def make(folder: Path, tokenizer: Any, documents: list[list[str]], language: str = "en") -> Store:
    folder.mkdir()
    text = folder / "text.txt"
    text.write_text("\n\n".join("\n".join(document) for document in documents), encoding="utf-8")
    return pt.prepare(text, tokenizer, out=folder / "store", split_by="blank-line" if len(documents) > 1 else "file", processes=1, language=language)  # fmt: skip


@pytest.mark.parametrize("counts", [[300], [200, 90, 10], [12]])
def test_passages_of_few_documents_are_held_out(counts: list[int], tokenizer: Any, tmp_path: Path) -> None:
    store = make(tmp_path / "a", tokenizer, [sentences(count, seed) for seed, count in enumerate(counts)])
    assert store.documents == len(counts)
    cut, learned, judged = hold_out_documents(store, 0.01)
    assert len(judged) and not set(learned) & set(judged) and len(learned) + len(judged) == cut.documents
    # The tokens and their order are the same, and no new document crosses the end of an old one.
    assert np.array_equal(cut.read(0, cut.tokens), store.read(0, store.tokens))
    assert set(store.document_offsets) <= set(cut.document_offsets)
    held = sum(len(cut.document(document)) for document in judged)
    assert 0 < held <= 0.25 * store.tokens
    if store.sentences >= 100:
        assert len(judged) == FEWEST and held <= 0.15 * store.tokens
    again = hold_out_documents(store, 0.01)
    assert np.array_equal(again[2], judged)
    assert int(cut.document_bytes.sum()) == pytest.approx(int(store.document_bytes.sum()), abs=cut.documents)


def test_many_documents_are_held_out_whole(tokenizer: Any, tmp_path: Path) -> None:
    store = make(tmp_path / "a", tokenizer, [sentences(3, seed) for seed in range(40)])
    same, learned, judged = hold_out_documents(store, 0.01)
    assert same is store and len(judged) == 4 and len(learned) == 36


def test_nothing_is_held_out_of_very_little_text_or_if_not_requested(tokenizer: Any, tmp_path: Path) -> None:
    store = make(tmp_path / "a", tokenizer, [sentences(5)])
    assert [len(part) for part in hold_out_documents(store, 0.01)[1:]] == [1, 0]
    store = make(tmp_path / "b", tokenizer, [sentences(50)])
    same, learned, judged = hold_out_documents(store, 0.0)
    assert same is store and len(learned) == 1 and not len(judged)


def test_passages_keep_the_language_of_their_document(tokenizer: Any, tmp_path: Path) -> None:
    parts = [make(tmp_path / name, tokenizer, [sentences(60, seed)], name) for seed, name in enumerate(("en", "fr"))]
    both = join_stores(parts)
    cut, _, _ = hold_out_documents(both, 0.01)
    bound = parts[0].sentences
    languages = [cut.languages[number] for number in cut.document_languages]
    assert languages == ["en" if start < bound else "fr" for start in cut.document_offsets[:-1]]


@pytest.fixture(scope="module")
def model(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("bert-tiny", tokenizer, tmp_path_factory.mktemp("model") / "bert", "mlm")


@pytest.mark.not_fast
@pytest.mark.parametrize("documents", [1, 3])
def test_model_is_adapted_to_a_few_documents(model: Path, documents: int, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("\n\n".join("\n".join(sentences(60, seed)) for seed in range(documents)), encoding="utf-8")
    made = pt.adapt(model, text, split_by="file" if documents == 1 else "auto", out=tmp_path / "run", budget=pt.Budget(steps=2), **FEW)  # type: ignore[arg-type]  # fmt: skip
    assert made.before["mlm"] > 0 and made.after["mlm"] > 0
    assert made.run.recipe["split_by"] == ("file" if documents == 1 else "auto")
    page = made._repr_html_()
    assert "<caption>held-out text</caption>" in page and f"<td>{made.after['mlm']:.4g}</td>" in page
    assert page.count("<table>") == 1 + bool(made.fills)


@pytest.mark.not_fast
def test_too_little_text_is_rejected_before_training(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text(" ".join(sentences(4)), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("pretune.training.loop.train", lambda *_, **__: pytest.fail("it was trained"))
        with pytest.raises(
            PretuneError, match=r"notes.txt: there is too little text to hold some out .* monitor.held_out_fraction=0"
        ):
            pt.adapt(model, text, out=tmp_path / "run", budget=pt.Budget(steps=1), **FEW)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
    made = pt.adapt(model, text, out=tmp_path / "run", budget=pt.Budget(steps=1), monitor=pt.Monitoring(held_out_fraction=0.0), **FEW)  # type: ignore[arg-type]  # fmt: skip
    assert made.run.finished and not made.before and not made.after and not made.fills


@pytest.mark.not_fast
def test_adapt_and_pretrain_read_text_like_prepare(model: Path, tokenizer: Any, tmp_path: Path) -> None:
    table = tmp_path / "notes.csv"
    rows = "".join(f"{number},{line}\n" for number, line in enumerate(sentences(40)))
    table.write_bytes(f"id,remark\n{rows}".encode() + b"40,caf\xe9\n")
    options: dict[str, Any] = {"budget": pt.Budget(steps=1), **FEW}
    with pytest.raises(PretuneError, match=r"line 42: not valid UTF-8"):
        pt.adapt(model, table, text_field="remark", out=tmp_path / "a", **options)
    assert pt.adapt(
        model, table, text_field="remark", encoding_errors="replace", out=tmp_path / "a", **options
    ).run.finished
    tokenizer.save(tmp_path / "tokenizer")
    given = {
        **options,
        "text_field": "remark",
        "encoding_errors": "replace",
        "tokenizer": str(tmp_path / "tokenizer"),
        "objective": "mlm",
    }
    assert pt.pretrain("bert-tiny", table, out=tmp_path / "b", **given).finished
    with pytest.raises(PretuneError, match="--text-field applies only to tables"):
        pt.pretrain("bert-tiny", tmp_path / "b/store", text_field="remark", out=tmp_path / "c")


def test_short_budgets_in_seconds_use_smaller_steps_and_evaluations() -> None:
    short, long, steps = (default_settings(budget) for budget in (pt.Budget(seconds=5), None, pt.Budget(steps=100)))
    assert short["batch"]["tokens"] < long["batch"]["tokens"] == steps["batch"]["tokens"]
    read = [settings["batch"]["tokens"] * settings["monitor"]["max_eval_batches"] for settings in (short, long)]
    assert read[0] < read[1] and "monitor" not in steps
