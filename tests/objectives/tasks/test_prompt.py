"""Tests of prompts: the position of the mask, label words, and few-shot learning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune.models.loading import load_model
from pretune.objectives import Data, parse_objective
from pretune.objectives.tasks.prompt import Prompt
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.cloze_templates import Cloze, single_token, verbalizer_words
from pretune.text.examples.few_shot import sample_per_class
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing, collate
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, TEMPLATES, stack, store
from tests.support.tiny_models import read, tiny, tune

THINGS = ["film", "book", "song", "play", "meal", "walk"]
PROMPT = 'prompt(template="it was [MASK] .",verbalizer=no:bad/yes:good)'


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a masked language model and labeled reviews."""
    folder = tmp_path_factory.mktemp("prompt")
    rows = [
        f"{'lovely' if i % 2 else 'awful'} {THINGS[i // 2 % 6]} {i % 5},{'yes' if i % 2 else 'no'}" for i in range(60)
    ]
    (folder / "train.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    tiny("bert-tiny", read([*rows, "it was good . it was bad ."] * 2), folder / "start", "mlm")
    return folder


@pytest.fixture(scope="module")
def prompt_run(task: Path) -> pt.Run:
    return tune(task / "start", task / "train.csv", task / "run", PROMPT, steps=40, shots=12, batch=pt.Batching(size=8))


@pytest.mark.not_fast
def test_few_examples_are_enough(prompt_run: pt.Run) -> None:
    assert prompt_run.results["rows"] == 24 and prompt_run.results["dev/accuracy"] > 0.9
    answers = prompt_run.predict(["lovely walk 3", "awful walk 3"])
    assert [answer["label"] for answer in answers] == ["yes", "no"]
    assert answers[0]["probabilities"]["yes"] == answers[0]["probability"] > 0.5


@pytest.mark.not_fast
def test_prompt_trains_the_masked_language_model_head(prompt_run: pt.Run, task: Path) -> None:
    """`ask` gives the same answers with the trained model and the same cloze, because the head is that of mlm."""
    asked = pt.ask(
        prompt_run, ["lovely walk 3", "awful walk 3"], template="it was [MASK] .", answers=["no:bad", "yes:good"]
    )
    for ours, theirs in zip(asked, prompt_run.predict(["lovely walk 3", "awful walk 3"]), strict=True):
        assert ours["label"] == theirs["label"]
        assert ours["probability"] == pytest.approx(theirs["probability"], abs=1e-6)
    filled = pt.fill(prompt_run, ["lovely walk 3 it was [MASK] ."], top_k=5)[0]["candidates"]
    assert "good" in [candidate["token"] for candidate in filled]
    heads = load_model(prompt_run.folder, parse_objective("mlm")).root.heads
    assert set(heads) == {"mlm"} and not load_model(prompt_run.folder, parse_objective("mlm")).untrained


def test_joint_mlm_does_not_mask_the_prompt_position() -> None:
    data = Data(store().tokenizer, TEMPLATES["bert"], rows=labeled(["the value"] * 40))
    joint = parse_objective(
        "prompt+0.5*mlm(mask_rate=0.5,mask_replace_prob=1,random_replace_prob=0)", labels=("a", "the")
    ).joints[0]
    data.rows.labels = ["a", "the"] * 20
    sequences = joint.corrupt(
        joint.arrange(data, Packing(4096, 32), EpochRandom(0)).pack(0), data.tokenizer, EpochRandom(0)
    )
    at, _ = sequences.targets["prompt"]
    hidden, target = sequences.targets["mlm"]
    assert not set(at) & set(hidden) and data.tokenizer.role("mask") not in target


def labeled(texts: list[str], pairs: list[str] | None = None) -> LabeledRows:
    return LabeledRows(Path("x"), {}, texts, pairs, lines=list(range(2, 2 + len(texts))))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "items"])
@settings(max_examples=8)
@given(st.lists(st.text("abcdefg hijk", max_size=50), min_size=1, max_size=5), st.integers(16, 40), st.booleans())
def test_truncation_keeps_the_mask_position(kind: Kind, texts: list[str], length: int, pair: bool) -> None:
    tokenizer = store(kind).tokenizer
    cloze = "A: {text} B: {pair} is [MASK]." if pair else "A: {text} is [MASK]."
    rows = labeled(texts, [text[::-1] for text in texts] if pair else None)
    laid = Prompt(template=cloze).tokenize_examples(Data(tokenizer, TEMPLATES["bert"], rows=rows), length)
    sequences = laid.take(np.arange(len(texts)))
    assert (sequences.lengths <= length).all()
    at = sequences.offsets[:-1] + sequences.labels["gap"]
    assert (np.flatnonzero(sequences.ids == tokenizer.role("mask")) == at).all()
    after = tokenizer.encode(".")
    for row, place in enumerate(at):
        assert sequences.ids[place + 1 : sequences.offsets[row + 1]].tolist() == [*after, tokenizer.role("separator")]


