"""The `prepare` verb: tokenize a corpus into a token store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.runtime.output_paths import check_resumable_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import CORPUS_RULES
from pretune.verbs.verb import only, verb

if TYPE_CHECKING:
    from pretune.text.store.store import Store


@verb(
    *CORPUS_RULES,
    only("decontaminate_data", where="with --decontaminate", when=lambda o: bool(o.decontaminate)),
    common=("language", "split_by", "text_field", "clean", "near_duplicates", "decontaminate", "processes"),
    out=check_resumable_folder("manifest.json", "a store"),
)
def prepare(
    corpus: opt.Corpus,
    tokenizer: opt.Tokenizer,
    out: str | Path,
    *,
    language: opt.Language = "en",
    split_by: opt.SplitBy = "auto",
    text_field: opt.TextField = None,
    span_field: str | None = None,
    clean: Sequence[str] = (),
    keep_language: Sequence[str] = (),
    near_duplicates: float | None = None,
    decontaminate: Sequence[str] = (),
    decontaminate_data: str | Path | None = None,
    encoding_errors: opt.EncodingErrors = "strict",
    processes: int | None = None,
    executor: opt.Executor = "local",
) -> Store:
    """Tokenize a corpus into a memory-mapped, checksummed store that indexes documents, sentences, and words.

    Run the same command again to continue after an interruption; the result is byte-identical, on one machine or a cluster.
    If the corpus is cleaned, cleaning.json in the store reports what each rule removed.

    Parameters
    ----------
    out
        Folder for the new store.
    span_field
        Field of .jsonl and .parquet files with annotated spans, such as entity names, each of which is treated as one word:
        [[start, end], …] in characters, or objects with start and end.
    clean
        Sets of rules that remove lines and documents before tokenization: c4, c4-duplicates, gopher-quality, gopher-repetition,
        prose; or single rules, as in c4/javascript. docs/reference/cleaning.md lists them.
    keep_language
        Keep only documents in these languages (en, ru, …), as py3langid identifies them.
    near_duplicates
        Remove documents whose Jaccard similarity to an earlier document, estimated from word 5-grams, is at least this
        value, such as 0.8.
    decontaminate
        Remove paragraphs that share a 13-gram of words with the dev and test sets of these suites (glue) or tasks (glue/rte),
        or with the texts of these files.
    decontaminate_data
        Folder with the suites' official files.
    processes
        Number of processes, all cores by default; on a cluster, number of file groups processed at once.

    Examples
    --------
    >>> store = prepare("corpus/", "tokenizer/", out="store/")  # doctest: +SKIP
    >>> store.tokenizer.decode(store.sentence(0))  # doctest: +SKIP
    >>> prepare("web/", "tokenizer/", out="clean/", clean=["c4"], near_duplicates=0.8)  # doctest: +SKIP
    """
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import log_info
    from pretune.text.corpus.documents import NESTED_FORMATS
    from pretune.text.corpus.files import FORMATS, find_files
    from pretune.text.store.builder import StoreSettings, build_store
    from pretune.text.store.store import MANIFEST
    from pretune.text.tokenizers.tokenizer import Tokenizer
    from pretune.verbs.data.cleaning_options import cleaning_settings
    from pretune.verbs.shared_inputs import as_path_list

    if processes is not None and processes < 1:
        raise PretuneError(f"--processes {processes}: the number of processes must be at least 1")
    cleaning = cleaning_settings(clean, keep_language, near_duplicates, decontaminate, decontaminate_data)
    loaded = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    settings = StoreSettings(
        language=language,
        split_by=split_by,
        text_field=text_field,
        encoding_errors=encoding_errors,
        span_field=span_field,
        cleaning=cleaning,
    )
    files = find_files(as_path_list(corpus), NESTED_FORMATS if span_field else FORMATS)
    existed = (Path(out) / MANIFEST).is_file()
    store = build_store(files, loaded, Path(out), settings, processes, executor)
    if existed:
        log_info(f"{out}: the store was already prepared from these files")
    return store
