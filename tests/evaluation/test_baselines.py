"""Tests of the trivial baselines of every kind of task, on data with a planted regularity that each must find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pretune.evaluation.baselines import trivial_baselines
from pretune.metrics import score
from pretune.objectives import task_names
from pretune.objectives.registry import OBJECTIVES
from pretune.objectives.task import Task
from pretune.objectives.tasks.answer import AnswerTask
from pretune.objectives.tasks.choose import Choose
from pretune.objectives.tasks.classify import Classify
from pretune.objectives.tasks.contrast import Contrast
from pretune.objectives.tasks.entity import Entity
from pretune.objectives.tasks.generate import Generate
from pretune.objectives.tasks.match import Match
from pretune.objectives.tasks.rank import Rank
from pretune.objectives.tasks.regress import Regress
from pretune.objectives.tasks.tag import Tag
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.multiple_choice import ChoiceExample, ChoiceExamples
from pretune.text.examples.question_answering import AnswerSpan, Questions
from pretune.text.examples.tagged import TaggedSentences

FILE = Path("rows.csv")
NOUNS = ["dog", "cat", "horse", "bird", "fish", "tree", "house", "river"]


def labeled(texts: list[str], labels: list[Any] | None, pairs: list[str] | None = None, **more: Any) -> LabeledRows:
    return LabeledRows(FILE, {}, texts, pairs, labels, lines=list(range(2, len(texts) + 2)), **more)


def scores(task: Task, rows: Any, dev: Any | None = None) -> dict[str, float]:
    """Return the primary metric of each baseline of a task that is fitted to the rows."""
    task, dev = task.fit(rows), rows if dev is None else dev
    found = trivial_baselines(task, rows, dev)
    assert all(len(answers) == len(dev) for answers in found.values())
    return {name: score(task, answers, dev)[task.primary_metric] for name, answers in found.items()}


def test_pairs_are_classified_by_word_overlap() -> None:
    firsts = [f"a {a} saw the {b}" for a in NOUNS for b in NOUNS]
    others = [text if i % 3 else f"two men met near {NOUNS[i % 8]}" for i, text in enumerate(firsts)]
    rows = labeled(firsts, ["same" if i % 3 else "other" for i in range(len(firsts))], others)
    found = scores(Classify(), rows)
    assert found["word overlap and a bag of words"] == 1.0 and 0.6 < found["always 'same'"] < 0.7


def test_pairs_are_classified_by_words_of_only_one_text() -> None:
    firsts = [f"a {a} and a {b}" for a in NOUNS for b in NOUNS]
    others = [f"{'no' if i % 2 else 'one'} {text}" for i, text in enumerate(firsts)]
    rows = labeled(firsts, ["contradiction" if i % 2 else "entailment" for i in range(len(firsts))], others)
    assert scores(Classify(), rows)["word overlap and a bag of words"] == 1.0


def test_several_labels_are_predicted_one_by_one() -> None:
    texts = [f"a {a} and a {b}" for a in NOUNS[:4] for b in NOUNS[4:]]
    rows = labeled(texts, [tuple(sorted({text.split()[1], text.split()[4]})) for text in texts])
    found = scores(Classify(multi_label=True), rows)
    assert found.pop("a bag of words") == 1.0 and max(found.values()) < 0.6


def test_numbers_are_predicted_from_words() -> None:
    texts = [f"a {noun} {'good ' * i}" for noun in NOUNS for i in range(4)]
    rows = labeled(texts, [float(text.count("good")) for text in texts])
    found = scores(Regress(), rows)
    assert found.pop("a bag of words") > 0.8 and list(found.values()) == [0.0]


def test_similarity_is_predicted_from_word_overlap() -> None:
    pairs = [(" ".join(NOUNS[:4]), " ".join([*NOUNS[:i], *NOUNS[4 : 8 - i]])) for i in range(5)] * 4
    rows = labeled([a for a, _ in pairs], [float(i % 5) for i in range(20)], [b for _, b in pairs])
    assert scores(Regress(), rows)["word overlap and a bag of words"] > 0.95
    assert scores(Contrast(), rows)["TF-IDF cosines"] > 0.9


def test_pairs_are_found_by_tfidf() -> None:
    texts = [f"the {a}" for a in NOUNS]
    rows = labeled(texts, None, [f"a red {a}" for a in NOUNS])
    assert scores(Contrast(), rows)["TF-IDF cosines"] == 1.0


def test_words_get_their_most_frequent_tag() -> None:
    words = [["in", "Paris", "with", "Anna"], ["Anna", "likes", "Rome"]]
    tags = [["O", "B-LOC", "O", "B-PER"], ["B-PER", "O", "B-LOC"]]
    found = scores(Tag(), TaggedSentences(FILE, {}, words, tags))
    assert found == {"each word's usual tag": 1.0, "always 'O'": 0.0}


def test_answers_are_names_in_the_closest_sentence() -> None:
    passage = "The bridge was opened in 1932. It was designed by John Bradfield. It is long."
    spans = [[AnswerSpan("John Bradfield", passage.find("John"))], []]
    questions = Questions(FILE, {}, ["Who designed it by hand?", "What color is it?"], [passage] * 2, spans)
    found = scores(AnswerTask(), questions)
    assert found["always no answer"] == 0.5
    named = trivial_baselines(AnswerTask(), questions, questions)["a name or number of the closest sentence"]
    assert named[0] == {"answer": "John Bradfield"}
    assert found["the closest sentence"] < found["a name or number of the closest sentence"]


def test_choices_are_made_by_length_and_overlap() -> None:
    text = "The dog saw the river."
    groups = [
        ChoiceExample(("A much longer choice of words.", "The dog."), (text,) * 2, None, (0,), display_text=text),
        ChoiceExample(("The dog swam.", "Nobody came at all to see."), (text,) * 2, None, (0,), display_text=text),
    ]
    found = scores(Choose(), ChoiceExamples(FILE, {}, groups, lines=[1, 2]))
    assert found == {"the longest choice": 0.5, "the choice with the most word overlap": 0.5, "always choice 0": 1.0}


def test_entities_are_guessed_by_position_and_frequency() -> None:
    passage = "Anna met Boris. Boris left."
    group = ChoiceExample(("Anna", "Boris"), (passage,) * 2, None, (1,), ("Boris",))
    found = scores(Entity(), ChoiceExamples(FILE, {}, [group], lines=[1]))
    assert found == {"the first entity": 0.0, "the most frequent entity": 1.0}


def test_candidates_are_ranked_by_bm25() -> None:
    queries = [f"where is the {noun}" for noun in NOUNS for _ in range(4)]
    others = [NOUNS[(i + shift) % 8] for i in range(8) for shift in (3, 2, 1, 0)]
    rows = labeled(queries, [0.0, 0.0, 0.0, 1.0] * 8, [f"here stands a {noun}" for noun in others])
    rows.extra["group"] = queries
    found = scores(Rank(), rows)
    assert found["BM25"] == 1.0 and found["always the same score"] < 0.8


def test_spans_are_matched_by_their_words() -> None:
    texts = [f"the {noun} ran" for noun in NOUNS]
    pairs = [f"a {noun if i % 2 else 'cloud'} was there" for i, noun in enumerate(NOUNS)]
    spans = [((4, 4 + len(noun)), (2, 2 + len(pair.split()[1]))) for noun, pair in zip(NOUNS, pairs, strict=True)]
    rows = labeled(texts, ["same" if i % 2 else "other" for i in range(8)], pairs, extra={"spans": spans})
    assert scores(Match(), rows)["word overlap of the spans"] == 1.0


def test_generated_texts_are_compared_with_copies() -> None:
    sources = [f"The {noun} is here. It is late." for noun in NOUNS]
    rows = labeled(sources, [source.split(". ")[0] + "." for source in sources])
    found = scores(Generate(), rows)
    assert found.pop("the first sentence") == 1.0 and max(found.values()) < 0.2 and len(found) == 2


@pytest.mark.parametrize("name", task_names())
def test_every_task_has_a_trivial_baseline(name: str) -> None:
    kind = OBJECTIVES[name]
    assert kind.majority_answers is not Task.majority_answers or kind.simple_baselines is not Task.simple_baselines
