"""Read off the properties of sentences from dependency trees (Universal Dependencies)."""

from __future__ import annotations

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
from pretune.text.examples.conllu import ROOT, DependencyTree, Word

SUBJECTS = ("nsubj", "csubj", "expl")


def from_dependencies(tree: DependencyTree, split: Split | None) -> ParsedSentence:
    """Return a sentence with the properties that probing tasks use, derived from its dependency tree.

    The depth is the number of words on the longest path from the root. The top of the tree is the sequence of the
    relations of the root's dependents, without punctuation. The tense is that of the root, if the root is a finite
    verb.
    """
    root = tree.words[tree.root]
    finite = root.upos in ("VERB", "AUX") and root.feats.get("VerbForm", "Fin") == "Fin"
    tense = TENSES.get(root.feats.get("Tense", "")) if finite else None
    return ParsedSentence(
        tokens=_tokens(tree),
        split=split,
        depth=max(tree.depths),
        top=_top(tree),
        tense=InflectedWord(tense, _lemma(root)) if tense else None,
        subject=_noun_number(tree, "nsubj"),
        object=_noun_number(tree, "obj"),
        clauses=_clauses(tree),
    )


def _lemma(word: Word) -> str:
    return (word.lemma or word.form).casefold()


def _tokens(tree: DependencyTree) -> tuple[Token, ...]:
    """Return the tokens of a sentence; multiword tokens have no `kind`, so that no task replaces them."""
    tokens = []
    for token in tree.tokens:
        words = tree.words[token.first : token.last + 1]
        word = words[0]
        kind = ""
        if len(words) == 1 and word.upos in ("NOUN", "VERB"):
            kind = " ".join([word.upos, word.xpos, *(f"{name}={value}" for name, value in sorted(word.feats.items()))])
        named = word.upos == "PROPN" or word.lemma[:1].isupper()
        tokens.append(
            Token(
                form=token.form,
                inner_form=token.form if named else lower_first(token.form),
                lemma=_lemma(word) if len(words) == 1 else token.form.casefold(),
                space_after=token.space_after,
                is_punctuation=all(w.upos in ("PUNCT", "SYM") for w in words),
                kind=kind,
            )
        )
    return tuple(tokens)


def _top(tree: DependencyTree) -> str:
    """Return the relations of the root's dependents and "root" for the root, in sentence order, joined by "_"."""
    places = sorted([*tree.children[tree.root], tree.root])
    relations = ["root" if tree.words[i].head == ROOT else tree.words[i].relation for i in places]
    return "_".join(relation for relation in relations if relation != "punct")


def _noun_number(tree: DependencyTree, relation: str) -> InflectedWord | None:
    """Return the lemma and number (singular, plural) of the root's dependent with `relation`, such as its subject.

    The result is None if there is no such dependent, if there are several, or if it is not a common noun.
    """
    found = [tree.words[i] for i in tree.children[tree.root] if tree.words[i].relation == relation]
    if len(found) != 1 or found[0].upos != "NOUN" or found[0].feats.get("Number") not in ("Sing", "Plur"):
        return None
    return InflectedWord(NUMBERS[found[0].feats["Number"]], _lemma(found[0]))


def _clauses(tree: DependencyTree) -> Clauses | None:
    """Return the bounds of the two clauses if a sentence consists of two clauses and a conjunction, or else None."""
    words, root = tree.words, tree.root
    conjunctions = [i for i, word in enumerate(words) if word.upos == "CCONJ" or word.relation == "cc"]
    conjuncts = [i for i in tree.children[root] if words[i].relation == "conj"]
    if len(conjunctions) != 1 or len(conjuncts) != 1 or words[conjunctions[0]].head != conjuncts[0]:
        return None
    conjunction, conjunct = conjunctions[0], conjuncts[0]
    for clause in (root, conjunct):
        if not any(words[child].relation in SUBJECTS for child in tree.children[clause]):
            return None
    end = len(words)
    while end and words[end - 1].upos == "PUNCT":
        end -= 1
    first_end = conjunction
    while first_end and words[first_end - 1].upos == "PUNCT":
        first_end -= 1
    second = {i for i in tree.subtree(conjunct) if words[i].upos != "PUNCT"} - {conjunction}
    after = {i for i in range(conjunction + 1, end) if words[i].upos != "PUNCT"}
    if second != after or not second or not first_end:
        return None
    # Bounds in words become bounds in tokens, unless one is within a multiword token.
    begins = {token.first: place for place, token in enumerate(tree.tokens)} | {len(words): len(tree.tokens)}
    bounds = (first_end, conjunction + 1, end)
    return Clauses(*(begins[i] for i in bounds)) if all(i in begins for i in bounds) else None
