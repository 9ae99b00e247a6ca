from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.objectives import Data, parse_objective
from pretune.objectives.task import Task
from pretune.objectives.tasks.tag import Tag
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.tagged import TaggedSentences
from pretune.text.packing.sequences import Arrangement, Packing
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, TEMPLATE, store

LAST = Template(single=("A", "separator"), pair=("B", "separator"), last=("start",))  # as in XLNet
words_strategy = st.lists(st.sampled_from(["the", "functions", "name", "\u0001", "Поезд", "x" * 40]), max_size=30)
TAGS = ("O", "B-X", "I-X")


def tagged(words: list[list[str]], tags: list[list[str]] | None = None, **more: Any) -> TaggedSentences:
    return TaggedSentences(Path("x.conll"), {}, words, tags, lines=list(range(1, len(words) + 1)), **more)


def outputs_for(laid: Arrangement, classes: int, wanted: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Return outputs that predict the given class at the first token of each word, and random values elsewhere."""
    made = []
    for number in range(len(laid)):
        sequence = laid.take(np.array([number]))
        word = sequence.columns["word"]
        logits = np.tile(np.arange(classes, 0, -1.0), (len(sequence.ids), 1))
        logits[word >= 0] = 9 * np.eye(classes)[wanted[word[word >= 0]]]
        made.append(logits)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", [TEMPLATE, LAST])
@settings(max_examples=20)
@given(words=st.lists(words_strategy, min_size=1, max_size=4), length=st.integers(8, 40), overlap=st.integers(0, 40))
def test_each_word_gets_one_tag(
    kind: Kind, template: Template, words: list[list[str]], length: int, overlap: int
) -> None:
    tokenizer = store(kind).tokenizer
    total = sum(map(len, words))
    wanted = np.arange(total) % 3
    names = iter([("NOUN", "VERB", "X")[i] for i in wanted])
    examples = tagged(words, [[next(names) for _ in row] for row in words])
    task = Tag(labels=("NOUN", "VERB", "X"), overlap=overlap, default_tag="VERB")
    laid = task.tokenize_examples(Data(tokenizer, template, rows=examples), length)
    assert (laid.lengths <= length).all()
    answers = task.answers(outputs_for(laid, 3, wanted), laid, examples)
    assert [len(answer["tags"]) for answer in answers] == [len(row) for row in words]
    has_tokens = np.isin(np.arange(total), laid.tokens["word"])
    expected = [("NOUN", "VERB", "X")[i] if there else "VERB" for i, there in zip(wanted, has_tokens, strict=True)]
    assert [tag for answer in answers for tag in answer["tags"]] == expected
    for row, answer in zip(words, answers, strict=True):
        assert len(answer["probabilities"]) == len(row)


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_the_tags_at_first_tokens(kind: Kind) -> None:
    examples = tagged([["the", "functions", "\u0001", "are"], [], ["name"]], [["O", "I-X", "O", "I-X"], [], ["I-X"]])
    task = Tag().fit(examples)
    assert (task.labels, task.scheme, task.default_tag) == (("O", "B-X", "I-X"), "IOB1", "O")
    data = Data(store(kind).tokenizer, TEMPLATE, rows=examples)
    epoch = task.arrange(data, Packing(256, 64), EpochRandom(0))
    found = []
    for index in range(len(epoch)):
        sequences = task.corrupt(epoch.pack(index), data.tokenizer, EpochRandom(0))
        at, target = sequences.targets["tag"]
        assert not sequences.columns["special"][at].any()
        found += zip(sequences.columns["word"][at].tolist(), target.tolist(), strict=True)
    everything = {0: 0, 1: 2, 2: 0, 3: 2, 4: 2}
    assert dict(found) == {word: everything[word] for word, _ in found}
    assert {0, 1, 3, 4} <= dict(found).keys()


def test_a_stray_tag_among_spans_is_not_read_as_tags_of_words() -> None:
    """A last line such as "(30 sentences)" would silently turn named entities into plain tags, scored by accuracy."""
    words, tags = [["in", "Rome"], ["(2", "Paris"]], [["O", "B-LOC"], ["sentences)", "B-LOC"]]
    with pytest.raises(PretuneError, match=r"x.conll: 1 of 4 words have a tag such as 'sentences\)'"):
        Tag().fit(tagged(words, tags))
    assert Tag(scheme="plain").fit(tagged(words, tags)).labels == ("B-LOC", "O", "sentences)")
    assert Tag().fit(tagged([["a", "b", "c"]], [["NOUN", "B-X", "VERB"]])).scheme == "plain"


def test_tags_of_any_scheme_are_converted_to_one() -> None:
    examples = tagged([["a", "b", "c"]], [["B-X", "I-X", "O"]])
    for scheme, expected in (("BIO", [1, 2, 0]), ("IOB1", [2, 2, 0]), ("BIOES", [1, 3, 0])):
        task = Tag(scheme=scheme).fit(examples)  # type: ignore[arg-type]
        assert task.encode_tags(examples).tolist() == expected
        alone = "S-X" if scheme == "BIOES" else task.labels[expected[0]]
        assert task.encode_tags(tagged([["a", "b"]], [["I-X", "O"]])).tolist() == [task.labels.index(alone), 0]
    with pytest.raises(PretuneError, match="'NOUN' is not a tag of the scheme BIO"):
        Tag(scheme="BIO").fit(tagged([["a", "b"]], [["NOUN", "O"]]))
    plain = Tag().fit(tagged([["a", "b", "c"]], [["VERB", "NOUN", "NOUN"]]))
    assert (plain.scheme, plain.default_tag, plain.primary_metric) == ("plain", "NOUN", "accuracy")
    assert Tag(labels=("O", "B-X")).primary_metric == "f1"  # as in published models


def test_invalid_tags_are_corrected_and_unknown_tags_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr("pretune.objectives.tasks.tag.log_info", messages.append)
    task = Tag().fit(tagged([["a", "b"], ["c", "d"]], [["B-X", "I-Y"], ["B-Y", "I-X"]]))
    assert messages == [
        "x.conll: 2 of 2 sentences have tags that violate the scheme BIO; they are corrected as conlleval does"
    ]
    assert task.encode_tags(tagged([["a"], ["b", "c"]], [["I-X"], ["O", "B-Z"]])).tolist() == [1, 0, -1]
    assert (
        messages[1]
        == "x.conll, line 2: tag 'B-Z' was not in training; words with unknown tags count as wrong (1 in all)"
    )


def test_invalid_use_is_rejected() -> None:
    with pytest.raises(PretuneError, match="every word has the tag 'O'"):
        Tag().fit(tagged([["a"]], [["O"]]))
    with pytest.raises(PretuneError, match="the file has no words"):
        Tag().fit(tagged([[]], [[]]))
    with pytest.raises(PretuneError, match="'tag' needs tagged words"):
        Tag().tokenize_examples(Data(store().tokenizer, TEMPLATE), 64)
    with pytest.raises(PretuneError, match="sequences of 2 tokens leave no room"):
        Tag(labels=TAGS).tokenize_examples(Data(store().tokenizer, TEMPLATE, rows=tagged([["a"]])), 2)


def test_entities_are_listed() -> None:
    task = Tag(labels=TAGS)
    examples = tagged([["Los", "Angeles", "is", "big"], []])
    assert isinstance(task, Task)
    laid = task.tokenize_examples(Data(store().tokenizer, TEMPLATE, rows=examples), 64)
    first, second = task.answers(outputs_for(laid, 3, np.array([2, 2, 0, 1])), laid, examples)
    assert first["tags"] == ["B-X", "I-X", "O", "B-X"]  # an I tag without a B tag before it starts an entity
    assert first["entities"] == [
        {"label": "X", "text": "Los Angeles", "first": 0, "last": 1},
        {"label": "X", "text": "big", "first": 3, "last": 3},
    ]
    assert second == {"tags": [], "probabilities": [], "entities": []}


def test_predicate_is_marked_and_repeated() -> None:
    tokenizer = store().tokenizer
    words = ["the", "name", "is", "the", "name"]
    tags = [["O", "B-V", "O", "O", "B-A1"], ["O", "B-A1", "O", "O", "B-V"]]
    examples = tagged([words, words], tags, predicates=[1, 4])
    task = Tag(predicate="verb").fit(examples)
    laid = task.tokenize_examples(Data(tokenizer, TEMPLATE, rows=examples), 64)
    separator = tokenizer.role("separator")
    read = [tokenizer.tokens(laid.take(np.array([number])).ids) for number in (0, 1)]
    assert read[0] == ["[CLS]", "the", "[SEP]", "name", "[SEP]", "is", "the", "name", "[SEP]", "name", "[SEP]"]
    assert read[1] == ["[CLS]", "the", "name", "is", "the", "[SEP]", "name", "[SEP]", "[SEP]", "name", "[SEP]"]
    sequences = task.corrupt(laid.take(np.array([0, 1])), tokenizer, EpochRandom(0))
    at, target = sequences.targets["tag"]
    assert [task.labels[i] for i in target] == [tag for row in tags for tag in row]
    assert len(at) == 10 and (sequences.ids[at] != separator).all()
    for length in (8, 9):  # every window contains the predicate
        laid = task.tokenize_examples(Data(tokenizer, TEMPLATE, rows=examples), length)
        assert len(laid) > 2 and (laid.lengths <= length).all() and (laid.spans[:, 1] == 1).all()
        wanted = task.encode_tags(examples)
        answers = task.answers(outputs_for(laid, len(task.labels), wanted), laid, examples)
        assert [answer["tags"] for answer in answers] == tags


@pytest.mark.not_fast
def test_very_long_inputs_are_supported() -> None:
    examples = tagged([["word"] * 40_000, ["x" * 1_000_000], ["\u0001"]])
    task = parse_objective("tag", labels=TAGS).objectives[0]
    assert isinstance(task, Tag)
    laid = task.tokenize_examples(Data(store("wordpiece").tokenizer, TEMPLATE, rows=examples), 512)
    assert (laid.lengths <= 512).all()
    zeros = [np.zeros((int(length), 3)) for length in laid.lengths]
    assert [len(answer["tags"]) for answer in task.answers(zeros, laid, examples)] == [40_000, 1, 1]
