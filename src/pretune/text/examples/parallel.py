"""Read parallel texts from a table with two text columns or from two line-aligned files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.text.corpus.files import Errors, file_format, find_files, read_lines
from pretune.text.examples.column_roles import PAIRS
from pretune.text.examples.labeled import LabeledRows, column_names, read_labeled

EXPECTED = "a .csv, .tsv, .jsonl or .parquet file with two text columns, or two .txt files with equally many lines"
LANGUAGE = re.compile(r"[a-z]{2,3}(_\w+)?")  # en, rus, zh_CN


def read_parallel(
    files: Sequence[str | Path] | str | Path, columns: Mapping[str, str] | None = None, errors: Errors = "strict"
) -> LabeledRows:
    """Read pairs of texts from two line-aligned .txt files, or from two columns of a table.

    `columns` names the columns (roles `text` and `pair`); by default, they are inferred.
    """
    inputs = [files] if isinstance(files, str | Path) else list(files)
    if not inputs:
        raise PretuneError(f"no parallel texts were given; pass {EXPECTED}")
    paths = [path for name in inputs for path in find_files(name)]  # the first file is the text, the second the pair
    formats = [file_format(path) for path in paths]
    if formats == [".txt", ".txt"]:
        return _read_aligned(paths[0], paths[1], errors)
    if len(paths) != 1 or formats == [".txt"]:
        names = ", ".join(map(str, paths[:3])) + (", …" if len(paths) > 3 else "")
        raise PretuneError(f"{names}: not a source of parallel texts; pass {EXPECTED}")
    return read_labeled(paths[0], _text_columns(paths[0], columns or {}, errors), errors=errors, labels=False)


def read_parallel_languages(
    files: Sequence[str | Path],
    columns: Mapping[str, str] | None = None,
    languages: str = "",
    errors: Errors = "strict",
) -> LabeledRows:
    """Read text pairs from tables and pairs of .txt files; the label of a pair is its two languages, such as "en fr".

    The languages are taken from `languages` ("en-fr"), else from column names or file names (news.en.txt, news.fr.txt).
    """
    paths = [path for name in files for path in find_files(name)]
    if not paths:
        return read_parallel([])
    whole = LabeledRows(paths[0], {}, pairs=[], labels=[])
    assert whole.pairs is not None and whole.labels is not None
    while paths:
        count = 2 if file_format(paths[0]) == ".txt" else 1
        rows = read_parallel(paths[:count], columns, errors)
        del paths[:count]
        first, second = languages.split("-") if languages else _languages_of(rows)
        log_info(f"{rows.file}: {len(rows):,} text pairs, {first} and {second}")
        whole.texts += rows.texts
        whole.pairs += rows.pairs or []
        whole.labels += [f"{first} {second}"] * len(rows)
        whole.lines += rows.lines
    return whole


def _languages_of(rows: LabeledRows) -> list[str]:
    """Return the two languages of text pairs, taken from the names of their columns or files."""
    names = [rows.columns[role] for role in ("text", "pair")]
    if file_format(rows.file) == ".txt":
        names = [Path(name).name.partition(".txt")[0].rpartition(".")[2] for name in names]
    if not all(map(LANGUAGE.fullmatch, names)) or names[0] == names[1]:
        advice = "name the columns (en, fr) or files (news.en.txt, news.fr.txt) after them, or set language_pair=en-fr"
        raise PretuneError(f"{rows.file}: {names[0]!r} and {names[1]!r} are not two languages; {advice}")
    return names


def _text_columns(path: Path, requested: Mapping[str, str], errors: Errors) -> dict[str, str]:
    """Return the two text columns of a table, as a mapping from the roles `text` and `pair`.

    These are the requested columns, else those with usual names, else the only two columns.
    """
    found = {role: name for role, name in requested.items() if name}
    names = column_names(path, errors)
    if not found:
        lower = {name.lower(): name for name in names}
        usual = next((pair for pair in PAIRS if all(name in lower for name in pair)), None)
        if usual is not None:
            found = {"text": lower[usual[0]], "pair": lower[usual[1]]}
        elif len(names) == 2:
            found = {"text": names[0], "pair": names[1]}
    if len(found) < 2:
        columns = f"the columns are {', '.join(map(repr, names))}; name two, as in translate(text=…,pair=…)"
        raise PretuneError(f"{path}: cannot infer the two text columns; {columns}")
    return found


def _read_aligned(first: Path, second: Path, errors: Errors) -> LabeledRows:
    """Read pairs of texts from two files: line n of the first file and line n of the second file form a pair."""
    texts, pairs = ([line for _, line in read_lines(path, errors)] for path in (first, second))
    if len(texts) != len(pairs):
        rule = "line-aligned files must have the same number of lines"
        raise PretuneError(f"{first} has {len(texts)} lines and {second} has {len(pairs)}; {rule}")
    if not texts:
        raise PretuneError(f"{first}: the file is empty; pass a file with one text per line")
    columns = {"text": str(first), "pair": str(second)}
    return LabeledRows(first, columns, texts, pairs, lines=list(range(1, len(texts) + 1)))
