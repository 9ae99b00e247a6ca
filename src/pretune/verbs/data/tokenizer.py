"""The verbs `tokenizer train` and `tokenizer inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from pretune.runtime.output_paths import check_any_folder
from pretune.text.tokenizers.kinds import WHOLE_WORDS, Kind, PairScore
from pretune.verbs import options as opt
from pretune.verbs.option_modes import reading_rules
from pretune.verbs.results import ResultSummary
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.text.tokenizers.tokenizer import Tokenizer


def corpus_by_language(o: Options) -> dict[str, list[str]]:
    """Return the paths of the corpus in the options `o` by language, which is "" for paths without LANGUAGE=."""
    from pretune.training.jobs.pretraining_settings import split_language
    from pretune.verbs.shared_inputs import as_path_list

    found: dict[str, list[str]] = {}
    for language, path in map(split_language, as_path_list(o.corpus)):
        found.setdefault(language, []).append(path)
    return found


def corpus_paths(o: Options) -> list[str]:
    """Return the paths of the corpus in the options `o`, without languages."""
    return [path for paths in corpus_by_language(o).values() for path in paths]


@verb(
    only("lowercase", where="to kinds other than items, which are never changed", when=lambda o: o.kind != "items"),
    only(
        "max_occurrences",
        where=f"to subword kinds, not to {', '.join(WHOLE_WORDS)}",
        when=lambda o: o.kind not in WHOLE_WORDS,
    ),
    only(
        "language_alpha",
        where="to text of several languages (LANGUAGE=PATH …)",
        when=lambda o: len(corpus_by_language(o)) > 1,
    ),
    only("pair_score", where="to the kind wordpiece", when=lambda o: o.kind == "wordpiece"),
    *reading_rules("split_by", "text_field", files=corpus_paths),
    common=("kind", "vocab_size", "out", "lowercase", "language_alpha", "split_by", "text_field"),
    out=check_any_folder,
)
def train_tokenizer(
    corpus: opt.Paths,
    *,
    kind: Kind = "wordpiece",
    vocab_size: int = 30_000,
    out: str | Path | None = None,
    lowercase: bool = False,
    pair_score: PairScore = "frequency",
    extra_ids: int = 0,
    languages: Sequence[str] = (),
    language_alpha: float = 1.0,
    split_by: opt.SplitBy = "auto",
    text_field: opt.TextField = None,
    encoding_errors: opt.EncodingErrors = "strict",
    max_distinct_words: int = 1_000_000,
    max_occurrences: int = 30_000_000,
) -> Tokenizer:
    """Train a tokenizer on a corpus of any size, and report how well it covers held-out text.

    The sentencepiece kinds do not pre-tokenize, and write spaces as ▁. WordPiece is trained by pair frequency by default, as in the
    `tokenizers` library.

    Parameters
    ----------
    corpus
        Files, folders, or glob patterns of text: .txt, .jsonl, .csv, .tsv, or .parquet, each uncompressed or as .gz, .bz2, .zst, .xz; as
        LANGUAGE=PATH for --language-alpha.
    kind
        Tokenization algorithm. Without subwords: items, separated by spaces; words, also separated from punctuation; characters, words
        that are read byte by byte (ELMo).
    vocab_size
        Vocabulary size, including special tokens.
    out
        Folder for tokenizer.json and tokenizer_config.json.
    lowercase
        Lowercase the text; accents are kept.
    pair_score
        What WordPiece merges first: the most frequent pair (frequency), or the one with the highest count divided by the product of
        the counts of its parts (likelihood, as published).
    extra_ids
        Number of sentinel tokens <extra_id_0>, <extra_id_1>, … to add, for T5's span corruption.
    languages
        Languages to add a language token for, such as en_XX (mBART).
    language_alpha
        Power of their share of the text by which languages are sampled (exponential smoothing): 1 keeps the shares, lower values give
        small languages more of the vocabulary; XLM used 0.5.
    max_distinct_words
        Maximum number of distinct words to count; the rarest are dropped, and their number is reported.
    max_occurrences
        Maximum number of word occurrences that are passed to the trainer; larger counts are scaled down.

    Examples
    --------
    >>> tokenizer = train_tokenizer("corpus/", kind="wordpiece", vocab_size=30_000, out="tokenizer/")  # doctest: +SKIP
    """
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import progress
    from pretune.text.corpus.documents import read_documents
    from pretune.text.corpus.files import ByteMeter, find_files
    from pretune.text.tokenizers.training import train_on_documents

    if vocab_size < 16:
        raise PretuneError(
            f"--vocab-size {vocab_size}: a vocabulary of {vocab_size} is too small; choose at least 16 (usually thousands)"
        )
    files = {
        language: find_files(paths) for language, paths in corpus_by_language(SimpleNamespace(corpus=corpus)).items()
    }
    meter = ByteMeter()
    documents = {
        language: read_documents(
            group, split_by=split_by, text_field=text_field, encoding_errors=encoding_errors, meter=meter
        )
        for language, group in files.items()
    }
    with progress("reading", sum(file.stat().st_size for group in files.values() for file in group)) as bar:
        tokenizer = train_on_documents(
            documents,
            kind,
            vocab_size,
            language_alpha=language_alpha,
            lowercase=lowercase,
            pair_score=pair_score,
            extra_ids=extra_ids,
            languages=languages,
            max_distinct_words=max_distinct_words,
            max_occurrences=max_occurrences,
            note=lambda text: bar.update(meter.bytes, text),
        )
    if out is not None:
        tokenizer.save(out)
        tokenizer.report = {"tokenizer": str(out), **tokenizer.report}
    return tokenizer


@verb()
def inspect_tokenizer(tokenizer: opt.Tokenizer, texts: Sequence[str] = ()) -> ResultSummary:
    """Show how a tokenizer splits texts, its special tokens, and its first merges.

    Parameters
    ----------
    tokenizer
        Folder or file: tokenizer.json, vocab.txt, vocab.json + merges.txt, or a SentencePiece .model.
    texts
        Texts to tokenize.

    Examples
    --------
    >>> inspect_tokenizer("tokenizer/", ["unaffable"]).facts["splits"]  # doctest: +SKIP
    [{'text': 'unaffable', 'tokens': 'un ##aff ##able', 'ids': [4895, 10354, 3085], 'decoded': 'unaffable'}]
    """
    from pretune.text.tokenizers.tokenizer import Tokenizer
    from pretune.text.tokenizers.training import first_merges

    loaded = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    splits = []
    for text in texts:
        ids = loaded.encode(text)
        splits.append({"text": text, "tokens": " ".join(loaded.tokens(ids)), "ids": ids, "decoded": loaded.decode(ids)})
    named = {name: loaded.vocabulary[i] for name, i in loaded.roles.items() if " " not in name}
    return ResultSummary(
        {
            "kind": loaded.kind,
            "vocab_size": loaded.size,
            "roles": named,
            "extra_ids": sum(name.startswith("sentinel ") for name in loaded.roles),
            "languages": [name.split(" ", 1)[1] for name in loaded.roles if name.startswith("language ")],
            "first_merges": first_merges(loaded),
            "splits": splits,
        }
    )
