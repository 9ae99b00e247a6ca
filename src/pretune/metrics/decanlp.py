"""Compute the metrics of decaNLP (McCann et al., 2018, arXiv:1806.08730), each between 0 and 1; the decaScore is their sum.

nF1 (SQuAD, QA-SRL) is the F1 of normalized words, the highest over all correct answers; cF1 (QA-ZRE) is the F1 over a corpus in
which some questions have no answer; dsEM (WOZ) is how often the state of a dialogue is right after a turn; lfEM (WikiSQL) is how
often the logical form of a query is right. Summaries have the mean of three ROUGEs, and translations BLEU, ignoring case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.metrics.additive import AdditiveMetrics, mean_metrics
from pretune.metrics.generated_text import bleu, rouge
from pretune.metrics.question_answering import answer_f1, normalize
from pretune.runtime.arrays import Array

UNANSWERABLE = "unanswerable"
AGGREGATIONS = ("", "max", "min", "count", "sum", "avg")  # of WikiSQL, by index
CONDITIONS = ("=", ">", "<", "op")
QUERY = re.compile(r"select (.*?) from table(?: where (.*))?")
Conditions = list[tuple[str, int, str]]  # column, condition, value


def normalized_f1(expected: Sequence[Sequence[str]], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return nF1: the mean over questions of the highest word F1 of the predicted answer with any correct answer.

    >>> normalized_f1([["the tower", "a tall tower"]], ["Tall tower!"]).compute()
    {'nf1': 1.0}
    """
    return mean_metrics(
        [[max(answer_f1(gold, text) for gold in golds)] for golds, text in zip(expected, predicted, strict=True)], "nf1"
    )


def corpus_f1(expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return cF1: the F1 over all questions, where precision counts the answered questions and recall the answerable ones.

    An answer is right if it has the same words, in any order. The answer "Unanswerable" stands for no answer.

    >>> corpus_f1(["Ann and Bo", "Unanswerable", "Rome"], ["Bo, Ann", "Paris", "Rome"]).compute()
    {'cf1': 0.8}
    """
    rows = []
    for gold, text in zip(expected, predicted, strict=True):
        right, given = (Counter(word for word in normalize(side).split() if word != "and") for side in (gold, text))
        answerable, answered = (words != Counter([UNANSWERABLE]) for words in (right, given))
        rows.append([answerable and answered and right == given, answered, answerable])

    def from_sums(sums: Array) -> dict[str, float]:
        correct, answered, answerable = sums
        return {"cf1": float(2 * correct / (answered + answerable)) if answered + answerable else 0.0}

    return AdditiveMetrics(np.array(rows, dtype=np.float64).reshape(-1, 3), from_sums)


def dialogue_state(dialogues: Sequence[Any], expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return dsEM: how often the values of all slots are right after a turn, given the changes of state turn by turn.

    `dialogues` has the dialogue of each turn; the turns of a dialogue are in order. A wrong change also makes the turns
    after it wrong, until it is corrected.

    >>> dialogue_state([0, 0], ["food: thai;", "area: north;"], ["food: thai;", "area: south;"]).compute()
    {'ds_em': 0.5}
    """
    states: dict[Any, tuple[dict[str, str], dict[str, str]]] = {}
    rows = []
    for dialogue, *changes in zip(dialogues, expected, predicted, strict=True):
        both = states.setdefault(dialogue, ({}, {}))
        for state, change in zip(both, changes, strict=True):
            state.update(parse_state_change(change))
        rows.append([both[0] == both[1]])
    return mean_metrics(rows, "ds_em")


def parse_state_change(text: str) -> dict[str, str]:
    """Parse a change of a dialogue state, and return a mapping from slots to new values.

    The slots are listed before the semicolon.

    >>> parse_state_change("food: thai, area: north; phone")
    {'food': 'thai', 'area': 'north'}
    """
    parts = (part.split(":") for part in text.lower().partition(";")[0].split(","))
    return {part[0].strip(): part[1].strip() for part in parts if len(part) == 2}


def logical_form(golds: Sequence[dict[str, Any]], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return lfEM: how often a predicted query has the logical form of the gold query, ignoring case.

    Each of `golds` has `sql`, a query of WikiSQL, and `header`, the column names of its table.

    >>> gold = {"sql": {"sel": 1, "agg": 3, "conds": [[0, 0, "Ann"]]}, "header": ["Name", "Score"]}
    >>> logical_form([gold], ["select count score from table where name = ann"]).compute()
    {'lf_em': 1.0}
    """
    pairs = zip(golds, predicted, strict=True)
    return mean_metrics([[gold_query(gold) == parse_query(text, gold["header"])] for gold, text in pairs], "lf_em")


def gold_query(gold: dict[str, Any]) -> tuple[str, int, Conditions]:
    """Return the column, the aggregation and the conditions of a gold query, with names and values in lower case."""
    header, query = [_plain(name) for name in gold["header"]], gold["sql"]
    conditions = [(header[column], sign, _plain(value)) for column, sign, value in query["conds"]]
    return header[query["sel"]], query["agg"], conditions


def parse_query(text: str, header: Sequence[str]) -> tuple[str, int, Conditions] | None:
    """Return the column, the aggregation and the conditions of a query as text; None if it is not a query on the table.

    >>> parse_query("SELECT MAX Score FROM table WHERE Name = Ann AND Score > 3", ["Name", "Score"])
    ('score', 1, [('name', 0, 'ann'), ('score', 1, '3')])
    """
    columns = sorted(filter(None, map(_plain, header)), key=len, reverse=True)
    found = QUERY.fullmatch(_plain(text))
    if not found:
        return None
    selected, aggregation = found[1], 0
    if selected not in columns:
        name, _, selected = selected.partition(" ")
        if name not in AGGREGATIONS or selected not in columns:
            return None
        aggregation = AGGREGATIONS.index(name)
    if found[2] is None:
        return selected, aggregation, []
    start = re.compile(rf"(?:^|\s+and\s+)({'|'.join(map(re.escape, columns))}) (=|>|<|op) ")
    begun = list(start.finditer(found[2]))
    if not begun or begun[0].start():
        return None
    ends = [*(match.start() for match in begun[1:]), len(found[2])]
    values = [found[2][match.end() : end].strip() for match, end in zip(begun, ends, strict=True)]
    signs = [CONDITIONS.index(match[2]) for match in begun]
    names = [match[1] for match in begun]
    return selected, aggregation, list(zip(names, signs, values, strict=True))


def mean_rouge(expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return the mean of ROUGE-1, ROUGE-2 and ROUGE-L.

    >>> mean_rouge(["the cat sat"], ["the cat sat"]).compute()
    {'mean_rouge': 1.0}
    """
    scores = rouge(expected, predicted)
    return AdditiveMetrics(
        scores.values, lambda sums: {"mean_rouge": float(np.mean(list(scores.from_sums(sums).values())))}
    )


def lowercase_bleu(expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return corpus BLEU, ignoring case.

    >>> lowercase_bleu(["The cat sat on the mat"], ["the cat sat on the mat"]).compute()
    {'bleu_lowercase': 1.0}
    """
    scores = bleu([text.lower() for text in expected], [text.lower() for text in predicted])
    return AdditiveMetrics(scores.values, lambda sums: {"bleu_lowercase": scores.from_sums(sums)["bleu"]})


def _plain(value: Any) -> str:
    return " ".join(str(value).lower().split())
