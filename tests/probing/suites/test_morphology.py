"""Morphological features of words in context."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune import PretuneError
from pretune.probing.suites import load_suite
from tests.support.treebanks import write_treebank


@pytest.mark.parametrize("splits", [True, False])
def test_each_feature_is_a_task(splits: bool, tmp_path: Path) -> None:
    tasks = {task.name: task for task in load_suite("morphology", write_treebank(tmp_path, 400, splits=splits))}
    assert list(tasks) == ["UPOS", "Number", "Tense"]  # Mood and VerbForm have one value
    assert tasks["Number"].labels == ["Plur", "Sing"]
    for name, task in tasks.items():
        assert task.group == "morphology"
        forms, texts = dict[str, str](), dict[str, str]()
        for example in task.examples:
            [(begin, end)] = example.spans
            form = example.text[begin:end]
            assert forms.setdefault(form.casefold(), example.split) == example.split
            assert texts.setdefault(example.text, example.split) == example.split
            if name == "Number":
                assert example.label == ("Plur" if form.endswith("ax") else "Sing")


def test_a_treebank_without_heads_is_read(tmp_path: Path) -> None:
    folder = write_treebank(tmp_path, 200)
    for file in folder.iterdir():
        rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
        lines = ["\t".join([*row[:6], "_", "_", *row[8:]]) if len(row) > 1 else "" for row in rows]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert [task.name for task in load_suite("morphology", folder)] == ["UPOS", "Number", "Tense"]


def test_treebanks_without_features_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=r"the suite 'morphology' reads only treebanks in CoNLL-U"):
        load_suite("morphology", write_treebank(tmp_path / "trees", 10, brackets=True))
    (tmp_path / "one.conllu").write_text("1\ta\ta\t_\t_\t_\t_\t_\t_\t_\n", encoding="utf-8")
    with pytest.raises(PretuneError, match="no word has a part of speech or features"):
        load_suite("morphology", tmp_path / "one.conllu")
    (tmp_path / "one.conllu").write_text("1\ta\ta\tDET\t_\t_\t_\t_\t_\t_\n", encoding="utf-8")
    with pytest.raises(PretuneError, match=r"no feature can be probed \(UPOS\)"):
        load_suite("morphology", tmp_path / "one.conllu")
