"""Put a pretrained run into the package: weights in 16 or 8 bits, configuration, tokenizer, and a model card.

    script/bundle_model.py RUN NAME --method int8 --about script/cards/en.md --scores results.jsonl --model record

RUN is a run folder of `pretune pretrain` or `pretune distill`, or a folder from `perf/record.py join` beside the run's results.json.
`int8` stores each row of a matrix as integers with one scale and computes in fp32; `transformers` reads only the others. The card has
the costs of the run, the scores of one model in a results file of perf/record.py, and the text, license and limits of `--about`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from pretune.models.bundled import bundled_folder
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.weight_files import read_weights, write_weights
from pretune.objectives import parse_objective
from pretune.runtime.compressed_tensors import encode_int8

MAX_BYTES = 30_000_000
METHODS = {"bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.float32}
COSTS = {"step": "steps", "tokens": "tokens", "flops": "operations", "seconds": "seconds of training"}


def bundle(run: Path, folder: Path, method: str) -> Model:
    """Write the backbone of a run and its head for masked tokens, if it has one, into a folder; return the model."""
    stored = stored_objectives(run)
    names = {part.shared_head for part in stored.objectives} if stored is not None else set()
    model = load_model(run, parse_objective("mlm") if "mlm" in names else None)
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder, kind=METHODS[method])
    if method == "int8":
        weights = read_weights(folder)
        write_weights(
            folder, encode_int8(weights, [name for name, tensor in weights.items() if tensor.dim() == 2]), None
        )
    return model


def size_of(folder: Path) -> int:
    """Return the size of a folder's files in bytes."""
    return sum(file.stat().st_size for file in folder.iterdir())


def read_scores(file: Path, model: str) -> dict[str, list[float]]:
    """Return the scores of a model by task, from a results file of perf/record.py."""
    scores: dict[str, list[float]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("model") == model and "score" in row and "error" not in row:
            scores.setdefault(row["task"], []).append(row["score"])
    return scores


def write_card(
    folder: Path,
    name: str,
    model: Model,
    method: str,
    costs: Mapping[str, Any],
    scores: Mapping[str, list[float]],
    about: str,
) -> None:
    """Write the model card: what the model is, how it was made, its scores, and the text, license and limits in `about`."""
    head, _, rest = about.removeprefix("---\n").partition("---\n")
    parameters = sum(one.numel() for one in model.root.parameters())
    what = (
        f"{model.backbone.depth} layers of width {model.backbone.width}, {parameters / 1e6:.1f} million parameters, "
        f"{size_of(folder) / 1e6:.1f} MB with {method} weights."
    )
    made = [f"| {text} | {costs[key]:,.4g} |" for key, text in COSTS.items() if key in costs]
    lines = [
        f"---\n{head}---",
        f"# {name}",
        what,
        f"    pretune finetune {name} train.csv --dev dev.csv --out runs/task",
    ]
    lines += ["## How it was made", "\n".join(["| | |", "| --- | ---: |", *made])] if made else []
    lines += ["## Scores", score_table(scores)] if scores else []
    (folder / "README.md").write_text("\n\n".join([*lines, rest.strip()]) + "\n", encoding="utf-8")


def score_table(scores: Mapping[str, Iterable[float]]) -> str:
    """Return the scores as a Markdown table with the seeds and their median."""
    rows = [
        f"| {task} | {', '.join(f'{x:.1f}' for x in own)} | {statistics.median(own):.1f} |"
        for task, own in scores.items()
    ]
    return "\n".join(["| task | seeds | median |", "| --- | --- | ---: |", *rows])


def main(words: list[str] | None = None) -> None:
    """Bundle a model, unless it is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--method", choices=METHODS, default="bf16")
    parser.add_argument("--about", type=Path, required=True, help="front matter, text, license and limits of the card")
    parser.add_argument("--scores", type=Path, help="results.jsonl of perf/record.py")
    parser.add_argument("--model", default="record", help="whose scores they are")
    parser.add_argument("--out", type=Path, help="folder; by default in the package")
    given = parser.parse_args(words)
    folder = given.out or bundled_folder(given.name)
    model = bundle(given.run, folder, given.method)
    results = given.run / "results.json"
    costs = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {}
    scores = read_scores(given.scores, given.model) if given.scores is not None else {}
    write_card(folder, given.name, model, given.method, costs, scores, given.about.read_text(encoding="utf-8"))
    print(f"{folder}: {size_of(folder):,} bytes")
    if size_of(folder) > MAX_BYTES:
        sys.exit(f"more than {MAX_BYTES:,} bytes; use --method int8, or a smaller model")


if __name__ == "__main__":
    main()
