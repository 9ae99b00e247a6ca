"""Tests of script/record_corpus: two builds have the same bytes, and --open-only leaves out other texts."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pretune.text.store.store import Store
from tests.support.paths import ROOT
from tests.support.texts import english_documents

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("sha256sum") is None, reason="the script runs on Linux"),
]
NAMES = ["wikipedia_en", "books_eltec", "reviews_imdb", "mixed_nltk"]
QUESTION = "How long has the old mill by the river been a museum of local history and craft?"
ROWS = {
    "CoLA/dev.tsv": f"gj04\t1\t\t{QUESTION}\n",
    "SST-2/dev.tsv": f"sentence\tlabel\n{QUESTION}\t1\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with corpora and tasks."""
    english = english_documents()
    (tmp_path / "corpora").mkdir()
    for number, name in enumerate(NAMES):
        texts = [*english[number * 5 : number * 5 + 5], f"From {name}.\n\n{QUESTION}"]
        rows = "".join(json.dumps({"text": text, "source": name}) + "\n" for text in texts)
        (tmp_path / "corpora" / f"{name}.jsonl.xz").write_bytes(lzma.compress(rows.encode()))
    for name, content in ROWS.items():
        (tmp_path / "glue" / name).parent.mkdir(parents=True)
        (tmp_path / "glue" / name).write_text(content)
    for task, header in {
        "MRPC": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "RTE": "index\tsentence1\tsentence2\tlabel",
    }.items():
        (tmp_path / "glue" / task).mkdir()
        row = "1\t1\t2\tA b.\tC d." if task == "MRPC" else "0\tA b.\tC d.\tentailment"
        (tmp_path / "glue" / task / "dev.tsv").write_text(f"{header}\n{row}\n")
    (tmp_path / "glue" / "STS-B").mkdir()
    columns = [
        "index",
        "genre",
        "filename",
        "year",
        "old_index",
        "source1",
        "source2",
        "sentence1",
        "sentence2",
        "score",
    ]
    (tmp_path / "glue" / "STS-B" / "dev.tsv").write_text(
        "\t".join(columns) + "\n" + "\t".join(["0"] * 7 + ["A b.", "C d.", "2.5"]) + "\n"
    )
    return tmp_path


def run(folder: Path, corpora: str, out: str, *options: str, seed: int = 0, code: int = 0) -> str:
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONHASHSEED": str(seed),
    }
    words = [str(ROOT / "script" / "record_corpus"), corpora, "glue", out, *options]
    answer = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert answer.returncode == code, answer.stderr
    return answer.stdout if code == 0 else answer.stderr


def test_two_builds_have_the_same_bytes(folder: Path) -> None:
    first = run(folder, "corpora", "one", "--vocab-size", "500", "--processes", "1", seed=1)
    shutil.copytree(folder / "corpora", folder / "elsewhere" / "copy")
    assert run(folder, "elsewhere/copy", "two", "--vocab-size", "500", "--processes", "2", seed=2) == first
    assert "store/manifest.json" in first and "tokenizer/tokenizer.json" in first
    store = Store(folder / "one" / "store")
    assert [source["file"] for source in store.manifest["sources"]] == sorted(f"{name}.jsonl.xz" for name in NAMES)
    report = store.cleaning()
    assert report is not None
    assert next(row for row in report["rules"] if row["rule"] == "benchmark")["characters"] >= 4 * len(QUESTION)


def test_open_only_leaves_out_other_licenses(folder: Path) -> None:
    run(folder, "corpora", "out", "--vocab-size", "500", "--processes", "1", "--open-only", "--kind", "bpe")
    sources = Store(folder / "out" / "store").manifest["sources"]
    assert [source["file"] for source in sources] == ["books_eltec.jsonl.xz", "wikipedia_en.jsonl.xz"]


def test_wrong_calls_are_explained(folder: Path) -> None:
    assert "usage: script/record_corpus" in run(folder, "corpora", "out", "--vocab", code=2)
    assert "--kind unigram is not reproducible" in run(folder, "corpora", "out", "--kind", "unigram", code=2)
    assert "has no such .jsonl.xz files" in run(folder, "glue", "out", code=1)
