"""Rows for every task that tiny models learn in seconds, with the words of `few_words`."""

from __future__ import annotations

import random
from typing import Any

from tests.support.objective_data import BEASTS, COLORS


def classify_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return texts labeled with their color."""
    rng = random.Random(seed)
    colors = [rng.choice(COLORS[:2]) for _ in range(count)]
    return [{"text": f"i saw a {c} {rng.choice(BEASTS)}", "label": c, "id": i} for i, c in enumerate(colors)]


def tag_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return tagged words: animals with their colors are entities."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        few = [rng.choice(COLORS) for _ in range(rng.randint(0, 2))]
        words, tags = ["i", "saw", *few, rng.choice(BEASTS), "and", "it"], ["O", "O"]
        tags += ["B-X", *["I-X"] * len(few), "O", "O"]
        made.append({"words": words, "tags": tags})
    return made


def coref_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return documents of three or four sentences about two animals; equal animals are coreferent."""
    rng = random.Random(seed)
    made: list[dict[str, object]] = []
    for _ in range(count):
        pair, sentences = rng.sample(BEASTS, 2), list[list[str]]()
        mentions: dict[str, list[list[int]]] = {}
        for number in range(rng.randint(3, 4)):
            beast = pair[number] if number < 2 else rng.choice(pair)
            lead = rng.choice((["saw"], ["i", "saw"], ["it", "saw"]))
            first = sum(map(len, sentences)) + len(lead)
            mentions.setdefault(beast, []).append([first, first + 1])
            sentences.append([*lead, "the", beast, "."])
        clusters = [cluster for cluster in mentions.values() if len(cluster) > 1]
        made.append({"sentences": sentences, "clusters": clusters})
    return made


def answer_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return questions for a color; some passages have no answer."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        color = rng.choice(COLORS) if number % 4 else ""
        passage = f"{rng.choice(BEASTS)} and the {color} {rng.choice(BEASTS)} ."
        made.append({"question": "it is ?", "passage": passage, "answers": [color] if color else []})
    return made


def choose_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return rows with two to four choices, of which the right one has the color of the premise."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        colors = rng.sample(COLORS, rng.randint(2, 4))
        right = rng.randrange(len(colors))
        choices = [f"a {color} {rng.choice(BEASTS)}" for color in colors]
        made.append({"premise": f"i saw {colors[right]}", "choices": choices, "label": right})
    return made


def match_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return two sentences with one marked animal each; the label is whether the first one is a cat."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        row: dict[str, object] = {}
        marked = []
        for number in (1, 2):
            pair = rng.sample(BEASTS[:2], 2)
            text = f"the {pair[0]} saw the {pair[1]}"
            marked.append(rng.choice(pair))
            start = text.index(marked[-1])
            row |= {f"sentence{number}": text, f"start{number}": start, f"end{number}": start + len(marked[-1])}
        made.append({**row, "label": marked[0] == "cat"})
    return made


def rank_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return queries for a color and candidates in random order; candidates of that color are relevant."""
    rng = random.Random(seed)
    made: list[dict[str, object]] = []
    for query in range(count):
        color = rng.choice(COLORS[:2])
        for _ in range(rng.randint(2, 5)):
            other = rng.choice(COLORS[:2])
            text = f"a {other} {rng.choice(BEASTS)}"
            made.append({"qid": f"q{query}", "query": f"i saw {color}", "passage": text, "label": int(other == color)})
    rng.shuffle(made)
    return made


def regress_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return pairs of texts with a score: 100 per color of the first text and 10 per color of the second, plus 1000."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        a, b = rng.randint(0, 3), rng.randint(0, 3)
        first, second = (" ".join([*rng.choices(COLORS, k=k), rng.choice(BEASTS)]) for k in (a, b))
        made.append({"sentence1": first, "sentence2": second, "score": 1000 + 100 * a + 10 * b})
    return made


def multi_label_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return texts with any of three colors, which are their labels."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        colors = [color for color in COLORS[:3] if rng.random() < 0.4]
        made.append({"text": f"i saw {' '.join(colors)} {rng.choice(BEASTS)}", "labels": colors})
    return made


def entity_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return cloze questions with two or three entities, of which the one in the passage is right."""
    rng = random.Random(seed)
    made: list[dict[str, object]] = []
    for _ in range(count):
        beasts = rng.sample(BEASTS, rng.randint(2, 3))
        right = rng.choice(beasts)
        made.append(
            {"passage": f"i saw the {right}", "query": "it is @placeholder .", "entities": beasts, "answers": [right]}
        )
    return made


def positive_pairs(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return pairs of different texts about the same color and animal."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        color, beast = rng.choice(COLORS), rng.choice(BEASTS)
        made.append({"anchor": f"i saw a {color} {beast}", "positive": f"the {beast} is {color} ."})
    return made


def scored_pairs(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return pairs of texts with five times the number of words that they share as a score."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        (a, b), (c, d) = ((rng.choice(COLORS), rng.choice(BEASTS)) for _ in range(2))
        c, d = a if rng.random() < 0.4 else c, b if rng.random() < 0.4 else d
        made.append({"sentence1": f"{a} {b}", "sentence2": f"the {d} is {c}", "score": 5 * ((a == c) + (b == d))})
    return made


def rerank_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Return requests with animals in random order, of which the most expensive one was clicked."""
    rng = random.Random(seed)
    made: list[dict[str, object]] = []
    for request in range(count):
        items = rng.sample(BEASTS, rng.randint(2, 4))
        prices = [round(rng.random(), 3) for _ in items]
        clicks = [int(price == max(prices)) for price in prices]
        made.append({"request": f"r{request}", "items": items, "price": prices, "label": clicks})
    return made


# Objective → the function that makes rows for it.
ROWS: dict[str, Any] = {
    "classify": classify_rows,
    "tag": tag_rows,
    "coref(max_span_width=3,dropout=0)": coref_rows,
    "answer(stride=4)": answer_rows,
    "classify(multi_label=true,class_weight=balanced)": multi_label_rows,
    "regress": regress_rows,
    "choose": choose_rows,
    "match": match_rows,
    "rank": rank_rows,
    "rank(ranking_loss=pointwise)": rank_rows,
    "contrast": positive_pairs,
    "contrast(temperature=1)": scored_pairs,
    "entity": entity_rows,
    "rerank": rerank_rows,
}
