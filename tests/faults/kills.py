"""usage: kills.py [--kills N] [--seed S] [--only VERB]    kill commands at random moments, restart them, and compare the results

Each command runs in a forked process, which is killed (SIGKILL) or terminated (SIGTERM) after a random part of the time that the
whole command takes, and started again on the same folder until it finishes. Then its files are compared with those of an
uninterrupted run. Prints a table: verb, kills, number of runs, differences, errors.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import pretune as pt

Act = Callable[[Path], Any]
QUIET = "PRETUNE_PROGRESS"


@dataclass
class Tally:
    """The results of the kills of one verb."""

    kills: int = 0
    runs: int = 0
    different: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def make_inputs(folder: Path) -> None:
    """Create a small corpus, a task, a tokenizer and a model."""
    words = ["red", "blue", "green", "yellow", "stone", "water", "fire", "cloud", "tree", "bird"]
    rows = [
        f"{'good' if i % 2 else 'bad'} {' '.join(words[(i * 7 + j * 3) % 10] for j in range(4))}" for i in range(48)
    ]
    table = "\n".join(f"{text},{'yes' if i % 2 else 'no'}" for i, text in enumerate(rows))
    (folder / "train.csv").write_text(f"text,label\n{table}\n")
    text = folder / "texts"
    text.mkdir()
    for number in range(6):
        (text / f"{number}.txt").write_text("\n\n".join(" ".join(rows[i::5]) + "." for i in range(number, number + 20)))
    pt.train_tokenizer(text, kind="wordpiece", vocab_size=90, out=folder / "tokenizer")
    (folder / "tiny.yaml").write_text(
        "like: bert-tiny\nobjective: mlm\n"
        "config: {hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 64}\n"
    )
    pretrain(folder)(folder / "model")
    cola = "".join(f"x\t{i % 2}\t\t{row}\n" for i, row in enumerate(rows[:24]))
    (folder / "glue" / "CoLA").mkdir(parents=True)
    for name in ("train", "dev"):
        (folder / "glue" / "CoLA" / f"{name}.tsv").write_text(cola)


SMALL: dict[str, Any] = {
    "budget": pt.Budget(steps=10),
    "batch": pt.Batching(tokens=128, max_length=32),
    "monitor": pt.Monitoring(save_every=2, save_total_limit=2, log_every=2),
}


def started(out: Path) -> bool:
    return (out / "recipe.yaml").is_file()


def pretrain(folder: Path) -> Act:
    return lambda out: pt.pretrain(
        folder / "tiny.yaml", folder / "texts", tokenizer=folder / "tokenizer", out=out, resume=started(out), **SMALL
    )


def verbs(folder: Path) -> dict[str, Act]:
    """Return the commands to kill; each one resumes from existing files."""
    rows = {**SMALL, "batch": pt.Batching(size=8)}
    train = folder / "train.csv"
    return {
        "prepare": lambda out: pt.prepare(folder / "texts", folder / "tokenizer", out, processes=1),
        "pretrain": pretrain(folder),
        "adapt": lambda out: pt.adapt(folder / "model", folder / "texts", out=out, resume=started(out), **SMALL),
        "finetune": lambda out: pt.finetune(
            folder / "model", train, dev=train, out=out, num_seeds=1, report=False, resume=started(out), **rows
        ),
        "evaluate": lambda out: pt.evaluate(
            folder / "model", suite="glue", data=folder / "glue", allow_incomplete=True, num_seeds=2, out=out,
            budget=pt.Budget(steps=4), batch=pt.Batching(size=8),
        ),
        "tune": lambda out: pt.tune(
            folder / "model", train, dev=train, num_trials=2, epochs=0.5, batch=pt.Batching(size=8), out=out
        ),
    }  # fmt: skip


def contents(verb: str, out: Path) -> dict[str, str]:
    """Return the contents that kills must not change: the bytes of files, without times and values that depend on them."""
    found: dict[str, str] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_dir() or "checkpoints/" in name:
            continue
        if path.suffix in (".safetensors", ".txt") or path.name in ("tokenizer.json", "config.json", "manifest.json"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name in ("results.json", "result.json"):
            found[name] = json.dumps(without_times(json.loads(path.read_text())), sort_keys=True)
    if verb == "tune":  # the trials and their results; folders of lost trials are deleted later
        trials = json.loads((out / "trials.json").read_text()) if (out / "trials.json").is_file() else {}
        return {"trials.json": json.dumps(without_times(trials), sort_keys=True)}
    return found


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = ("second", "mfu", "latency", "sha256", "cost", "date", "time", "memory")
        return {key: without_times(item) for key, item in value.items() if not any(word in key for word in left_out)}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def fork(act: Act, out: Path, errors: Path) -> int:
    """Start a command in a forked process, and return its id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        with errors.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            try:
                if not (out / "results.json").is_file():  # else it was killed after it had finished
                    act(out)
                code = 0
            except KeyboardInterrupt:
                code = 130
            except BaseException:
                traceback.print_exc()
    finally:
        os._exit(code)


