from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import Data
from pretune.objectives.tasks.answer import AnswerTask, best_spans, passage_and_no_answer_positions, segment_logsumexp
from pretune.packed import pack_lists
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.question_answering import AnswerSpan, Questions
from pretune.text.packing.sequences import Arrangement, Packing, collate
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, TEMPLATE, stack, store

ROBERTA = Template(single=("start", "A", "separator"), pair=("separator", "B", "separator"), segments=False)
LAST = Template(single=("A", "separator"), pair=("B", "separator"), last=("start",))  # as in XLNet
BARE = Template(single=("A",), pair=("separator", "B"))
TEMPLATES = [TEMPLATE, ROBERTA, LAST, BARE]
VOCABULARY = ["the", "name", "of", "functions", "is", "Поезд", "zebra", "10"]


def make_questions(
    passages: list[list[str]], spans: list[tuple[int, int] | None], question: str = "what is the name"
) -> Questions:
    """Return questions about passages of words, whose answers are spans of words."""
    answers = []
    for words, span in zip(passages, spans, strict=True):
        start = len(" ".join(words[: span[0]])) + (span[0] > 0) if span else 0
        answers.append([AnswerSpan(" ".join(words[span[0] : span[1] + 1]), start)] if span else [])
    places = [f"line {i}" for i in range(len(passages))]
    texts = [" ".join(words) for words in passages]
    return Questions(Path("x.json"), {}, [question] * len(texts), texts, answers, places, places)


def perfect_outputs(laid: Arrangement) -> list[np.ndarray[Any, Any]]:
    """Return the outputs of a model that predicts its targets perfectly."""
    made = []
    for number in range(len(laid)):
        logits = np.zeros((int(laid.lengths[number]), 2))
        if laid.labels["first"][number] >= 0:
            logits[laid.labels["first"][number], 0] = logits[laid.labels["last"][number], 1] = 9.0
        made.append(logits)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", TEMPLATES)
@settings(max_examples=8)
@given(data=st.data())
def test_perfect_outputs_give_the_answer_text(kind: Kind, template: Template, data: st.DataObject) -> None:
    passages = data.draw(st.lists(st.lists(st.sampled_from(VOCABULARY), max_size=40), min_size=1, max_size=3))
    spans: list[tuple[int, int] | None] = []
    for words in passages:
        first = data.draw(st.integers(0, max(0, len(words) - 1)))
        last = data.draw(st.integers(first, first + 2))
        spans.append((first, last) if last < len(words) and data.draw(st.booleans()) else None)
    examples = make_questions(passages, spans)
    length, stride = data.draw(st.integers(60, 90)), data.draw(st.integers(1, 40))
    task = AnswerTask(threshold=0.0, stride=stride, max_answer_length=200)
    source = Data(store(kind).tokenizer, template, rows=examples)
    laid = task.tokenize_examples(source, length)
    assert (laid.lengths <= length).all()
    assert set(laid.labels["example"]) == set(range(len(passages)))
    answers = task.answers(perfect_outputs(laid), laid, examples)
    assert len(answers) == len(passages)
    assert examples.answers is not None
    for answer, gold, passage in zip(answers, examples.answers, examples.passages, strict=True):
        if gold and answer["answer"]:
            assert answer["answer"].split() == gold[0].text.split()
        else:  # no answer, or one that fits no window
            assert answer["answer"] == "" and answer["start"] is None
            assert not gold or stride + 20 > length - laid.template.num_special_tokens(pair=True) - laid.spans[0, 0]
        if answer["answer"]:
            assert passage[answer["start"] : answer["end"]] == answer["answer"]
        assert 0 <= answer["probability"] <= 1


def test_windows_cover_long_passages_and_find_answers_far_inside() -> None:
    words = ["name"] * 300
    words[250] = "zebra"
    examples = make_questions([words], [(250, 250)])
    task = AnswerTask(stride=16)
    laid = task.tokenize_examples(Data(store().tokenizer, TEMPLATE, rows=examples), 64)
    begin = laid.starts[:, 1] - laid.starts[0, 1]
    assert begin.tolist() == list(range(0, 16 * len(laid), 16))
    assert (begin + laid.spans[:, 1]).max() == laid.source.lengths[0, 1]  # type: ignore[attr-defined]
    assert (laid.labels["first"] > 0).sum() >= 2  # in several windows
    (answer,) = task.answers(perfect_outputs(laid), laid, examples)
    assert answer["answer"] == "zebra" and answer["start"] == 250 * 5


@pytest.mark.parametrize("template", TEMPLATES)
def test_landmarks_match_the_arranged_sequences(template: Template) -> None:
    tokenizer = store().tokenizer
    examples = make_questions([["zebra", "name"], [], ["the"]], [None, None, None])
    laid = AnswerTask().tokenize_examples(Data(tokenizer, template, rows=examples), 40)
    passage, none = passage_and_no_answer_positions(laid.spans, template)
    sequences = laid.take(np.arange(3))
    for number in range(3):
        ids = sequences.ids[sequences.offsets[number] : sequences.offsets[number + 1]].tolist()
        expected = tokenizer.encode(examples.passages[number])
        assert ids[passage[number] : passage[number] + len(expected)] == expected
        if "start" in (*template.single, *template.last):
            assert ids[none[number]] == tokenizer.role("start")
        elif expected:
            assert ids[none[number]] == tokenizer.role("separator")


