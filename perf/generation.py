"""Compare the generation speed of GPT-2 small with `transformers` in the same run: new tokens per second, with a cache.

    python perf/generation.py [--device cpu] [--tokens 64] [--rounds 3] [--json]
    python perf/generation.py --device cuda [--dtype float32] [--tokens 240] [--rounds 3] [--seconds 125] [--parts greedy beams]
        [--attention kernel]

The weights are random; decoding is without an end token, and the prompts are random token ids. Rounds of the two alternate,
and the best of each is reported; the first calls, with compilation and recording, are not timed.

On a CPU, decoding is greedy, for one prompt and for batches, in fp32. In addition, it prints how the time grows with twice the
new tokens. On a GPU, `transformers` is compiled with a static cache, and there are three parts, each printed as soon as it is
known: greedy decoding (1 and 64 prompts), speculative decoding (1 and 8 prompts), and beam search (4 beams, 1 and 16 prompts). A
part that fails prints its traceback, and the next one follows; no part starts or goes on after `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
import traceback
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from common import machine

from pretune.families import FAMILIES
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.decoding_loops import GenerationConfig
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective

PROMPT = 16  # tokens
BATCHES, LENGTHS = (1, 4, 8), (512, 1024)
PARTS = ("greedy", "speculative", "beams")  # on a GPU
DRAFT_LAYERS = 2
DAMPING = 0.02  # the upper layers of the target change little, so that a draft model without them is often right


def pair(device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Model, Any]:
    """Return a model of pretune and one of `transformers` with the same weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = {"n_positions": PROMPT + max(LENGTHS)}
    family = FAMILIES["gpt2"]
    model = Model(family, family.read_config(config), Network(family.build(family.read_config(config))))
    model.add_heads(parse_objective("lm").objectives)
    model.tokenizer = SimpleNamespace(size=model.config.vocab_size)  # type: ignore[assignment]
    model.tokenizer.target = model.tokenizer  # type: ignore[union-attr, misc]
    reference = GPT2LMHeadModel(GPT2Config(**config)).eval().to(device, dtype)
    published, _ = family.table.write(model.root.tensors())
    reference.load_state_dict(published, strict=False)
    model.root.eval().to(device, dtype)
    model.root.set_activation_dtype(dtype)
    return model, reference


def generate(
    model: Model, prompts: Any, tokens: int, beams: int = 1, draft: Model | None = None, **options: Any
) -> list[list[int]]:
    """Return the new tokens of each prompt."""
    writer = TextGenerator(model, next(model.root.parameters()).device, draft)
    texts = writer.generate_ids(prompts.tolist(), GenerationConfig(tokens, num_beams=beams, **options), set())
    return [text.ids for text in texts]


def generate_with_transformers(reference: Any, prompts: Any, tokens: int, beams: int = 1) -> list[list[int]]:
    """Return the new tokens of each prompt with `transformers`, compiled with a static cache on a GPU."""
    ids = torch.from_numpy(prompts).to(reference.device)
    options: dict[str, Any] = {
        "max_new_tokens": tokens,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        "num_beams": beams,
    }
    if ids.is_cuda:
        options["cache_implementation"] = "static"
    out = reference.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return out[:, PROMPT:].tolist()  # type: ignore[no-any-return]


