"""File names that are too long for any file system, in every option that takes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import run_command

LONG = "x" * 300  # bytes; most file systems allow 255
MODEL = "pretune-small-en"
COMMANDS = [
    ["predict", LONG, "a"],
    ["predict", MODEL, f"{LONG}.csv"],
    ["predict", MODEL, "rows.csv", "--out", f"{LONG}.csv"],
    ["pretrain", LONG, "--data", "rows.csv", "--out", "run", "--steps", "1"],
    ["pretrain", "bert-tiny", "--data", f"{LONG}.txt", "--out", "run", "--steps", "1"],
    ["pretrain", "bert-tiny", "--data", "rows.csv", "--out", LONG, "--steps", "1"],
    ["pretrain", "--recipe", f"{LONG}.yaml"],
    ["pretrain", f"{LONG}.yaml", "--data", "rows.csv", "--out", "run", "--steps", "1"],
    ["finetune", MODEL, f"{LONG}.csv", "--out", "run"],
    ["finetune", MODEL, "rows.csv", "--dev", f"{LONG}.csv", "--out", "run"],
    ["finetune", MODEL, "rows.csv", "--out", LONG],
    ["tokenizer", "train", LONG, "--out", "tokenizer"],
    ["tokenizer", "train", "rows.csv", "--out", LONG],
    ["tokenizer", "inspect", LONG, "a"],
    ["prepare", "rows.csv", "--tokenizer", LONG, "--out", "store"],
    ["evaluate", MODEL, "--data", LONG, "--suite", "glue", "--out", "evaluation"],
    ["evaluate", MODEL, "--data", ".", "--suite", f"{LONG}.yaml", "--out", "evaluation"],
    ["import", LONG, "--out", "model"],
    ["embed", MODEL, f"{LONG}.csv", "--out", "vectors.npy"],
    ["export", MODEL, "--out", LONG],
    ["compare", LONG, LONG],
    ["histories", f"{LONG}.csv", "--out", "histories.txt"],
    ["vectors", "train", LONG, "--out", "vectors.vec"],
    ["show", LONG],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command).replace(LONG, "LONG"))
def test_names_that_are_too_long_are_refused_in_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRETUNE_PROGRESS", "none")
    (tmp_path / "rows.csv").write_text("text,label\na good one,yes\na bad one,no\n" * 4)
    refused = run_command(*command, check=False)
    error = refused.stderr
    assert refused.returncode == 1
    assert error.startswith("error: ") and len(error.splitlines()) == 1 and "xxx" in error
    assert [path.name for path in tmp_path.iterdir() if path.name != "rows.csv" and not path.name.startswith(".")] == []
