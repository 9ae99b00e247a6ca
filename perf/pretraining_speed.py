"""Compare the training speed of BERT with `transformers` in the same run: masked language modeling, real tokens per second.

    python perf/pretraining_speed.py [--device cuda] [--preset bert-base] [--tokens 131072] [--steps 30] [--json]

On a GPU, both are compiled, in bf16, with fused AdamW; on a CPU, both are eager, in fp32. `transformers` gets padded
batches of 128 tokens, as its collators make them, and computes logits at every position; pretune runs its whole loop,
including data loading. "ragged" has lengths distributed uniformly from 8 to 128, "full" has 128 throughout. Attention
dropout is 0 on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from common import machine

from pretune.models.create_model import make_model
from pretune.objectives import Data, parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from pretune.training import metrics_log
from pretune.training.data_streams import make_streams
from pretune.training.loop import Training, train
from pretune.training.recipe_sections import Budget, Monitoring, Optimizer, Schedule, resolve_section

LENGTH, VOCABULARY = 128, 30522
WARM = 10  # steps that are not timed
TRANSFORMERS_TOKENS = 65536  # maximum per forward pass of `transformers`: it is faster than with twice as many


@dataclass
class RandomStore:
    """A store of random ids: every document is one sentence of a given length."""

    lengths: Any

    @cached_property
    def ids(self) -> Any:
        return np.random.default_rng(0).integers(10, VOCABULARY, int(self.lengths.sum())).astype(np.uint16)

    @cached_property
    def sentence_offsets(self) -> Any:
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def document_offsets(self) -> Any:
        return np.arange(len(self.lengths) + 1)

    @property
    def document_files(self) -> Any:
        return np.zeros(len(self.document_offsets) - 1, dtype=np.int64)

    document_languages = document_files

    def gather(self, starts: Any, lengths: Any) -> Any:
        from pretune.text.spans import span_indices

        return self.ids[span_indices(starts, lengths)]

    def gather_words(self, starts: Any, lengths: Any) -> Any:
        return np.ones(int(lengths.sum()), dtype=bool)


def sequence_lengths(ragged: bool, tokens: int) -> Any:
    """Return the lengths of sequences, including special tokens."""
    count = 48 * tokens // (68 if ragged else LENGTH)  # more than a run needs, as the last pack of an epoch is not full
    return np.random.default_rng(1).integers(8, LENGTH + 1, count) if ragged else np.full(count, LENGTH)


def with_pretune(preset: str, ragged: bool, tokens: int, steps: int, device: torch.device) -> tuple[float, float]:
    """Return real tokens and FLOPs per second of our loop."""
    text = " ".join(f"w{i}" for i in range(200))
    tokenizer = train_tokenizer([Document(text, None, 1)], "bpe", 200)  # type: ignore[arg-type]
    model = make_model(
        preset, vocabulary=VOCABULARY + 6
    )  # rounded up to a multiple of 64 rows, like `pretune pretrain`
    mixture = parse_objective("mlm")
    model.add_heads(mixture.objectives)
    store: Any = RandomStore(sequence_lengths(ragged, tokens) - 2)
    data = Data(tokenizer, model.family.template, store=store, documents=np.arange(len(store.lengths)))
    fixed = device.type == "cuda"
    streams = make_streams(mixture, data, tokens=tokens, packing=Packing(tokens, LENGTH, fixed=fixed), seed=0)
    warm = WARM
    training = Training(
        root=model.root,
        streams=streams,
        budget=Budget(steps=steps + warm),
        optimizer=resolve_section(Optimizer, None),
        schedule=resolve_section(Schedule, None),
        monitor=resolve_section(Monitoring, Monitoring(log_every=warm, save_every=0)),
        device=device,
        compiled=fixed,
        cuda_graphs=fixed,
    )
    marks: list[tuple[float, float, float]] = []
    write = metrics_log.MetricsLog.write

    def note(self: Any, rate: float, norm: Any, layers: Any) -> None:
        write(self, rate, norm, layers)
        if self.clock.used["steps"] in (warm, steps + warm):
            if device.type == "cuda":
                torch.cuda.synchronize()
            marks.append((time.perf_counter(), self.clock.used["tokens"], self.clock.used["flops"]))

    metrics_log.MetricsLog.write = note  # type: ignore[method-assign]
    train(training)
    metrics_log.MetricsLog.write = write  # type: ignore[method-assign]
    (start, tokens_before, flops_before), (end, tokens_after, flops_after) = marks[0], marks[-1]
    return (tokens_after - tokens_before) / (end - start), (flops_after - flops_before) / (end - start)


def with_transformers(preset: str, ragged: bool, tokens: int, steps: int, device: torch.device) -> float:
    """Return real tokens per second of `transformers` with padding."""
    from transformers import BertConfig, BertForMaskedLM

    config = make_model(preset, vocabulary=VOCABULARY).config
    shape = {
        k: getattr(config, k) for k in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    }
    model: Any = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, attention_probs_dropout_prob=0.0, **shape)).to(
        device
    )
    on_gpu = device.type == "cuda"
    forward = torch.compile(model, dynamic=False) if on_gpu else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
    lengths = sequence_lengths(ragged, tokens)
    rows = min(tokens, TRANSFORMERS_TOKENS) // LENGTH
    warm = WARM
    chance = np.random.default_rng(0)
    batches = []
    for step in range(min(steps + warm, 8)):
        sizes = lengths[(step * rows) % (len(lengths) - rows) :][:rows]
        longest = LENGTH if on_gpu else int(sizes.max())
        ids = torch.from_numpy(chance.integers(10, VOCABULARY, (rows, longest)))
        mask = torch.arange(longest) < torch.from_numpy(sizes)[:, None]
        labels = torch.where((torch.rand(rows, longest) < 0.15) & mask, ids, -100)
        batches.append((ids.to(device), mask.long().to(device), labels.to(device), int(sizes.sum())))
    seen = 0
    for step in range(steps + warm):
        if step == warm:
            if on_gpu:
                torch.cuda.synchronize()
            start, seen = time.perf_counter(), 0
        ids, mask, labels, real = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            loss = forward(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen += real
    if on_gpu:
        torch.cuda.synchronize()
    return seen / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--preset")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--only", choices=["ours", "peer"])
    parser.add_argument("--kinds", nargs="+", default=["full", "ragged"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["PRETUNE_PROGRESS"] = "none"
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    preset = options.preset or ("bert-base" if gpu else "bert-mini")
    tokens = options.tokens or (131072 if gpu else 4096)
    steps = options.steps or (30 if gpu else 10)
    result: dict[str, Any] = {"preset": preset, "tokens_per_step": tokens}
    for kind in options.kinds:
        row: dict[str, Any] = {}
        if options.only != "peer":
            speed, flops = with_pretune(preset, kind == "ragged", tokens, steps, device)
            row |= {"ours": round(speed), "teraflops": round(flops / 1e12, 1)}
            if gpu:
                torch.cuda.empty_cache()
        if options.only != "ours":
            row["peer"] = round(with_transformers(preset, kind == "ragged", tokens, steps, device))
        if "ours" in row and "peer" in row:
            row["ratio"] = round(row["ours"] / row["peer"], 2)
        result[kind] = row
        print(kind, row, flush=True)
    result |= machine()
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
