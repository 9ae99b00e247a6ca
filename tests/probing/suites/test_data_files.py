"""Finding the files of a suite, and telling formats apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune import PretuneError
from pretune.probing.suites.data_files import detect_format, find_data, split_of_name


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("en_ewt-ud-train.conllu", "train"),
        ("ru_taiga-ud-train-old.conllu", "train"),
        ("eng.testa", "dev"),
        ("eng.testb", "test"),
        ("val.jsonl", "dev"),
        ("development.json", "dev"),
        ("TEST.mrg.gz", "test"),
        ("dev/wsj_2200.mrg", "dev"),
        ("contest.conllu", None),
        ("wsj_sample.mrg", None),
    ],
)
def test_splits_are_read_from_names(name: str, split: str | None) -> None:
    assert split_of_name(Path("data") / name) == split


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("\ufeff\n# sent_id = 1\n1\ta\ta\tDET\t_\t_\t0\troot\t_\t_\n", "conllu"),
        ("\n ( (S (NN a)))", "brackets"),
        ('{"text": "a"}\n', "json"),
        ("-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\n", "columns"),
    ],
)
def test_formats_follow_from_contents(content: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(content, encoding="utf-8")
    assert detect_format(tmp_path / "file") == expected


def test_missing_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="the suite 'treebank' reads data files, but none were given"):
        find_data(None, (".conllu",), "treebank")
    with pytest.raises(PretuneError, match="no such file or folder"):
        find_data(tmp_path / "missing", (".conllu",), "treebank")
    (tmp_path / "README.md").write_text("text", encoding="utf-8")
    with pytest.raises(PretuneError, match=r"the folder contains no files that the suite 'treebank' reads"):
        find_data(tmp_path, (".conllu",), "treebank")
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    with pytest.raises(PretuneError, match="contains no sentences"):
        detect_format(tmp_path / "empty")