def seconds(work: Callable[[], Any]) -> float:
    """Return the seconds that a function takes, with all its work on the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def on_cpu(arguments: argparse.Namespace) -> None:
    """Compare greedy decoding on a CPU."""
    tokens = arguments.tokens or 64
    chance = np.random.default_rng(0)
    result: dict[str, Any] = {"machine": machine(), "speed": []}

    model, reference = pair(torch.device("cpu"))
    for batch in BATCHES:
        prompts = chance.integers(0, model.config.vocab_size, (batch, PROMPT))
        same = generate(model, prompts, 8) == generate_with_transformers(reference, prompts, 8)
        works = {"pretune": partial(generate, model), "transformers": partial(generate_with_transformers, reference)}
        rates = best_rates(
            {name: partial(work, prompts, tokens) for name, work in works.items()}, batch, arguments.rounds
        )
        row: dict[str, Any] = {
            "batch": batch,
            "same_text": same,
            **{f"{name}_tokens_per_second": rate for name, rate in rates.items()},
        }
        result["speed"].append(row | {"ratio": rates["pretune"] / rates["transformers"]})

    prompts = chance.integers(0, model.config.vocab_size, (1, PROMPT))
    lengths = {n: seconds(partial(generate, model, prompts, n)) for n in LENGTHS}
    result["growth"] = {"seconds": lengths, "ratio": lengths[1024] / lengths[512]}
    if arguments.json:
        print(json.dumps(result))
        return
    print(result["machine"])
    for row in result["speed"]:
        mine, others = row["pretune_tokens_per_second"], row["transformers_tokens_per_second"]
        speeds = f"{mine:.1f} tokens/s, transformers {others:.1f}: {row['ratio']:.2f}x"
        print(f"batch {row['batch']}: {speeds}; same text: {row['same_text']}")
    print(f"512 tokens {lengths[512]:.2f} s, 1024 tokens {lengths[1024]:.2f} s: {result['growth']['ratio']:.2f}x")


def best_rates(works: dict[str, Callable[[], list[list[int]]]], batch: int, rounds: int) -> dict[str, float]:
    """Return the tokens per second of each function in its best round, of rounds that alternate."""
    times: dict[str, list[float]] = {name: [] for name in works}
    tokens = {name: len(work()[0]) for name, work in works.items()}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: batch * tokens[name] / min(spent) for name, spent in times.items()}


# -- on a GPU -------------------------------------------------------------------------------------------------------


def log(*parts: Any) -> None:
    """Print a line at once."""
    print(*parts, flush=True)


def common_prefixes(first: list[list[int]], second: list[list[int]]) -> list[int]:
    """Return how many tokens of each text are the same in both lists before the first difference."""
    return [
        next((place for place, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
        for texts in zip(first, second, strict=True)
    ]


def forget_compiled(reference: Any) -> None:
    """Let a model of `transformers` be compiled anew, so that another batch size does not make its shapes dynamic."""
    torch.compiler.reset()
    for name in ("_compiled_call", "_cache"):
        vars(reference).pop(name, None)


class Comparison:
    """The parts of the comparison on a GPU."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
        self.tokens, self.rounds = arguments.tokens or 240, arguments.rounds
        self.model, self.reference = pair(self.device, self.dtype)
        self.results: list[dict[str, Any]] = []

    def prompts(self, batch: int) -> Any:
        """Return random prompts, (batch, tokens), always the same."""
        return np.random.default_rng(batch).integers(0, self.model.config.vocab_size, (batch, PROMPT))

    def measure(self, name: str, batch: int, ours: Callable[..., Any], theirs: Callable[..., Any] | None) -> float:
        """Measure a part, print the result, and return our tokens per second."""
        prompts = self.prompts(batch)
        row: dict[str, Any] = {"part": name, "batch": batch, "tokens": self.tokens}
        row["pretune_first_call_seconds"] = seconds(lambda: row.update(text=ours(prompts, self.tokens)))
        log(f"  {name}, batch {batch}: first call {row['pretune_first_call_seconds']:.1f} s")
        mine = row.pop("text")
        times = [seconds(lambda: ours(prompts, self.tokens)) for _ in range(self.rounds)]
        count = batch * self.tokens
        row["pretune_tokens_per_second"] = count / min(times)
        per_step = f"{1000 * min(times) / self.tokens:.2f} ms per token; rounds {[round(t, 3) for t in times]}"
        log(f"  pretune {count / min(times):.0f} tokens/s, {per_step}")
        if theirs is not None:
            forget_compiled(self.reference)
            first = [seconds(lambda: row.update(text=theirs(prompts, self.tokens))) for _ in range(2)]
            log(f"  transformers: first calls {first[0]:.1f} and {first[1]:.1f} s")
            row["common_prefix"] = common_prefixes(mine, row.pop("text"))
            others = []
            for _ in range(self.rounds):  # again in turns, as the clock of the GPU varies
                times.append(seconds(lambda: ours(prompts, self.tokens)))
                others.append(seconds(lambda: theirs(prompts, self.tokens)))
            row["pretune_tokens_per_second"] = count / min(times)
            row["transformers_tokens_per_second"] = count / min(others)
            row["ratio"] = min(others) / min(times)
            log(f"  transformers {count / min(others):.0f} tokens/s; rounds {[round(t, 3) for t in others]}")
            same = f"equal tokens before the first difference: {sorted(row['common_prefix'])[:8]} …"
            log(f"{name}, batch {batch}: pretune {count / min(times):.0f} tokens/s, {row['ratio']:.2f}x; {same}")
        self.results.append(row)
        return float(row["pretune_tokens_per_second"])

    def greedy(self, batch: int) -> None:
        """Compare greedy decoding, also with steps that are not recorded."""
        from pretune.inference.generation import static_decoding

        ours = partial(generate, self.model)
        self.measure("greedy", batch, ours, partial(generate_with_transformers, self.reference))
        recorded, static_decoding.has_static_steps = static_decoding.has_static_steps, lambda reader: False
        try:
            spent = [seconds(lambda: ours(self.prompts(batch), 64)) for _ in range(2)]
        finally:
            static_decoding.has_static_steps = recorded
        log(f"  without recorded steps: {batch * 64 / min(spent):.0f} tokens/s")

    def beams(self, batch: int) -> None:
        """Compare beam search."""
        theirs = partial(generate_with_transformers, self.reference, beams=4)
        self.measure("4 beams", batch, partial(generate, self.model, beams=4), theirs)

    def speculative(self, batch: int) -> None:
        """Compare decoding with and without a draft model, whose layers are the lowest ones of the target model."""
        target = deepcopy(self.model.root)
        with torch.no_grad():
            for layer in target.backbone.layers[DRAFT_LAYERS:]:
                for part in layer.children():
                    part.part.output.weight.mul_(DAMPING)
        small = deepcopy(target)
        small.backbone.layers = small.backbone.layers[:DRAFT_LAYERS]
        small.backbone.order = range(DRAFT_LAYERS)
        whole, draft = (
            Model(self.model.family, self.model.config, root, self.model.tokenizer) for root in (target, small)
        )
        ours = partial(generate, whole)
        for options in ({}, {"temperature": 1.0}):
            rates = []
            for proposer in (None, draft):
                name = f"{'sampling' if options else 'greedy'}, {'draft model' if proposer else 'alone'}"
                rates.append(self.measure(name, batch, partial(ours, draft=proposer, **options), None))
            log(f"speculative, batch {batch}, {options}: {rates[1] / rates[0]:.2f}x of the target model alone")
        prompts = self.prompts(batch)
        same = common_prefixes(ours(prompts, self.tokens), ours(prompts, self.tokens, draft=draft))
        log(f"speculative, batch {batch}: equal tokens before the first difference: {same} of {self.tokens}")
        self.count_checks(whole, draft, prompts)

    def count_checks(self, target: Model, draft: Model, prompts: Any) -> None:
        """Print how many tokens each check of proposals adds on average."""
        from pretune.inference.generation.speculative import speculative_steps

        limits = [self.tokens] * len(prompts)
        with torch.inference_mode():
            steps = speculative_steps(
                (target, draft), prompts.tolist(), range(len(prompts)), limits, GenerationConfig(self.tokens), set()
            )
            count = sum(1 for _ in steps)
        log(f"  {(self.tokens - 1) / (count - 1):.2f} tokens per check (slowest text)")