def test_outputs_are_the_logits_of_the_label_words_at_the_mask() -> None:
    tokenizer = store().tokenizer
    backbone = stack(tokenizer.size).eval()
    task = Prompt(template="is [MASK] or", verbalizer="x:the/y:a", labels=("x", "y")).with_tokenizer(tokenizer)
    head = task.head(backbone)
    rows = replace(labeled(["one", "two three four", ""]), labels=["x", "y", "x"])
    laid = task.tokenize_examples(Data(tokenizer, TEMPLATES["bert"], rows=rows), 20)
    sequences = task.corrupt(laid.take(np.arange(3)), tokenizer, EpochRandom(0))
    batch = collate(sequences)
    with torch.no_grad():
        out = task.outputs(head, backbone, batch)
        logits = head(backbone(*batch.packed).last, backbone.embed.tokens)
        loss = task.loss(head, backbone, batch)
    words = [single_token(word, tokenizer) for word in ("the", "a")]
    at, classes = sequences.targets["prompt"]
    torch.testing.assert_close(out, logits[at][:, words])
    expected = torch.nn.functional.cross_entropy(out, torch.from_numpy(classes), reduction="sum")
    torch.testing.assert_close(loss.sums["prompt"], expected)


def test_shots_are_sampled_by_seed_and_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    rows = replace(labeled([f"text {i}" for i in range(30)]), labels=["a" if i % 3 else "b" for i in range(30)])
    one, again, other = (sample_per_class(rows, 4, seed) for seed in (0, 0, 1))
    assert one.lines == again.lines != other.lines and sorted(one.labels) == ["a"] * 4 + ["b"] * 4
    messages = capsys.readouterr().err
    assert f"8 of 30 rows, 4 per class with seed 0: lines {', '.join(map(str, one.lines))}" in messages
    assert len(sample_per_class(rows, 15, 0)) == 25 and "only 10 of 'b'" in capsys.readouterr().err


PAIR = LabeledRows(Path("x"), {}, ["A"], ["B"], extra={"more": ["{pair}"]})


def test_label_words_and_clozes_are_parsed() -> None:
    assert verbalizer_words("good/bad", ["0", "1"]) == ["good", "bad"]
    assert Cloze.parse("[MASK] is it").pieces == ("{text}", " [MASK]", " is it")
    assert Cloze.parse("{text}? [MASK], {pair}", pair=True).fill(PAIR, 0, "yes") == "A? yes, B"
    assert Cloze.parse("{text} {more}: [MASK]", more=["more"]).fill(PAIR, 0, "no") == "A {pair}: no"
    assert Cloze.parse("so [MASK]", pair=True).fill(PAIR, 0, "yes") == "A B so yes"
    assert Cloze.parse("a\\nb [MASK]").pieces[1] == " a\nb"
    assert Cloze.parse("{text}: [MASK]!").before().pieces == ("{text}", ":")


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ('prompt(template="It was.")', r"expected \[MASK\] once, in place of the answer, not 0 times"),
        ('prompt(template="{pair} [MASK]")', r"the examples are not pairs of texts; remove \{pair\}"),
        ("prompt(verbalizer=good)", r"expected one word for each of the 2 labels \(no, yes\), but found 1"),
        ("prompt(verbalizer=yes:good/nope:bad)", "expected a word for each of the labels no, yes, but found yes, nope"),
        ("prompt(verbalizer=good/wonderful)", r"word 'wonderful': the tokenizer splits it into"),
        ("prompt(verbalizer=good/good)", "two labels have words with the same token"),
        ("prompt on mix", "prompt reads the last layer"),
    ],
)
def test_invalid_prompts_are_rejected(objective: str, message: str, task: Path, tmp_path: Path) -> None:
    with pytest.raises(pt.PretuneError, match=message):
        tune(task / "start", task / "train.csv", tmp_path / "run", objective)
    assert not (tmp_path / "run").exists()


def test_shots_need_labels_and_must_be_positive(task: Path, tmp_path: Path) -> None:
    with pytest.raises(pt.PretuneError, match="shots=0: expected a number that is at least 1"):
        tune(task / "start", task / "train.csv", tmp_path / "run", "classify", shots=0)
    with pytest.raises(pt.PretuneError, match="examples without labels cannot be sampled per class"):
        sample_per_class(labeled(["a"]), 1, 0)
    encoder_decoder: Any = TEMPLATES["t5"]
    with pytest.raises(pt.PretuneError, match="with an encoder-decoder, use generate"):
        Prompt().tokenize_examples(Data(store().tokenizer, encoder_decoder, rows=labeled(["a"])), 20)
