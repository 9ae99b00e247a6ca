"""The options of `prepare` that clean a corpus, as settings of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pretune.evaluation.contamination import read_splits, split_texts
from pretune.evaluation.suites.declaration import find_suite
from pretune.runtime.errors import PretuneError, quote
from pretune.text.corpus.cleaning.cleaner import CleaningSettings
from pretune.text.corpus.cleaning.language_identification import check_languages
from pretune.text.corpus.documents import read_documents
from pretune.text.corpus.files import file_format, find_files
from pretune.text.corpus.ngram_hashes import NgramSet


def cleaning_settings(
    rules: Sequence[str],
    keep_languages: Sequence[str],
    near_duplicates: float | None,
    decontaminate: Sequence[str],
    data: str | Path | None,
) -> CleaningSettings | None:
    """Return the cleaning settings that the options of `prepare` describe, or None if none of the options is set.

    The parameters are the values of --clean, --keep-language, --near-duplicates, --decontaminate and
    --decontaminate-data.
    """
    rules, keep_languages, decontaminate = (
        [given] if isinstance(given, str) else list(given) for given in (rules, keep_languages, decontaminate)
    )
    if keep_languages:
        check_languages(keep_languages)
    if not (rules or keep_languages or decontaminate or near_duplicates is not None):
        return None
    settings = CleaningSettings(tuple(rules), tuple(keep_languages), near_duplicates)  # checks the names first
    benchmark = NgramSet.of_texts(benchmark_texts(decontaminate, data)) if decontaminate else None
    if benchmark is not None and not len(benchmark):
        raise PretuneError(
            f"--decontaminate {' '.join(decontaminate)}: no text has 5 words or more; give suites or files with longer texts"
        )
    return replace(settings, benchmark=benchmark)


def benchmark_texts(sources: Sequence[str], data: str | Path | None) -> Iterator[str]:
    """Yield the texts of `sources`: suites (NAME), tasks of suites (NAME/TASK), and files.

    `data` is the folder with the official files of the suites.
    """
    for source in sources:
        if file_format(Path(source)) is not None:
            yield from (document.text for document in read_documents(find_files(source), split_by="line"))
            continue
        if data is None:
            raise PretuneError(
                f"--decontaminate {source}: a suite needs its official files; name their folder with --decontaminate-data"
            )
        name, _, task = (source, "", "") if Path(source).suffix in (".yaml", ".yml") else source.partition("/")
        splits = read_splits(find_suite(name).select_tasks([task] if task else []), Path(data), allow_incomplete=True)
        if not splits:
            raise PretuneError(
                f"{data}: this folder has no dev or test file of {quote(source)}; give the folder with the official files of "
                "the suite"
            )
        yield from split_texts(splits)
