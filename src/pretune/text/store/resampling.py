"""Tokenize the documents of a store anew, with sampled segmentations (subword regularization)."""

from __future__ import annotations

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.text.spans import span_indices
from pretune.text.store.store import Store
from pretune.text.tokenizers.sampled_tokenizer import SampledTokenizer
from pretune.text.tokenizers.tokenizer import Tokenizer

SENTENCES_AT_ONCE = 4096


def check_resampling(store: Store) -> None:
    """Raise an error if the documents of a store cannot be tokenized anew without losing information."""
    if store.has_annotated_spans:
        raise PretuneError(
            f"{store.folder}: the store has annotated spans, each of which is marked as one word, so its texts cannot be "
            "tokenized anew in every epoch; remove batch.bpe_dropout and batch.unigram_alpha"
        )


def resample_store(store: Store, documents: Array, tokenizer: Tokenizer, sampled: SampledTokenizer) -> Store:
    """Return a copy of a token store, held in memory, in which `documents` are tokenized anew by `sampled`.

    `tokenizer` is the tokenizer of the store, which restores the text of each sentence from its tokens. A sentence
    whose text cannot be restored, because it has unknown characters for example, keeps its tokens, and so do all other
    documents.
    """
    first = store.document_offsets
    chosen = span_indices(first[documents], first[documents + 1] - first[documents])
    lengths = np.diff(store.sentence_offsets)
    tokens = np.split(store.read(0, store.tokens), store.sentence_offsets[1:-1])
    for start in range(0, len(chosen), SENTENCES_AT_ONCE):
        some = chosen[start : start + SENTENCES_AT_ONCE]
        texts = tokenizer.decode_many([tokens[sentence] for sentence in some])
        restored = _split_ids(*tokenizer.encode_parts([texts]))
        same = [at for at, ids in enumerate(restored) if np.array_equal(tokens[some[at]], ids)]
        again = _split_ids(*sampled.encode_many([texts[at] for at in same]))
        for at, ids in zip(same, again, strict=False):  # without texts, there is one empty part
            tokens[some[at]], lengths[some[at]] = ids, len(ids)
    ids = np.concatenate(tokens)
    words = tokenizer.word_starts(ids)
    words[np.cumsum(lengths) - lengths] = True  # every sentence starts a word
    return store.with_tokens(ids, words, lengths)


def _split_ids(ids: Array, lengths: Array) -> list[Array]:
    """Split the concatenated token ids of texts into one array per text; `lengths` has the length of each text."""
    return np.split(ids, np.cumsum(lengths)[:-1])
