"""Tests of tagging and question answering with all verbs: training, prediction, export, and errors."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.models.loading import load
from pretune.text.examples.tagged import read_tagged
from pretune.training.run_folder import Run
from tests.support.cli import run_command as run

PEOPLE, PLACES = ["Anna", "Boris", "Clara", "Denis"], ["Tver", "Oslo", "Lima"]
FILLER = ["went", "to", "saw", "the", "old", "house", "in", "today", "and", "again"]
ONE = {"num_seeds": 1, "report": False}
SETTINGS = {"epochs": 20, "optimizer": pt.Optimizer(lr=2e-3), "batch": pt.Batching(size=16, max_length=48), **ONE}


def sentence(chance: random.Random) -> list[tuple[str, str]]:
    """Return tagged words: first names, alone or in pairs, are people; other capitalized words are places."""
    pairs: list[tuple[str, str]] = []
    for _ in range(chance.randint(2, 4)):
        pairs += [(word, "O") for word in chance.choices(FILLER, k=chance.randint(1, 3))]
        names = chance.sample(PEOPLE, chance.randint(1, 2)) if chance.random() < 0.5 else [chance.choice(PLACES)]
        kind = "PER" if names[0] in PEOPLE else "LOC"
        pairs += [(name, f"{'I' if i else 'B'}-{kind}") for i, name in enumerate(names)]
    return pairs


def question(chance: random.Random, number: int) -> dict[str, object]:
    """Return a question for a person; without a person in the passage, it has no answer."""
    words = chance.choices(FILLER, k=12)
    if number % 3:
        words.insert(chance.randrange(12), chance.choice(PEOPLE))
    passage = " ".join(words)
    answers = [{"text": word, "answer_start": passage.find(word)} for word in words if word in PEOPLE]
    return {
        "id": f"q{number}",
        "question": "who was it?",
        "answers": answers,
        "is_impossible": not answers,
        "context": passage,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tokenizer, tagged words and questions."""
    folder, chance = tmp_path_factory.mktemp("tasks"), random.Random(0)
    sentences = [sentence(chance) for _ in range(120)]
    lines = [" ".join(word for word, _ in pairs) + " who was it?" for pairs in sentences]
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    pt.train_tokenizer(folder / "text.txt", kind="wordpiece", vocab_size=150).save(folder / "tokenizer")
    for name, some in (("train", sentences[:90]), ("dev", sentences[90:])):
        blocks = ["\n".join(f"{word} x {tag}" for word, tag in pairs) for pairs in some]
        (folder / f"{name}.conll").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    for name, first, last in (("train", 0, 120), ("dev", 120, 150)):
        rows = [question(chance, number) for number in range(first, last)]
        content = {"data": [{"paragraphs": [{"context": row.pop("context"), "qas": [row]} for row in rows]}]}
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tagger(folder: Path) -> Run:
    return pt.finetune(
        "bert-tiny",
        folder / "train.conll",
        dev=folder / "dev.conll",
        objective="tag",
        tokenizer=folder / "tokenizer",
        out=folder / "tagger",
        **SETTINGS,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def question_answerer(folder: Path) -> Run:
    return pt.finetune(
        "bert-tiny",
        folder / "train.json",
        dev=folder / "dev.json",
        objective="answer(stride=8)",
        tokenizer=folder / "tokenizer",
        out=folder / "answerer",
        **SETTINGS,  # type: ignore[arg-type]
    )


# -- tag ------------------------------------------------------------------------------------------------------------


@pytest.mark.end_to_end
def test_tags_are_learned(tagger: Run) -> None:
    results = tagger.results
    assert results["labels"] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert results["dev/f1"] > 0.75 and results["dev/accuracy"] > 0.75
    assert json.loads((tagger.folder / "config.json").read_text())["pretune"]["options"] == {
        "scheme": "BIO",
        "default_tag": "O",
    }


@pytest.mark.end_to_end
def test_texts_and_files_are_tagged(tagger: Run, folder: Path, tmp_path: Path) -> None:
    (row,) = tagger.predict("the Anna Boris went to Oslo")
    assert row["tags"] == ["O", "B-PER", "I-PER", "O", "O", "B-LOC"]
    assert [entity["text"] for entity in row["entities"]] == ["Anna Boris", "Oslo"]
    many = " ".join(["the", "Anna"] * 300)
    (row,) = tagger.predict(many)
    assert len(row["tags"]) == 600
    assert row["tags"].count("B-PER") > 290
    out = tmp_path / "answers.jsonl"
    printed = run("predict", tagger.folder, folder / "dev.conll").stdout
    assert "B-PER" in printed and "probabilities" not in printed
    pt.predict(tagger, folder / "dev.conll", out=out)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 30
    assert all(len(row["1"]) == len(row["3"]) == len(row["tags"]) for row in rows)
    pt.predict(tagger, folder / "dev.conll", out=tmp_path / "tagged.conll")
    again = read_tagged(tmp_path / "tagged.conll")
    assert (again.words, again.tags) == ([row["1"] for row in rows], [row["tags"] for row in rows])
    together = pt.predict([tagger, tagger], folder / "dev.conll", score=True)
    assert together.facts["scores"][0]["f1"] == together.facts["scores"][2]["f1"] == tagger.results["dev/f1"]


@pytest.mark.not_fast
def test_tagger_works_in_transformers(tagger: Run) -> None:
    from transformers import pipeline

    text = "the Anna Boris went to Oslo"
    theirs = pipeline("token-classification", model=str(tagger.folder), aggregation_strategy="first")(text)
    (ours,) = tagger.predict(text)
    assert [(e["entity_group"], e["word"]) for e in theirs] == [(e["label"], e["text"]) for e in ours["entities"]]


@pytest.mark.end_to_end
def test_part_of_speech_tagging_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    rows = [
        f"{i + 1}\t{word}\t_\t{'PROPN' if tag != 'O' else 'X'}" + "\t_" * 6
        for i, (word, tag) in enumerate(sentence(random.Random(1)))
    ]
    (tmp_path / "a.conllu").write_text("\n".join(rows) + "\n", encoding="utf-8")
    answer = run(
        "finetune", folder / "tagger", tmp_path / "a.conllu", "--dev", tmp_path / "a.conllu", "--objective", "tag", "--label", "upos",
        "--out", tmp_path / "run", "--epochs", 1, "--num-seeds", 1, "--json",
    )  # fmt: skip
    results = json.loads(answer.stdout)
    assert results["labels"] == ["PROPN", "X"] and "dev/f1" not in results and results["dev/accuracy"] >= 0
    assert load(tmp_path / "run").options == {"scheme": "plain", "default_tag": "X"}


@pytest.mark.end_to_end
def test_semantic_role_labeling_is_learned(folder: Path, tmp_path: Path) -> None:
    """The word before the predicate is its agent; only the mark shows which word is the predicate."""
    chance = random.Random(0)
    rows = []
    for _ in range(160):
        words = [chance.choice(FILLER) for _ in range(6)]
        verb = chance.randint(1, 5)
        tags = ["B-A0" if place == verb - 1 else "B-V" if place == verb else "O" for place in range(6)]
        rows.append(json.dumps({"words": words, "tags": tags, "verb": verb}))
    for name, some in (("train", rows[:130]), ("dev", rows[130:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(some), encoding="utf-8")
    result = pt.finetune(
        "bert-tiny",
        tmp_path / "train.jsonl",
        dev=tmp_path / "dev.jsonl",
        objective="tag(predicate=verb)",
        tokenizer=folder / "tokenizer",
        out=tmp_path / "run",
        epochs=30,
        optimizer=pt.Optimizer(lr=2e-3),
        batch=pt.Batching(size=32, max_length=32),
        num_seeds=1,
    )
    assert result.results["dev/f1"] > 0.8
    again = pt.predict(result, tmp_path / "dev.jsonl")
    assert sum("B-V" in row["tags"] for row in again) > 25
    with pytest.raises(pt.PretuneError, match=r"'verb' is None, but must be the index of a word.* give a file"):
        result.predict(["the old house"])


@pytest.mark.not_fast
def test_invalid_tags_give_a_one_line_error(
    tagger: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"words": ["a", "b"], "tags": ["O"]}', encoding="utf-8")
    with pytest.raises(
        pt.PretuneError, match=r"bad\.jsonl, line 1: 2 words in 'words', but 1 tags in 'tags'; every word needs one tag"
    ):
        pt.finetune(tagger, bad, objective="tag", out=tmp_path / "x")
    assert not (tmp_path / "x").exists()
    messages: list[str] = []
    monkeypatch.setattr("pretune.objectives.tasks.tag.log_info", messages.append)
    odd = tmp_path / "odd.conll"
    odd.write_text("Anna B-PER\n\nMars B-PLANET\n", encoding="utf-8")
    pt.finetune(
        tagger,
        folder / "train.conll",
        dev=odd,
        objective="tag",
        out=tmp_path / "y",
        budget=pt.Budget(steps=1),
        num_seeds=1,
    )
    assert messages == [
        f"{odd}, line 3: tag 'B-PLANET' was not in training; words with unknown tags count as wrong (1 in all)"
    ]


# -- answer ---------------------------------------------------------------------------------------------------------


@pytest.mark.end_to_end
def test_answers_are_learned_and_a_threshold_is_chosen(question_answerer: Run) -> None:
    results = question_answerer.results
    assert results["dev/f1"] > 0.8
    assert {"dev/exact_match", "dev/has_answer_f1", "dev/no_answer_f1"} <= results.keys() and "f1" not in results
    options = json.loads((question_answerer.folder / "config.json").read_text())["pretune"]["options"]
    assert isinstance(options["threshold"], float) and options["threshold"] != 0.0


@pytest.mark.not_fast
def test_questions_are_answered_for_texts_and_files(question_answerer: Run, folder: Path, tmp_path: Path) -> None:
    far = " ".join(["the old house"] * 60) + " Clara went again"
    passages = ["to the house Boris went", "the old house again", far, ""]
    rows = question_answerer.predict(["who was it?"] * 4, pairs=passages)
    assert [row["answer"] for row in rows] == ["Boris", "", "Clara", ""]
    assert (rows[0]["start"], rows[0]["end"]) == (13, 18)
    assert rows[0]["candidates"][0]["answer"] == "Boris"
    out = tmp_path / "answers.jsonl"
    pt.predict(question_answerer, folder / "dev.json", out=out)
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert (
        len(lines) == 30
        and {"question", "context", "answer", "start", "end", "score", "probability"} <= lines[0].keys()
    )
    scores = pt.predict([question_answerer, question_answerer], folder / "dev.json", score=True).facts["scores"]
    assert scores[0]["f1"] == scores[2]["f1"] == question_answerer.results["dev/f1"]
    with pytest.raises(pt.PretuneError, match=r"no field 'passage'.* give a file"):
        question_answerer.predict(["who?"])


@pytest.mark.not_fast
def test_question_answering_works_in_transformers(question_answerer: Run, tmp_path: Path) -> None:
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    pt.export(question_answerer, out=tmp_path / "out")
    reference, tokenizer = (
        kind.from_pretrained(tmp_path / "out") for kind in (AutoModelForQuestionAnswering, AutoTokenizer)
    )
    asked, passage = "who was it?", "to the house Boris went"
    inputs = tokenizer(asked, passage, return_tensors="pt", return_offsets_mapping=True)
    places = inputs.pop("offset_mapping")[0]
    with torch.no_grad():
        out = reference.eval()(**inputs)
    first, last = int(out.start_logits.argmax()), int(out.end_logits.argmax())
    assert passage[places[first, 0] : places[last, 1]] == "Boris"
    (ours,) = pt.Run(question_answerer.folder).predict([asked], pairs=[passage])
    score = float(out.start_logits[0, first] + out.end_logits[0, last])
    assert ours["score"] == pytest.approx(score, abs=1e-4)


@pytest.mark.not_fast
def test_invalid_questions_give_a_one_line_error(question_answerer: Run, folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "train.json").read_text())
    content["data"][0]["paragraphs"][1]["qas"][0]["answers"][0]["answer_start"] += 1
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(content), encoding="utf-8")
    limit = {"out": tmp_path / "run", "budget": pt.Budget(steps=1), **ONE}
    with pytest.raises(
        pt.PretuneError, match="1 answers in 'answers' are not at the given position of their passage: question q1"
    ):
        pt.finetune(question_answerer, bad, objective="answer", **limit)  # type: ignore[arg-type]
    result = pt.finetune(question_answerer, bad, objective="answer(drop_invalid=true)", **limit)  # type: ignore[arg-type]
    assert result.results["rows"] == 95
    assert result.recipe["batch"]["max_length"] == 384


def test_given_threshold_is_kept(question_answerer: Run, folder: Path, tmp_path: Path) -> None:
    files = {"train": folder / "train.json", "dev": folder / "dev.json", "out": tmp_path / "run"}
    pt.finetune(question_answerer, **files, objective="answer(threshold=1.5)", budget=pt.Budget(steps=1), num_seeds=1)  # type: ignore[arg-type]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["pretune"] == {
        "objective": "answer(threshold=1.5)"
    }
