"""Tests of stores of cleaned corpora: the same bytes after kills and with any number of processes, and the report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.text.corpus.cleaning.cleaner import CleaningSettings
from pretune.text.corpus.documents import Document
from pretune.text.corpus.ngram_hashes import NgramSet
from pretune.text.corpus.sentences import split_sentences
from pretune.text.store import cleaning_pass
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.cleaning_pass import CLEANED, clean_unit, start_cleaning
from pretune.text.store.store import Store
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents
from tests.support.cli import run_command
from tests.support.texts import english_documents

QUESTION = "How long has the old mill by the river been a museum of local history and craft?"
SPAN = "All of this is free. You may copy it. Write to us if you like it."


@cache
def tokenizer() -> Tokenizer:
    return train_on_documents(
        [Document(text, Path("test"), 1) for text in english_documents()[:20]], "byte-level-bpe", 600
    )


def corpus(folder: Path) -> list[Path]:
    """Write three files of documents with everything that cleaning removes; the first document repeats in each file."""
    english = [" ".join(text.split()) for text in english_documents()[:18]]
    for number in range(3):
        texts = [
            english[0],
            *english[6 * number + 1 : 6 * number + 6],
            english[0].upper() + " And one more word.",
            f"Quiz.\n\n{QUESTION}\n\nThis is the end of document {number}. It has an end. It is this.",
            f"This is text {number} of the folder. {SPAN} That was text {number}.",
            "Buy now with JavaScript\nBuy now",
            f"Enable javascript for document {number}!\nThis stays in text {number}. It has a second sentence. And a third.",
        ]
        rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"{number}.jsonl").write_text(rows, encoding="utf-8")
    return sorted(folder.glob("*.jsonl"))


def settings(**options: Any) -> StoreSettings:
    cleaning = CleaningSettings(
        ("c4/javascript", "c4/few-sentences", "c4-duplicates"), (), 0.7, NgramSet.of_texts([QUESTION])
    )
    return StoreSettings(**{"shard_bytes": 4000, "cleaning": cleaning} | options)


def build(files: list[Path], out: Path, processes: int = 1, **options: Any) -> Store:
    return build_store(files, tokenizer(), out, settings(**options), processes)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def texts(store: Store) -> list[str]:
    return [store.tokenizer.decode(store.document(i)) for i in range(store.documents)]


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretune.text.store.builder.UNIT_BYTES", 1)  # every file is a unit
    monkeypatch.setattr("pretune.text.store.cleaning_pass.PART_BYTES", 3000)


def test_store_has_what_cleaning_leaves(small_units: None, tmp_path: Path) -> None:
    store = build(corpus(tmp_path), tmp_path / "store")
    found = texts(store)
    english = [" ".join(text.split()) for text in english_documents()[:18]]
    assert found[0] == english[0] and found.count(english[0]) == 1  # the first of the near duplicates
    assert not any("JavaScript" in text or "javascript" in text or QUESTION in text for text in found)
    assert [text for text in found if "end of document" in text] == [
        f"Quiz.\n\nThis is the end of document {n}. It has an end. It is this." for n in range(3)
    ]
    assert [text for text in found if "of the folder" in text] == [
        f"This is text 0 of the folder. {SPAN} That was text 0.",
        "This is text 1 of the folder. That was text 1.",
        "This is text 2 of the folder. That was text 2.",
    ]
    assert sorted({*store.document_files.tolist()}) == [0, 1, 2]
    report = store.cleaning()
    assert report is not None and report["documents"] == 33
    rows = {row["rule"]: row for row in report["rules"]}
    assert list(rows) == ["c4/javascript", "benchmark", "c4/few-sentences", "near-duplicates", "c4-duplicates"]
    short = sum(len(split_sentences(text)) < 3 for text in english[1:6] + english[7:12] + english[13:18])
    removed = {name: row["documents"] for name, row in rows.items()}
    assert removed == {
        "c4/javascript": 0,
        "benchmark": 0,
        "c4/few-sentences": short + 3,
        "near-duplicates": 5,
        "c4-duplicates": 0,
    }
    assert report["documents"] - report["removed_documents"] == store.documents
    assert rows["c4-duplicates"]["characters"] >= 2 * (len(SPAN) + 1) and len(rows["c4-duplicates"]["examples"]) == 3
    assert len(rows["near-duplicates"]["examples"]) == 3
    assert rows["benchmark"]["examples"][0].startswith("How long has the old mill")
    assert sum(row["share"] for row in rows.values()) == pytest.approx(
        report["removed_characters"] / report["characters"]
    )
    shown = pt.show(store.folder).describe()["cleaning"]
    assert shown["removed_documents"] == report["removed_documents"] and shown["examples"].endswith("cleaning.json")
    assert [row["rule"] for row in shown["rules"]] == list(rows) and "examples" not in shown["rules"][0]
    assert not (store.folder / CLEANED).exists()


@pytest.mark.not_fast
def test_bytes_do_not_depend_on_processes_or_units(
    small_units: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = corpus(tmp_path)
    one, two = (contents(build(files, tmp_path / str(n), n).folder) for n in (1, 2))
    assert one == two
    monkeypatch.setattr("pretune.text.store.builder.UNIT_BYTES", 1 << 30)
    joined = build(files, tmp_path / "joined")
    assert texts(joined) == texts(Store(tmp_path / "1"))
    assert (joined.folder / "cleaning.json").read_bytes() == one["cleaning.json"]


@pytest.mark.parametrize("unit", [0, 1, 2])
def test_interrupted_cleaning_continues_with_the_next_unit(
    small_units: None, unit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = corpus(tmp_path)
    expected = contents(build(files, tmp_path / "whole").folder)
    cleaned, original = [], cleaning_pass._clean_unit

    def interrupt(number: int, *rest: Any) -> None:
        cleaned.append(number)
        if number == unit and len(cleaned) == unit + 1:
            (tmp_path / "store.partial" / CLEANED / f"{number:05d}.jsonl.gz").write_bytes(b"half a file")
            raise KeyboardInterrupt
        original(number, *rest)

    monkeypatch.setattr(cleaning_pass, "_clean_unit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(files, tmp_path / "store")
    assert contents(build(files, tmp_path / "store").folder) == expected
    assert cleaned == [*range(unit + 1), *range(unit, 3)]  # what was finished is not cleaned again


def test_damaged_or_outdated_cleaned_units_are_cleaned_again(small_units: None, tmp_path: Path) -> None:
    files = corpus(tmp_path)
    partial = tmp_path / "store.partial"
    partial.mkdir()
    cleaning = settings().cleaning
    assert cleaning is not None
    start_cleaning(partial, cleaning)
    for number, file in enumerate(files):
        clean_unit(number, [str(file)], str(partial), settings().state())
    (partial / CLEANED / "00000.jsonl.gz").write_bytes(b"")
    (partial / CLEANED / "00001.safetensors").write_bytes(b"damaged")
    content = files[2].read_text().replace("document 2", "document 9")  # of the same size
    files[2].write_text(content)
    found = build(files, tmp_path / "store")
    shutil.move(found.folder, tmp_path / "first")
    assert contents(tmp_path / "first") == contents(build(files, tmp_path / "store").folder)
    assert any("document 9" in text for text in texts(found))


def test_other_benchmark_than_that_of_an_unfinished_store_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = corpus(tmp_path)

    def build_against(text: str) -> Store:
        cleaning = CleaningSettings(benchmark=NgramSet.of_texts([text]))
        return build_store(files, tokenizer(), tmp_path / "store", StoreSettings(cleaning=cleaning), 1)

    with monkeypatch.context() as patch:
        patch.setattr("pretune.text.store.builder.remove_duplicates", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_against("Some other text that is not in the corpus at all.")
    assert not any(QUESTION in text for text in texts(build_against(QUESTION)))


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


KILLED = """
import sys
from pathlib import Path
from pretune.text.corpus.cleaning.cleaner import CleaningSettings
from pretune.text.store import builder
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.tokenizers.tokenizer import Tokenizer
builder.UNIT_BYTES = 1
folder = Path(sys.argv[1])
cleaning = CleaningSettings(("gopher-repetition", "c4-duplicates"), (), 0.7)
build_store(sorted(folder.glob("*.jsonl")), Tokenizer.load(folder), folder / "store", StoreSettings(cleaning=cleaning), 2)
"""


@pytest.mark.end_to_end
def test_store_killed_while_cleaning_and_resumed_has_the_same_bytes(tmp_path: Path) -> None:
    corpus(tmp_path)
    for number in range(3, 12):
        shutil.copy(tmp_path / f"{number % 3}.jsonl", tmp_path / f"{number:02}.jsonl")
    tokenizer().save(tmp_path)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    subprocess.run(command, check=True)
    expected = contents(tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    for units in (1, 4, 9):  # kill it when so many units are cleaned, by the files that mark them
        process = subprocess.Popen(command, start_new_session=True)
        while process.poll() is None and len([*(tmp_path / "store.partial" / CLEANED).glob("*.json")]) < units:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True)
    assert contents(tmp_path / "store") == expected
    assert not (tmp_path / "store.partial").exists()


# -- without cleaning -----------------------------------------------------------------------------------------------


def test_store_without_cleaning_is_as_before(tmp_path: Path) -> None:
    """The manifest has no trace of cleaning, so that stores of earlier versions are found to be the same."""
    store = build(corpus(tmp_path), tmp_path / "store", cleaning=None)
    assert store.manifest["settings"] == {
        "language": "en",
        "split_by": "auto",
        "text_field": None,
        "encoding_errors": "strict",
        "shard_bytes": 4000,
    }
    assert store.cleaning() is None and "cleaning" not in store.describe()
    assert {path.name for path in store.folder.iterdir()} >= {"manifest.json", "tokenizer.json"}
    assert not (store.folder / "cleaning.json").exists()


def test_other_cleaning_is_another_store(tmp_path: Path) -> None:
    files = corpus(tmp_path)
    build(files, tmp_path / "store")
    assert build(files, tmp_path / "store").documents  # the same again
    for other in (None, CleaningSettings(("c4",)), CleaningSettings(near_duplicates=0.7)):
        with pytest.raises(PretuneError, match="the folder contains a store prepared from other input"):
            build(files, tmp_path / "store", cleaning=other)


def test_settings_survive_the_way_to_a_worker(tmp_path: Path) -> None:
    made = settings(span_field="names")
    assert made.cleaning is not None and made.cleaning.benchmark is not None
    made.cleaning.benchmark.save(tmp_path / "ngrams.npz")
    again = StoreSettings.from_state(json.loads(json.dumps(made.state())), tmp_path / "ngrams.npz")
    assert again.describe() == made.describe()


# -- the command ----------------------------------------------------------------------------------------------------


def test_command_prints_what_each_rule_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = corpus(tmp_path)
    (tmp_path / "quiz.txt").write_text(QUESTION)
    tokenizer().save(tmp_path / "tokenizer")
    options = [
        "--clean",
        "c4/javascript",
        "--near-duplicates",
        0.7,
        "--decontaminate",
        tmp_path / "quiz.txt",
        "--processes",
        1,
    ]
    out = run_command(
        "prepare", *files, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "store", *options
    ).stdout
    for name in ("c4/javascript", "near-duplicates", "benchmark"):
        assert name in out


def test_everything_removed_is_an_error_that_names_the_rule(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One line without end\nAnother one\n")
    with pytest.raises(
        PretuneError, match=r"cleaning removed all of the text, 100% of it by the rule c4/end-punctuation"
    ):
        pt.prepare(tmp_path / "a.txt", tokenizer(), tmp_path / "store", clean=["c4"], processes=1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    (tmp_path / "a.txt").write_text(" \n \n")
    with pytest.raises(PretuneError, match="the files contain no text to prepare"):
        pt.prepare(tmp_path / "a.txt", tokenizer(), tmp_path / "store", clean=["c4"], processes=1)


def test_invalid_input_while_cleaning_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good line\nbad \xff line\n")
    with pytest.raises(PretuneError, match=r"a\.txt, line 2"):
        pt.prepare(tmp_path / "a.txt", tokenizer(), tmp_path / "store", clean=["prose"], processes=1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_suites_are_read_for_decontamination(tmp_path: Path) -> None:
    files = corpus(tmp_path)
    data = tmp_path / "glue" / "RTE"
    data.mkdir(parents=True)
    rows = ["index\tsentence1\tsentence2\tlabel", f"0\t{QUESTION}\tA museum.\tentailment"]
    (data / "dev.tsv").write_text("\n".join(rows) + "\n")
    for number, suite in enumerate(["glue", "glue/rte"]):
        store = pt.prepare(
            files,
            tokenizer(),
            tmp_path / str(number),
            decontaminate=[suite],
            decontaminate_data=tmp_path / "glue",
            processes=1,
        )
        assert not any(QUESTION in text for text in texts(store))
        found = pt.contamination(store, suite="glue", data=tmp_path / "glue")
        assert all(row["found"] == 0 for row in found)
    plain = pt.prepare(files, tokenizer(), tmp_path / "plain", processes=1)
    assert any(row["found"] for row in pt.contamination(plain, suite="glue", data=tmp_path / "glue"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clean": ["c5"]}, r"no cleaning rule or set of rules named 'c5'; the sets are c4, gopher-quality"),
        ({"near_duplicates": 80}, "near_duplicates=80: expected a Jaccard similarity above 0 and up to 1"),
        (
            {"decontaminate": ["glue"]},
            "--decontaminate glue: a suite needs its official files; name their folder with --decontaminate-data",
        ),
        ({"decontaminate": ["glu"], "decontaminate_data": "x"}, r"unknown suite 'glu'; did you mean 'glue'\?"),
        ({"decontaminate": ["short.txt"]}, "--decontaminate short.txt: no text has 5 words or more"),
    ],
)
def test_wrong_options_are_explained(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("Only four words here\n")
    Path("a.txt").write_text("A text.\n")
    with pytest.raises(PretuneError, match=message):
        pt.prepare("a.txt", tokenizer(), "store", **options)
    assert not os.path.exists("store")
