"""Tests of `pretune ask`: answers are ranked by likelihood, examples come first, calibration follows the paper."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.inference.ask import ClozePredictor, ClozeQuestion
from pretune.inference.contextual_calibration import CONTENT_FREE_TEXTS, calibrate_answers
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.seq2seq_generation import Seq2SeqGenerator
from pretune.nn.attention.patterns import causal
from pretune.packed import pack_lists
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import LabeledRows
from pretune.text.tokenizers.training import train_on_documents
from tests.support.tiny_models import read, tiny, tune

WORDS = ["red", "water", "fire", "tree", "stone", "cloud"]
ANSWERS = ["very warm", "cold", "cold as stone"]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a GPT-2 that learned to continue after `feels`."""
    folder = tmp_path_factory.mktemp("ask")
    rows = [f"{word} {i},{'very warm' if word in ('red', 'fire') else 'cold'}" for i in range(6) for word in WORDS]
    (folder / "train.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    tokenizer = read([f"{row.replace(',', ' feels ')} as stone n / a" for row in rows])
    model = tiny("gpt2-tiny", tokenizer, folder / "start")
    tune(model, folder / "train.csv", folder / "run", "generate(delimiter=feels)", steps=50)
    return folder


def rows(*texts: str) -> LabeledRows:
    return LabeledRows(Path("x"), {}, list(texts))


@pytest.mark.not_fast
def test_answers_are_ranked_and_scored(writer: Path) -> None:
    found = pt.ask(
        writer / "run", inputs=writer / "train.csv", label="label", template="feels [MASK]", answers=ANSWERS[:2]
    )
    assert len(found) == 36 and found.facts["accuracy"] == 1.0 and found[0]["label"] == "very warm"
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1)
    assert "accuracy" in found.describe() and "probabilities" not in found.table()["answers"][0]


@pytest.mark.not_fast
def test_answers_are_generated(writer: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"template": "{text} feels [MASK]", "max_new_tokens": 4}
    found = pt.ask(writer / "run", ["fire 3", "cloud 2"], **asked)
    assert [row["answer"] for row in found] == ["very warm", "cold"]
    pt.ask(writer / "run", ["fire 3", "cloud 2"], **asked, out=tmp_path / "out.jsonl")
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == found.rows
    (tmp_path / "rows.csv").write_text("id,text,answer\n7,fire 3,hot\n8,cloud 2,cool\n")
    pt.ask(writer / "run", tmp_path / "rows.csv", **asked, out=tmp_path / "out.csv")
    wanted = "id,text,answer,predicted_answer\n7,fire 3,hot,very warm\n8,cloud 2,cool,cold\n"
    assert (tmp_path / "out.csv").read_text() == wanted
    judged = pt.ask(
        writer / "run", inputs=writer / "train.csv", label="label", template="feels [MASK]", max_new_tokens=4
    )
    assert judged.facts == {"exact_match": 1.0}


