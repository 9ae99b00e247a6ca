"""`prepare`: a corpus into a token store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretune.runtime.output_paths import folder_of
from pretune.verbs.option_modes import OF_CORPUS
from pretune.verbs.verb import verb

if TYPE_CHECKING:
    from pretune.text.store.store import Store
    from pretune.text.tokenizers.tokenizer import Tokenizer


@verb(*OF_CORPUS, out=folder_of("manifest.json", "a store"))
def prepare(
    corpus: Sequence[str | Path] | str | Path,
    tokenizer: Tokenizer | str | Path,
    out: str | Path,
    *,
    language: str = "en",
    layout: Literal["auto", "line", "blank", "file"] = "auto",
    column: str | None = None,
    spans: str | None = None,
    errors: Literal["strict", "replace"] = "strict",
    processes: int | None = None,
    engine: Literal["local", "ray"] = "local",
) -> Store:
    """Tokenize a corpus into a store: documents, sentences and words addressable, memory-mapped, checksummed.

    Killed or stopped, the same command goes on where it was; the result is the same to the byte, on one machine or a cluster.

    Parameters
    ----------
    corpus
        Files, folders or globs: .txt, .jsonl, .csv, .tsv, .parquet, plain or .gz/.bz2/.xz/.zst.
    tokenizer
        A tokenizer folder or file, or the name of a model that comes with pretune.
    out
        Folder of the new store.
    language
        Language of the text and of the sentence splitter (en, ru, ko …), or `lines` for one sentence a line.
    layout
        How .txt files are cut into documents: a line each, blank-line separated, or whole files.
    column
        The text field of .jsonl, .csv, .tsv and .parquet files.
    spans
        A field of .jsonl and .parquet files with annotated spans of the text, names for instance, each of which counts
        as one word: [[start, end], …] in characters, or objects with start and end.
    errors
        What to do with invalid UTF-8.
    processes
        How many processes tokenize; all cores by default. Of a cluster, how many groups of files are worked on at once.
    engine
        This machine (local), or a Ray cluster (ray): that of RAY_ADDRESS, with files and --out where all its machines see them.

    Examples
    --------
    >>> store = prepare("corpus/", "tokenizer/", out="store/")  # doctest: +SKIP
    >>> store.tokenizer.decode(store.sentence(0))  # doctest: +SKIP
    """
    from pretune.runtime.errors import PretuneError
    from pretune.text.corpus.annotations import ANNOTATED
    from pretune.text.corpus.files import FORMATS, find_files
    from pretune.text.store.builder import Settings, make_store
    from pretune.text.tokenizers.tokenizer import Tokenizer

    if processes is not None and processes < 1:
        raise PretuneError("--processes must be 1 or more")
    loaded = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    settings = Settings(language=language, layout=layout, column=column, errors=errors, spans=spans)
    files = find_files(corpus, ANNOTATED if spans else FORMATS)
    return make_store(files, loaded, Path(out), settings, processes, engine)
