"""Load ten damaged model folders with pretune, transformers and sentence-transformers.

    python perf/damaged_folders.py

Every folder is loaded in a separate process, which predicts one text and may take a minute. Prints a Markdown table.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import pretune as pt

SECONDS = 60
TEXT = "good stone water"


def good_folder(folder: Path) -> Path:
    """Write a small classifier in the Hugging Face format, and a bare encoder for embeddings next to it."""
    words = ["red", "blue", "green", "stone", "water", "fire"]
    rows = [f"{'good' if i % 2 else 'bad'} {words[i % 6]} {words[i % 5]},{'yes' if i % 2 else 'no'}" for i in range(40)]
    (folder / "train.csv").write_text("text,label\n" + "\n".join(rows))
    (folder / "text.txt").write_text("\n".join(rows))
    (folder / "tiny.yaml").write_text(
        "like: bert-tiny\nconfig: {hidden_size: 32, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 64}\n"
    )
    tokenizer = pt.train_tokenizer(folder / "text.txt", vocab_size=80, out=folder / "tokenizer")
    run = pt.finetune(
        folder / "tiny.yaml", folder / "train.csv", tokenizer=folder / "tokenizer", num_seeds=1, report=False, out=folder / "run",
        budget=pt.Budget(steps=40), optimizer=pt.Optimizer(lr=3e-3),
    )  # fmt: skip
    assert tokenizer.size
    pt.export(run, out=folder / "good")
    return folder / "good"


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def flip_bit(folder: Path) -> None:
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-5001] ^= 0x40  # the exponent of a weight
    (folder / "model.safetensors").write_bytes(raw)


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Rewrite the weights with the safetensors library, so that there is no checksum."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def put_nan(tensors: dict[str, torch.Tensor]) -> None:
    name = next(name for name in tensors if "layer.1" in name and name.endswith("output.dense.weight"))
    tensors[name][:4] = torch.nan


def to_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def truncate(file: Path) -> None:
    raw = file.read_bytes()
    file.write_bytes(raw[: len(raw) // 2])


def truncate_pickle(folder: Path) -> None:
    to_pickle(folder)
    truncate(folder / "pytorch_model.bin")


def malicious_pickle(folder: Path) -> None:
    """Write a pickle that creates a folder when it is loaded."""

    class Run:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(folder / "RUN"),))

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"bert.embeddings.word_embeddings.weight": Run()}))
    (folder / "model.safetensors").unlink()


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "one bit of model.safetensors flipped": flip_bit,
    "a block of NaN in a weight": lambda folder: change_weights(folder, put_nan),
    "model.safetensors cut in half": lambda folder: truncate(folder / "model.safetensors"),
    "pytorch_model.bin cut in half": truncate_pickle,
    "pytorch_model.bin that runs code": malicious_pickle,
    "a git-lfs pointer for weights": lambda folder: (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    ),
    "the classifier's weights are missing": lambda folder: change_weights(
        folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("classifier")] and None
    ),
    "config.json has a layer less than the weights": lambda folder: change_config(folder, num_hidden_layers=1),
    "num_hidden_layers: 10**30": lambda folder: change_config(folder, num_hidden_layers=10**30),
    "tokenizer.json cut in half": lambda folder: truncate(folder / "tokenizer.json"),
}


def by_pretune(folder: Path) -> Any:
    (row,) = pt.predict(folder, [TEXT])
    return row["label"], round(row["probability"], 4)


def by_transformers(folder: Path) -> Any:
    from transformers import pipeline

    (row,) = pipeline("text-classification", model=str(folder), device="cpu")(TEXT)
    return row["label"], round(row["score"], 4)


def by_sentence_transformers(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return np.round(SentenceTransformer(str(folder), device="cpu").encode([TEXT])[0][:3].astype(float), 3).tolist()


TOOLS = {"pretune": by_pretune, "transformers": by_transformers, "sentence-transformers": by_sentence_transformers}


def attempt(read: Callable[[Path], Any], folder: Path, answers: Path) -> str:
    """Load a folder in a separate process, and describe the outcome."""
    process, log = os.fork(), answers.with_suffix(".err")
    if not process:
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            try:
                answers.write_text(f"answers {read(folder)}")
            except pt.PretuneError as error:
                answers.write_text(f"error: {str(error).replace(str(folder) + '/', '').replace(str(folder), 'FOLDER')}")
            except BaseException as error:
                lines = len(traceback.format_exc().splitlines())
                answers.write_text(f"traceback of {lines} lines, {type(error).__name__}")
        os._exit(0)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        number, status = os.waitpid(process, os.WNOHANG)
        if number:
            if status:
                return f"the process ended with status {status}"
            # transformers reports missing or unused tensors.
            warned = "MISSING" in log.read_text() or "UNEXPECTED" in log.read_text()
            return answers.read_text() + (", after a load report on stderr" if warned else "")
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return f"still busy after {SECONDS} s"


def main() -> None:
    torch.set_num_threads(1)
    import sentence_transformers
    import transformers

    print(
        f"transformers {transformers.__version__}, sentence-transformers {sentence_transformers.__version__}, torch {torch.__version__}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not (process := os.fork()):  # threads of training do not survive the forks below
            sys.stderr = io.StringIO()
            good_folder(folder)
            os._exit(0)
        assert os.waitpid(process, 0)[1] == 0
        print(f"| folder | {' | '.join(TOOLS)} |\n| --- | {' | '.join('---' for _ in TOOLS)} |", flush=True)
        for what, damage in {"undamaged": lambda folder: None, **DAMAGES}.items():
            shutil.rmtree(folder / "copy", ignore_errors=True)
            shutil.copytree(folder / "good", folder / "copy")
            damage(folder / "copy")
            cells = [attempt(read, folder / "copy", folder / "answers.txt") for read in TOOLS.values()]
            print(f"| {what} | {' | '.join(cells)} |", flush=True)
            if (folder / "copy" / "RUN").exists():
                print("the malicious pickle was executed")


if __name__ == "__main__":
    main()
