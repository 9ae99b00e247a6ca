"""Tests of suites: declarations, official file formats, missing files and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pretune.evaluation.suites import suite_names
from pretune.evaluation.suites.declaration import SuiteRows, find_suite
from pretune.evaluation.suites.layouts import LAYOUTS
from pretune.objectives import OBJECTIVES
from pretune.runtime.errors import PretuneError


def write(path: Path, content: str | list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, str):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
    path.write_text(content, encoding="utf-8")
    return path


def read(suite: str, task: str, split: str, data: Path) -> SuiteRows:
    return find_suite(suite).tasks[task].read(split, data, allow_incomplete=True)


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_is_well_formed(name: str) -> None:
    suite = find_suite(name)
    assert suite.title and suite.source and suite.tasks
    for task in suite.tasks.values():
        assert task.kind.split("(")[0] in OBJECTIVES and task.metrics and task.title
        assert task.format is None or task.format in LAYOUTS
        assert task.scored in task.files and ("train" in task.files or task.uses_model_of in suite.tasks)
        assert task.uses_model_of == "" or suite.tasks[task.uses_model_of].kind == task.kind
        assert set(task.counts) <= {*task.files, "train"}
    bases = {task.like for task in suite.tasks.values() if task.language}
    for columns in suite.averages.values():
        flat = [name for column in columns for name in (column if isinstance(column, list) else [column])]
        assert {name.split(".")[0] for name in flat} <= {*suite.tasks, *bases}


def test_suites_have_their_official_tasks() -> None:
    assert [task.title for task in find_suite("glue").tasks.values()] == [
        "MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE", "WNLI", "AX",
    ]  # fmt: skip
    assert len(find_suite("superglue").tasks) == 10 and len(find_suite("russian-superglue").tasks) == 9
    assert len({task.like for task in find_suite("xglue").tasks.values()}) == 11


def test_glue_tables_are_read(tmp_path: Path) -> None:
    write(tmp_path / "CoLA/train.tsv", 'gj04\t1\t\tHe said "no.\ngj04\t0\t*\tHim said.\n')
    write(tmp_path / "CoLA/test.tsv", "index\tsentence\n0\tShe left.\n")
    write(tmp_path / "MRPC/dev.tsv", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t5\t6\tOne .\tAnother .\n")
    write(tmp_path / "STS-B/dev.tsv", "index\tgenre\tsentence1\tsentence2\tscore\n0\tnews\tA.\tB.\t2.500\n")
    assert read("glue", "cola", "train", tmp_path).rows == [
        {"text": 'He said "no.', "label": "1"},
        {"text": "Him said.", "label": "0"},
    ]
    test = read("glue", "cola", "test", tmp_path)
    assert test.rows == [{"text": "She left."}] and not test.answered and not test.complete
    assert read("glue", "mrpc", "dev", tmp_path).rows == [{"text": "One .", "pair": "Another .", "label": "1"}]
    assert read("glue", "sts-b", "dev", tmp_path).rows[0]["label"] == "2.500"


def test_diagnostics_have_categories_and_use_the_model_of_another_task(tmp_path: Path) -> None:
    header = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel\n"
    row = "Redundancy\t\tNegation;Double negation\t\tNews\tA cat sat.\tNo cat sat.\tcontradiction\n"
    write(tmp_path / "diagnostic/diagnostic-full.tsv", header + row)
    assert read("glue", "ax", "dev", tmp_path).rows == [
        {
            "text": "A cat sat.", "pair": "No cat sat.", "label": "contradiction",
            "categories": {"Lexical Semantics": ["Redundancy"], "Logic": ["Negation", "Double negation"]},
        }
    ]  # fmt: skip
    tasks = find_suite("glue").tasks
    assert tasks["ax"].uses_model_of == tasks["mnli-mm"].uses_model_of == "mnli" and "train" not in tasks["ax"].files


@pytest.mark.not_fast
def test_superglue_files_are_read(tmp_path: Path) -> None:
    write(tmp_path / "BoolQ/val.jsonl", [{"question": "is it", "passage": "It is.", "label": True, "idx": 0}])
    cause = {
        "premise": "It broke.",
        "choice1": "It fell.",
        "choice2": "It sang.",
        "question": "cause",
        "label": 0,
        "idx": 3,
    }
    write(tmp_path / "COPA/val.jsonl", [cause])
    target = {"span1_text": "Mark", "span1_index": 0, "span2_text": "He", "span2_index": 13}
    write(tmp_path / "WSC/val.jsonl", [{"text": "Mark … He", "target": target, "label": False, "idx": 0}])
    answers = [{"text": "yes", "idx": 0, "label": 1}, {"text": "no", "idx": 1, "label": 0}]
    questions = [{"question": "Is it?", "idx": 4, "answers": answers}]
    write(tmp_path / "MultiRC/val.jsonl", [{"idx": 2, "passage": {"text": "It is.", "questions": questions}}])
    entities = [{"start": 0, "end": 3}, {"start": 9, "end": 11}, {"start": 0, "end": 3}]
    asked = [{"query": "@placeholder met Bob", "idx": 7, "answers": [{"start": 0, "end": 3, "text": "Anna"}]}]
    write(tmp_path / "ReCoRD/val.jsonl", [{"passage": {"text": "Anna met Bob", "entities": entities}, "qas": asked}])
    sides = [{"premise": p, "hypothesis": "H", "label": "entailment", "idx": i} for i, p in enumerate("abcd")]
    write(tmp_path / "AX-g/AX-g.jsonl", sides)
    assert read("superglue", "boolq", "dev", tmp_path).rows == [
        {"text": "It is.", "pair": "is it", "label": "true", "id": 0}
    ]
    assert read("superglue", "copa", "dev", tmp_path).rows == [
        {
            "text": "It broke.",
            "question": "What was the cause?",
            "choices": ["It fell.", "It sang."],
            "label": 0,
            "id": 3,
        }
    ]
    assert read("superglue", "wsc", "dev", tmp_path).rows[0] == {
        "text": "Mark … He", "label": "false", "word1": "Mark", "place1": 0, "word2": "He", "place2": 13, "id": 0,
    }  # fmt: skip
    assert read("superglue", "multirc", "dev", tmp_path).rows == [
        {"text": "It is.", "pair": "Is it? yes", "label": 1, "group": "2/4", "id": [2, 4, 0]},
        {"text": "It is.", "pair": "Is it? no", "label": 0, "group": "2/4", "id": [2, 4, 1]},
    ]
    assert read("superglue", "record", "dev", tmp_path).rows == [
        {
            "text": "Anna met Bob",
            "query": "@placeholder met Bob",
            "entities": ["Anna", "Bob"],
            "answers": ["Anna"],
            "id": 7,
        }
    ]
    assert [row["group"] for row in read("superglue", "ax-g", "dev", tmp_path).rows] == [0, 0, 1, 1]


def test_russian_superglue_files_are_read(tmp_path: Path) -> None:
    write(tmp_path / "TERRa/test.jsonl", [{"premise": "Шёл дождь.", "hypothesis": "Было мокро.", "idx": 5}])
    row = {"sentence1": "А", "sentence2": "Б", "label": "entailment", "logic": "Negation", "knowledge": "", "idx": 1}
    write(tmp_path / "LiDiRus/LiDiRus.jsonl", [row])
    passage = {"text": "Анна пришла", "entities": [{"start": 0, "end": 4, "text": "Анна"}]}
    write(tmp_path / "RuCoS/test.jsonl", [{"passage": passage, "qas": [{"query": "@placeholder ушла", "idx": 0}]}])
    assert read("russian-superglue", "terra", "test", tmp_path).rows == [
        {"text": "Шёл дождь.", "pair": "Было мокро.", "id": 5}
    ]
    assert read("russian-superglue", "lidirus", "dev", tmp_path).rows[0]["categories"] == {"logic": ["Negation"]}
    assert "answers" not in read("russian-superglue", "rucos", "test", tmp_path).rows[0]


@pytest.mark.not_fast
def test_xglue_files_of_several_languages_are_read(tmp_path: Path) -> None:
    write(tmp_path / "NER/de.dev", "Anna B-PER\nlief O\n\n\nsie O\n")
    write(tmp_path / "XNLI/de.dev", "Satz eins\tSatz zwei\tcontradictory\n")
    write(tmp_path / "QADSM/xglue.qadsm.fr.dev", "fleurs\tRoses\tVente de roses\tGood\n")
    write(tmp_path / "QG/xglue.qg.fr.src.dev", "Paris est grande\n")
    write(tmp_path / "QG/xglue.qg.fr.tgt.dev", "Qu'est-ce qui est grand ?\n")
    assert read("xglue", "ner-de", "dev", tmp_path).rows == [
        {"text": ["Anna", "lief"], "label": ["B-PER", "O"]},
        {"text": ["sie"], "label": ["O"]},
    ]
    assert read("xglue", "xnli-de", "dev", tmp_path).rows[0]["label"] == "contradiction"
    assert read("xglue", "qadsm-fr", "dev", tmp_path).rows[0]["pair"] == "Roses Vente de roses"
    assert read("xglue", "qg-fr", "dev", tmp_path).rows == [
        {"text": "Paris est grande", "label": "Qu'est-ce qui est grand ?"}
    ]
    suite = find_suite("xglue")
    assert suite.tasks["xnli-de"].uses_model_of == "xnli-en" and "train" in suite.tasks["xnli-en"].files
    assert find_suite("xglue", language="de").tasks["ner-en"].uses_model_of == "ner-de"
    assert set(suite.select_tasks(["nc"]).tasks) == {"nc-en", "nc-de", "nc-es", "nc-fr", "nc-ru"}


@pytest.mark.not_fast
def test_other_file_formats_are_read(tmp_path: Path) -> None:
    (tmp_path / "TREC").mkdir()
    (tmp_path / "TREC/TREC_10.label").write_bytes("NUM:dist How far is Malm\xf6 ?\n".encode("latin-1"))
    write(tmp_path / "ag_news_csv/test.csv", '"3","A, title","And ""text"""\n')
    write(tmp_path / "aclImdb/test/pos/1_9.txt", "good")
    write(tmp_path / "aclImdb/test/neg/0_1.txt", "bad")
    write(tmp_path / "trees/dev.txt", "(3 (2 A) (4 (3 fine) (2 film)))\n")
    write(tmp_path / "snli_1.0/snli_1.0_dev.jsonl", [
        {"sentence1": "a", "sentence2": "b", "gold_label": "-"},
        {"sentence1": "c", "sentence2": "d", "gold_label": "neutral"},
    ])  # fmt: skip
    school = {
        "id": "high1",
        "article": "Text.",
        "questions": ["Q?"],
        "options": [["w", "x", "y", "z"]],
        "answers": ["C"],
    }
    write(tmp_path / "RACE/dev/high/1.txt", json.dumps(school))
    header = ",video-id,sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    write(tmp_path / "SWAG/val.csv", header + '0,v,"He, sits.",He,a,b,c,d,2\n')
    asked = {"id": "q1", "question": "Who?", "answers": [{"text": "Anna", "answer_start": 0}]}
    nobody = {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True}
    paragraph = {"context": "Anna came.", "qas": [asked, nobody]}
    write(tmp_path / "dev-v2.0.json", json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    assert read("text", "trec-6", "test", tmp_path).rows == [{"text": "How far is Malmö ?", "label": "NUM"}]
    assert read("text", "trec-50", "test", tmp_path).rows[0]["label"] == "NUM:dist"
    assert read("text", "ag-news", "test", tmp_path).rows == [{"text": 'A, title And "text"', "label": "3"}]
    assert [row["label"] for row in read("text", "imdb", "test", tmp_path).rows] == ["neg", "pos"]
    assert read("text", "sst-5", "dev", tmp_path).rows == [{"text": "A fine film", "label": "3"}]
    assert [row["label"] for row in read("text", "snli", "dev", tmp_path).rows] == ["neutral"]
    assert read("text", "race", "dev", tmp_path).rows[0]["choices"] == ["w", "x", "y", "z"]
    assert read("text", "swag", "dev", tmp_path).rows[0] == {
        "text": "He, sits.", "question": "He", "choices": ["a", "b", "c", "d"], "label": "2",
    }  # fmt: skip
    assert [row["label"] for row in read("squad", "squad-2.0", "dev", tmp_path).rows] == [
        [{"text": "Anna", "start": 0}],
        [],
    ]


def test_missing_tasks_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    write(tmp_path / "RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    write(tmp_path / "MNLI/dev_mismatched.tsv", "sentence1\tsentence2\tgold_label\na\tb\tneutral\n")
    here, missing = find_suite("glue").available_tasks(tmp_path)
    assert list(here) == ["rte"] and missing["cola"] == "no CoLA/train.tsv, no CoLA/dev.tsv"
    assert missing["mnli-mm"] == "it uses the model of mnli, which is missing"
    with pytest.raises(PretuneError, match="no files of GLUE's tasks were found"):
        find_suite("glue").available_tasks(tmp_path / "nothing")


def test_file_of_the_wrong_length_is_rejected_with_the_right_one(tmp_path: Path) -> None:
    write(tmp_path / "RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    write(tmp_path / "RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    task = find_suite("glue").tasks["rte"]
    with pytest.raises(
        PretuneError, match=r"RTE/dev.tsv: 1 rows instead of the 277 of RTE's dev split; .* --allow-incomplete"
    ):
        task.read("dev", tmp_path)
    assert not task.read("train", tmp_path).complete  # this is reported


def test_malformed_rows_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    good = "".join(f"{i}\ta\tb\tentailment\n" for i in range(300))
    lines = f"index\tsentence1\tsentence2\tlabel\n{good}300\tlost\n"
    write(tmp_path / "RTE/train.tsv", lines)
    write(tmp_path / "RTE/dev.tsv", lines)
    task = find_suite("glue").tasks["rte"]
    assert len(task.read("train", tmp_path)) == 300
    assert "RTE/train.tsv, line 302: the row has 2 fields instead of 4" in capsys.readouterr().err
    with pytest.raises(PretuneError, match=r"RTE/dev.tsv, line 302: the row has 2 fields"):
        task.read("dev", tmp_path, allow_incomplete=True)
    write(tmp_path / "RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n" + "1\n" * 50 + good)
    with pytest.raises(PretuneError, match="and 49 more"):
        task.read("train", tmp_path)
    write(tmp_path / "CB/val.jsonl", '{"premise": "a", "hypothesis": "b", "label": "neutral"}\n{"premise": "a"}\n')
    with pytest.raises(
        PretuneError, match=r"CB/val.jsonl, line 2: there is no column 'hypothesis'; columns are 'premise'"
    ):
        read("superglue", "cb", "dev", tmp_path)
    write(tmp_path / "CB/val.jsonl", "{broken\n")
    with pytest.raises(PretuneError, match=r"CB/val.jsonl, line 1: this is not valid JSON"):
        read("superglue", "cb", "dev", tmp_path)
    write(tmp_path / "multi30k/val.en", "a\nb\n")
    write(tmp_path / "multi30k/val.de", "a\n")
    with pytest.raises(PretuneError, match=r"val\.de has no line 2"):
        read("translation", "multi30k-de", "dev", tmp_path)


def test_custom_suites_are_read(tmp_path: Path) -> None:
    task = (
        "{title: T, kind: classify, metrics: [accuracy], files: {train: a.tsv, dev: b.tsv}, roles: {text: 1, label: 2}"
    )
    mine = write(tmp_path / "mine.yaml", f"title: Mine\ntasks:\n  t: {task}}}\n")
    write(tmp_path / "b.tsv", "some text\tyes\n")
    assert find_suite(mine).tasks["t"].read("dev", tmp_path).rows == [{"text": "some text", "label": "yes"}]
    with pytest.raises(PretuneError, match="did you mean 'metrics'"):
        find_suite(write(tmp_path / "mine.yaml", f"tasks:\n  t: {task}, metric: f1}}\n"))
    for languages, missing in (("", "title, metrics, files, roles"), (", languages: [en, fr]", "files")):
        with pytest.raises(PretuneError, match=f"the task 't' lacks the keys {missing}; add these keys"):
            find_suite(write(tmp_path / "mine.yaml", f"tasks:\n  t: {{kind: classify{languages}}}\n"))
    with pytest.raises(PretuneError, match="unknown suite 'gleu'; did you mean 'glue'"):
        find_suite("gleu")
    with pytest.raises(PretuneError, match="no task 'colla'; did you mean 'cola'"):
        find_suite("glue").select_tasks(["colla"])


def test_role_without_a_column_is_rejected(tmp_path: Path) -> None:
    task = "{title: One, kind: classify, metrics: [accuracy], files: {dev: dev.csv}, roles: {text: [], label: label}}"
    (tmp_path / "own.yaml").write_text(f"title: Own\ntasks: {{one: {task}}}\n")
    with pytest.raises(PretuneError, match="the role 'text' has no column"):
        find_suite(tmp_path / "own.yaml")