@pytest.mark.not_fast
@pytest.mark.parametrize("shown", [False, True])
def test_probabilities_equal_those_of_full_forward_passes(
    writer: Path, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pretune.inference.generation import text_to_text_answers

    loaded = TextGenerator.load(writer / "start")
    examples = LabeledRows(Path("x"), {}, ["red 1", "tree 2"], labels=["very warm", "cold"], lines=[1, 2])
    question = ClozeQuestion("{text} feels [MASK] .", ANSWERS, shown=examples if shown else None)
    texts = ["fire 3", "water", "cloud cloud cloud 2"]
    found = ClozePredictor(loaded, question)(rows(*texts))
    tokenizer, model = loaded.model.require_tokenizer(), loaded.model
    for text, answer in zip(texts, found, strict=True):
        before = "red 1 feels very warm .\n\ntree 2 feels cold .\n\n" if shown else ""
        prompt = tokenizer.encode(before) + tokenizer.encode(text) + tokenizer.encode(" feels")
        scores = []
        for word in ANSWERS:
            ids = tokenizer.encode(f" {word}")
            with torch.no_grad():
                logits = model.root.heads["lm"](
                    model.backbone(pack_lists([prompt + ids])).last, model.backbone.embed.tokens
                )
            chances = logits[:, : tokenizer.size].log_softmax(-1)[len(prompt) - 1 : -1]
            scores.append(float(chances.gather(1, torch.tensor(ids)[:, None]).sum()))
        expected = torch.tensor(scores).softmax(-1).tolist()
        assert list(answer["probabilities"].values()) == pytest.approx(expected, abs=1e-5)
    monkeypatch.setattr(text_to_text_answers, "TOKENS", 1)
    for one, other in zip(found, ClozePredictor(loaded, question)(rows(*texts)), strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-6)


def test_calibration_makes_content_free_texts_uniform(writer: Path) -> None:
    loaded = TextGenerator.load(writer / "start")
    plain = ClozePredictor(loaded, ClozeQuestion("feels [MASK]", ANSWERS))(rows(*CONTENT_FREE_TEXTS, "fire"))
    even = ClozePredictor(loaded, ClozeQuestion("feels [MASK]", ANSWERS, calibrate=True))(
        rows(*CONTENT_FREE_TEXTS, "fire")
    )
    usual = np.mean([list(answer["probabilities"].values()) for answer in plain[:3]], axis=0)
    for before, after in zip(plain, even, strict=True):
        shares = np.array(list(before["probabilities"].values())) / usual
        assert list(after["probabilities"].values()) == pytest.approx(
            (shares / shares.sum()).tolist(), abs=1e-6
        )  # of logits in fp32, from batches of different sizes
    alone = calibrate_answers(plain[:1], plain[:1])[0]
    assert list(alone["probabilities"].values()) == pytest.approx([1 / 3] * 3)


def test_masked_models_are_calibrated_too(tmp_path: Path) -> None:
    model = tiny("bert-tiny", read(["it was good bad . fire water"] * 9), tmp_path / "bert", "mlm")
    plain = pt.ask(model, ["fire", "", "N/A", "[MASK]"], template="It was [MASK].", answers=["good", "bad"])
    even = pt.ask(model, ["fire"], template="It was [MASK].", answers=["good", "bad"], calibrate=True)
    usual = np.mean([row["probabilities"]["good"] for row in plain.rows[1:]])
    odds = plain[0]["probabilities"]["good"] / plain[0]["probabilities"]["bad"] * (1 - usual) / usual
    assert even[0]["probabilities"]["good"] == pytest.approx(odds / (1 + odds), abs=1e-6)


def test_examples_come_from_a_file_by_seed(
    writer: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    question = {"template": "{text} feels [MASK]", "answers": ANSWERS[:2], "examples": writer / "train.csv", "shots": 2}
    first, again, other = (pt.ask(writer / "start", ["fire"], **question, seed=seed)[0] for seed in (0, 0, 1))
    assert first == again != other
    assert "4 of 36 rows, 2 per class with seed 0" in capsys.readouterr().err
    pt.ask(
        writer / "start", ["fire"], template="feels [MASK]", examples=writer / "train.csv", shots=3, max_new_tokens=2
    )
    assert "3 of 36 rows with seed 0" in capsys.readouterr().err


def test_long_texts_are_truncated_to_leave_room_for_examples_and_answers(writer: Path) -> None:
    loaded = TextGenerator.load(writer / "start")
    asker = ClozePredictor(loaded, ClozeQuestion("{text} feels [MASK]", ANSWERS))
    laid = asker.tokenize_examples(rows("fire " * 2000), 3)
    assert laid.lengths.tolist() == [loaded.model.backbone.max_positions - 3] and laid.truncated == 1
    assert len(asker(rows("fire " * 2000))) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"answers": ["a"]}, "there is only one answer to choose from, 'a'"),
        ({"answers": ["a:x", "b"]}, "for all answers, or for none"),
        ({"calibrate": True}, "--calibrate applies only with --answers"),
        ({"template": "nothing here"}, r"expected \[MASK\] once"),
        ({"inputs": []}, "no inputs were given"),
        (
            {"examples": "train.csv", "answers": ["hot", "cold"]},
            "an example has the label 'very warm', which is not among the answers",
        ),
        ({"examples": "train.csv", "shots": 99}, "cannot sample 99 of 36 examples"),
    ],
)
def test_invalid_questions_are_rejected(options: dict[str, object], message: str, writer: Path) -> None:
    if "examples" in options:
        options = {**options, "examples": writer / str(options["examples"])}
    with pytest.raises(pt.PretuneError, match=message):
        pt.ask(writer / "start", **{"inputs": ["fire"], **options})  # type: ignore[arg-type]


def test_models_that_cannot_answer_are_rejected_with_a_reason(tmp_path: Path) -> None:
    tokenizer = read(["it was good bad . fire water"] * 9)
    headless = tiny("bert-tiny", tokenizer, tmp_path / "bare")
    with pytest.raises(pt.PretuneError, match=r"its head for prompt is untrained .* pretrain it with mlm first"):
        pt.ask(headless, ["fire"], template="It was [MASK].", answers=["good", "bad"])
    masked = tiny("bert-tiny", tokenizer, tmp_path / "bert", "mlm")
    with pytest.raises(pt.PretuneError, match="can only choose among single words for \\[MASK\\]; give the answers"):
        pt.ask(masked, ["fire"], template="It was [MASK].")


