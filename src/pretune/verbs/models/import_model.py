"""The `import` verb: convert word vectors and published ELMo checkpoints to model folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.results import ResultSummary
from pretune.verbs.verb import only, verb


@verb(
    only(
        "vocab_file",
        where="to a folder of ELMo's files, or to a fastText model (.bin)",
        when=lambda o: Path(o.source).is_dir() or Path(o.source).suffix == ".bin",
    ),
    only("max_words", "expand", where="to a file of word vectors", when=lambda o: not Path(o.source).is_dir()),
    out=check_new_folder,
)
def import_model(
    source: str | Path,
    *,
    out: opt.ModelFolder,
    vocab_file: str | Path | None = None,
    max_words: int | None = None,
    expand: str | Path | opt.ModelHandle | None = None,
) -> ResultSummary:
    """Convert word vectors (word2vec, GloVe, fastText; text or binary) or a published ELMo checkpoint to a model folder.

    Parameters
    ----------
    source
        File of word vectors, or folder with ELMo's options.json and weights.hdf5 (the extra `elmo`).
    vocab_file
        Vocabulary file with one word per line. For ELMo, words that are not in it are encoded from their characters, too. For a
        fastText model (.bin), further words, which get a vector from their n-grams.
    max_words
        For word vectors: maximum number of vectors to read, from the beginning of the file.
    expand
        For word vectors: model folder whose vocabulary of words is expanded by those of the file, with embeddings from a linear
        map (Skip-Thought); the result is that model instead of one of the word vectors.

    Examples
    --------
    >>> import_model("glove.6B.300d.txt", out="glove")  # doctest: +SKIP
    """
    import torch

    from pretune.families.recurrent.elmo import ELMO, build
    from pretune.families.recurrent.elmo_checkpoint import is_published, read_published
    from pretune.inference.word_vector_models import expand_vocabulary, make_word_vector_model
    from pretune.models.loading import load
    from pretune.models.model import Model, Network
    from pretune.nn.initialization import SkipInitialization
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.parsing import read_text
    from pretune.text.corpus.word_vector_files import read_word_vectors
    from pretune.text.tokenizers.training import word_level_tokenizer
    from pretune.verbs.shared_inputs import model_reference

    source, out = Path(source), Path(out)
    report: dict[str, Any] = {}
    lines = [] if vocab_file is None else read_text(Path(vocab_file)).split("\n")
    words = [word for word in lines if word and not word.isspace()]
    if source.is_dir():
        if not is_published(source):
            raise PretuneError(
                f"{source}: this folder has no ELMo checkpoint (options.json and *.hdf5); give a folder with these files, or a file of word "
                "vectors"
            )
        tokenizer = word_level_tokenizer(words, spelled=True)
        config, tensors = read_published(source, tokenizer.size)
        tokenizer.characters = config.max_characters
        with SkipInitialization():
            model = Model(ELMO, config, Network(build(config)), tokenizer)
        model.backbone.load_state_dict(tensors, strict=False)
    else:
        vectors = read_word_vectors(source, max_words)
        if words and vectors.ngrams is None:
            raise PretuneError(
                f"{source}: the file has no vectors of n-grams, so words of {vocab_file} cannot be added; leave out --vocab-file, "
                "or give a fastText model (.bin) with subwords"
            )
        vectors = vectors.with_words(words)
        if expand is None:
            model = make_word_vector_model(vectors)
        else:
            model, report = expand_vocabulary(load(model_reference(expand)), vectors, source)
    with torch.no_grad():
        model.save(out)
    count = sum(p.numel() for p in model.root.parameters())
    facts = {"model": str(out), "family": model.family.name, "parameters": count, "width": model.backbone.width}
    return ResultSummary(facts | {"words": model.require_tokenizer().size} | report)
