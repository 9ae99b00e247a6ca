"""Compare the recurrent layers of AWD-LSTM and ELMo in training with a bare torch.nn.LSTM in the same run.

    python perf/recurrent.py [--device cuda] [--lanes 80] [--rounds 5] [--json]

Times are of the forward and backward pass of a layer in training: ours on packed streams, with weight drop and locked
dropout (AWD-LSTM), or projection and residual connection (ELMo), for each direction; the bare layer on a dense block
of the same numbers, without any of this. On a GPU, both use cuDNN in bf16, ours from fp32 weights; the bare layer from
bf16 weights, and for comparison from fp32 weights with autocast. On a CPU, both are in fp32 on one core, in CPU time.
Then the same with documents that begin inside streams, compared with a PackedSequence of the same rows. Window lengths
are those of the presets, 70 tokens for AWD-LSTM and 20 for ELMo, and so are the streams, 80 on a GPU (WikiText-2) and
20 on a CPU (Penn Treebank). A weight mask costs the same for any number of tokens per step. Rounds of the two
alternate, and the best of each is reported. The GPU is synchronized after every ten steps, as in training, where the
host is ahead of it; `--wait 1` synchronizes after each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from common import machine
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from pretune.nn.dropout import share_dropout_seed
from pretune.nn.recurrent import RecurrentCells, RecurrentLayer, TimeMajorRows
from pretune.packed import Packed, pack

DOCUMENT = 300  # tokens, if documents begin inside streams
WINDOWS = {"AWD-LSTM": 70, "ELMo": 20}  # tokens per stream and step


def layers() -> dict[str, tuple[RecurrentLayer, nn.LSTM]]:
    """Return our layer and the bare layer, by name."""
    made: dict[str, tuple[RecurrentLayer, nn.LSTM]] = {}
    for number, (inputs, width) in enumerate([(400, 1150), (1150, 1150), (1150, 400)]):
        ours = RecurrentLayer(RecurrentCells(inputs, width, drop=0.5), dropout=0.2)
        made[f"AWD-LSTM layer {number}: {inputs} to {width}"] = ours, nn.LSTM(inputs, width)
    for number in range(2):
        ours = RecurrentLayer(RecurrentCells(512, 4096, projection=512), dropout=0.1, residual=number > 0)
        made[f"ELMo layer {number}: 4096 projected to 512"] = ours, nn.LSTM(512, 4096, proj_size=512)
    return made


def make_streams(count: int, length: int, documents: bool) -> Packed:
    """Return streams of equal length; with `documents`, some contain document starts."""
    columns = {}
    if documents:
        chance = np.random.default_rng(0)
        columns["document_start"] = chance.random(count * length) < 1 / DOCUMENT
    return pack(np.zeros(count * length, dtype=np.int64), np.full(count, length), columns=columns)


def seconds(step: Callable[[], None], device: torch.device, wait: int, least: float = 0.3) -> float:
    """Return the time of one call, averaged over enough calls: wall time on a GPU, CPU time on a CPU."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    done, started = 0, clock()
    while clock() - started < least:
        for _ in range(wait):
            step()
        done += wait
        if device.type == "cuda":
            torch.cuda.synchronize()
    return (clock() - started) / done


def stepping(run: Callable[[], Tensor], gradient: Tensor, parameters: list[Any]) -> Callable[[], None]:
    """Return a function that runs forward and backward and clears the gradients."""

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        run().backward(gradient)

    return step


def compare(
    name: str, ours: RecurrentLayer, theirs: nn.LSTM, packed: Packed, device: torch.device, rounds: int, wait: int
) -> dict[str, Any]:
    """Return the best times of both."""
    gpu = device.type == "cuda"
    kind = torch.bfloat16 if gpu else torch.float32
    ours.to(device).train()
    whole = deepcopy(theirs).to(device).train()
    theirs.to(device, kind).train()
    share_dropout_seed(ours, device)
    packed = packed.to(device)
    rows = TimeMajorRows.make(packed)
    torch.manual_seed(0)
    x = torch.randn(len(packed), ours.cells.inputs, device=device, dtype=kind, requires_grad=True)
    gradient = torch.randn(len(packed), ours.cells.outputs, device=device, dtype=kind)

    block = (-1, int(rows.sizes[0]), x.shape[1]) if rows.equal_lengths else None

    def bare(layer: nn.LSTM, cast: bool = False) -> Tensor:
        with torch.autocast("cuda", kind) if cast else nullcontext():
            if block is not None:
                return layer(x.view(block))[0].flatten(0, 1)  # type: ignore[no-any-return]
            return layer(PackedSequence(x, rows.sizes))[0].data  # type: ignore[no-any-return]

    steps = {
        "ours": stepping(lambda: ours(x, rows, None, None)[0], gradient, [x, *ours.parameters()]),
        "bare": stepping(lambda: bare(theirs), gradient, [x, *theirs.parameters()]),
    }
    if gpu:
        steps["autocast"] = stepping(lambda: bare(whole, True), gradient, [x, *whole.parameters()])
    best = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        step()
    for _ in range(rounds):
        for which, step in steps.items():
            best[which] = min(best[which], seconds(step, device, wait))
    return {
        "layer": name,
        "rows": "even" if block is not None else "documents begin inside",
        **{f"{k}_ms": 1e3 * v for k, v in best.items()},
        "ratio": best["ours"] / best["bare"],
        **({"ratio to autocast": best["ours"] / best["autocast"]} if gpu else {}),
    }


def main() -> None:
    """Print a ratio for each layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lanes", type=int, default=None, help="80 on a GPU, 20 on a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wait", type=int, default=None, help="steps that a GPU is ahead by: 10; a CPU: 1")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    count = arguments.lanes or (80 if device.type == "cuda" else 20)
    wait = arguments.wait or (10 if device.type == "cuda" else 1)
    found = []
    for documents in (False, True):
        for name, pair in layers().items():
            packed = make_streams(count, WINDOWS[name.split()[0]], documents)
            found.append(compare(name, *pair, packed, device, arguments.rounds, wait))
    result = {"machine": machine(), "lanes": count, "wait": wait, "layers": found}
    if arguments.json:
        print(json.dumps(result))
        return
    print(result["machine"], f"{count} lanes")
    for row in found:
        line = f"{row['ours_ms']:.2f} ms, bare {row['bare_ms']:.2f} ms: {row['ratio']:.2f}x"
        if "autocast_ms" in row:
            line += f"; by autocast {row['autocast_ms']:.2f} ms: {row['ratio to autocast']:.2f}x"
        print(f"{row['layer']}, {row['rows']}: {line}")


if __name__ == "__main__":
    main()
