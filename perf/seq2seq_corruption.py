"""Measure how fast sequence-to-sequence objectives make batches: tokens per second in one process, without arrangement.

    python perf/seq2seq_corruption.py [--megabytes 8] [--length 512] [--pack 65536] [--json]

The count is of the tokens of the packs as arranged (for translate and skip_thought, of the larger side, by which packs
are planned); the time is from there to the Batch: gathering from the store, corruption, collation.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import generate_text, machine

from pretune.objectives import Data, parse_objective
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.documents import read_documents
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing, collate
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.training import train_on_documents

NAMES = (
    "lm",  # nothing to corrupt: the cost of gathering and collation
    "spans",
    "denoise",
    "denoise(infill_rate=0,mask_rate=0.15,delete_rate=0.15,rotate=true)",
    "mass",
    "shuffle",
    "shuffle(window=3)",
    "shuffle(unit=sentences)",
    "translate",
    "translate(bidirectional=true)",
    "prefix",
    "skip_thought",
)
TEMPLATE = Template(single=("A", "end"), pair=("B", "end"), target=("padding", "A", "end"))
LEAST = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--pack", type=int, default=65_536)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["PRETUNE_PROGRESS"] = "none"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate_text(folder / "text.txt", options.megabytes << 20)
        tokenizer = train_on_documents(read_documents([folder / "text.txt"]), "wordpiece", 30_000, extra_ids=100)
        store = build_store([folder / "text.txt"], tokenizer, folder / "store", StoreSettings())
        lines = [document.text for document in read_documents([folder / "text.txt"])]
        rows = LabeledRows(Path("rows"), {}, lines[::2], lines[1::2])
        data = Data(tokenizer, TEMPLATE, store=store, documents=np.arange(store.documents), rows=rows)
        result: dict[str, object] = {one: measure(one, data, options.length, options.pack) for one in NAMES}
    slow = [one for one in NAMES if int(str(result[one])) < LEAST]
    result |= machine()
    print(json.dumps(result) if options.json else "\n".join(f"{key}: {value}" for key, value in result.items()))
    if slow:
        raise SystemExit(f"below {LEAST:,} tokens/s: {', '.join(slow)}")


def measure(name: str, data: Data, length: int, pack: int, rounds: int = 3) -> int:
    """Return tokens per second, the best of some rounds over all packs of an epoch."""
    joint = parse_objective(name).joints[0]
    draws = EpochRandom(0)
    epoch = joint.arrange(data, Packing(pack, length), draws)
    best = 0.0
    for _ in range(rounds):
        tokens = 0
        started = time.perf_counter()
        for index in range(len(epoch)):
            sequences = epoch.pack(index)
            sides = [sequences.lengths.sum(), 0 if sequences.second is None else sequences.second.lengths.sum()]
            tokens += max(sides)
            collate(joint.corrupt(sequences, data.tokenizer, draws))
        best = max(best, tokens / (time.perf_counter() - started))
    return round(best)


if __name__ == "__main__":
    main()
