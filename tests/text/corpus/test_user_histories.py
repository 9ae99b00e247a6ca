from __future__ import annotations

import json
from pathlib import Path

import pytest

import pretune as pt
from pretune import PretuneError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_interactions_become_histories_in_order_of_time(tmp_path: Path) -> None:
    rows = "user_id,item_id,rating,timestamp\n1,a,5,30\n2,x,1,5\n1,b,4,9\n1,c,3,100\n2,y,2,6\n"
    facts = pt.histories(write(tmp_path / "log.csv", rows), out=tmp_path / "h.txt", min_items=2).facts
    assert (tmp_path / "h.txt").read_text() == "b a c\nx y\n"
    assert facts == {"histories": str(tmp_path / "h.txt"), "users": 2, "dropped_users": 0, "items": 5, "events": 5}


def test_rows_of_whole_histories_are_read(tmp_path: Path) -> None:
    rows = [{"user": "a", "items": ["x", 7, "z"]}, {"user": "b", "items": "p q r s"}, {"user": "c", "items": ["x"]}]
    file = write(tmp_path / "h.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert pt.histories(file, out=tmp_path / "h.txt").facts["dropped_users"] == 1
    assert (tmp_path / "h.txt").read_text() == "x 7 z\np q r s\n"


def test_dates_and_other_column_names_are_supported(tmp_path: Path) -> None:
    file = write(tmp_path / "log.tsv", "who\twhat\twhen\nu\tb\t2024-02-01\nu\ta\t2023-12-31\nu\tc\t2024-02-01\n")
    pt.histories(file, out=tmp_path / "h.txt", user_column="who", item_column="what", time_column="when")
    assert (tmp_path / "h.txt").read_text() == "a b c\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "person,thing\n1,a\n",
            r"a\.csv, line 2: no column 'user'; the columns are 'person', 'thing'; give the name of the column with users",
        ),
        ("a.csv", "user,item\n1,two words\n", r"line 2: the item 'two words' is empty or contains spaces"),
        ("a.csv", "user,item\n1,a\n", "none of the 1 users has at least 3 items"),
        ("a.txt", "1 2 3\n", r"a\.txt: unsupported file format; expected one of"),
    ],
)
def test_unreadable_rows_raise_errors(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        pt.histories(write(tmp_path / name, text), out=tmp_path / "h.txt")
    assert not (tmp_path / "h.txt").exists()
