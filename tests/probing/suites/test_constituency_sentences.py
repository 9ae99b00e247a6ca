"""Properties of sentences with constituency trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune.probing.suites.constituency_sentences import from_constituents
from pretune.probing.suites.parsed_sentence import ParsedSentence, join_tokens
from pretune.probing.suites.sentence_changes import invert_clauses
from pretune.text.examples.bracketed_trees import read_bracketed

SIMPLE = "(S (NP-SBJ (NP (DT The) (NNS dogs)) (PP (IN of) (NP (NN war)))) (ADVP (RB often)) (VP (VBZ has) (VP (VBN seen) (NP (DT a) (NN cat)) (NP-TMP (NN today)))) (. .))"
CLAUSES = "(S (S (NP-SBJ (PRP I)) (VP (VBD slept))) (, ,) (CC and) (S (NP-SBJ (DT the) (NN cat)) (VP (VBD ate) (NP (NN fish)))) (. .))"


def parse(folder: Path, tree: str) -> ParsedSentence:
    (folder / "trees.mrg").write_text(tree, encoding="utf-8")
    [found] = read_bracketed(folder / "trees.mrg")
    return from_constituents(found, "train")


def test_properties_of_a_sentence(tmp_path: Path) -> None:
    sentence = parse(tmp_path, SIMPLE)
    assert sentence.depth == 4  # S, NP, PP, NP
    assert sentence.top == "NP_ADVP_VP_."
    assert sentence.tense == ("present", "has")
    assert sentence.subject == ("plural", "dogs")
    assert sentence.object == ("singular", "cat")
    assert sentence.clauses is None


def test_two_clauses_can_be_inverted(tmp_path: Path) -> None:
    sentence = parse(tmp_path, CLAUSES)
    assert join_tokens(invert_clauses(sentence)) == "The cat ate fish , and I slept ."
    assert sentence.top is None  # with punctuation in between
    two = CLAUSES.replace("(NN fish)", "(NN fish) (CC or) (NN meat)")
    assert parse(tmp_path, two).clauses is None


@pytest.mark.parametrize(
    ("old", "new", "attribute"),
    [
        ("(VBZ has)", "(MD will)", "tense"),
        ("(DT The) (NNS dogs)", "(NNP Ann)", "subject"),
        ("(PP (IN of) (NP (NN war)))", "(CC and) (NP (NN war))", "subject"),
        ("(DT a) (NN cat)", "(PRP it)", "object"),
        ("(NP-TMP (NN today))", "(NP (NN today))", "object"),
        ("(. .)", "", "top"),
    ],
)
def test_properties_that_a_sentence_does_not_have(old: str, new: str, attribute: str, tmp_path: Path) -> None:
    assert old in SIMPLE
    assert getattr(parse(tmp_path, SIMPLE.replace(old, new)), attribute) is None