def choose_attention(name: str) -> None:
    """Use the kernel for attention to the cache, or the dense implementation if that is asked for or the kernel fails."""
    from pretune.nn.attention import scaled_dot_product

    try:
        if name == "kernel":
            from pretune.nn.kernels.decode_attention import UNLIMITED, decode_attention

            q, k = torch.randn(2, 1, 12, 64, device="cuda"), torch.randn(2 * 64, 12, 64, device="cuda")
            used = torch.tensor([0, 40], device="cuda")
            log("the kernel computes", decode_attention(q[:, 0], k, k, used, 64, None, UNLIMITED, 0.125).norm().item())
            return
    except Exception:
        log(traceback.format_exc())
    log("attention is dense")
    scaled_dot_product.DECODE_HEAD_WIDTHS = ()


def on_gpu(arguments: argparse.Namespace) -> None:
    """Run the parts of the comparison on a GPU, one after the other, as long as there is time."""
    started = time.monotonic()
    log(machine(), arguments)
    choose_attention(arguments.attention)

    def stop(*_: Any) -> None:
        signal.alarm(2)  # again, in case a library catches the error
        raise TimeoutError("the time of --seconds is over")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(max(1, arguments.seconds))
    jobs = {"greedy": (1, 64), "speculative": (1, 8), "beams": (1, 16)}
    comparison = None
    try:
        comparison = Comparison(arguments)
        for name in arguments.parts:
            for batch in jobs[name]:
                if time.monotonic() - started > arguments.seconds:
                    raise TimeoutError("the time of --seconds is over")
                log(f"-- {name}, batch {batch}, after {time.monotonic() - started:.0f} s")
                try:
                    getattr(comparison, name)(batch)
                except TimeoutError:
                    raise
                except Exception:
                    log(traceback.format_exc())
    except TimeoutError as error:
        log(f"stopped: {error}")
        log(traceback.format_exc())
    finally:
        signal.alarm(0)
        if comparison is not None:
            log(json.dumps({"machine": machine(), "dtype": arguments.dtype, "results": comparison.results}))
        log(f"done after {time.monotonic() - started:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--attention", default="kernel", choices=("kernel", "dense"))
    parser.add_argument("--seconds", type=int, default=125)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda"):
        on_gpu(arguments)
    else:
        on_cpu(arguments)


if __name__ == "__main__":
    main()
