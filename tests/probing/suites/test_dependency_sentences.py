"""Properties of sentences with dependency trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune.probing.suites.dependency_sentences import from_dependencies
from pretune.probing.suites.parsed_sentence import ParsedSentence, join_tokens
from pretune.probing.suites.sentence_changes import invert_clauses
from pretune.text.examples.conllu import read_conllu

PAST, PRESENT = "Tense=Past|VerbForm=Fin", "Tense=Pres|VerbForm=Fin"
TWO_CLAUSES = [
    ("The", "the", "DET", "_", 2, "det"),
    ("dogs", "dog", "NOUN", "Number=Plur", 3, "nsubj"),
    ("saw", "see", "VERB", PAST, 0, "root"),
    ("her", "she", "PRON", "_", 3, "obj"),
    (",", ",", "PUNCT", "_", 7, "punct"),
    ("but", "but", "CCONJ", "_", 7, "cc"),
    ("left", "leave", "VERB", PAST, 3, "conj"),
    ("Ann", "Ann", "PROPN", "_", 7, "nsubj"),
    (".", ".", "PUNCT", "_", 3, "punct"),
]  # fmt: skip


def parse(folder: Path, rows: list[tuple[str, str, str, str, int, str]]) -> ParsedSentence:
    lines = [
        f"{i}\t{form}\t{lemma}\t{upos}\t_\t{feats}\t{head}\t{deprel}\t_\t{'SpaceAfter=No' if rows[i : i + 1] and rows[i][2] == 'PUNCT' else '_'}\n"
        for i, (form, lemma, upos, feats, head, deprel) in enumerate(rows, 1)
    ]
    (folder / "words.conllu").write_text("".join(lines), encoding="utf-8")
    [tree] = read_conllu(folder / "words.conllu")
    return from_dependencies(tree, "train")


def test_properties_of_a_sentence(tmp_path: Path) -> None:
    sentence = parse(tmp_path, TWO_CLAUSES)
    assert sentence.text == "The dogs saw her, but left Ann."
    assert sentence.depth == 3
    assert sentence.top == "nsubj_root_obj_conj"
    assert sentence.tense == ("past", "see")
    assert sentence.subject == ("plural", "dog")
    assert sentence.object is None  # a pronoun
    assert sentence.clauses == (4, 6, 8)
    assert join_tokens(invert_clauses(sentence)) == "Left Ann, but the dogs saw her."
    assert [token.kind.split()[0] for token in sentence.tokens if token.kind] == ["NOUN", "VERB", "VERB"]
    assert sentence.tokens[4].is_punctuation


def test_a_name_stays_capitalized_and_lowercase_sentences_stay_so(tmp_path: Path) -> None:
    rows = [("Bob", "Bob", "PROPN", "_", 3, "nsubj"), *TWO_CLAUSES[1:]]
    rows[1] = ("often", "often", "ADV", "_", 3, "advmod")
    assert join_tokens(invert_clauses(parse(tmp_path, rows))) == "Left Ann, but Bob often saw her."
    rows[0] = ("he", "he", "PRON", "_", 3, "nsubj")
    assert join_tokens(invert_clauses(parse(tmp_path, rows))) == "left Ann, but he often saw her."


@pytest.mark.parametrize(
    ("place", "row"),
    [
        (7, ("Ann", "Ann", "PROPN", "_", 7, "obj")),  # the second clause has no subject
        (3, ("and", "and", "CCONJ", "_", 2, "cc")),  # two conjunctions
        (4, ("then", "then", "ADV", "_", 7, "advmod")),  # the second clause begins before the conjunction
        (7, ("Ann", "Ann", "PROPN", "_", 3, "obl")),  # the first clause continues after the second
    ],
)
def test_only_two_complete_clauses_can_be_inverted(
    place: int, row: tuple[str, str, str, str, int, str], tmp_path: Path
) -> None:
    rows = list(TWO_CLAUSES)
    rows[place] = row
    assert parse(tmp_path, rows).clauses is None


def test_only_finite_verbs_have_a_tense(tmp_path: Path) -> None:
    rows = list(TWO_CLAUSES)
    rows[2] = ("saw", "see", "VERB", PRESENT, 0, "root")
    assert parse(tmp_path, rows).tense == ("present", "see")
    rows[2] = ("seeing", "see", "VERB", "Tense=Pres|VerbForm=Part", 0, "root")
    assert parse(tmp_path, rows).tense is None
