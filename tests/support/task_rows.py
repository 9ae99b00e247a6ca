"""Rows of every task that tiny models learn in seconds, from the words of `few_words`."""

from __future__ import annotations

import random
from typing import Any

from tests.support.objective_data import BEASTS, COLORS


def classify_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Texts whose label is their color."""
    chance = random.Random(seed)
    colors = [chance.choice(COLORS[:2]) for _ in range(count)]
    return [{"text": f"i saw a {c} {chance.choice(BEASTS)}", "label": c, "id": i} for i, c in enumerate(colors)]


def tag_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Words, of which beasts are entities, with their colors."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        few = [chance.choice(COLORS) for _ in range(chance.randint(0, 2))]
        words, tags = ["i", "saw", *few, chance.choice(BEASTS), "and", "it"], ["O", "O"]
        tags += ["B-X", *["I-X"] * len(few), "O", "O"]
        made.append({"words": words, "tags": tags})
    return made


def answer_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Which color it was; none is the answer where there is none."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        color = chance.choice(COLORS) if number % 4 else ""
        passage = f"{chance.choice(BEASTS)} and the {color} {chance.choice(BEASTS)} ."
        made.append({"question": "it is ?", "passage": passage, "answers": [color] if color else []})
    return made


def choose_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """The right choice has the color of the premise; two to four choices."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        colors = chance.sample(COLORS, chance.randint(2, 4))
        right = chance.randrange(len(colors))
        choices = [f"a {color} {chance.choice(BEASTS)}" for color in colors]
        made.append({"premise": f"i saw {colors[right]}", "choices": choices, "label": right})
    return made


def match_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Two sentences with two beasts each, one of them marked; the label is whether the first marked one is a cat."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        row: dict[str, object] = {}
        marked = []
        for number in (1, 2):
            pair = chance.sample(BEASTS[:2], 2)
            text = f"the {pair[0]} saw the {pair[1]}"
            marked.append(chance.choice(pair))
            start = text.index(marked[-1])
            row |= {f"sentence{number}": text, f"start{number}": start, f"end{number}": start + len(marked[-1])}
        made.append({**row, "label": marked[0] == "cat"})
    return made


def rank_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Queries for a color, with candidates in any order of the file; those of that color are relevant."""
    chance = random.Random(seed)
    made: list[dict[str, object]] = []
    for query in range(count):
        color = chance.choice(COLORS[:2])
        for _ in range(chance.randint(2, 5)):
            other = chance.choice(COLORS[:2])
            text = f"a {other} {chance.choice(BEASTS)}"
            made.append({"qid": f"q{query}", "query": f"i saw {color}", "passage": text, "label": int(other == color)})
    chance.shuffle(made)
    return made


def regress_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Pairs of texts, and a number that is a hundred for each color of the first and ten for each of the second."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        a, b = chance.randint(0, 3), chance.randint(0, 3)
        first, second = (" ".join([*chance.choices(COLORS, k=k), chance.choice(BEASTS)]) for k in (a, b))
        made.append({"sentence1": first, "sentence2": second, "score": 1000 + 100 * a + 10 * b})
    return made


def multi_label_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Texts with any number of three colors; these are the labels."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        colors = [color for color in COLORS[:3] if chance.random() < 0.4]
        made.append({"text": f"i saw {' '.join(colors)} {chance.choice(BEASTS)}", "labels": colors})
    return made


def entity_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Who of two or three is of the first color of the passage?"""
    chance = random.Random(seed)
    made: list[dict[str, object]] = []
    for _ in range(count):
        beasts = chance.sample(BEASTS, chance.randint(2, 3))
        right = chance.choice(beasts)
        made.append(
            {"passage": f"i saw the {right}", "query": "it is @placeholder .", "entities": beasts, "answers": [right]}
        )
    return made


def positive_pairs(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Texts of a color and a beast, in other words."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        color, beast = chance.choice(COLORS), chance.choice(BEASTS)
        made.append({"anchor": f"i saw a {color} {beast}", "positive": f"the {beast} is {color} ."})
    return made


def scored_pairs(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Pairs of texts, and how many of two words they share, times five."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        (a, b), (c, d) = ((chance.choice(COLORS), chance.choice(BEASTS)) for _ in range(2))
        c, d = a if chance.random() < 0.4 else c, b if chance.random() < 0.4 else d
        made.append({"sentence1": f"{a} {b}", "sentence2": f"the {d} is {c}", "score": 5 * ((a == c) + (b == d))})
    return made


# Objective → the function that makes rows for it.
ROWS: dict[str, Any] = {
    "classify": classify_rows,
    "tag": tag_rows,
    "answer(stride=4)": answer_rows,
    "classify(multi=true,weights=balanced)": multi_label_rows,
    "regress": regress_rows,
    "choose": choose_rows,
    "match": match_rows,
    "rank": rank_rows,
    "rank(over=row)": rank_rows,
    "contrast": positive_pairs,
    "contrast(temperature=1)": scored_pairs,
    "entity": entity_rows,
}
