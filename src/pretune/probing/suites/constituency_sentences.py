"""Read off the properties of sentences from constituency trees with the labels of the Penn Treebank."""

from __future__ import annotations

import re

from pretune.probing.probing_task import Split
from pretune.probing.suites.parsed_sentence import (
    NUMBERS,
    TENSES,
    Clauses,
    InflectedWord,
    ParsedSentence,
    Token,
    lower_first,
)
from pretune.text.examples.bracketed_trees import ConstituencyTree, Constituent

FINITE = ("VBD", "VBZ", "VBP")
NOT_WORDS = re.compile(r"[^\w]+|-[LR][RSC]B-")  # tags of punctuation
ENDS = (".", "''", '"', "-RRB-")  # tags of what follows the last clause


def from_constituents(tree: ConstituencyTree, split: Split | None) -> ParsedSentence:
    """Return a sentence with the properties that probing tasks use, derived from its constituency tree.

    The depth is the number of phrases on the longest path from the root to a word. The top of the tree is the sequence
    of the root's children, such as NP VP . in (S NP VP .); it is None if one of them except the last is punctuation.
    The tense is that of the finite verb that heads the verb phrase of the sentence.
    """
    top = tree.root if tree.root.category == "S" else None
    phrases = [child for child in top.children if child.category == "VP"] if top else []
    verb_phrase = phrases[0] if len(phrases) == 1 else None
    return ParsedSentence(
        tokens=_tokens(tree),
        split=split,
        depth=_depth(tree.root),
        top=_top(tree.root),
        tense=_tense(tree, verb_phrase),
        subject=_noun_number(tree, _subject(top, verb_phrase)),
        object=_noun_number(tree, _object(verb_phrase)),
        clauses=_clauses(tree),
    )


def _tokens(tree: ConstituencyTree) -> tuple[Token, ...]:
    tokens = []
    for word, tag in zip(tree.words, tree.tags, strict=True):
        named = tag.label.startswith("NNP") or word == "I"
        kind = tag.label if tag.label in ("NN", "NNS") or tag.label.startswith("VB") else ""
        tokens.append(
            Token(
                form=word,
                inner_form=word if named else lower_first(word),
                lemma=word.casefold(),
                is_punctuation=NOT_WORDS.fullmatch(tag.label) is not None,
                kind=kind,
            )
        )
    return tuple(tokens)


def _depth(root: Constituent) -> int:
    """Return the depth of a tree: the number of phrases on the longest path from the root to a word."""
    deepest, pending = 0, [(root, 1)]
    while pending:
        node, depth = pending.pop()
        if node.children:
            deepest = max(deepest, depth)
            pending += [(child, depth + 1) for child in node.children]
    return deepest


def _top(root: Constituent) -> str | None:
    """Return the categories of the root's children, such as NP_VP_., joined by underscores.

    As in the published task, the result is None if a child other than the last is punctuation.
    """
    labels = [child.category for child in root.children]
    if not labels or labels[-1] != "." or any(NOT_WORDS.fullmatch(label) for label in labels[:-1]):
        return None
    return "_".join(labels)


def _tense(tree: ConstituencyTree, verb_phrase: Constituent | None) -> InflectedWord | None:
    """Return the finite verb of a verb phrase with its tense; None if the verb is not finite."""
    verbs = [child for child in verb_phrase.children if child.label.startswith(("VB", "MD"))] if verb_phrase else []
    if not verbs or verbs[0].label not in FINITE:
        return None
    return InflectedWord(TENSES[verbs[0].label], tree.words[verbs[0].begin].casefold())


def _subject(top: Constituent | None, verb_phrase: Constituent | None) -> Constituent | None:
    """Return the subject: the noun phrase tagged SBJ or, without tags, the last one before the verb phrase."""
    if top is None or verb_phrase is None:
        return None
    nouns = [child for child in top.children if child.category == "NP"]
    marked = [child for child in nouns if "SBJ" in child.functions]
    before = [child for child in nouns if not child.functions and child.end <= verb_phrase.begin]
    return next(iter(marked or before[-1:]), None)


def _object(verb_phrase: Constituent | None) -> Constituent | None:
    """Return the direct object: the only noun phrase without a function tag in the innermost verb phrase, or None."""
    while verb_phrase is not None:
        inner = [child for child in verb_phrase.children if child.category == "VP"]
        if not inner:
            break
        verb_phrase = inner[0] if len(inner) == 1 else None
    if verb_phrase is None:
        return None
    nouns = [child for child in verb_phrase.children if child.category == "NP" and not child.functions]
    return nouns[0] if len(nouns) == 1 else None


def _noun_number(tree: ConstituencyTree, phrase: Constituent | None) -> InflectedWord | None:
    """Return the head noun of a noun phrase with its number, singular or plural; None if it is not a common noun."""
    while phrase is not None and (inner := [child for child in phrase.children if child.category == "NP"]):
        if any(child.category == "CC" for child in phrase.children):
            return None  # coordinated phrases are plural, whatever the number of their nouns
        phrase = inner[0]
    nouns = [child for child in phrase.children if child.label.startswith("NN")] if phrase else []
    if not nouns or nouns[-1].label not in ("NN", "NNS"):
        return None
    return InflectedWord(NUMBERS[nouns[-1].label], tree.words[nouns[-1].begin].casefold())


def _clauses(tree: ConstituencyTree) -> Clauses | None:
    """Return the bounds of the two clauses of a sentence that consists of two, as in (S S CC S .), or else None."""
    children = [child for child in tree.root.children if NOT_WORDS.fullmatch(child.category) is None]
    if [child.category for child in children] != ["S", "CC", "S"] or sum(tag.label == "CC" for tag in tree.tags) != 1:
        return None
    first, _, second = children
    rest = [child.category for child in tree.root.children if child.begin >= second.end]
    if first.begin or any(category not in ENDS for category in rest):
        return None
    return Clauses(first.end, second.begin, second.end)
