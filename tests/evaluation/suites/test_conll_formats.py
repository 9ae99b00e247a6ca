"""Tests of semantic roles in the formats of CoNLL-2005 and CoNLL-2012, read as a suite and by the task tag."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.evaluation.suites.conll_formats import read_coreference_2012, read_roles_2005, read_roles_2012
from pretune.evaluation.suites.declaration import find_suite
from pretune.evaluation.suites.official_metrics import suite_metrics
from pretune.evaluation.suites.published_results import published_results
from pretune.objectives import parse_objective
from pretune.text.examples.conll_annotations import bracketed_roles

WORDS = ["The", "market", "that", "fell", "rose", "again"]
FELL = ["B-A1", "I-A1", "B-R-A1", "B-V", "O", "O"]
ROSE = ["B-A1", "I-A1", "I-A1", "I-A1", "B-V", "B-AM-TMP"]
PROPS = """-     (A1*    (A1*
-          *)       *
-     (R-A1*)       *
fall     (V*)       *)
rise       *      (V*)
-          *   (AM-TMP*)
"""
ROWS = [{"words": WORDS, "predicate": 3, "tags": FELL}, {"words": WORDS, "predicate": 4, "tags": ROSE}]


def lines_2005() -> list[str]:
    return [f"{word} DT (NP* {line}" for word, line in zip(WORDS, PROPS.splitlines(), strict=True)]


def document_2012(name: str = "bn/cnn_0001") -> str:
    rows = []
    for number, (word, line) in enumerate(zip(WORDS, PROPS.splitlines(), strict=True)):
        lemma, *roles = line.split()
        frame = "-" if lemma == "-" else "01"
        rows.append("   ".join([name, "0", str(number), word, "DT", "(TOP*", lemma, frame, "-", "-", "*", *roles, "-"]))
    return f"#begin document ({name}); part 000\n" + "\n".join(rows) + "\n\n#end document\n"


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content, encoding="utf-8")
    return path


def rows(found: Any) -> list[Any]:
    return [row for _, row in found]


def test_both_formats_and_both_layouts_of_2005_have_the_same_rows(tmp_path: Path) -> None:
    merged = write(tmp_path / "train-set.gz", "\n".join(lines_2005()) + "\n\n")
    words = write(tmp_path / "words" / "test.words.gz", "\n".join(WORDS) + "\n\n" + "\n".join(WORDS) + "\n")
    props = write(tmp_path / "props" / "test.props.gz", PROPS + "\n" + PROPS)
    assert rows(read_roles_2005([merged])) == ROWS
    assert rows(read_roles_2005([words, props])) == ROWS * 2
    write(tmp_path / "annotations" / "bn" / "b.v4_gold_conll", document_2012())
    write(tmp_path / "annotations" / "a.v4_gold_conll", document_2012())
    write(tmp_path / "annotations" / "a.v4_auto_conll", "not read")
    assert rows(read_roles_2012([tmp_path / "annotations"])) == ROWS * 2
    assert rows(read_roles_2012([tmp_path / "annotations" / "a.v4_gold_conll"])) == ROWS


def test_sentences_without_predicates_have_no_rows(tmp_path: Path) -> None:
    assert rows(read_roles_2005([write(tmp_path / "a", "Yes -\n. -\n\n" + "\n".join(lines_2005()))])) == ROWS


@pytest.mark.parametrize(
    "column", [["(A1*", "(A0*)"], ["(A1*", "*"], ["*", "*)"], ["(A1", "*)"], ["A1*", "*"], ["(A1*)*", "*"]]
)
def test_brackets_that_do_not_match_are_errors(column: list[str]) -> None:
    with pytest.raises(pt.PretuneError, match="bracket"):
        bracketed_roles(column)


def test_damaged_files_give_errors_with_their_place(tmp_path: Path) -> None:
    uneven = rows(read_roles_2005([write(tmp_path / "a", "The - (A1*\nmarket -\n")]))
    assert len(uneven) == 1 and "a word has 2 columns instead of 3" in str(uneven[0])
    twice = list(
        read_roles_2005([write(tmp_path / "b", "fell fall (V*)\nfell fall (V*)\n\n" + "\n".join(lines_2005()))])
    )
    assert twice[0][0] == "line 1, predicate 1" and "has 2 predicates" in str(twice[0][1]) and rows(twice[1:]) == ROWS
    few = rows(read_roles_2012([write(tmp_path / "c", "a 0 0 The DT\n")]))
    assert "this word has 5 columns; give all words" in str(few[0])
    words, props = write(tmp_path / "d", "The\nmarket\n"), write(tmp_path / "e", "- *\n")
    with pytest.raises(pt.PretuneError, match="line 2: e has no word here"):
        list(read_roles_2005([words, props]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(pt.PretuneError, match=r"the folder has no files \*_gold_conll"):
        list(read_roles_2012([tmp_path / "empty"]))


def test_suite_reads_predicates_for_the_task_and_scores_its_answers(tmp_path: Path) -> None:
    folder = tmp_path / "conll-2012" / "test" / "data" / "english" / "annotations"
    write(folder / "a.v4_gold_conll", document_2012())
    task = find_suite("elmo").tasks["srl"]
    made = task.read("test", tmp_path)
    assert made.rows == [{"text": WORDS, "label": r["tags"], "predicate": r["predicate"]} for r in ROWS]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in made.rows), encoding="utf-8")
    objective: Any = parse_objective(task.kind).objectives[0]
    examples = objective.read(file, task.columns)
    assert examples.predicates == [3, 4] and examples.tags == [FELL, ROSE]
    answers = [{"tags": FELL}, {"tags": ["O"] * 6}]
    assert suite_metrics(task.metrics, made.rows, answers) == {"role_f1": pytest.approx(4 / 6)}


def test_coreference_of_the_suite_has_one_row_per_document(tmp_path: Path) -> None:
    folder = tmp_path / "conll-2012" / "test" / "data" / "english" / "annotations"
    lines = document_2012().splitlines()
    lines[1], lines[6] = (lines[at].removesuffix("-") + "(0)" for at in (1, 6))  # "The" and "again"
    good = "\n".join(lines) + "\n"
    write(folder / "a.v4_gold_conll", good)
    task = find_suite("elmo").tasks["coref"]
    made = task.read("test", tmp_path, allow_incomplete=True)
    clusters = [[[0, 0], [5, 5]]]
    assert made.rows == [{"text": [WORDS], "label": clusters, "id": "bn/cnn_0001, part 0"}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in made.rows), encoding="utf-8")
    objective: Any = parse_objective(task.kind).objectives[0]
    assert objective.read(file, task.columns).clusters == [[[(0, 0), (5, 5)]]]
    assert suite_metrics(task.metrics, made.rows, [{"clusters": clusters}]) == {"conll_f1": 1}
    assert suite_metrics(["muc_f1"], made.rows, [{"clusters": []}]) == {"muc_f1": 0}
    write(folder / "b.v4_gold_conll", good.replace("(0)", "(0", 1))
    ((_, row), (place, error)) = read_coreference_2012([folder])
    assert isinstance(row, dict) and place == "b.v4_gold_conll, document bn/cnn_0001, part 0"
    assert str(error) == "line 2: '(0' opens a mention that its sentence does not close"


def test_published_results_have_the_columns_of_the_suite() -> None:
    suite = find_suite("elmo")
    assert [row.scores["srl"] for row in published_results(suite)] == [81.7, 81.4, 84.6]
    assert [row.scores["coref"] for row in published_results(suite)] == [67.2, 67.2, 70.4]
    assert {name for row in published_results(suite) for name in row.scores} == suite.tasks.keys() - {"srl-2005"}
