"""Tests of the readers of MovieLens files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune import PretuneError
from pretune.text.corpus.user_histories import read_histories, read_titles


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ratings.dat", "1::20::5::30\n2::7::1::5\n\n1::30::4::9\n"),
        ("u.data", "1\t20\t5\t30\r\n2\t7\t1\t5\r\n1\t30\t4\t9\r\n"),
        ("ratings.csv", "userId,movieId,rating,timestamp\n1,20,5.0,30\n2,7,1.0,5\n1,30,4.0,9\n"),
        ("items.txt", "30 20\n\n"),
    ],
)
def test_all_formats_give_the_same_histories(tmp_path: Path, name: str, text: str) -> None:
    histories = read_histories([write(tmp_path / name, text)])
    assert histories["1"] == ["30", "20"]
    assert name == "items.txt" or histories == {"1": ["30", "20"], "2": ["7"]}


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("movies.dat", "7::Amélie: 2::3 (2001)::Drama\n".replace("2::3", "2, 3"), "latin-1"),
        ("movies.dat", "7::Amélie: 2, 3 (2001)::Drama\n", "utf-8"),
        ("u.item", "7|Amélie: 2, 3 (2001)|" + "|".join("0" * 22) + "\r\n", "latin-1"),
        ("movies.csv", 'movieId,title,genres\n7,"Amélie: 2, 3 (2001)",Drama\n', "utf-8"),
        ("movies.jsonl", '{"item": 7, "title": "Amélie: 2, 3 (2001)"}\n', "utf-8"),
    ],
)
def test_titles_are_read_in_either_encoding(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    assert read_titles(write(tmp_path / name, text, encoding)) == {"7": "Amélie: 2, 3 (2001)"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.dat", "1::2::3::4\n1::2::3\n", r"r\.dat, line 2: expected 4 fields separated by '::' .*, but found 3"),
        (
            "u.data",
            "1 2 3 4\n",
            r"line 1: expected 4 fields separated by '\\t' \(user, item, rating, time\), but found 1",
        ),
        ("r.dat", "1::2::good::4\n", r"line 1: the rating 'good' is not a number; correct this line"),
        ("r.dat", "1::2::5::nan\n", r"line 1: the time 'nan' is not a number"),
        ("r.dat", "1::two words::5::4\n", r"line 1: the item 'two words' is empty or contains spaces"),
    ],
)
def test_broken_ratings_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        read_histories([write(tmp_path / name, text)])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.dat", "1::Heat\n", r"line 1: expected 3 fields separated by '::' \(item, title …\), but found 2"),
        ("m.csv", "movie,name\n1,Heat\n", r"m\.csv, line 2: no column 'item'; the columns are 'movie', 'name'; rename"),
        ("m.csv", "movieId,label\n1,Heat\n", r"line 2: no column 'title'"),
    ],
)
def test_broken_titles_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        read_titles(write(tmp_path / name, text))


def test_users_of_two_text_files_are_not_mixed(tmp_path: Path) -> None:
    files = [write(tmp_path / name, "a b\n") for name in ("a.txt", "b.txt")]
    with pytest.raises(PretuneError, match=r"b\.txt, line 1: in \.txt files, the line number identifies the user"):
        read_histories(files)