def test_encoder_decoders_encode_the_examples_and_decode_the_answer(tmp_path: Path) -> None:
    tokenizer = read(["it was good bad . fire water"] * 9)
    folder = tiny("t5-tiny", tokenizer, tmp_path / "t5", "generate")
    loaded = Seq2SeqGenerator.load(folder)
    examples = LabeledRows(Path("x"), {}, ["water"], labels=["bad"], lines=[1])
    asker = ClozePredictor(
        loaded, ClozeQuestion("{text} it was [MASK].", ["good", "bad . bad"], "good:good/bad . bad:bad . bad")
    )
    shown = ClozePredictor(
        loaded, replace(asker.question, labels=(), verbalizer="", shown=examples, before="fire fire")
    )
    words, asked = ["good", "bad . bad"], rows("fire", "water fire")
    for ask, before in ((asker, ""), (shown, "fire fire water it was bad. ")):
        for text, scores in zip(asked.texts, ask.rank(asked, [words] * 2), strict=True):
            source = [*tokenizer.encode(f"{before}{text} it was"), tokenizer.role("end")]
            for word, score in zip(words, scores, strict=True):
                ids = tokenizer.encode(word)
                written = pack_lists([[tokenizer.role("padding"), *ids[:-1]]], pattern=causal)
                with torch.no_grad():
                    states = loaded.model.backbone(pack_lists([source]), written).last
                    logits = loaded.model.root.heads["generate"](states, loaded.model.backbone.embed.tokens)
                chances = logits[:, : tokenizer.size].log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
                assert score == pytest.approx(float(chances.sum()), abs=1e-5)
    assert asker.rank(asked, [words] * 2, each_token=True)[0][1] == pytest.approx(
        asker.rank(asked, [words] * 2)[0][1] / 3
    )
    answers = pt.ask(folder, ["fire"], template="{text} it was [MASK]", answers=["good", "bad"])
    assert sum(answers[0]["probabilities"].values()) == pytest.approx(1)
    assert isinstance(pt.ask(folder, ["fire"], template="{text} it was [MASK]", max_new_tokens=3)[0]["answer"], str)


def test_examples_that_do_not_fit_are_dropped(writer: Path) -> None:
    loaded = TextGenerator.load(writer / "start")
    shown = LabeledRows(Path("x"), {}, ["fire " * 300, "red", "tree"], labels=["cold"] * 3, lines=[1, 2, 3])
    asker = ClozePredictor(loaded, ClozeQuestion("{text} feels [MASK]", shown=shown, before="stone"))
    asked = rows("water")
    assert asker.prompt(asked) == "stone\n\nred feels cold\n\ntree feels cold\n\nwater feels"
    assert len(asker(asked)) == 1


# Prompts as printed in the lecture notes: questions about a text, a translation in passing, an addition.
BORN = "Порфирий Петрович родился в Москве в 1938 году."
LECTURE_PROMPTS = [
    (
        ClozeQuestion(
            "Q: {text}\n\nA: [MASK]",
            before=BORN,
            shown=LabeledRows(Path("x"), {}, ["Где родился Порфирий Петрович?"], labels=["В Москве."], lines=[1]),
        ),
        "В каком году родился Порфирий Петрович?",
        " В 1938 году.",
        f"{BORN}\n\nQ: Где родился Порфирий Петрович?\n\nA: В Москве.\n\n"
        "Q: В каком году родился Порфирий Петрович?\n\nA: В 1938 году.",
    ),
    (
        ClozeQuestion("{text}, but like they say in French: [MASK] [I'm not a fool]."),
        "I'm not the cleverest man in the world",
        " Je ne suis pas un imbecile",
        "I'm not the cleverest man in the world, but like they say in French: Je ne suis pas un imbecile",
    ),
    (
        ClozeQuestion("Q: {text}\n\nA: [MASK]."),
        "What is 65360 plus 16204?",
        " 81564",
        "Q: What is 65360 plus 16204?\n\nA: 81564",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("question", "text", "answer", "whole"), LECTURE_PROMPTS, ids=["question", "aside", "sum"])
def test_prompts_equal_those_of_the_lecture(
    question: ClozeQuestion, text: str, answer: str, whole: str, tmp_path: Path
) -> None:
    tokenizer = train_on_documents([Document(BORN * 9, Path("texts"), 1)], "byte-level-bpe", 400)
    loaded = TextGenerator.load(tiny("gpt2-tiny", tokenizer, tmp_path / "gpt2"))
    asker, asked = ClozePredictor(loaded, question), rows(text)
    assert asker.prompt(asked) + asker.cloze(asked).space + answer.strip() == whole
    laid = asker.tokenize_examples(asked, 1)
    assert tokenizer.decode(laid.take(np.arange(1)).ids.tolist()) + answer == whole  # the same bytes as the model reads
