"""Measure whether contextual embeddings distinguish word senses without training, on pairs of Words in Context.

    python perf/words_in_context.py MODEL… --pairs WiC/train.jsonl WiC/val.jsonl [--limit 2000]

The score is how often the cosine similarity of a word's embeddings is higher in a pair with the same sense than in one
with two senses (the area under the ROC curve; 0.5 is the chance level), by layer. Layer 0 is the static word embedding.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
from common import read_results
from sklearn.metrics import roc_auc_score

from pretune.inference.neighbors import word_vectors
from pretune.models.loading import load_model


def places_of(pairs: list[dict[str, Any]], words: list[str], owner: Any) -> np.ndarray[Any, Any]:
    """Return (pairs, 2): the index of the word in each sentence among all words, or -1 if it is split differently."""
    by_text: dict[int, dict[str, int]] = {}
    for number, (word, text) in enumerate(zip(words, owner.tolist(), strict=True)):
        by_text.setdefault(text, {}).setdefault(word.casefold(), number)
    found = [
        [
            by_text.get(2 * row + side, {}).get(pair[f"sentence{side + 1}"][pair[f"start{side + 1}"] : pair[f"end{side + 1}"]].casefold(), -1)
            for side in (0, 1)
        ]
        for row, pair in enumerate(pairs)
    ]  # fmt: skip
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--pairs", nargs="+", required=True)
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    os.environ["PRETUNE_PROGRESS"] = "none"
    pairs = read_results(options.pairs)[: options.limit]
    texts = [pair[side] for pair in pairs for side in ("sentence1", "sentence2")]
    same = np.array([pair["label"] for pair in pairs])
    for name in options.models:
        model = load_model(name)
        for layer in range(model.backbone.depth + 1):
            vectors, words, owner = word_vectors(model, texts, layer)
            places = places_of(pairs, words, owner)
            known = (places >= 0).all(1)
            centered = vectors - vectors.mean(0)
            centered /= np.linalg.norm(centered, axis=1, keepdims=True) + 1e-9
            first, second = (centered[places[known, side]] for side in (0, 1))
            area = roc_auc_score(same[known], (first * second).sum(1))
            print(f"{name}, layer {layer}: {area:.3f} ({known.sum()} pairs)", flush=True)


if __name__ == "__main__":
    main()
