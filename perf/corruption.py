"""Measure how fast objectives make batches in one process: tokens per second of arrangement, corruption and whole batches.

    python perf/corruption.py [--tokens 16384] [--length 128] [--batches 60] [--json] [OBJECTIVE …]

The store is synthetic: documents of 30 sentences of 5 to 40 random tokens, three of four of which begin a word; pairs
and dialogues have texts of 22 words. `arrange` plans an epoch, once for all its batches; `corrupt` masks and makes
targets; `batch` is everything that a step needs: gather, corrupt, collate; `fixed` is the same with fixed shapes, as on
a GPU. All values are in CPU time, so that other processes matter little.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from common import machine
from pretraining_speed import VOCABULARY, RandomStore

from pretune.objectives import Data, parse_objective
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.dialogues import Dialogues
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing, collate
from pretune.text.spans import span_indices
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from pretune.training.data_streams import DataStream

SENTENCES = 30  # per document
OBJECTIVES = (
    "mlm", "mlm(static_masks=10)", "mlm(unit=word)", "mlm(unit=ngram)", "mlm(unit=span)", "mlm(unit=span,span_boundary=true)",
    "mlm(unit=phrase,phrases={phrases})", "rtd", "item", "nsp", "sop", "sso", "mlm+nsp", "mlm+sop", "lm", "bilm",
    "plm", "tlm", "mlm+dlm",
)  # fmt: skip


@dataclass
class WordStore(RandomStore):
    """Documents of several sentences; some tokens continue the previous word."""

    @property
    def document_offsets(self) -> Any:
        return np.arange(0, len(self.lengths) + 1, SENTENCES)

    @cached_property
    def words(self) -> Any:
        return np.random.default_rng(2).random(int(self.lengths.sum())) < 0.75

    def gather_words(self, starts: Any, lengths: Any) -> Any:
        return self.words[span_indices(starts, lengths)]


def make_tokenizer() -> Tokenizer:
    """Return a small tokenizer whose special tokens are not in the store."""
    return train_tokenizer([Document(" ".join(f"w{i}" for i in range(200)), Path("made up"), 1)], "bpe", 200)


def make_rows(name: str, tokens: int) -> LabeledRows | Dialogues:
    """Return pairs of texts, or dialogues of four turns, of 22 random words each."""
    chance = np.random.default_rng(3)
    words = np.array([f"w{i}" for i in range(200)])
    count = -(-tokens // 22 // 4) * 4
    texts = [" ".join(part) for part in np.split(words[chance.integers(0, 200, 22 * count)], 22 * np.arange(1, count))]
    if name.endswith("dlm"):
        return Dialogues(Path("made up"), texts, [0, 1] * (count // 2), [4] * (count // 4))
    return LabeledRows(Path("made up"), {}, texts[::2], texts[1::2], ["en fr"] * (count // 2))


def measure(name: str, data: Data, packing: Packing, batches: int) -> dict[str, float]:
    """Return millions of tokens per second."""
    joint = parse_objective(name).joints[0]
    if data.rows is not None:
        assert len(data.token_rows.ids)  # tokenized once, before the first epoch
    start = time.process_time()
    epoch: Any = joint.arrange(data, packing, EpochRandom(0))
    arranged = time.process_time() - start
    times = {"corrupt": 0.0, "batch": 0.0, "fixed": 0.0}
    tokens = 0
    for index in range(-2, min(batches, len(epoch))):  # two for warmup
        marks = [time.process_time()]
        sequences = epoch.pack(max(index, 0))
        marks.append(time.process_time())
        sequences = joint.corrupt(sequences, data.tokenizer, EpochRandom(0))
        marks.append(time.process_time())
        batch = collate(sequences)
        marks.append(time.process_time())
        if index >= 0:
            times["corrupt"] += marks[2] - marks[1]
            times["batch"] += marks[3] - marks[0]
            tokens += batch.tokens
    stream = DataStream(joint, data, replace(packing, fixed=True), seed=0)
    fixed_tokens = 0
    for index in range(-2, min(batches, len(stream.epoch_plan(0)))):
        start = time.process_time()
        batch = stream.batch(0, max(index, 0), progress=0.0)
        if index >= 0:
            times["fixed"] += time.process_time() - start
            fixed_tokens += batch.tokens
    whole = int(epoch.arrangement.lengths.sum())
    made = {"corrupt": tokens, "batch": tokens, "fixed": fixed_tokens}
    speeds = {"arrange": whole / arranged, **{part: made[part] / seconds for part, seconds in times.items()}}
    return {part: round(speed / 1e6, 2) for part, speed in speeds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("objectives", nargs="*", default=OBJECTIVES)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    template = Template(single=("start", "A", "separator"), pair=("B", "separator"))
    sentences = -(-options.tokens * (options.batches + 4) // 22 // SENTENCES) * SENTENCES
    store: Any = WordStore(np.random.default_rng(1).integers(5, 41, sentences))
    data = Data(make_tokenizer(), template, store=store, documents=np.arange(sentences // SENTENCES))
    packing = Packing(options.tokens, options.length)
    result: dict[str, Any] = {"tokens_per_batch": options.tokens, "length": options.length, "vocabulary": VOCABULARY}
    with tempfile.TemporaryDirectory() as folder:
        phrases = Path(folder) / "phrases.txt"
        phrases.write_text("".join(f"w{i} w{j}\n" for i in range(100) for j in range(100)), encoding="utf-8")
        print(f"{'million tokens/s':32} {'arrange':>8} {'corrupt':>8} {'batch':>8} {'fixed':>8}")
        for name in options.objectives:
            rows = make_rows(name, options.tokens * (options.batches + 4)) if name in ("tlm", "mlm+dlm") else None
            given = replace(data, rows=rows, languages={"en": 0, "fr": 1} if name == "tlm" else {})
            result[name] = row = measure(name.format(phrases=phrases), given, packing, options.batches)
            print(f"{name:32.32}", *(f"{speed:8.1f}" for speed in row.values()), flush=True)
    result |= machine()
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
