"""The `vectors train` verb: train word vectors on raw text."""

from __future__ import annotations

from typing import Literal

from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import reading_rules
from pretune.verbs.results import ResultSummary
from pretune.verbs.verb import only, verb


@verb(
    only("negative", "workers", where="to word2vec and fastText, not to GloVe", when=lambda o: o.kind != "glove"),
    only("x_max", where="to --kind glove", when=lambda o: o.kind == "glove"),
    *reading_rules("split_by", "text_field", files=lambda o: o.corpus),
    common=("kind", "vector_size", "window", "min_count", "epochs", "language", "seed"),
    out=check_new_folder,
)
def train_vectors(
    corpus: opt.Corpus,
    *,
    out: opt.ModelFolder,
    kind: Literal["skipgram", "cbow", "fasttext", "glove"] = "skipgram",
    vector_size: int = 100,
    window: int = 5,
    negative: int = 5,
    x_max: float = 100.0,
    min_count: int = 5,
    epochs: int | None = None,
    lowercase: bool = True,
    language: opt.Language = "en",
    split_by: opt.SplitBy = "auto",
    text_field: opt.TextField = None,
    encoding_errors: opt.EncodingErrors = "strict",
    seed: opt.Seed = 0,
    workers: int = 1,
) -> ResultSummary:
    """Train word vectors, and save them as a model folder.

    word2vec and fastText are trained with gensim (the extra `vectors`), and GloVe without it. With one worker, the same seed
    gives the same vectors.

    Parameters
    ----------
    kind
        Algorithm: skipgram and cbow (word2vec), fasttext (skip-gram with subwords), or glove (co-occurrence counts).
    vector_size
        Dimension of the vectors.
    window
        Size of the context window, in words on either side.
    negative
        Number of negative samples per word.
    x_max
        Number of co-occurrences from which a pair of words has full weight in the loss of GloVe.
    min_count
        Minimum number of occurrences of a word.
    epochs
        Passes over the corpus or, for glove, over the co-occurrence counts; by default 5, and 25 for glove.
    lowercase
        Lowercase the text.
    workers
        Number of worker threads; with several, vectors differ from run to run.

    Examples
    --------
    >>> train_vectors("corpus/", out="vectors/")  # doctest: +SKIP
    """
    from pretune.inference.word_vector_models import make_word_vector_model, train_word_vectors
    from pretune.runtime.value_ranges import COUNT, NOT_NEGATIVE, POSITIVE, check_number
    from pretune.text.corpus.documents import read_documents
    from pretune.text.corpus.files import find_files
    from pretune.verbs.shared_inputs import as_path_list

    options: dict[str, float] = {"vector_size": vector_size, "window": window, "min_count": min_count}
    options |= {"x_max": x_max} if kind == "glove" else {"negative": negative, "workers": workers}
    options["epochs"] = epochs if epochs is not None else 25 if kind == "glove" else 5
    for name, value in options.items():
        within = {"negative": NOT_NEGATIVE, "x_max": POSITIVE}.get(name, COUNT)
        check_number("--" + name.replace("_", "-"), value, within)
    documents = read_documents(
        find_files(as_path_list(corpus)), split_by=split_by, text_field=text_field, encoding_errors=encoding_errors
    )
    vectors = train_word_vectors(documents, kind, language, lowercase, seed=seed, **options)
    make_word_vector_model(vectors).save(out)
    return ResultSummary({"model": str(out), "words": len(vectors), "width": vectors.width, "kind": kind})
