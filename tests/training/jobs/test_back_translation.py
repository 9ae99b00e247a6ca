"""Tests of back-translation: synthetic sources for texts of the target language help where parallel texts are few."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.text.examples.labeled import LabeledRows
from pretune.training.jobs.back_translation import repetitions, with_back_translations
from pretune.training.recipe_sections import BackTranslation
from tests.support.translation_models import GERMAN, folder, trained

ENGLISH = [f"w{number}" for number in range(24)]
TOY = {
    word: f"v{(7 * number) % 24}" for number, word in enumerate(ENGLISH)
}  # a language whose words are mapped one to one
MODEL = {
    "like": "rnnsearch-tiny", "config": {"embedding_size": 24, "hidden_size": 32}, "optimizer": {"lr": 1e-2},
}  # fmt: skip


def sentences(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(ENGLISH, k=chance.randint(2, 4))) for _ in range(count)]


def toy(lines: list[str]) -> list[str]:
    return [" ".join(TOY[word] for word in line.split()) for line in lines]


def settings(**changes: Any) -> BackTranslation:
    values: dict[str, Any] = {"model": str(trained("transformer")), "texts": (str(folder() / "text.en.txt"),)}
    return BackTranslation(**values | changes)


@pytest.mark.parametrize("decoding", [{}, {"num_beams": 3}, {"temperature": 1.0}], ids=["greedy", "beam", "sampling"])
@pytest.mark.end_to_end
def test_targets_are_the_real_texts_and_sources_are_translations(decoding: dict[str, Any], tmp_path: Path) -> None:
    rows = LabeledRows(Path("x"), {}, ["die Katze"], ["the cat"], lines=[1])
    made = with_back_translations(rows, settings(tag="<BT>", ratio=18, **decoding), tmp_path, 0, "cpu")
    assert made.texts[0] == "die Katze" and made.pairs is not None and made.pairs[0] == "the cat"
    assert len(made) == 1 + len(GERMAN) and all(text.startswith("<BT> ") for text in made.texts[1:])
    right = sum(text == f"<BT> {german}" for text, german in zip(made.texts[1:], GERMAN, strict=True))
    assert right >= (10 if decoding.get("temperature") else 16)  # a model that has memorized these sentences
    file = tmp_path / "intermediate" / "back-translations.jsonl"
    saved = [json.loads(line) for line in file.read_text().splitlines()]
    assert [pair["pair"] for pair in saved] == made.pairs[1:]
    again = with_back_translations(
        rows, settings(model="gone", tag="<BT>", ratio=18), tmp_path, 0, "cpu"
    )  # as on resume
    assert again.texts == made.texts


def test_the_fewer_pairs_are_repeated() -> None:
    assert repetitions(10, 1000, 1) == (100, 1) and repetitions(1000, 10, 1) == (1, 100)
    assert repetitions(10, 1000, 4) == (25, 1) and repetitions(10, 10, 1) == (1, 1)


def test_wrong_settings_are_errors_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=r"set back_translation\.model and back_translation\.texts"):
        BackTranslation(model="runs/de-en")
    with pytest.raises(PretuneError, match="beam search does not sample"):
        BackTranslation(model="a", texts=("b.txt",), num_beams=4, temperature=1.0)
    with pytest.raises(PretuneError, match=r"back_translation\.ratio"):
        BackTranslation(model="a", texts=("b.txt",), ratio=0.0)
    with pytest.raises(PretuneError, match="apply only to the objective 'translate'"):
        pt.pretrain(
            "bert-tiny",
            "a.txt",
            out=tmp_path / "r",
            budget=pt.Budget(steps=1),
            back_translation=settings_of("a", "b.txt"),
        )
    with pytest.raises(PretuneError, match=r"translate\(bidirectional=true\) also learns to generate the sources"):
        pt.pretrain(
            "rnnsearch-tiny",
            ["a.txt", "b.txt"],
            objective="translate(bidirectional=true)",
            out=tmp_path / "r",
            budget=pt.Budget(steps=1),
            back_translation=settings_of("a", "b.txt"),
        )
    assert not (tmp_path / "r").exists()
    rows = LabeledRows(Path("x"), {}, ["a"], ["b"], lines=[1])
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(PretuneError, match=r"empty\.txt: there are no texts"):
        with_back_translations(rows, settings_of("a", str(tmp_path / "empty.txt")), tmp_path, 0, "cpu")


def settings_of(model: str, texts: str) -> BackTranslation:
    return BackTranslation(model=model, texts=(texts,))


# -- a toy language -------------------------------------------------------------------------------------------------


@cache
def toy_files() -> Path:
    """Write 60 parallel sentences, 500 of the target language, 60 test sentences, a preset, and a tokenizer."""
    made = Path(mkdtemp())
    for name, count, seed in (("few", 60, 0), ("test", 60, 1), ("many", 500, 2)):
        lines = sentences(count, seed)
        (made / f"{name}.a.txt").write_text("\n".join(lines), encoding="utf-8")
        (made / f"{name}.b.txt").write_text("\n".join(toy(lines)), encoding="utf-8")
    (made / "small.yaml").write_text(json.dumps(MODEL), encoding="utf-8")
    pt.train_tokenizer(
        [str(made / "many.a.txt"), str(made / "many.b.txt")], kind="words", vocab_size=64, out=made / "words"
    )
    return made


def train(name: str, source: str, target: str, steps: int = 150, data: str = "few", **options: Any) -> pt.Run:
    files = toy_files()
    return pt.pretrain(
        str(files / "small.yaml"), [files / f"{data}.{source}.txt", files / f"{data}.{target}.txt"],
        objective="translate", tokenizer=str(files / "words"), out=files / name, budget=pt.Budget(steps=steps),
        batch=pt.Batching(tokens=512, max_length=16), monitor=pt.Monitoring(held_out_fraction=0.0), device="cpu", **options,
    )  # fmt: skip


def accuracy(run: pt.Run) -> float:
    """Return the share of the words of the test sentences that are translated correctly."""
    files = toy_files()
    texts, wanted = ((files / f"test.{side}.txt").read_text().splitlines() for side in "ab")
    rows = pt.translate(str(run.folder), texts, num_beams=1, device="cpu")
    pairs = [(row["translation"].split(), line.split()) for row, line in zip(rows, wanted, strict=True)]
    right = sum(a == b for said, line in pairs for a, b in zip(said, line, strict=False))
    return right / sum(len(line) for _, line in pairs)


@pytest.mark.end_to_end
def test_back_translations_help_where_parallel_texts_are_few() -> None:
    files = toy_files()
    reverse = train("reverse", "b", "a", data="many")  # a good model of the reverse direction
    plain = accuracy(train("plain", "a", "b"))
    back = BackTranslation(model=str(reverse.folder), texts=(str(files / "many.b.txt"),), ratio=4)
    run = train("both", "a", "b", back_translation=back)
    assert run.recipe["back_translation"]["ratio"] == 4
    assert accuracy(run) > plain + 0.1