def test_targets_and_loss_equal_those_of_a_padded_softmax() -> None:
    tokenizer = store().tokenizer
    examples = make_questions([["the", "zebra", "is", "10"], ["name"], ["of", "functions"]], [(1, 2), None, (0, 1)])
    task = AnswerTask()
    epoch = task.arrange(Data(tokenizer, TEMPLATE, rows=examples), Packing(256, 64), EpochRandom(0))
    sequences = task.corrupt(epoch.pack(0), tokenizer, EpochRandom(0))
    batch = collate(sequences)
    torch.manual_seed(0)
    backbone = stack(tokenizer.size)
    head = task.head(backbone)
    loss = task.loss(head, backbone, batch)
    logits = task.outputs(head, backbone, batch)
    at, target = sequences.targets["answer"]
    assert target.tolist() == [0, 1, 2]
    total = 0.0
    for (first, last), number in zip(at, target, strict=True):
        start, stop = sequences.offsets[number], sequences.offsets[number + 1]
        assert start <= first <= last < stop
        for side, place in ((0, first), (1, last)):
            total = total + F.cross_entropy(logits[None, start:stop, side], torch.tensor([place - start])) / 2
    torch.testing.assert_close(loss.sums["answer"], total)
    loss.sums["answer"].backward()
    assert all(p.grad is not None for p in head.parameters())


def test_segment_logsumexp_equals_the_loop_over_sequences() -> None:
    packed = pack_lists([[1, 2], [3], [4, 5, 6]])
    logits = torch.randn(6, 2, requires_grad=True)
    highest, total = segment_logsumexp(logits, packed)
    for number, part in enumerate((logits[:2], logits[2:3], logits[3:])):
        torch.testing.assert_close(highest[number], part.max(0).values)
        torch.testing.assert_close(total[number], part.logsumexp(0))


@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 99))
def test_best_spans_have_the_highest_scores(count: int, longest: int, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(count, 2))
    begins = np.arange(count)
    found = sorted(best_spans(logits, (begins, begins + 1), "x" * count, longest), reverse=True)
    every = sorted(
        ((logits[i, 0] + logits[j, 1], i, j + 1) for i in range(count) for j in range(i, min(count, i + longest))),
        reverse=True,
    )
    assert found[0] == pytest.approx(every[0])
    assert len(found) == len(set(found)) >= min(len(every), 20) // 4
    assert best_spans(logits, (begins, begins + 1), " " * count, longest) == []


def test_no_answer_is_predicted_only_above_the_threshold() -> None:
    examples = make_questions([["zebra", "name"]], [(0, 0)])
    laid = AnswerTask().tokenize_examples(Data(store().tokenizer, TEMPLATE, rows=examples), 40)
    outputs = perfect_outputs(laid)
    outputs[0][0] = 10.0  # no answer scores 20, the zebra 18
    for threshold, text in ((None, "zebra"), (2.5, "zebra"), (1.5, "")):
        (answer,) = AnswerTask(threshold=threshold, n_best=2).answers(outputs, laid, examples)
        assert answer["answer"] == text
        assert answer["no_answer"] == pytest.approx(2.0)
        assert answer["candidates"][0]["answer"] == "zebra"
        assert len(answer["candidates"]) == 2
        assert answer["probability"] == pytest.approx({None: 1.0, 2.5: 0.119, 1.5: 0.88}[threshold], abs=0.01)


def test_unanswerable_questions_set_a_threshold() -> None:
    some, none = make_questions([["a"], ["b"]], [(0, 0), None]), make_questions([["a"]], [None])
    assert AnswerTask().fit(some).threshold == 0.0
    assert AnswerTask(threshold=3.0).fit(some).threshold == 3.0
    assert AnswerTask().fit(make_questions([["a"]], [(0, 0)])).threshold is None
    with pytest.raises(PretuneError, match="no question has an answer"):
        AnswerTask().fit(none)


def test_long_questions_are_truncated_and_huge_passages_are_supported() -> None:
    examples = make_questions([["name"] * 50_000, ["a"]], [(49_990, 49_990), (0, 0)], question="name " * 100)
    laid = AnswerTask(stride=1000).tokenize_examples(Data(store().tokenizer, TEMPLATE, rows=examples), 384)
    assert laid.truncated == 2
    assert laid.spans[:, 0].max() == 64 and (laid.lengths <= 384).all()
    answers = AnswerTask().answers(perfect_outputs(laid), laid, examples)
    assert answers[0]["start"] == 49_990 * 5


def test_answers_without_tokens_give_no_targets() -> None:
    examples = make_questions([["the", "\u0001", "name"]], [(1, 1)])
    task = AnswerTask()
    source = Data(store("wordpiece").tokenizer, TEMPLATE, rows=examples)
    sequences = task.corrupt(task.tokenize_examples(source, 40).take(np.array([0])), source.tokenizer, EpochRandom(0))
    assert len(sequences.targets["answer"][0]) == 0


def test_invalid_use_is_rejected() -> None:
    task = AnswerTask()
    with pytest.raises(PretuneError, match="'answer' needs questions"):
        task.tokenize_examples(Data(store().tokenizer, TEMPLATE), 64)
    with pytest.raises(PretuneError, match="leave no room"):
        task.tokenize_examples(Data(store().tokenizer, TEMPLATE, rows=make_questions([["a"]], [None])), 4)
    with pytest.raises(PretuneError, match=r"answer\(stride=0\): the value is too small; give 1 or more"):
        AnswerTask(stride=0)
