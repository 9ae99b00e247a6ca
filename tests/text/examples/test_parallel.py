from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from pretune import PretuneError
from pretune.objectives import parse_objective
from pretune.text.examples.parallel import read_parallel, read_parallel_languages

ENGLISH, FRENCH = ["The cat sleeps.", "", "It rains again."], ["Le chat dort.", "Rien.", "Il pleut encore."]


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def lines(path: Path, texts: list[str]) -> Path:
    return write(path, "".join(f"{text}\n" for text in texts))


def test_aligned_files_are_read_line_by_line(tmp_path: Path) -> None:
    files = [lines(tmp_path / "z.en.txt", ENGLISH), lines(tmp_path / "a.fr.txt", FRENCH)]
    rows = read_parallel(files)
    assert rows.texts == ENGLISH and rows.pairs == FRENCH  # the given order, not the alphabetical one
    assert rows.location(2).endswith("z.en.txt, line 3")
    with gzip.open(tmp_path / "b.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(FRENCH))
    assert read_parallel([files[0], tmp_path / "b.txt.gz"]).pairs == FRENCH


def test_tables_of_two_columns_need_no_column_names(tmp_path: Path) -> None:
    table = {"en": ENGLISH, "fr": FRENCH}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    write(tmp_path / "a.jsonl", "\n".join(json.dumps(row) for row in rows))
    write(tmp_path / "a.tsv", "en\tfr\n" + "".join(f"{row['en']}\t{row['fr']}\n" for row in rows))
    write(tmp_path / "a.csv", "en,fr\n" + "".join(f"{row['en']},{row['fr']}\n" for row in rows))
    for name in ("a.parquet", "a.jsonl", "a.tsv", "a.csv"):
        found = read_parallel(str(tmp_path / name))
        assert (found.texts, found.pairs) == (ENGLISH, FRENCH)
        turned = read_parallel([tmp_path / name], {"text": "fr", "pair": "en"})
        assert (turned.texts, turned.pairs) == (FRENCH, ENGLISH)


def test_tables_without_a_header_and_with_more_columns_are_read(tmp_path: Path) -> None:
    rows = read_parallel(write(tmp_path / "a.tsv", "The old cat sleeps here.\tLe vieux chat dort ici.\nNo.\tNon.\n"))
    assert rows.texts == ["The old cat sleeps here.", "No."]
    (turned,) = parse_objective("translate(text=2,pair=1)").objectives
    assert turned.read_rows([tmp_path / "a.tsv"]).texts == rows.pairs  # type: ignore[attr-defined]
    named = "id,sentence1,sentence2\n7,a b,c d\n"
    assert read_parallel(write(tmp_path / "b.csv", named)).pairs == ["c d"]
    with pytest.raises(
        PretuneError, match=r"c\.csv: cannot infer the two text columns; the columns are 'id', 'en', 'fr'"
    ):
        read_parallel(write(tmp_path / "c.csv", "id,en,fr\n7,a b,c d\n"))
    with pytest.raises(PretuneError, match="no column 'de' for the pair"):
        read_parallel(tmp_path / "c.csv", {"text": "en", "pair": "de"})


def test_invalid_input_gives_a_one_line_error(tmp_path: Path) -> None:
    long, short = lines(tmp_path / "a.txt", ENGLISH), lines(tmp_path / "b.txt", FRENCH[:2])
    with pytest.raises(PretuneError, match=r"a\.txt has 3 lines and .*b\.txt has 2; line-aligned files"):
        read_parallel([long, short])
    for files in ([long], [long, short, long]):
        with pytest.raises(PretuneError, match="not a source of parallel texts; pass a"):
            read_parallel(files)
    with pytest.raises(PretuneError, match="no parallel texts were given"):
        read_parallel([])
    with pytest.raises(PretuneError, match="the file is empty"):
        read_parallel([lines(tmp_path / "c.txt", []), lines(tmp_path / "d.txt", [])])
    with pytest.raises(PretuneError, match="the file contains no rows"):
        read_parallel(write(tmp_path / "e.tsv", "en\tfr\n"))
    with pytest.raises(PretuneError, match="no such file"):
        read_parallel(tmp_path / "nowhere.tsv")


def test_languages_are_taken_from_columns_or_file_names(tmp_path: Path) -> None:
    files = [lines(tmp_path / "z.en.txt", ENGLISH), lines(tmp_path / "a.fr.txt", FRENCH)]
    table = write(tmp_path / "b.tsv", "de\ten\nHallo.\tHello.\n")
    rows = read_parallel_languages([*files, table])
    assert rows.texts == [*ENGLISH, "Hallo."] and rows.pairs == [*FRENCH, "Hello."]
    assert rows.labels == ["en fr"] * 3 + ["de en"] and rows.lines == [1, 2, 3, 2]
    assert read_parallel_languages([table], languages="xx-yy").labels == ["xx yy"]
    assert read_parallel_languages([table], {"text": "en", "pair": "de"}).labels == ["en de"]
    with gzip.open(tmp_path / "c.zh_CN.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(FRENCH))
    assert read_parallel_languages([files[0], tmp_path / "c.zh_CN.txt.gz"]).labels == ["en zh_CN"] * 3


def test_unknown_languages_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=r"one\.txt: 'one' and 'other' are not two languages; name the columns"):
        read_parallel_languages([lines(tmp_path / "one.txt", ENGLISH), lines(tmp_path / "other.txt", FRENCH)])
    with pytest.raises(PretuneError, match="'sentence1' and 'sentence2' are not two languages"):
        read_parallel_languages([write(tmp_path / "a.csv", "sentence1,sentence2\na b,c d\n")])
    files = [lines(tmp_path / "z.en.txt", ENGLISH), lines(tmp_path / "a.fr.txt", FRENCH[:2])]
    with pytest.raises(PretuneError, match=r"z\.en\.txt has 3 lines and .*a\.fr\.txt has 2; line-aligned files"):
        read_parallel_languages(files)
    with pytest.raises(PretuneError, match="not a source of parallel texts; pass a"):
        read_parallel_languages(files[:1])
    with pytest.raises(PretuneError, match="no parallel texts were given"):
        read_parallel_languages([])
