"""Treebanks of made-up words, as CoNLL-U and as bracketed trees, and classifiers that look for leaks of labels."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pretune.probing.probing_task import ProbingTask

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


@dataclass
class Node:
    """A phrase with its head word, from which both kinds of trees follow."""

    label: str
    parts: list[Node | Leaf]


@dataclass
class Leaf:
    """A word: its columns, and the word that it depends on."""

    tag: str
    form: str
    lemma: str
    upos: str
    feats: str = "_"
    head: Leaf | None = None
    deprel: str = "root"


class Grammar:
    """A grammar of sentences of random length and depth, with one or two clauses."""

    def __init__(self, seed: int, nouns: int = 900, verbs: int = 400, adjectives: int = 90, adverbs: int = 16) -> None:
        self.random = random.Random(seed)
        names = [a + b + c for a in SYLLABLES for b in SYLLABLES[:20] for c in "nrs"]
        names = self.random.sample(names, nouns + verbs + adjectives + adverbs)
        self.nouns, self.verbs = names[:nouns], names[nouns : nouns + verbs]
        self.adjectives, self.adverbs = names[nouns + verbs : -adverbs], names[-adverbs:]

    def noun_phrase(self, deprel: str, function: str, more: float) -> tuple[Node, Leaf]:
        """Return a noun phrase with adjectives and, with the probability `more`, a prepositional phrase."""
        lemma, plural = self.random.choice(self.nouns), self.random.random() < 0.4
        form, number = (f"{lemma}ax", "Plur") if plural else (lemma, "Sing")
        noun = Leaf("NNS" if plural else "NN", form, lemma, "NOUN", f"Number={number}", None, deprel)
        words: list[Node | Leaf] = [Leaf("DT", "the", "the", "DET", "_", noun, "det")]
        for _ in range(self.random.choice([0, 0, 1, 2])):
            words.append(
                Leaf("JJ", adjective := self.random.choice(self.adjectives), adjective, "ADJ", "_", noun, "amod")
            )
        base = Node("NP", [*words, noun])
        if self.random.random() >= more:
            return Node(f"NP{function}", base.parts), noun
        inner, other = self.noun_phrase("nmod", "", more * 0.7)
        other.head = noun
        case = Leaf("IN", self.random.choice(["of", "near"]), "of", "ADP", "_", other, "case")
        return Node(f"NP{function}", [base, Node("PP", [case, inner])]), noun

    def clause(self) -> tuple[Node, Leaf]:
        """Return a clause with a subject, a verb and an object."""
        lemma, past = self.random.choice(self.verbs), self.random.random() < 0.5
        verb = Leaf("VBD" if past else "VBZ", lemma + ("ed" if past else "it"), lemma, "VERB")
        verb.feats = f"Mood=Ind|Tense={'Past' if past else 'Pres'}|VerbForm=Fin"
        subject, one = self.noun_phrase("nsubj", "-SBJ", 0.5)
        target, other = self.noun_phrase("obj", "", 0.5)
        one.head = other.head = verb
        parts: list[Node | Leaf] = [subject, Node("VP", [verb, target])]
        if self.random.random() < 0.4:
            adverb = self.random.choice(self.adverbs)
            parts.insert(1, Node("ADVP", [Leaf("RB", adverb, adverb, "ADV", "_", verb, "advmod")]))
        return Node("S", parts), verb

    def sentence(self) -> Node:
        """Return a sentence of one clause, or of two coordinated ones."""
        first, root = self.clause()
        parts: list[Node | Leaf] = first.parts
        if self.random.random() < 0.3:
            second, verb = self.clause()
            verb.head, verb.deprel = root, "conj"
            comma = Leaf(",", ",", ",", "PUNCT", "_", verb, "punct")
            conjunction = Leaf("CC", self.random.choice(["and", "but"]), "and", "CCONJ", "_", verb, "cc")
            parts = [first, comma, conjunction, second]
        sentence = Node("S", [*parts, Leaf(".", ".", ".", "PUNCT", "_", root, "punct")])
        leaves(sentence)[0].form = leaves(sentence)[0].form.capitalize()
        return sentence


def leaves(node: Node | Leaf) -> list[Leaf]:
    """Return the words of a phrase, in order."""
    return [node] if isinstance(node, Leaf) else [leaf for part in node.parts for leaf in leaves(part)]


def bracketed(node: Node | Leaf) -> str:
    """Return a sentence as a bracketed tree."""
    if isinstance(node, Leaf):
        return f"({node.tag} {node.form})"
    return f"({node.label} {' '.join(map(bracketed, node.parts))})"


def conllu(sentence: Node) -> str:
    """Return a sentence in CoNLL-U, without spaces before punctuation."""
    words = leaves(sentence)
    lines = []
    for number, word in enumerate(words, 1):
        head = 0 if word.head is None else next(i for i, other in enumerate(words, 1) if other is word.head)
        close = number < len(words) and words[number].upos == "PUNCT"
        cells = (str(number), word.form, word.lemma, word.upos, word.tag, word.feats, str(head), word.deprel, "_")
        lines.append("\t".join([*cells, "SpaceAfter=No" if close else "_"]))
    return "\n".join(lines) + "\n\n"


def write_treebank(folder: Path, count: int, *, brackets: bool = False, seed: int = 0, splits: bool = True) -> Path:
    """Write a treebank of `count` sentences, 70, 15 and 15 percent of them for training, dev and test, or one file."""
    grammar = Grammar(seed)
    sentences = [grammar.sentence() for _ in range(count)]
    written = [f"( {bracketed(s)} )\n" if brackets else conllu(s) for s in sentences]
    ends = {"train": 0.7, "dev": 0.85, "test": 1.0} if splits else {"all": 1.0}
    folder.mkdir(parents=True, exist_ok=True)
    begin = 0
    for split, share in ends.items():
        end = int(share * count)
        file = folder / f"xx-{split}.{'mrg' if brackets else 'conllu'}"
        file.write_text("".join(written[begin:end]), encoding="utf-8")
        begin = end
    return folder


def word_features(text: str) -> list[str]:
    """Return the words of a text in lowercase, without punctuation."""
    return [word.strip(".,") for word in text.lower().split()]


def naive_bayes_accuracy(task: ProbingTask, features: Callable[[str], Iterable[Hashable]] = word_features) -> float:
    """Return the accuracy on the dev and test examples of naive Bayes, fitted to the training examples."""
    counts: dict[str, Counter[Hashable]] = defaultdict(Counter)
    labels = Counter(example.label for example in task.part("train"))
    for example in task.part("train"):
        counts[example.label].update(set(features(example.text)))
    held_out = [*task.part("dev"), *task.part("test")]

    def score(text: str, label: str) -> float:
        return math.log(labels[label]) + sum(
            math.log((counts[label][feature] + 0.5) / (labels[label] + 1)) for feature in set(features(text))
        )

    right = sum(max(labels, key=lambda label: score(example.text, label)) == example.label for example in held_out)
    return right / len(held_out)
