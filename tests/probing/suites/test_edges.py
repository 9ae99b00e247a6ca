"""Edge probing: labeled spans and pairs of spans from treebanks, tagged words and JSON Lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pretune import PretuneError
from pretune.probing.suites import load_suite
from pretune.probing.suites.edges import read_edge_targets
from tests.support.treebanks import write_treebank


def spans(example: Any) -> list[str]:
    return [example.text[begin:end] for begin, end in example.spans]


def test_dependency_treebanks_have_parts_of_speech_and_dependencies(tmp_path: Path) -> None:
    tasks = {task.name: task for task in load_suite("edges", write_treebank(tmp_path, 200))}
    assert {name: task.group for name, task in tasks.items()} == {"pos": "morphology", "dependencies": "syntax"}
    assert {"nsubj", "obj", "det", "amod", "punct"} <= set(tasks["dependencies"].labels)
    for example in tasks["dependencies"].examples:
        word, head = spans(example)
        assert (example.label == "det") == (word.lower() == "the")
        if example.label == "nsubj":
            assert head.endswith(("ed", "it"))  # a verb
    assert all(len(example.spans) == 1 for example in tasks["pos"].examples)


def test_constituency_treebanks_have_parts_of_speech_and_constituents(tmp_path: Path) -> None:
    tasks = {task.name: task for task in load_suite("edges", write_treebank(tmp_path, 200, brackets=True))}
    assert sorted(tasks) == ["constituents", "pos"]
    assert set(tasks["constituents"].labels) == {"NP", "VP", "PP", "S", "ADVP"}
    for example in tasks["constituents"].examples:
        [phrase] = spans(example)
        assert phrase != example.text
        if example.label == "PP":
            assert phrase.startswith(("of ", "near "))


def test_tagged_words_have_entities(tmp_path: Path) -> None:
    kinds = {"PER": "Ann Smith", "LOC": "Rome"}
    for name, count in (("eng.train", 20), ("eng.testa", 4), ("eng.testb", 4)):
        rows = []
        for i in range(count):
            kind = "PER" if i % 2 else "LOC"
            rows += [f"{name[4:]}{i} NN O", *(f"{word} NNP I-{kind}" for word in kinds[kind].split()), ". . O", ""]
        (tmp_path / name).write_text("-DOCSTART- -X- O\n\n" + "\n".join(rows) + "\n", encoding="utf-8")
    [task] = load_suite("edges", tmp_path)
    assert (task.name, task.group, len(task.part("dev")), len(task.part("test"))) == ("entities", "semantics", 4, 4)
    for example in task.examples:
        assert spans(example) == [kinds[example.label]]


ROLES = {"text": "the  old cat saw it", "targets": [{"span1": [3, 4], "span2": [0, 3], "label": "agent"}, {"span1": [3, 4], "span2": [4, 5], "label": ["patient"]}]}  # fmt: skip


def test_targets_of_edge_probing_are_read(tmp_path: Path) -> None:
    for split, count in (("train", 10), ("development", 2), ("test", 2)):
        rows = [{**ROLES, "text": f"{ROLES['text']}{split}{i}", "info": {"id": i}} for i in range(count)]
        (tmp_path / f"srl.{split}.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    [task] = load_suite("edges", tmp_path)
    assert (task.name, task.group, task.labels) == ("srl", "semantics", ["agent", "patient"])
    assert spans(task.part("train")[0]) == ["saw", "the  old cat"]
    assert [len(task.part(split)) for split in ("train", "dev", "test")] == [20, 4, 4]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"targets": None}, 'line 2: expected a "text" and a list of "targets"'),
        ({"targets": [3]}, "line 2: the target 3 is not an object"),
        ({"targets": [{"span1": [3, 6], "label": "a"}]}, r"line 2: 'span1' is \[3, 6\], but must be \[begin, end\] with indices of the 5 words"),
        ({"targets": [{"span1": [3, 3], "label": "a"}]}, "line 2: 'span1'"),
        ({"targets": [{"label": "a"}]}, "line 2: 'span1' is None"),
        ({"targets": [{"span1": [0, 1], "label": "a"}]}, "line 2: a target has 1 spans, but earlier targets have 2"),
        ({"targets": [{"span1": [0, 1], "span2": [0, 1], "label": ["a", "b"]}]}, "line 2: the label is .* but must be one text"),
    ],
)  # fmt: skip
def test_bad_targets_are_refused_with_their_line(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    (tmp_path / "srl.jsonl").write_text(json.dumps(ROLES) + "\n" + json.dumps({**ROLES, **change}), encoding="utf-8")
    with pytest.raises(PretuneError, match=problem):
        list(read_edge_targets(tmp_path / "srl.jsonl"))


def test_formats_with_the_same_task_are_not_mixed(tmp_path: Path) -> None:
    write_treebank(tmp_path, 50)
    write_treebank(tmp_path, 50, brackets=True)
    with pytest.raises(PretuneError, match="files of different formats have labels for the task 'pos'"):
        load_suite("edges", tmp_path)


def test_one_label_is_refused(tmp_path: Path) -> None:
    rows = [{"text": f"a cat {i}", "targets": [{"span1": [0, 1], "label": "same"}]} for i in range(30)]
    (tmp_path / "coref.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(
        PretuneError, match="the task 'coref' cannot be probed, because all examples have the label 'same'"
    ):
        load_suite("edges", tmp_path / "coref.jsonl")
