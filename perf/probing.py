"""Time the probes of `pretune probe` after embedding: ten tasks on random features of 13 layers (12 and the embeddings) of width 768.

    python perf/probing.py [--examples 10000] [--layers 13] [--width 768] [--controls] [--num-seeds 1] [--tasks length tense …]

The tasks have as many classes as those of SentEval, word content included (1,000 classes). Features have a few hundred directions that
explain most of their variance, as the states of a Transformer have, and labels depend on them linearly, with noise.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from pretune.probing.probes.layer_scores import ProbeSettings, probe_task
from pretune.probing.probing_task import ProbingExample, ProbingTask, Split
from pretune.probing.representation_cache import Passage, RepresentationCache
from pretune.probing.representations import TaskVectors

CLASSES = {
    "length": 6, "word content": 1000, "depth": 7, "top constituents": 20, "bigram shift": 2, "tense": 2, "subject number": 2,
    "object number": 2, "odd man out": 2, "coordination inversion": 2,
}  # fmt: skip


def make_vectors(name: str, classes: int, shape: tuple[int, int, int], cache: RepresentationCache) -> TaskVectors:
    """Return a task with random texts, whose vectors in the cache carry the labels, more in higher layers."""
    examples, layers, width = shape
    rng = np.random.default_rng(len(name))
    mixing = rng.normal(size=(width, width)).astype(np.float32) * (np.arange(1, width + 1) ** -0.7)[:, None]
    base = (rng.normal(size=(examples, width)) @ mixing).astype(np.float32)
    logits = base @ rng.normal(size=(width, classes)).astype(np.float32)
    targets = (2 * logits / logits.std() + rng.gumbel(size=logits.shape)).argmax(1)
    noise = base.std()
    states = [base + noise * (layers - layer) / layers * rng.normal(size=base.shape) for layer in range(layers)]
    texts = [f"{name} {number}" for number in range(examples)]
    cache.add([Passage(text) for text in texts], [torch.from_numpy(state.astype(np.float32)) for state in states])
    held_out: list[Split] = ["train"] * 8 + ["dev", "test"]
    made = [ProbingExample(text, str(targets[i]), held_out[i % 10]) for i, text in enumerate(texts)]
    return TaskVectors(ProbingTask(name, "random", made), cache)


def main() -> None:
    """Print the seconds of each task and in all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--layers", type=int, default=13)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--num-seeds", type=int, default=1)
    parser.add_argument("--controls", action="store_true")
    parser.add_argument("--tasks", nargs="+", choices=CLASSES, default=list(CLASSES))
    given = parser.parse_args()
    settings = ProbeSettings(controls=given.controls, num_seeds=given.num_seeds)
    shape = (given.examples, given.layers, given.width)
    print(f"{torch.get_num_threads()} threads; load {os.getloadavg()[0]:.1f}", flush=True)
    total = cpu = 0.0
    for name, classes in ((name, CLASSES[name]) for name in given.tasks):
        with tempfile.TemporaryDirectory() as folder:
            vectors = make_vectors(name, classes, shape, RepresentationCache(Path(folder)))
            other = vectors if given.controls else None  # an untrained model takes as long
            start, used = time.perf_counter(), time.process_time()
            scores = probe_task(vectors, other, range(given.layers), settings, lambda note: None)
            seconds, busy = time.perf_counter() - start, time.process_time() - used
        total, cpu = total + seconds, cpu + busy
        print(
            f"{name:24} {classes:5} classes  {seconds:7.1f} s  {busy:7.1f} s CPU  "
            f"layer 0 {scores.layers[0].accuracy:.3f}, top {scores.layers[-1].accuracy:.3f}, mix {scores.mix or 0:.3f}",
            flush=True,
        )
    print(f"all {total:.0f} s, {cpu:.0f} s CPU; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
