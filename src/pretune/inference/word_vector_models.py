"""Word vectors of a file, as a model of their own and as the input of other models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.families.recurrent.word_vectors import WORD_VECTORS, WordVectorsConfig, build
from pretune.models.model import Model, Root
from pretune.nn.embeddings import Embeddings
from pretune.objectives.tasks.layer_features import OnHead
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import say
from pretune.text.corpus.documents import Document
from pretune.text.corpus.sentences import split_sentences
from pretune.text.corpus.word_vector_files import WordVectors
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import words_tokenizer


def make_static(vectors: WordVectors) -> Model:
    """A model of no layers. Unknown words have the mean of all vectors, and what is no word has none (zeros)."""
    lower = all(word == word.lower() for word in vectors.words[:1000])
    tokenizer = words_tokenizer(vectors.words, lowercase=lower)
    config = WordVectorsConfig(vocab_size=tokenizer.size, hidden_size=vectors.width)
    model = Model(WORD_VECTORS, config, Root(build(config)), tokenizer)
    table = torch.zeros(tokenizer.size, vectors.width)
    rows = torch.from_numpy(vectors.vectors)
    first = {word: number for number, word in reversed(list(enumerate(vectors.words)))}
    for place, word in enumerate(tokenizer.vocabulary):
        if word in first and not tokenizer.specials[place]:
            table[place] = rows[first[word]]
    table[tokenizer.role("unknown")] = rows.mean(0)
    model.backbone.embed.tokens.data.copy_(table)
    return model


def fill_in(model: Model, vectors: WordVectors, where: str | Path) -> int:
    """Give the words that a model shares with a file the vectors they have there; how many it shares.

    They are those of a task's own vectors of words, where it has such (`on elmo`); else the model's input.
    """
    tokenizer = model.need_tokenizer()
    table = own_words(model)
    if table.shape[1] != vectors.width:
        raise PretuneError(
            f"{where}: vectors of {vectors.width} numbers, but this model's words have {table.shape[1]}; "
            f"make it with an embedding_size of {vectors.width}, or choose other vectors"
        )
    number = {word: i for i, word in reversed(list(enumerate(vectors.words)))}
    shared = [(row, number[word]) for row, word in enumerate(words_of(tokenizer)) if word in number]
    if not shared:
        raise PretuneError(
            f"{where}: none of its words is in the model's vocabulary; are they of one language and case?"
        )
    rows, places = map(list, zip(*shared, strict=True))
    with torch.no_grad():
        table[rows] = torch.from_numpy(vectors.vectors[places]).to(table)
    say(f"{where}: vectors for {len(shared):,} of {tokenizer.size:,} words of the model")
    return len(shared)


def own_words(model: Model) -> Tensor:
    """The table of word vectors that a file's go to."""
    for head in model.root.heads.values():
        if isinstance(head, OnHead) and hasattr(head.features, "words"):
            return head.features.words
    network: Any = getattr(model.backbone, "encoder", model.backbone)
    if not isinstance(network.embed, Embeddings):
        raise PretuneError(f"{model.family.name}: has no vectors of words to fill in")
    return network.embed.tokens


def words_of(tokenizer: Tokenizer) -> list[str]:
    """Tokens as the words they are, where they begin one: ▁the and Ġthe are the."""
    specials = tokenizer.specials
    return ["" if specials[i] else token.lstrip("▁Ġ") for i, token in enumerate(tokenizer.vocabulary)]


def train_static(
    documents: Iterable[Document], kind: str, language: str, lowercase: bool, **options: Any
) -> WordVectors:
    """Train vectors of the words of some documents with gensim, frequent words first."""
    try:
        from gensim.models import FastText, Word2Vec
    except ImportError as error:
        raise PretuneError('training word vectors needs gensim: pip install "pretune[vectors]"') from error
    cutter: Any = words_tokenizer([], lowercase=lowercase).backend
    sentences = [
        [word for word, _ in cutter.pre_tokenizer.pre_tokenize_str(cutter.normalizer.normalize_str(text[start:end]))]
        for text in (document.text for document in documents)
        for start, end in split_sentences(text, language)
    ]
    if not sentences:
        raise PretuneError("no text to train word vectors on")
    learn: Any = FastText if kind == "fasttext" else Word2Vec
    try:
        model = learn(sentences, sg=int(kind != "cbow"), **options)
    except RuntimeError as error:
        raise PretuneError(
            f"{error}; there is too little text, or --rarest {options.get('min_count')} is too many"
        ) from error
    return WordVectors(list(model.wv.index_to_key), np.asarray(model.wv.vectors, dtype=np.float32))
