"""Compare the fine-tuning speed of a small model with the usual padded, eager loop of `transformers`.

    python perf/finetuning_speed.py --train RTE/train.tsv --dev RTE/dev.tsv [--layers 6] [--width 384] [--epochs 6]

Both start from the same random weights, read, tokenize, train and evaluate once at the end; the seconds include all of
that (without the report of pretune). The loop of `transformers` pads every batch to its longest row, and uses bf16 and
a fused AdamW on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from common import machine

import pretune as pt
from pretune.families import find_family
from pretune.models.model import Model, Network
from pretune.models.presets import find_preset
from pretune.text.examples.labeled import read_labeled

ROWS, LENGTH, RATE = 32, 128, 1e-4


def make_start(folder: Path, train: str, layers: int, width: int) -> None:
    """Save a random BERT of a given size, with a tokenizer trained on the text of the task."""
    rows = read_labeled(train, {})
    text = folder / "text.txt"
    text.write_text("\n".join([*rows.texts, *(rows.pairs or [])]), encoding="utf-8")
    tokenizer = pt.train_tokenizer(str(text), kind="wordpiece", vocab_size=8192)
    family = find_family("bert", "bert")
    config = family.read_config(find_preset("bert-mini")["config"])
    config = replace(
        config,
        vocab_size=-(-tokenizer.size // 64) * 64,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    torch.manual_seed(0)
    Model(family, config, Network(family.build(config)), tokenizer).save(folder / "start")


def with_pretune(folder: Path, train: str, dev: str, epochs: int) -> tuple[float, float]:
    """Return the seconds and the accuracy."""
    start = time.perf_counter()
    run = pt.finetune(
        str(folder / "start"), train, dev=dev, out=folder / f"run{time.time_ns()}", epochs=epochs,
        optimizer=pt.Optimizer(lr=RATE), batch=pt.Batching(size=ROWS, max_length=LENGTH), num_seeds=1, report=False,
)  # fmt: skip
    return time.perf_counter() - start, run.results["dev/accuracy"]


def with_transformers(folder: Path, train: str, dev: str, epochs: int, device: torch.device) -> tuple[float, float]:
    """Return the seconds and the accuracy of the loop of `transformers`."""
    from tokenizers import Tokenizer
    from transformers import BertForSequenceClassification

    start = time.perf_counter()
    tokenizer = Tokenizer.from_file(str(folder / "start" / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    model: Any = BertForSequenceClassification.from_pretrained(folder / "start").to(device)
    gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, fused=gpu)
    parts = []
    for file in (train, dev):
        rows = read_labeled(file, {})
        texts = list(zip(rows.texts, rows.pairs, strict=True)) if rows.pairs else rows.texts
        labels = {label: i for i, label in enumerate(sorted(set(rows.labels or [])))}
        encoded = tokenizer.encode_batch(texts)
        targets = [labels[label] for label in rows.labels or []]
        parts.append(([e.ids for e in encoded], [e.type_ids for e in encoded], targets))
    steps = epochs * -(-len(parts[0][0]) // ROWS)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
    )

    def batches(part: Any, order: Any) -> Any:
        for at in range(0, len(order), ROWS):
            chosen = order[at : at + ROWS]
            longest = max(len(part[0][i]) for i in chosen)
            ids, types = (torch.zeros(len(chosen), longest, dtype=torch.long) for _ in range(2))
            mask = torch.zeros(len(chosen), longest, dtype=torch.long)
            for row, i in enumerate(chosen):
                size = len(part[0][i])
                ids[row, :size], types[row, :size] = torch.tensor(part[0][i]), torch.tensor(part[1][i])
                mask[row, :size] = 1
            labels = torch.tensor([part[2][i] for i in chosen])
            yield tuple(t.to(device, non_blocking=True) for t in (ids, mask, types, labels))

    model.train()  # from_pretrained disables dropout
    chance = np.random.default_rng(0)
    for _ in range(epochs):
        for ids, mask, types, labels in batches(parts[0], chance.permutation(len(parts[0][0]))):
            with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
                loss = model(input_ids=ids, attention_mask=mask, token_type_ids=types, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    model.eval()
    right = 0
    with torch.no_grad():
        for ids, mask, types, labels in batches(parts[1], np.arange(len(parts[1][0]))):
            with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
                right += int((model(ids, mask, types).logits.argmax(-1) == labels).sum())
    return time.perf_counter() - start, right / len(parts[1][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", required=True)
    parser.add_argument("--dev", required=True)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2, help="the first run is a warmup")
    options = parser.parse_args()
    os.environ["PRETUNE_PROGRESS"] = "none"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result: dict[str, Any] = {"layers": options.layers, "width": options.width, "epochs": options.epochs}
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_start(folder, options.train, options.layers, options.width)
        for _ in range(options.repeats):
            ours_seconds, ours_accuracy = with_pretune(folder, options.train, options.dev, options.epochs)
            peer_seconds, peer_accuracy = with_transformers(folder, options.train, options.dev, options.epochs, device)
            result["pretune"] = {"seconds": round(ours_seconds, 2), "accuracy": round(ours_accuracy, 4)}
            result["transformers"] = {"seconds": round(peer_seconds, 2), "accuracy": round(peer_accuracy, 4)}
            result["ratio"] = round(peer_seconds / ours_seconds, 2)
            print(json.dumps(result), flush=True)
    print(json.dumps({**result, **machine()}))


if __name__ == "__main__":
    main()
