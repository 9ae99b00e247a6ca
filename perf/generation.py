"""Writing speed of GPT-2 small beside `transformers`, in the same run: new tokens a second, with a cache on both sides.

    python perf/generation.py [--device cpu] [--tokens 64] [--rounds 3] [--json]

Random weights, in fp32, always the likeliest token, no end; alone and in batches. Rounds of the two take turns, and the
best of each counts; the first words, with all that is done once, come before the clock. Then: how long twice the new
tokens take.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from common import machine

from pretune.families import FAMILIES
from pretune.inference.generation.causal_generation import GenerationConfig, TextGenerator
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective

PROMPT = 16  # tokens
BATCHES, LENGTHS = (1, 4, 8), (512, 1024)


def pair(device: torch.device) -> tuple[Model, Any]:
    """Ours and the peer's with the same weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = {"n_positions": PROMPT + max(LENGTHS)}
    family = FAMILIES["gpt2"]
    model = Model(family, family.read_config(config), Network(family.build(family.read_config(config))))
    model.add_heads(parse_objective("lm").objectives)
    model.tokenizer = SimpleNamespace(size=model.config.vocab_size)  # type: ignore[assignment]
    peer = GPT2LMHeadModel(GPT2Config(**config)).eval().to(device)
    published, _ = family.table.write(model.root.tensors())
    peer.load_state_dict(published, strict=False)
    model.root.eval().to(device)
    return model, peer


def ours(model: Model, prompts: Any, tokens: int) -> list[list[int]]:
    """New tokens of each prompt."""
    writer = TextGenerator(model, next(model.root.parameters()).device)
    return [text.ids for text in writer.generate_ids(prompts.tolist(), GenerationConfig(tokens), set())]


def theirs(peer: Any, prompts: Any, tokens: int) -> list[list[int]]:
    """The same from the peer."""
    ids = torch.from_numpy(prompts).to(peer.device)
    options = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    out = peer.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return out[:, PROMPT:].tolist()  # type: ignore[no-any-return]


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    device, tokens = torch.device(arguments.device), arguments.tokens
    chance = np.random.default_rng(0)
    result: dict[str, Any] = {"machine": machine(), "speed": []}

    model, peer = pair(device)
    for batch in BATCHES:
        prompts = chance.integers(0, model.config.vocab_size, (batch, PROMPT))
        same = ours(model, prompts, 8) == theirs(peer, prompts, 8)
        times: dict[Any, list[float]] = {ours: [], theirs: []}
        for _ in range(arguments.rounds):
            for write, network in ((ours, model), (theirs, peer)):
                times[write].append(seconds(lambda w=write, n=network, p=prompts: w(n, p, tokens)))
        rates = {write.__name__: batch * tokens / min(spent) for write, spent in times.items()}
        row = {"batch": batch, "same_text": same, **{f"{name}_tokens_per_second": rate for name, rate in rates.items()}}
        result["speed"].append(row | {"ratio": rates["ours"] / rates["theirs"]})

    prompts = chance.integers(0, model.config.vocab_size, (1, PROMPT))
    lengths = {n: seconds(lambda n=n: ours(model, prompts, n)) for n in LENGTHS}
    result["growth"] = {"seconds": lengths, "ratio": lengths[1024] / lengths[512]}
    if arguments.json:
        print(json.dumps(result))
        return
    print(result["machine"])
    for row in result["speed"]:
        mine, others = row["ours_tokens_per_second"], row["theirs_tokens_per_second"]
        rates = f"{mine:.1f} tokens/s, transformers {others:.1f}: {row['ratio']:.2f}x"
        print(f"batch {row['batch']}: {rates}; same text: {row['same_text']}")
    print(f"512 tokens {lengths[512]:.2f} s, 1024 tokens {lengths[1024]:.2f} s: {result['growth']['ratio']:.2f}x")


if __name__ == "__main__":
    main()
