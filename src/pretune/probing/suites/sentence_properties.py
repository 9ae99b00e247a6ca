"""Probing tasks on properties of sentences, such as length or tense: seven of the ten of Conneau et al. (2018).

All are balanced over labels. Sentences have 5 to 28 tokens, as in the published tasks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from pretune.probing.probing_task import Split
from pretune.probing.suites.candidates import (
    Candidate,
    balance,
    draw_splits,
    fill_dev,
    frequent_labels,
    limit_per_key,
    separate,
    shuffled,
)
from pretune.probing.suites.parsed_sentence import InflectedWord, ParsedSentence

LENGTHS = ((5, 8), (9, 12), (13, 16), (17, 20), (21, 25), (26, 28))  # tokens
MOST_PER_WORD = 50  # examples of one verb or noun, so that no word makes up a task
FREQUENT_WORDS = 100  # the most frequent words, mostly function words, are not asked for
WORD_LETTERS = 4  # in a word that is asked for
WORD_COUNTS = (1000, 500, 200, 100, 50, 20, 10, 5)  # numbers of words to try; the published task has 1000
MOST_TOPS = 19  # sequences of top constituents, in addition to all others
OTHER = "OTHER"


def sentence_length(sentences: Sequence[ParsedSentence], seed: int) -> list[Candidate]:
    """Return sentences labeled with the range that contains their number of tokens, such as "05-08"."""
    found = []
    for sentence in sentences:
        for first, last in LENGTHS:
            if first <= len(sentence.tokens) <= last:
                found.append(Candidate(sentence.text, f"{first:02}-{last:02}", sentence.split, sentence.text))
    return balance(separate(found, seed, "sentence length"), seed, "sentence length")


def word_content(sentences: Sequence[ParsedSentence], seed: int) -> list[Candidate]:
    """Return sentences labeled with a word of medium frequency, the only such word in the sentence."""
    forms = [Counter(token.form.casefold() for token in sentence.tokens) for sentence in sentences]
    totals = Counter[str]()
    for counts in forms:
        totals.update(counts)
    ranked = sorted(totals, key=lambda word: (-totals[word], word))
    medium = [word for word in ranked[FREQUENT_WORDS:] if len(word) >= WORD_LETTERS and word.isalpha()]
    best: list[Candidate] = []
    for most in WORD_COUNTS:
        words = set(medium[:most])
        found = []
        for sentence, counts in zip(sentences, forms, strict=True):
            inside = [word for word in counts if word in words]
            if len(inside) == 1 and counts[inside[0]] == 1:
                found.append(Candidate(sentence.text, inside[0], sentence.split, sentence.text))
        kept = balance(separate(found, seed, "word content"), seed, "word content", choose=True)
        best = max(best, kept, key=_information)
    return best


def _information(candidates: Sequence[Candidate]) -> float:
    """Return the number of examples times the log of the number of labels.

    Tasks choose the set of labels with the largest value, since more labels leave fewer examples for each.
    """
    return len(candidates) * math.log(max(1, len({candidate.label for candidate in candidates})))


def tree_depth(sentences: Sequence[ParsedSentence], seed: int) -> list[Candidate]:
    """Return sentences labeled with the depth of their trees, balanced so that length does not predict depth.

    Within each split, there are equally many sentences of a given length for every depth. The labels are the range of
    depths that maximizes the number of examples times the logarithm of the number of depths.
    """
    cells: dict[tuple[Split | None, int, int], list[ParsedSentence]] = defaultdict(list)
    for sentence in shuffled(sentences, seed, "tree depth"):
        cells[sentence.split, len(sentence.tokens), sentence.depth].append(sentence)
    places = sorted({(split, length) for split, length, _ in cells}, key=str)
    depths = sorted({sentence.depth for sentence in sentences})
    best: list[Candidate] = []
    for first in range(len(depths)):
        for last in range(first + 1, len(depths)):
            found = []
            for split, length in places:
                columns = [cells.get((split, length, depth), []) for depth in depths[first : last + 1]]
                # A row has one sentence per depth, all of the same length, and stays in one split.
                for number, row in enumerate(zip(*columns, strict=False)):
                    found += [Candidate(s.text, f"{s.depth:02}", split, f"{length} {number}") for s in row]
            kept = separate_rows(found, seed)
            if len(frequent_labels(kept)) == last + 1 - first:
                best = max(best, kept, key=_information)
    return best


def separate_rows(candidates: Sequence[Candidate], seed: int) -> list[Candidate]:
    """Return the candidates of `tree_depth` with splits: those of their files or, if files have none, random ones.

    Candidates with the same key, which are sentences of equal length with different depths, get the same random split.
    """
    if all(candidate.split is not None for candidate in candidates):
        return fill_dev(candidates, seed, "tree depth")
    counts = Counter(candidate.key for candidate in candidates)
    drawn = draw_splits({key: ("", count) for key, count in counts.items()}, seed, "tree depth")
    return [replace(candidate, split=drawn[candidate.key]) for candidate in candidates]


def top_constituents(sentences: Sequence[ParsedSentence], seed: int) -> list[Candidate]:
    """Return sentences labeled with the constituents at the top of their trees, such as NP_VP_., or OTHER if rare."""
    found = [sentence for sentence in sentences if sentence.top]
    counts = Counter(sentence.top for sentence in found)
    frequent = set(sorted(counts, key=lambda top: (-counts[top], str(top)))[:MOST_TOPS])
    candidates = [Candidate(s.text, str(s.top) if s.top in frequent else OTHER, s.split, s.text) for s in found]
    return balance(separate(candidates, seed, "top constituents"), seed, "top constituents", choose=True)


def past_present(sentences: Sequence[ParsedSentence], seed: int) -> list[Candidate]:
    """Return sentences labeled with the tense of the main verb; no verb is in two splits."""
    return _inflection(sentences, lambda sentence: sentence.tense, seed, "past present")


def subj_number(sentences: Sequence[ParsedSentence], seed: int) -> list[Candidate]:
    """Return sentences labeled with the number of the subject of the main clause; no noun is in two splits."""
    return _inflection(sentences, lambda sentence: sentence.subject, seed, "subject number")


def obj_number(sentences: Sequence[ParsedSentence], seed: int) -> list[Candidate]:
    """Return sentences labeled with the number of the direct object of the main clause; no noun is in two splits."""
    return _inflection(sentences, lambda sentence: sentence.object, seed, "object number")


def _inflection(
    sentences: Sequence[ParsedSentence], word: Callable[[ParsedSentence], InflectedWord | None], seed: int, purpose: str
) -> list[Candidate]:
    """Return balanced examples labeled with an inflection, such as tense, of the word that `word` selects.

    No lemma of a selected word occurs in two splits. `purpose` distinguishes the random draws of different tasks.
    """
    found = [Candidate(s.text, at.label, s.split, at.lemma) for s in sentences if (at := word(s)) is not None]
    return balance(separate(limit_per_key(found, MOST_PER_WORD, seed, purpose), seed, purpose), seed, purpose)
