"""Static word vectors: as a model of their own, as the input embedding of other models, and their training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor

from pretune.families.recurrent.word_vectors import WORD_VECTORS, WordVectorsConfig, build
from pretune.inference.glove import train_glove
from pretune.models.adapt_vocabulary import with_vocabulary
from pretune.models.model import Model, Network
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.objectives.tasks.layer_features import LayerFeaturesHead
from pretune.runtime.errors import PretuneError
from pretune.runtime.optional_imports import import_optional
from pretune.runtime.progress import log_info
from pretune.text.corpus.documents import Document
from pretune.text.corpus.sentences import split_sentences
from pretune.text.corpus.word_vector_files import WordVectors
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import word_level_tokenizer


def make_word_vector_model(vectors: WordVectors) -> Model:
    """Return a model without layers whose embedding is a table of word vectors; unknown words get the mean vector."""
    lower = all(word == word.lower() for word in vectors.words[:1000])
    tokenizer = word_level_tokenizer(vectors.words, lowercase=lower)
    config = WordVectorsConfig(vocab_size=tokenizer.size, hidden_size=vectors.width)
    model = Model(WORD_VECTORS, config, Network(build(config)), tokenizer)
    table = torch.zeros(tokenizer.size, vectors.width)
    rows = torch.from_numpy(vectors.vectors)
    for place, word in enumerate(tokenizer.vocabulary):
        if word in vectors.row and not tokenizer.specials[place]:
            table[place] = rows[vectors.row[word]]
    table[tokenizer.role("unknown")] = rows.mean(0)
    model.backbone.embed.tokens.data.copy_(table)
    return model


def copy_word_vectors(model: Model, vectors: WordVectors, where: str | Path) -> int:
    """Copy word vectors into a model's embedding for the words of its vocabulary; return the number of words found.

    If the vocabulary consists of whole words, those that are not in a fastText model get a vector from their n-grams.
    If the head of a task has its own word embedding, as with ELMo, the vectors are copied to it and not to the model's
    input embedding. `where` is the file of the vectors, for messages.
    """
    tokenizer = model.require_tokenizer()
    table = word_embedding_table(model)
    if table.shape[1] != vectors.width:
        raise PretuneError(
            f"{where}: the vectors have {vectors.width} dimensions, but this model's embedding has {table.shape[1]}; "
            f"build the model with an embedding_size of {vectors.width}, or choose other vectors"
        )
    known = vectors if tokenizer.kind == "WordLevel" else replace(vectors, ngrams=None)
    found = [(row, known.vector(word)) for row, word in enumerate(token_words(tokenizer)) if word]
    shared = [(row, vector) for row, vector in found if vector is not None]
    if not shared:
        raise PretuneError(
            f"{where}: none of the words in this file is in the model's vocabulary; check that language and case are the same"
        )
    with torch.no_grad():
        table[[row for row, _ in shared]] = torch.from_numpy(np.stack([vector for _, vector in shared])).to(table)
    log_info(f"{where}: found vectors for {len(shared):,} of {tokenizer.size:,} tokens of the model")
    return len(shared)


def word_embedding_table(model: Model) -> Tensor:
    """Return a model's word embedding matrix, (vocabulary, width): that of a head, if any, else the input embedding."""
    for head in model.root.heads.values():
        if isinstance(head, LayerFeaturesHead) and hasattr(head.features, "words"):
            return head.features.words
    network: Any = getattr(model.backbone, "encoder", model.backbone)
    if not isinstance(network.embed, Embeddings):
        raise PretuneError(
            f"{model.family.name} has no word embedding to which the vectors could be copied; choose a "
            "model of another family"
        )
    return network.embed.tokens


