"""`tokenizer train` and `tokenizer inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretune.runtime.output_paths import any_folder
from pretune.verbs.option_modes import OF_CORPUS
from pretune.verbs.verb import only, verb

if TYPE_CHECKING:
    from pretune.text.tokenizers.tokenizer import Tokenizer


WHOLE_WORDS = ("items", "words", "characters")  # kinds that learn no pieces of words


@verb(
    only("lowercase", where="to kinds other than items, which stay as they are", when=lambda o: o.kind != "items"),
    only(
        "occurrences",
        where=f"to kinds that learn pieces of words, not to {', '.join(WHOLE_WORDS)}",
        when=lambda o: o.kind not in WHOLE_WORDS,
    ),
    *OF_CORPUS,
    out=any_folder,
)
def train_tokenizer(
    corpus: Sequence[str | Path] | str | Path,
    *,
    kind: Literal[
        "wordpiece", "bpe", "byte-bpe", "unigram", "raw-bpe", "raw-unigram", "items", "words", "characters"
    ] = "wordpiece",
    size: int = 30_000,
    out: str | Path | None = None,
    lowercase: bool = False,
    sentinels: int = 0,
    languages: Sequence[str] = (),
    layout: Literal["auto", "line", "blank", "file"] = "auto",
    column: str | None = None,
    errors: Literal["strict", "replace"] = "strict",
    distinct: int = 1_000_000,
    occurrences: int = 30_000_000,
) -> Tokenizer:
    """Train a tokenizer on a corpus of any size, and report how well it does on text held out.

    The raw kinds take text as SentencePiece does: spaces become ▁, nothing is split beforehand. WordPiece is trained by
    pair frequency, as the library does it, not by likelihood gain.

    Parameters
    ----------
    corpus
        Files, folders or globs: .txt, .jsonl, .csv, .tsv, .parquet, plain or .gz/.bz2/.xz/.zst.
    kind
        How words are cut into pieces. Items are what stands between spaces, words are cut from punctuation too, neither
        any further; characters are words that are spelled byte by byte (ELMo).
    size
        Size of the vocabulary, special tokens included.
    out
        Folder for tokenizer.json and tokenizer_config.json.
    lowercase
        Lower-case everything first (accents stay).
    sentinels
        How many <extra_id_k> tokens to add, for T5's spans.
    languages
        Languages to add a token for.
    layout
        How .txt files are cut into documents.
    column
        The text field of .jsonl, .csv, .tsv and .parquet files.
    errors
        What to do with invalid UTF-8.
    distinct
        Keep at most so many distinct words while counting; rarer ones are pruned, and the report says how many.
    occurrences
        Show the trainer at most so many words; counts are scaled down beyond that.

    Examples
    --------
    >>> tokenizer = train_tokenizer("corpus/", kind="wordpiece", size=30_000, out="tokenizer/")  # doctest: +SKIP
    """
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import progress
    from pretune.text.corpus.documents import read_documents
    from pretune.text.corpus.files import Meter, find_files
    from pretune.text.tokenizers.training import train

    if size < 16:
        raise PretuneError(f"a vocabulary of {size} is too small; ask for 16 or more (thousands are usual)")
    files = find_files(corpus)
    meter = Meter()
    documents = read_documents(files, layout=layout, column=column, errors=errors, meter=meter)
    with progress("reading", sum(file.stat().st_size for file in files)) as bar:
        tokenizer = train(
            documents,
            kind,
            size,
            lowercase=lowercase,
            sentinels=sentinels,
            languages=languages,
            distinct=distinct,
            occurrences=occurrences,
            note=lambda text: bar.update(meter.bytes, text),
        )
    if out is not None:
        tokenizer.save(out)
        tokenizer.report = {"tokenizer": str(out), **tokenizer.report}
    return tokenizer


@dataclass(frozen=True)
class Inspection:
    """How a tokenizer splits some texts."""

    facts: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """The facts, for reports."""
        return self.facts


@verb()
def inspect_tokenizer(tokenizer: Tokenizer | str | Path, texts: Sequence[str] = ()) -> Inspection:
    """Show how a tokenizer splits texts, and the first pieces it learned.

    Parameters
    ----------
    tokenizer
        A folder or file: tokenizer.json, vocab.txt, vocab.json + merges.txt, or a sentencepiece .model.
    texts
        What to split.

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
    return Inspection(
        {
            "kind": loaded.kind,
            "size": loaded.size,
            "roles": named,
            "sentinels": sum(name.startswith("sentinel ") for name in loaded.roles),
            "languages": [name.split(" ", 1)[1] for name in loaded.roles if name.startswith("language ")],
            "first_merges": first_merges(loaded),
            "splits": splits,
        }
    )
