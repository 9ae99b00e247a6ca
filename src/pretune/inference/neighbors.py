"""Nearest neighbors of words in context: the words of a corpus whose contextual vectors are most similar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from pretune.backbones.backbone import LayerSelection
from pretune.models.length_bucketing import text_batches
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference
from pretune.packed import Packed
from pretune.runtime.arrays import Array
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.progress import progress
from pretune.text.corpus.sentences import split_sentences
from pretune.text.tokenizers.character_ids import decode_characters
from pretune.text.tokenizers.tokenizer import Tokenizer

MAX_SENTENCE_LENGTH = 1000  # longer ones are usually tables and lists


def find_neighbors(
    reference: ModelReference,
    word: str,
    text: str | None,
    documents: Iterable[str],
    *,
    top_k: int,
    layer: int | None,
    max_words: int,
    language: str,
    ignore_mismatched: bool = False,
    occurrences: int = 3,
) -> list[dict[str, Any]]:
    """Return the words whose vectors are most similar to that of `word` in `text`, with the sentences they occur in.

    If `text` is None, return the neighbors of some occurrences of the word in the documents; they are chosen such that
    their vectors differ as much as possible, and their number is at most `occurrences`. If `layer` is None, all layers
    are compared, and each row of the result has the number of its layer. `documents` are read until `max_words` words
    have been seen.
    """
    model = load_model(reference, ignore_mismatched=ignore_mismatched)
    if text is not None:
        check_word(model, word, text)  # before the documents are read
    sentences = list(take_sentences(documents, max_words, language))
    if not sentences:
        raise PretuneError("there are no sentences to search for neighbors; give files with text as --corpus")
    texts = sentences if text is None else [text, *sentences]
    layers, words, places = word_vectors(model, texts, "all" if layer is None else [layer])
    others = np.flatnonzero(places >= (text is not None))
    centered = [_centered_units(vectors, others) for vectors in layers]
    found = {}  # use → word and the words to compare it with
    if text is not None:
        found[0] = find_word(words, places, word, model.require_tokenizer(), text), others
    else:
        same = [index for index, name in enumerate(words) if name.casefold() == word.casefold()]
        if not same:
            raise PretuneError(
                f"the word {word!r} is not in the {len(sentences):,} sentences that were read; give more text"
            )
        for use, own in enumerate(choose_diverse(centered[-1], same, occurrences), 1):
            found[use] = own, others[places[others] != places[own]]
    rows: list[dict[str, Any]] = []
    for use, (own, compared) in found.items():
        for number, vectors in enumerate(centered):
            which: dict[str, Any] = {"use": use, "in": texts[places[own]]} if use else {}
            which |= {"layer": number} if layer is None else {}
            nearest = nearest_words(own, vectors, words, places, texts, compared, top_k)
            rows += ({**which, **row} for row in nearest)
    return rows


def _centered_units(vectors: Array, others: Array) -> Array:
    """Return vectors, (m, width), minus the mean of the vectors at the indices `others`, scaled to length 1.

    Contextual vectors have a large common component, which would hide the differences between words.
    """
    centered = vectors - vectors[others].mean(0)
    centered /= np.linalg.norm(centered, axis=1, keepdims=True) + 1e-9
    return centered


def nearest_words(
    own: int, vectors: Array, words: Sequence[str], places: Array, texts: Sequence[str], others: Array, top_k: int
) -> list[dict[str, Any]]:
    """Return the `top_k` words most similar to the word with the index `own`, with similarities and sentences.

    `vectors`, `words` and `places` have the vector, the word, and the index of the text for each word occurrence;
    `others` has the indices of the occurrences to compare with.
    """
    similarity = vectors[others] @ vectors[own]
    best: dict[str, dict[str, Any]] = {}
    for rank in np.argsort(-similarity, kind="stable"):
        name = words[int(others[rank])]
        if name.casefold() not in best and any(letter.isalpha() for letter in name):
            sentence = texts[places[others[rank]]]
            best[name.casefold()] = {"word": name, "similarity": round(float(similarity[rank]), 4), "text": sentence}
        if len(best) == top_k:
            break
    return list(best.values())


def choose_diverse(vectors: Array, among: Sequence[int], count: int) -> list[int]:
    """Return up to `count` indices in `among` whose vectors differ as much as possible.

    The first index is chosen first; then, one after the other, the index whose vector is least similar to those that
    are already chosen.
    """
    chosen = [among[0]]
    nearest = vectors[list(among)] @ vectors[chosen[0]]
    while len(chosen) < min(count, len(among)):
        chosen.append(among[int(nearest.argmin())])
        nearest = np.maximum(nearest, vectors[list(among)] @ vectors[chosen[-1]])
    return chosen


def take_sentences(documents: Iterable[str], max_words: int, language: str) -> Iterable[str]:
    """Yield the sentences of documents, in order, until they have `max_words` words in all."""
    seen = 0
    for document in documents:
        for start, end in split_sentences(document, language):
            sentence = " ".join(document[start:end].split())
            if len(sentence) > MAX_SENTENCE_LENGTH:
                continue
            yield sentence
            seen += sentence.count(" ") + 1
            if seen >= max_words:
                return


def check_word(model: Model, word: str, text: str) -> None:
    """Raise an error if a text does not contain a word."""
    tokenizer = model.require_tokenizer()
    batches = text_batches(model, [text])
    words = [name for batch in batches for name in split_words(batch.packed[0], batch.rows, tokenizer)[1]]
    find_word(words, np.zeros(len(words), np.int64), word, tokenizer, text)


def find_word(words: Sequence[str], places: Array, word: str, tokenizer: Tokenizer, text: str) -> int:
    """Return the index in `words` of the first occurrence of `word` in `text`, which is the text with the index 0.

    `places` has, for each of the `words`, the index of its text.
    """
    spelled = (word if tokenizer.characters else tokenizer.decode(tokenizer.encode(word)).strip()).casefold()
    in_text = np.flatnonzero(places == 0)
    for index in map(int, in_text):
        if words[index].casefold() == spelled:
            return index
    known = [words[index] for index in map(int, in_text)]
    instead = f"choose one of {', '.join(known[:20])}"
    raise PretuneError(f"the word {word!r} is not in the text; {suggest(word, known, instead)}")


@torch.no_grad()
def word_vectors(
    model: Model, texts: Sequence[str], keep: LayerSelection = "last"
) -> tuple[list[Array], list[str], Array]:
    """Return the vectors of all m words in texts, (m, width) per layer, the words, and the index of each word's text.

    `keep` selects the layers: "last", "all", or a list of layer numbers.
    """
    device = choose_device()
    root = model.root.ready(device)
    vectors: list[list[Array]] = []
    words: list[str] = []
    places = []
    tokenizer = model.require_tokenizer()
    done = 0
    with progress("reading", len(texts)) as bar:
        for batch in text_batches(model, texts):
            packed = batch.packed[0]
            number, spelled, owner = split_words(packed, batch.rows, tokenizer)
            layers = [states.float() for states in root.backbone(packed.to(device), keep=keep).layers]
            at = torch.from_numpy(number).to(device)
            inside = at >= 0
            counts = torch.bincount(at[inside], minlength=len(spelled))
            sums = [
                states.new_zeros(len(spelled), states.shape[1]).index_add_(0, at[inside], states[inside])
                for states in layers
            ]
            vectors.append([(total / counts[:, None]).cpu().numpy() for total in sums])
            words += spelled
            places.append(owner)
            done += len(batch.rows)
            bar.update(done)
    return [np.concatenate(parts) for parts in zip(*vectors, strict=True)], words, np.concatenate(places)


def split_words(packed: Packed, rows: Array, tokenizer: Tokenizer) -> tuple[Array, list[str], Array]:
    """Group the n tokens of a batch into words.

    Return three results: the index of the word that each token belongs to, (n,), where special tokens have -1; the
    words; and the index of the text of each word. `rows` has the index of the text of each sequence in the batch.
    """
    ids = packed.ids.numpy()
    assert packed.host_offsets is not None
    offsets = packed.host_offsets
    special = tokenizer.specials[ids]
    if "characters" in packed.columns:
        special = special & (ids != tokenizer.role("unknown"))
    starts = tokenizer.word_starts(ids)
    starts[offsets[:-1]] = True
    starts[1:] |= special[:-1]
    starts &= ~special
    number = np.where(special, -1, np.cumsum(starts) - 1)
    firsts, edges = np.flatnonzero(starts), np.append(np.flatnonzero(starts | special), len(ids))
    ends = edges[np.searchsorted(edges, firsts, side="right")]
    if "characters" in packed.columns:  # they also spell words that are not in the vocabulary
        spelled = [decode_characters(row) for row in packed.columns["characters"][torch.from_numpy(firsts)].numpy()]
    else:
        spelled = [tokenizer.decode(ids[first:end]).strip() for first, end in zip(firsts, ends, strict=True)]
    owner = rows[np.searchsorted(offsets, firsts, side="right") - 1]
    return number, spelled, owner
