"""Vectors of texts and of their words from every layer of a model, to compare layers and models.

Words are the same for every tokenizer, so that two models can be compared word by word: runs of letters and digits, and runs of
punctuation. The vector of a word is the mean over its tokens, that of a text the mean over all its tokens but special ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers.pre_tokenizers import Whitespace

from pretune.inference.hidden_states import reading_network
from pretune.inference.nan_check import check_not_nan
from pretune.models.length_bucketing import text_batches
from pretune.models.model import Model
from pretune.runtime.arrays import Array
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import progress


@dataclass(frozen=True)
class LayerVectors:
    """The vectors of n texts and their m words from all layers of a model, the embeddings first.

    Words that the model does not read, such as those after its maximum length, are left out; `word_keys` identifies the
    words that are present.
    """

    texts: list[Array]  # per layer (n, width)
    words: list[Array]  # per layer (m, width)
    spelled: list[str]  # the words
    word_keys: Array  # (m, 2) the index of the text and of the word in it

    def take_words(self, places: Array) -> LayerVectors:
        """Return a copy that has only the words with the given indices (0 to m - 1), in this order."""
        words = [layer[places] for layer in self.words]
        return LayerVectors(self.texts, words, [self.spelled[int(p)] for p in places], self.word_keys[places])


def split_words(text: str) -> list[tuple[str, int, int]]:
    """Return the words of a text with the start and end of each, in characters.

    >>> split_words("It's 5 pm.")
    [('It', 0, 2), ("'", 2, 3), ('s', 3, 4), ('5', 5, 6), ('pm', 7, 9), ('.', 9, 10)]
    """
    return [(word, start, end) for word, (start, end) in Whitespace().pre_tokenize_str(text)]


@torch.no_grad()
def layer_vectors(model: Model, texts: Sequence[str]) -> LayerVectors:
    """Return the vectors of texts and of their words from all layers of a model; raise an error for blank texts."""
    tokenizer = model.require_tokenizer()
    device = choose_device()
    model.root.to(device).eval()
    network = reading_network(model)
    before = model.family.template.single.index("A")  # special tokens before the text
    _, lengths, offsets = tokenizer.encode_with_offsets(list(texts))
    starts = np.cumsum(lengths) - lengths
    for number in np.flatnonzero(lengths == 0):
        raise PretuneError(f"text {number + 1} has no tokens; remove this text")
    special = model.family.template.num_special_tokens(False)
    parts: list[tuple[int, list[Array], list[Array], list[tuple[str, int]]]] = []
    done = 0
    with progress("reading", len(texts)) as bar:
        for batch in text_batches(model, texts):
            packed = batch.packed[0]
            ends = packed.offsets[1 : len(batch.rows) + 1].tolist()
            layers = [check_not_nan(layer).float() for layer in network(packed.to(device), keep="all").layers]
            first = 0
            for row, end in zip(batch.rows.tolist(), ends, strict=True):
                count = min(int(lengths[row]), end - first - special)
                own = [layer[first + before : first + before + count] for layer in layers]
                spans = offsets[starts[row] : starts[row] + count]
                parts.append((row, *_text_and_words(own, texts[row], spans)))
                first = end
            done += len(batch.rows)
            bar.update(done)
    parts.sort(key=lambda part: part[0])
    depth = len(parts[0][1])
    keys = [(row, place) for row, _, _, found in parts for _, place in found]
    return LayerVectors(
        [np.stack([part[1][layer] for part in parts]) for layer in range(depth)],
        [np.concatenate([part[2][layer] for part in parts]) for layer in range(depth)],
        [word for *_, found in parts for word, _ in found],
        np.array(keys, dtype=np.int64).reshape(-1, 2),
    )


def _text_and_words(
    layers: Sequence[torch.Tensor], text: str, spans: Array
) -> tuple[list[Array], list[Array], list[tuple[str, int]]]:
    """Return the vector of a text, the vectors of its words, and the words that have tokens, with their indices.

    The first two are lists with one array per layer, (width,) and (words, width): means over tokens. `layers` has the
    hidden states (tokens, width) of each layer, and `spans` the start and end character of each token.
    """
    found: list[tuple[str, int]] = []
    members: list[Array] = []  # (tokens,) per word: True for its tokens
    for place, (word, start, end) in enumerate(split_words(text)):
        inside = (spans[:, 0] < end) & (spans[:, 1] > start)
        if inside.any():
            found.append((word, place))
            members.append(inside / inside.sum())
    mixing = np.array(members, dtype=np.float32).reshape(len(members), len(spans))
    weights = torch.from_numpy(mixing).to(layers[0].device)
    means = [layer.mean(0).cpu().numpy() for layer in layers]
    return means, [(weights @ layer).cpu().numpy() for layer in layers], found


def shared_words(first: LayerVectors, second: LayerVectors) -> tuple[LayerVectors, LayerVectors]:
    """Return the vectors of two models, restricted to the words that both models read, in the same order."""
    keys = [{tuple(key): place for place, key in enumerate(one.word_keys.tolist())} for one in (first, second)]
    both = [key for key in keys[0] if key in keys[1]]
    places = [np.array([own[key] for key in both], dtype=np.int64) for own in keys]
    return first.take_words(places[0]), second.take_words(places[1])
