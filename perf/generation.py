"""Compare the generation speed of GPT-2 small with `transformers` in the same run: new tokens per second, with a cache.

    python perf/generation.py [--device cpu] [--tokens 64] [--rounds 3] [--json]

The weights are random, in fp32; decoding is greedy without an end token, for one prompt and for batches. Rounds of the
two alternate, and the best of each is reported; the first call, with its initialization, is not timed. In addition, it
prints how the time grows with twice the new tokens.
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
    """Return a model of pretune and one of `transformers` with the same weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = {"n_positions": PROMPT + max(LENGTHS)}
    family = FAMILIES["gpt2"]
    model = Model(family, family.read_config(config), Network(family.build(family.read_config(config))))
    model.add_heads(parse_objective("lm").objectives)
    model.tokenizer = SimpleNamespace(size=model.config.vocab_size)  # type: ignore[assignment]
    reference = GPT2LMHeadModel(GPT2Config(**config)).eval().to(device)
    published, _ = family.table.write(model.root.tensors())
    reference.load_state_dict(published, strict=False)
    model.root.eval().to(device)
    return model, reference


def generate(model: Model, prompts: Any, tokens: int) -> list[list[int]]:
    """Return the new tokens of each prompt."""
    writer = TextGenerator(model, next(model.root.parameters()).device)
    return [text.ids for text in writer.generate_ids(prompts.tolist(), GenerationConfig(tokens), set())]


def generate_with_transformers(reference: Any, prompts: Any, tokens: int) -> list[list[int]]:
    """Return the new tokens of each prompt with `transformers`."""
    ids = torch.from_numpy(prompts).to(reference.device)
    options = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    out = reference.generate(ids, attention_mask=torch.ones_like(ids), **options)
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

    model, reference = pair(device)
    for batch in BATCHES:
        prompts = chance.integers(0, model.config.vocab_size, (batch, PROMPT))
        same = generate(model, prompts, 8) == generate_with_transformers(reference, prompts, 8)
        times: dict[Any, list[float]] = {generate: [], generate_with_transformers: []}
        for _ in range(arguments.rounds):
            for write, network in ((generate, model), (generate_with_transformers, reference)):
                times[write].append(seconds(lambda w=write, n=network, p=prompts: w(n, p, tokens)))
        rates = {write.__name__: batch * tokens / min(spent) for write, spent in times.items()}
        row = {"batch": batch, "same_text": same, **{f"{name}_tokens_per_second": rate for name, rate in rates.items()}}
        result["speed"].append(row | {"ratio": rates["ours"] / rates["theirs"]})

    prompts = chance.integers(0, model.config.vocab_size, (1, PROMPT))
    lengths = {n: seconds(lambda n=n: generate(model, prompts, n)) for n in LENGTHS}
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
