"""Probing tasks on whether a sentence was changed: bigram shift, odd man out, and coordination inversion.

Each sentence occurs in one version only. The words of changed and original sentences have the same distribution, so that a bag of
words does not tell them apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from pretune.probing.probing_task import Split
from pretune.probing.suites.candidates import SPLITS, Candidate, balance, separate, shuffled
from pretune.probing.suites.parsed_sentence import ParsedSentence, Token, join_tokens, upper_first
from pretune.runtime.randomness import uniform

ORIGINAL, INVERTED, CHANGED = "original", "inverted", "changed"
QUOTES = frozenset('"“”„«»')
MOST_TRIES = 50  # words that are tried as the replacement of a word
LARGEST_RATIO = 2.0  # between the frequencies of the bigrams of a word and of its replacement
FREQUENT = 2000  # a word that is more than one in this many tokens is too vague to be out of place


def separate_sentences(sentences: Sequence[ParsedSentence], seed: int, purpose: str) -> list[ParsedSentence]:
    """Assign a split to every sentence such that no two splits share a text."""
    found = [Candidate(s.text, "", s.split, s.text) for s in sentences]
    splits = {candidate.key: candidate.split for candidate in separate(found, seed, purpose)}
    return [replace(sentence, split=splits[sentence.text]) for sentence in sentences if sentence.text in splits]


def bigram_shift(sentences: Sequence[ParsedSentence], seed: int) -> list[Candidate]:
    """Return sentences, half of them with two neighboring words swapped.

    Neither the first word of a sentence nor punctuation is swapped, and sentences with quotation marks are left out.
    """
    eligible = []
    for sentence in separate_sentences(sentences, seed, "bigram shift"):
        places = [] if any(QUOTES & set(token.form) for token in sentence.tokens) else _swappable(sentence.tokens)
        if places:
            eligible.append((sentence, places))
    found = []
    for split in SPLITS:
        inside = shuffled([pair for pair in eligible if pair[0].split == split], seed, f"bigram shift {split}")
        inside = inside[: len(inside) // 2 * 2]
        for number, (sentence, places) in enumerate(inside):
            changed = number % 2 == 1
            tokens = list(sentence.tokens)
            if changed:
                at = places[int(uniform(seed, f"bigram {split}", number) * len(places))]
                # Spaces stay in their places.
                tokens[at] = replace(tokens[at], form=sentence.tokens[at + 1].form)
                tokens[at + 1] = replace(tokens[at + 1], form=sentence.tokens[at].form)
            label = INVERTED if changed else ORIGINAL
            found.append(Candidate(join_tokens(tokens), label, split, sentence.text))
    return found


def _swappable(tokens: Sequence[Token]) -> list[int]:
    """Return the indices of tokens that can be swapped with the next one to make a bigram shift.

    The two tokens must differ, be separated by a space, not be punctuation, and not begin the sentence.
    """
    return [
        place
        for place, (left, right) in enumerate(pairwise(tokens))
        if place > 0
        and left.space_after
        and not (left.is_punctuation or right.is_punctuation)
        and left.form.casefold() != right.form.casefold()
    ]


class WordPlace(NamedTuple):
    """A word in a sentence that can be replaced by another word."""

    sentence: ParsedSentence
    at: int

    @property
    def token(self) -> Token:
        """The token at this place in the sentence."""
        return self.sentence.tokens[self.at]


def odd_man_out(sentences: Sequence[ParsedSentence], seed: int) -> list[Candidate]:
    """Return sentences, half of them with a noun or verb replaced by another one with the same inflection.

    Two sentences exchange a word, so that the word counts of all sentences together stay the same. Each of the two
    words forms bigrams with its new neighbors that are about as frequent as the original bigrams there. No replaced or
    inserted lemma occurs in two splits.
    """
    bigrams = Counter(pair for s in sentences for pair in pairwise(token.form.casefold() for token in s.tokens))
    pairs: dict[Split | None, list[tuple[WordPlace, WordPlace]]] = defaultdict(list)
    for (split, kind), places in sorted(_replaceable(sentences, seed).items(), key=str):
        pairs[split] += _match(shuffled(places, seed, f"odd {split} {kind}"), bigrams)
    found = []
    for split in SPLITS:
        inside = shuffled(pairs[split], seed, f"odd {split}")
        for number, pair in enumerate(inside[: len(inside) // 2 * 2]):
            changed = number % 2 == 1
            for place, other in (pair, pair[::-1]):
                tokens = list(place.sentence.tokens)
                if changed:
                    tokens[place.at] = replace(place.token, form=other.token.form)
                label = CHANGED if changed else ORIGINAL
                found.append(Candidate(join_tokens(tokens), label, split, place.sentence.text))
    return found


def _replaceable(sentences: Sequence[ParsedSentence], seed: int) -> dict[tuple[Split | None, str], list[WordPlace]]:
    """Return one random replaceable word per sentence, grouped by split and by inflection and letter case.

    No lemma occurs in two splits.
    """
    lemmas = Counter(token.lemma for sentence in sentences for token in sentence.tokens)
    most = max(10, lemmas.total() // FREQUENT)
    divided = separate_sentences(sentences, seed, "odd man out")
    words = [
        Candidate(f"{number}", f"{token.kind} {_letter_case(token.form)}", sentence.split, token.lemma, ((at, at),))
        for number, sentence in enumerate(divided)
        for at, token in enumerate(sentence.tokens[:-1])
        if at > 0 and token.kind and lemmas[token.lemma] <= most and token.form.isalpha()
    ]
    by_sentence: dict[int, list[Candidate]] = defaultdict(list)
    for word in separate(words, seed, "odd man out words"):
        by_sentence[int(word.text)].append(word)
    groups: dict[tuple[Split | None, str], list[WordPlace]] = defaultdict(list)
    for number, members in sorted(by_sentence.items()):
        word = members[int(uniform(seed, "odd place", number) * len(members))]
        groups[word.split, word.label].append(WordPlace(divided[number], word.spans[0][0]))
    return groups


def _letter_case(form: str) -> str:
    """Return the letter case of a word: "lower", "title" (capitalized), or "upper"."""
    return "lower" if form == form.lower() else "title" if form[1:] == form[1:].lower() else "upper"


def _match(places: list[WordPlace], bigrams: Counter[tuple[str, str]]) -> list[tuple[WordPlace, WordPlace]]:
    """Return pairs of words that can be exchanged with each other, given the counts of all bigrams.

    Words for which no partner is found are left out.
    """
    pairs, waiting = [], list(places)
    while len(waiting) > 1:
        first = waiting.pop()
        for back, other in enumerate(reversed(waiting[-MOST_TRIES:]), 1):
            if _exchangeable(first, other, bigrams):
                pairs.append((first, other))
                del waiting[-back]
                break
    return pairs


def _exchangeable(one: WordPlace, other: WordPlace, bigrams: Counter[tuple[str, str]]) -> bool:
    """Return whether two words can replace each other.

    They must differ, and the bigrams with the neighbors must be about as frequent with either word, at both places.
    """
    if one.token.lemma == other.token.lemma or one.token.form.casefold() == other.token.form.casefold():
        return False
    for place, donor in ((one, other), (other, one)):
        around = place.sentence.tokens[place.at - 1 : place.at + 2]
        before, old, after = (token.form.casefold() for token in around)
        new = donor.token.form.casefold()
        for own, foreign in (((before, old), (before, new)), ((old, after), (new, after))):
            # Counts plus one; the place itself does not count as evidence for the word that is there.
            count, other_count = bigrams[own], bigrams[foreign] + 1
            if max(count, other_count) > LARGEST_RATIO * min(count, other_count):
                return False
    return True


def coordination_inversion(sentences: Sequence[ParsedSentence], seed: int) -> list[Candidate]:
    """Return sentences of two coordinated clauses, half of them with the clauses in reverse order.

    Sentences whose first clause is longer, sentences whose second clause is longer, and sentences with clauses of equal
    length are each split evenly into original and inverted ones, so that the lengths of clauses do not predict the
    label.
    """
    found = []
    for split in SPLITS:
        groups: dict[int, list[ParsedSentence]] = {-1: [], 0: [], 1: []}
        for sentence in separate_sentences([s for s in sentences if s.clauses], seed, "coordination inversion"):
            if sentence.split == split and sentence.clauses is not None:
                first, second = sentence.clauses.first_end, sentence.clauses.second_end - sentence.clauses.second_begin
                groups[(first > second) - (first < second)].append(sentence)
        for order in groups:
            groups[order] = shuffled(groups[order], seed, f"clauses {split} {order}")
        room = min(len(groups[-1]), len(groups[1]))
        for order, members in groups.items():
            kept = members[: (len(members) if order == 0 else room) // 2 * 2]
            for number, sentence in enumerate(kept):
                inverted = number % 2 == 1
                text = join_tokens(invert_clauses(sentence)) if inverted else sentence.text
                found.append(Candidate(text, INVERTED if inverted else ORIGINAL, split, sentence.text))
    return balance(found, seed, "coordination inversion")


def invert_clauses(sentence: ParsedSentence) -> list[Token]:
    """Return the tokens of a sentence with its two clauses in reverse order: "A, and B." becomes "B, and A."."""
    assert sentence.clauses is not None
    tokens, (first_end, begin, end) = sentence.tokens, sentence.clauses
    first, link, second, rest = tokens[:first_end], tokens[first_end:begin], tokens[begin:end], tokens[end:]
    lowered = [replace(first[0], form=first[0].inner_form), *first[1:]]
    capital = first[0].form[:1].isupper()
    raised = [replace(second[0], form=upper_first(second[0].form) if capital else second[0].form), *second[1:]]
    # Spaces after the clauses stay in their places.
    lowered[-1] = replace(lowered[-1], space_after=second[-1].space_after)
    raised[-1] = replace(raised[-1], space_after=first[-1].space_after)
    return [*raised, *link, *lowered, *rest]
