"""Nearest words in context: which words of a corpus are used as this one is used here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.devices import choose_device
from pretune.errors import PretuneError
from pretune.inference.batches import text_batches
from pretune.model import Model, load_model
from pretune.packed import Packed
from pretune.progress import progress
from pretune.text.sentences import split_sentences
from pretune.text.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]
LETTERS_A_SENTENCE = 1000  # longer ones are tables and lists, not sentences


def find_neighbors(
    reference: str | Path,
    word: str,
    text: str,
    documents: Iterable[str],
    *,
    top: int,
    layer: int,
    most: int,
    language: str,
    partial: bool = False,
) -> list[dict[str, Any]]:
    """The words nearest to `word` as it stands in `text`, each where it is nearest, with that sentence.

    `documents` are read until `most` words have been seen.
    """
    model = load_model(reference, partial=partial)
    sentences = list(take_sentences(documents, most, language))
    if not sentences:
        raise PretuneError("no sentences to look for neighbors in; give text with --data")
    vectors, words, places = word_vectors(model, [text, *sentences], layer)
    own = find_word(words, places, word, model.need_tokenizer(), text)
    others = np.flatnonzero(places > 0)
    center = vectors[others].mean(0)  # what all words share says nothing about one of them
    centered = vectors - center
    centered /= np.linalg.norm(centered, axis=1, keepdims=True) + 1e-9
    similarity = centered[others] @ centered[own]
    best: dict[str, dict[str, Any]] = {}
    for rank in np.argsort(-similarity, kind="stable"):
        name = words[int(others[rank])]
        if name.casefold() not in best and any(letter.isalpha() for letter in name):
            sentence = sentences[places[others[rank]] - 1]
            best[name.casefold()] = {"word": name, "similarity": round(float(similarity[rank]), 4), "text": sentence}
        if len(best) == top:
            break
    return list(best.values())


def take_sentences(documents: Iterable[str], most: int, language: str) -> Iterable[str]:
    """Sentences of documents, in order, until there are enough words."""
    seen = 0
    for document in documents:
        for start, end in split_sentences(document, language):
            sentence = " ".join(document[start:end].split())
            if len(sentence) > LETTERS_A_SENTENCE:
                continue
            yield sentence
            seen += sentence.count(" ") + 1
            if seen >= most:
                return


def find_word(words: Sequence[str], places: Array, word: str, tokenizer: Tokenizer, text: str) -> int:
    """Where the word stands in the text, as the tokenizer spells it."""
    spelled = tokenizer.decode(tokenizer.encode(word)).strip().casefold()
    mine = np.flatnonzero(places == 0)
    for index in map(int, mine):
        if words[index].casefold() == spelled:
            return index
    listed = ", ".join(islice((words[index] for index in map(int, mine)), 20))
    raise PretuneError(f"the word {word!r} is not in the text; it has {listed}")


@torch.no_grad()
def word_vectors(model: Model, texts: Sequence[str], layer: int = -1) -> tuple[Array, list[str], Array]:
    """A vector for each word of each text, the mean of its tokens: (m, width), the words, and the text of each."""
    device = choose_device()
    root = model.root.to(device).eval()
    vectors, words, places = [], [], []
    tokenizer = model.need_tokenizer()
    done = 0
    with progress("reading", len(texts)) as bar:
        for batch in text_batches(model, texts):
            packed = batch.packed[0]
            number, spelled, owner = split_words(packed, batch.rows, tokenizer)
            states = root.backbone(packed.to(device), keep=[layer]).last.float()
            at = torch.from_numpy(number).to(device)
            inside = at >= 0
            sums = states.new_zeros(len(spelled), states.shape[1]).index_add_(0, at[inside], states[inside])
            counts = torch.bincount(at[inside], minlength=len(spelled))
            vectors.append((sums / counts[:, None]).cpu().numpy())
            words += spelled
            places.append(owner)
            done += len(batch.rows)
            bar.update(done)
    return np.concatenate(vectors), words, np.concatenate(places)


def split_words(packed: Packed, rows: Array, tokenizer: Tokenizer) -> tuple[Array, list[str], Array]:
    """The word each token belongs to, -1 for special tokens: (n,); the words; and the row of each."""
    ids = packed.ids.numpy()
    assert packed.host_offsets is not None
    offsets = packed.host_offsets
    special = tokenizer.specials[ids]
    starts = tokenizer.word_starts(ids)
    starts[offsets[:-1]] = True
    starts[1:] |= special[:-1]
    starts &= ~special
    number = np.where(special, -1, np.cumsum(starts) - 1)
    firsts, edges = np.flatnonzero(starts), np.append(np.flatnonzero(starts | special), len(ids))
    ends = edges[np.searchsorted(edges, firsts, side="right")]
    spelled = [tokenizer.decode(ids[first:end]).strip() for first, end in zip(firsts, ends, strict=True)]
    owner = rows[np.searchsorted(offsets, firsts, side="right") - 1]
    return number, spelled, owner
