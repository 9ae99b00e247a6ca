"""Put a pretrained run into the package: weights in bf16, configuration, tokenizer.

Usage: script/bundle_model.py RUN NAME

The model card (README.md in the same folder) is written by hand, with the commands that gave its numbers.
"""

from __future__ import annotations

import sys

import torch

from pretune.models.bundled import bundled_folder
from pretune.models.model import load_model
from pretune.objectives import parse_objective

MAX_BYTES = 25_000_000  # bytes


def main() -> None:
    run, name = sys.argv[1:]
    model = load_model(run, parse_objective("mlm"))
    folder = bundled_folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder, kind=torch.bfloat16)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder}: {size:,} bytes")
    if size > MAX_BYTES:
        sys.exit(f"more than {MAX_BYTES:,} bytes; make the model smaller")


if __name__ == "__main__":
    main()
