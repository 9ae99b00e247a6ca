"""The ten tasks derived from treebanks: counts, and nothing that gives the labels away."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pretune import PretuneError
from pretune.probing.probing_task import ProbingTask
from pretune.probing.suites import load_suite
from pretune.probing.suites.candidates import SPLITS
from pretune.probing.suites.parsed_sentence import ParsedSentence
from pretune.probing.suites.treebank import TASKS, parsed_sentences
from tests.support.treebanks import naive_bayes_accuracy, word_features, write_treebank

SENTENCES = 1500


@pytest.fixture(scope="module", params=["conllu", "conllu, one file", "brackets"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    brackets, splits = request.param == "brackets", request.param != "conllu, one file"
    return write_treebank(tmp_path_factory.mktemp("treebank"), SENTENCES, brackets=brackets, splits=splits)


@pytest.fixture(scope="module")
def sentences(folder: Path) -> dict[str, ParsedSentence]:
    return {sentence.text: sentence for sentence in parsed_sentences(folder)}


@pytest.fixture(scope="module")
def tasks(folder: Path) -> dict[str, ProbingTask]:
    return {task.name: task for task in load_suite("treebank", folder)}


def test_all_tasks_are_derived_and_balanced(
    tasks: dict[str, ProbingTask], sentences: dict[str, ParsedSentence]
) -> None:
    assert list(tasks) == list(TASKS)
    for task in tasks.values():
        for split in SPLITS:
            counts = Counter(example.label for example in task.part(split))
            assert counts.keys() == set(task.labels), (task.name, split)
            assert len(set(counts.values())) == 1, (task.name, split)
    assert len(tasks["bigram_shift"].examples) > 0.9 * len(sentences)


def test_no_two_splits_share_a_text(tasks: dict[str, ProbingTask]) -> None:
    for task in tasks.values():
        texts = [example.text for example in task.examples]
        assert len(set(texts)) == len(texts), task.name


def test_labels_are_right(tasks: dict[str, ProbingTask], sentences: dict[str, ParsedSentence]) -> None:
    for name in ("tree_depth", "past_present", "subj_number", "obj_number"):
        for example in tasks[name].examples:
            sentence = sentences[example.text]
            found = {"past_present": sentence.tense, "subj_number": sentence.subject, "obj_number": sentence.object}
            word = found.get(name)
            assert example.label == (word.label if word else f"{sentence.depth:02}")
    for example in tasks["sentence_length"].examples:
        first, last = map(int, example.label.split("-"))
        assert first <= len(sentences[example.text].tokens) <= last
    for example in tasks["word_content"].examples:
        words = word_features(example.text)
        assert words.count(example.label) == 1
        assert not (set(words) & set(tasks["word_content"].labels)) - {example.label}


@pytest.mark.parametrize("name", ["past_present", "subj_number", "obj_number"])
def test_no_two_splits_share_the_word_that_decides(
    name: str, tasks: dict[str, ProbingTask], sentences: dict[str, ParsedSentence]
) -> None:
    homes: dict[str, str] = {}
    for example in tasks[name].examples:
        sentence = sentences[example.text]
        word = {"past_present": sentence.tense, "subj_number": sentence.subject, "obj_number": sentence.object}[name]
        assert word is not None
        assert homes.setdefault(word.lemma, example.split) == example.split


def test_length_does_not_predict_depth(tasks: dict[str, ProbingTask], sentences: dict[str, ParsedSentence]) -> None:
    task = tasks["tree_depth"]
    cells = Counter((example.split, len(sentences[example.text].tokens), example.label) for example in task.examples)
    for split, length, _ in list(cells):
        assert len({cells[split, length, label] for label in task.labels}) == 1


def test_a_shifted_bigram_leaves_the_bag_of_words(
    tasks: dict[str, ProbingTask], sentences: dict[str, ParsedSentence]
) -> None:
    known = {tuple(sorted(word_features(text))): text for text in sentences}
    for example in tasks["bigram_shift"].examples:
        original = known[tuple(sorted(word_features(example.text)))].split()
        moved = [i for i, pair in enumerate(zip(original, example.text.split(), strict=True)) if pair[0] != pair[1]]
        assert (moved == []) == (example.label == "original")
        assert not moved or (moved[1] == moved[0] + 1 and moved[0] > 0 and len(moved) == 2)


def test_clauses_in_the_reverse_order_leave_the_bag_of_words(
    tasks: dict[str, ProbingTask], sentences: dict[str, ParsedSentence]
) -> None:
    known = {tuple(sorted(word_features(text))): sentence for text, sentence in sentences.items()}
    orders: Counter[tuple[str, str, int]] = Counter()
    for example in tasks["coordination_inversion"].examples:
        sentence = known[tuple(sorted(word_features(example.text)))]
        assert (example.text == sentence.text) == (example.label == "original")
        assert sentence.clauses is not None
        first, second = sentence.clauses[0], sentence.clauses[2] - sentence.clauses[1]
        longer = (first > second) - (first < second)
        orders[example.split, example.label, longer if example.label == "original" else -longer] += 1
    for (split, label, order), count in orders.items():
        assert orders[split, {"original": "inverted", "inverted": "original"}[label], order] == count


def test_exchanged_words_leave_the_words_of_all_sentences(
    tasks: dict[str, ProbingTask], sentences: dict[str, ParsedSentence]
) -> None:
    by_frame: dict[tuple[str, ...], set[str]] = {}  # a sentence without one of its words → sentences
    for text in sentences:
        words = text.split()
        for at in range(len(words)):
            by_frame.setdefault((*words[:at], "", *words[at + 1 :]), set()).add(text)
    replaced: dict[str, set[str]] = {split: set() for split in SPLITS}
    for split in SPLITS:
        before, after = Counter[str](), Counter[str]()
        for example in tasks["odd_man_out"].part(split):
            if example.label == "original":
                assert example.text in sentences
                continue
            words = example.text.split()
            frames = [(at, by_frame.get((*words[:at], "", *words[at + 1 :]), set())) for at in range(len(words))]
            [(at, [original])] = [(at, list(texts)) for at, texts in frames if texts]
            assert original != example.text
            before.update(word_features(original))
            after.update(word_features(example.text))
            replaced[split].add(words[at])
        assert before == after
        assert sum(before.values())
    assert not replaced["train"] & replaced["test"]
    assert not replaced["train"] & replaced["dev"]


@pytest.mark.parametrize(
    "name", ["bigram_shift", "coordination_inversion", "odd_man_out", "tree_depth", "past_present", "subj_number"]
)
def test_a_bag_of_words_stays_near_chance(name: str, tasks: dict[str, ProbingTask]) -> None:
    task = tasks[name]
    held_out = len(task.part("dev")) + len(task.part("test"))
    chance = 1 / len(task.labels)
    features = (lambda text: [len(text.split())]) if name == "tree_depth" else word_features
    deviation = (chance * (1 - chance) / held_out) ** 0.5
    assert naive_bayes_accuracy(task, features) < chance + 4 * deviation


def test_a_bag_of_words_finds_what_it_can_find(tasks: dict[str, ProbingTask]) -> None:
    assert naive_bayes_accuracy(tasks["word_content"]) > 0.6  # chance is 0.25 or less


def test_the_seed_decides_what_is_drawn(sentences: dict[str, ParsedSentence]) -> None:
    for name in ("sentence_length", "subj_number", "bigram_shift", "odd_man_out"):
        derive = TASKS[name][1]
        first, again, other = (derive(list(sentences.values())[::3], seed) for seed in (0, 0, 1))
        assert first == again
        assert first != other


def test_tasks_without_enough_sentences_are_left_out_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRETUNE_PROGRESS", "plain")
    folder = write_treebank(tmp_path / "small", 120)
    names = [task.name for task in load_suite("treebank", folder)]
    assert "bigram_shift" in names
    assert "word_content" not in names
    messages = capsys.readouterr().err
    assert "the task word_content is left out, because fewer than two labels have enough examples" in messages
    assert "treebank: bigram_shift: 2 labels, " in messages
    with pytest.raises(PretuneError, match="no task of the suite 'treebank' has enough examples"):
        load_suite("treebank", write_treebank(tmp_path / "tiny", 6))


def test_other_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("EU NNP B-ORG\n", encoding="utf-8")
    with pytest.raises(PretuneError, match="reads only treebanks in CoNLL-U or with bracketed trees"):
        load_suite("treebank", tmp_path / "rows.txt")