def expand_vocabulary(model: Model, vectors: WordVectors, where: str | Path) -> tuple[Model, dict[str, Any]]:
    """Return a copy of a model that also knows the words of a file of word vectors, and a report (Kiros et al., 2015).

    A linear map from the word vectors to the model's word embedding is fitted by least squares to the words that are in
    both, and gives the embedding of the words that are only in the file. The vocabulary must consist of whole words.
    `where` is the file of the vectors, for messages.
    """
    tokenizer = model.require_tokenizer()
    if tokenizer.kind != "WordLevel" or tokenizer.target is not tokenizer:
        raise PretuneError(
            f"{where}: only a model with one vocabulary of whole words can be expanded, and this one has {tokenizer.kind} "
            "subwords or a separate target vocabulary; train a model with tokenizer.kind=words"
        )
    old_words = token_words(tokenizer)
    shared = [(row, vectors.row[word]) for row, word in enumerate(old_words) if word in vectors.row]
    if len(shared) < vectors.width:
        raise PretuneError(
            f"{where}: only {len(shared):,} words of the file are in the model's vocabulary, but a linear map of "
            f"{vectors.width} dimensions needs at least as many words; check that language and case are the same"
        )
    rows, places = (list(column) for column in zip(*shared, strict=True))
    table = word_embedding_table(model)[rows].detach().double().cpu()
    inputs = torch.from_numpy(vectors.vectors[places]).double()
    linear_map = torch.linalg.lstsq(inputs, table, driver="gelsd").solution
    variance = ((table - table.mean(0)) ** 2).sum()
    explained = 1.0 - float(((inputs @ linear_map - table) ** 2).sum() / variance)
    known = {*old_words, *tokenizer.vocabulary}
    new = {word: vectors.row[word] for word in vectors.words if word and word not in known}
    content = json.loads(tokenizer.backend.to_str())
    content["model"]["vocab"] |= {word: tokenizer.size + number for number, word in enumerate(new)}
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    larger = Tokenizer(backend, tokenizer.role_tokens, tokenizer.characters)
    old_ids = np.concatenate([np.arange(tokenizer.size), np.full(len(new), -1)])
    expanded = with_vocabulary(model, larger, old_ids)
    mapped = torch.from_numpy(vectors.vectors[list(new.values())]).double() @ linear_map
    with torch.no_grad():
        word_embedding_table(expanded)[tokenizer.size :] = mapped.to(table)
    return expanded, {"words": larger.size, "shared_words": len(shared), "new_words": len(new), "r2": explained}


def token_words(tokenizer: Tokenizer) -> list[str]:
    """Return the word that each token spells, without word-start markers (▁the and Ġthe are "the"); "" for special tokens."""
    specials = tokenizer.specials
    return ["" if specials[i] else token.lstrip("▁Ġ") for i, token in enumerate(tokenizer.vocabulary)]


def train_word_vectors(
    documents: Iterable[Document], kind: str, language: str, lowercase: bool, **options: Any
) -> WordVectors:
    """Train word vectors on documents, with gensim unless they are GloVe's, and return them, frequent words first."""
    cutter: Any = word_level_tokenizer([], lowercase=lowercase).backend
    gensim = (
        None if kind == "glove" else import_optional("gensim.models", "training word vectors with word2vec or fastText")
    )
    sentences = [
        [word for word, _ in cutter.pre_tokenizer.pre_tokenize_str(cutter.normalizer.normalize_str(text[start:end]))]
        for text in (document.text for document in documents)
        for start, end in split_sentences(text, language)
    ]
    if not sentences:
        raise PretuneError("there is no text to train word vectors on; give documents that are not empty")
    if gensim is None:
        return train_glove(sentences, **options)
    learn: Any = gensim.FastText if kind == "fasttext" else gensim.Word2Vec
    try:
        model = learn(sentences, sg=int(kind != "cbow"), **options)
    except RuntimeError as error:
        raise PretuneError(f"{error}; give more text, or a --min-count below {options.get('min_count')}") from error
    return WordVectors(list(model.wv.index_to_key), np.asarray(model.wv.vectors, dtype=np.float32))