def wait(process: int, seconds: float | None = None) -> int | None:
    """Return the exit status of a process, or None if it is still running after `seconds`."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        number, status = os.waitpid(process, 0 if end is None else os.WNOHANG)
        if number:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() >= end:
            return None
        time.sleep(0.002)


def kill_repeatedly(verb: str, act: Act, folder: Path, kills: int, rng: random.Random) -> Tally:
    """Kill a command `kills` times."""
    tally, errors = Tally(), folder / f"{verb}-errors.txt"
    whole = folder / f"{verb}-whole"
    began = time.monotonic()
    assert wait(fork(act, whole, errors)) == 0, errors.read_text()
    seconds = time.monotonic() - began
    expected = contents(verb, whole)
    assert expected, f"nothing to compare for {verb}"
    out = folder / f"{verb}-killed"
    while tally.kills < kills:
        shutil.rmtree(out, ignore_errors=True)
        tally.runs += 1
        for attempt in range(1000):
            process = fork(act, out, errors)
            # Later attempts get more time, so that a run finishes eventually.
            ended = wait(process, rng.uniform(0, seconds * (1 + attempt / 20)))
            if ended is None:
                with suppress(ProcessLookupError):
                    os.kill(process, rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                ended = wait(process)
                tally.kills += ended != 0
                if ended == 1:
                    tally.errors.append(f"after SIGTERM: {errors.read_text()[-2000:]}")
                    break
                if ended != 0:
                    continue
            if ended != 0:
                tally.errors.append(errors.read_text()[-2000:])
            elif (found := contents(verb, out)) != expected:
                changed = {name for name in {*found, *expected} if found.get(name) != expected.get(name)}
                tally.different.append(", ".join(sorted(changed)))
            break
    return tally


def kill_all(kills: int, seed: int, only: str | None = None) -> Iterator[tuple[str, Tally]]:
    """Kill every verb `kills` times."""
    os.environ[QUIET] = "none"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In a separate process: threads that torch has started do not survive a fork, and waiting for them would block forever.
        assert wait(fork(make_inputs, folder, folder / "errors.txt")) == 0, (folder / "errors.txt").read_text()
        for verb, act in verbs(folder).items():
            if only in (None, verb):
                yield verb, kill_repeatedly(verb, act, folder, kills, random.Random(f"{seed} {verb}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=170, help="of each verb")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only")
    options = parser.parse_args()
    bad = 0
    print("| verb | kills | runs | different | errors |\n| --- | ---: | ---: | ---: | ---: |", flush=True)
    for verb, tally in kill_all(options.kills, options.seed, options.only):
        print(f"| {verb} | {tally.kills} | {tally.runs} | {len(tally.different)} | {len(tally.errors)} |", flush=True)
        bad += len(tally.different) + len(tally.errors)
        for line in (*tally.different[:3], *tally.errors[:3]):
            print(line, file=sys.stderr, flush=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
