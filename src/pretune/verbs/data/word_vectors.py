"""The `vectors train` verb: train word vectors on raw text."""

from __future__ import annotations

from typing import Literal

from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import reading_rules
from pretune.verbs.results import ResultSummary
from pretune.verbs.verb import verb


@verb(*reading_rules("layout", "column", files=lambda o: o.data), out=check_new_folder)
def train_vectors(
    data: opt.Corpus,
    *,
    out: opt.ModelFolder,
    kind: Literal["skipgram", "cbow", "fasttext"] = "skipgram",
    width: int = 100,
    window: int = 5,
    negatives: int = 5,
    rarest: int = 5,
    epochs: int = 5,
    lowercase: bool = True,
    language: opt.Language = "en",
    layout: opt.Layout = "auto",
    column: opt.TextField = None,
    errors: opt.Errors = "strict",
    seed: opt.Seed = 0,
    processes: int = 1,
) -> ResultSummary:
    """Train word vectors with gensim (the extra `vectors`), and save them as a model folder.

    With one process, the same seed gives the same vectors.

    Parameters
    ----------
    kind
        Algorithm: skipgram and cbow (word2vec), or fasttext (skip-gram with subwords).
    width
        Dimension of the vectors.
    window
        Size of the context window, in words on either side.
    negatives
        Number of negative samples per word.
    rarest
        Minimum number of occurrences of a word.
    epochs
        Passes over the corpus.
    lowercase
        Lowercase the text.
    processes
        Number of threads; with several, vectors differ from run to run.

    Examples
    --------
    >>> train_vectors("corpus/", out="vectors/")  # doctest: +SKIP
    """
    from pretune.inference.word_vector_models import make_word_vector_model, train_word_vectors
    from pretune.text.corpus.documents import read_documents
    from pretune.text.corpus.files import find_files

    options = {"vector_size": width, "window": window, "negative": negatives, "min_count": rarest, "epochs": epochs}
    documents = read_documents(find_files(data), layout=layout, column=column, errors=errors)
    vectors = train_word_vectors(documents, kind, language, lowercase, seed=seed, workers=processes, **options)
    make_word_vector_model(vectors).save(out)
    return ResultSummary({"model": str(out), "words": len(vectors), "width": vectors.width, "kind": kind})
