"""Tests of semantic roles and coreference in the formats of CoNLL-2005 and CoNLL-2012, read as a suite and by tasks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.evaluation.suites.conll_formats import (
    bracketed_roles,
    read_mention_pairs,
    read_roles_2005,
    read_roles_2012,
)
from pretune.evaluation.suites.declaration import find_suite
from pretune.evaluation.suites.official_metrics import suite_metrics
from pretune.evaluation.suites.published_results import published_results
from pretune.objectives import parse_objective

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
    assert "CoNLL-2012 has 12 or more" in str(few[0])
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


def test_published_results_have_the_columns_of_the_suite() -> None:
    suite = find_suite("elmo")
    assert [row.scores["srl"] for row in published_results(suite)] == [81.7, 81.4, 84.6]
    assert {name for row in published_results(suite) for name in row.scores} == suite.tasks.keys() - {
        "srl-2005",
        "coref",
    }


CHAINS = [  # words and entities of the sentences of a document
    [("Ann", "(0)"), ("saw", "-"), ("the", "(1"), ("dog", "-"), ("of", "-"), ("Bo", "(2)|1)"), (".", "-")],
    [("She", "(0)"), ("told", "-"), ("him", "(2)"), (".", "-")],
]


def chains(name: str = "bn/a", sentences: Any = CHAINS) -> str:
    blocks = [
        "\n".join(
            f"{name}   0   {n}   {word}   -   -   -   -   -   -   *   {entity}"
            for n, (word, entity) in enumerate(lines)
        )
        for lines in sentences
    ]
    return f"#begin document ({name}); part 000\n" + "\n\n".join(blocks) + "\n\n#end document\n"


def test_mentions_are_paired_with_those_before_them(tmp_path: Path) -> None:
    found = rows(read_mention_pairs([write(tmp_path / "a.v4_gold_conll", chains())]))
    spans = [tuple(row["text"][row[f"start{k}"] : row[f"end{k}"]] for k in (1, 2)) for row in found]
    assert spans[:3] == [("Ann", "the dog of Bo"), ("Ann", "Bo"), ("the dog of Bo", "Bo")]
    assert {pair for pair, row in zip(spans, found, strict=True) if row["label"] == "true"} == {
        ("Ann", "She"),
        ("Bo", "him"),
    }
    assert len(found) == 4 + 3 + 2 + 1 and {row["group"] for row in found} == {"bn/a 0"}
    assert found[0]["text"] == "Ann saw the dog of Bo ." and found[-1]["text"] == "She told him ."
    assert found[0]["gold"] == {"mentions": [[0, 0, 0], [0, 2, 5]], "entities": ["0", "1"]}


def test_every_mention_has_a_pair_however_far_it_is(tmp_path: Path) -> None:
    far = [[("Ann", "(0)")], *[[("Well", "-")]] * 9, [("Ann", "(0)")]]
    found = rows(read_mention_pairs([write(tmp_path / "a", chains(sentences=far))]))
    assert [row["label"] for row in found] == ["true"] and found[0]["text"].count("Well") == 9


@pytest.mark.parametrize(("cells", "message"), [(["(0", "-"], "no closing"), (["-", "0)"], "no opening")])
def test_damaged_mentions_are_errors_of_their_document(cells: list[str], message: str, tmp_path: Path) -> None:
    broken = chains("b", [[("a", cells[0]), ("b", cells[1])]])
    found = list(read_mention_pairs([write(tmp_path / "a", broken + chains())]))
    assert found[0][0] == "line 2" and f"document b 0: the mention of entity 0 in sentence 1 has {message}" in str(
        found[0][1]
    )
    assert len(found) == 11, "the other document is read"
    few = rows(read_mention_pairs([write(tmp_path / "c", "a 0\n")]))
    assert "fewer than four columns" in str(few[0])


def test_coreference_is_scored_by_entities(tmp_path: Path) -> None:
    write(tmp_path / "conll-2012" / "test" / "data" / "english" / "annotations" / "a.v4_gold_conll", chains())
    task = find_suite("elmo").tasks["coref"]
    made = task.read("test", tmp_path)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in made.rows), encoding="utf-8")
    objective: Any = parse_objective(task.kind).objectives[0]
    assert len(objective.read(file, task.columns).extra["spans"]) == 10

    def answers(chance: Any) -> list[Any]:
        return [{"label": "", "probabilities": {"true": chance(row), "false": 1 - chance(row)}} for row in made.rows]

    right = suite_metrics(task.metrics, made.rows, answers(lambda row: 0.9 if row["label"] == "true" else 0.6 * 0.5))
    assert right == dict.fromkeys(task.metrics, 1.0)
    # a wrong antecedent counts only if it is more probable than the right one
    assert (
        suite_metrics(["muc_f1"], made.rows, answers(lambda row: 0.9 if row["label"] == "true" else 0.2))["muc_f1"]
        == 1.0
    )
    none = suite_metrics(task.metrics, made.rows, answers(lambda row: 0.5))
    assert none == dict.fromkeys(task.metrics, 0.0)
    every = suite_metrics(task.metrics, made.rows, answers(lambda row: 0.7))  # one entity of five mentions
    assert every["muc_f1"] == pytest.approx(2 * 1 * 0.5 / 1.5) and 0 < every["b_cubed_f1"] < 1
