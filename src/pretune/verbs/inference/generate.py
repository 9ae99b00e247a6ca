"""The `generate` verb: text generation by greedy decoding, sampling, or beam search."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pretune.verbs import options as opt
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import Options, only, verb


def samples(o: Options) -> bool:
    """Return whether the command-line options `o` turn sampling on."""
    return (o.temperature, o.top_k, o.top_p) != (None, None, None)


def plain_decoding(o: Options) -> bool:
    """Return whether the command-line options `o` ask for greedy decoding or sampling without any restriction."""
    return o.num_beams == 1 and not o.choices and o.repetition_penalty == 1.0 and not o.no_repeat_ngram_size


def takes_languages(o: Options) -> bool:
    """Return whether the model in the options `o` uses tokens that name the source and the target language."""
    from pretune.models.hf_config import read_config
    from pretune.models.name_resolution import find_folder

    family, _ = read_config(find_folder(os.fspath(o.model)))
    return "language" in (*family.template.single, *(family.template.target or ()))


@verb(
    only("seed", where="to sampling (--temperature, --top-k or --top-p)", when=samples),
    only("length_penalty", where="to beam search (--num-beams 2 or more)", when=lambda o: o.num_beams > 1),
    only("max_new_tokens", where="without --choices, which have their own length", when=lambda o: not o.choices),
    only("score", where="without --choices, among which the texts are", when=lambda o: not o.choices),
    only(
        "draft",
        where="to greedy decoding and sampling, without --choices and repetition penalties",
        when=plain_decoding,
    ),
    only("language_pair", where="to models that take language tokens, such as mBART", when=takes_languages),
    common=(
        "prompts",
        "max_new_tokens",
        "temperature",
        "top_k",
        "top_p",
        "num_beams",
        "stop",
        "choices",
        "stream",
        "score",
        "seed",
        "device",
    ),
)
def generate(
    model: opt.Model,
    prompts: Sequence[str] = (),
    *,
    max_new_tokens: int = 50,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    num_beams: opt.NumBeams = 1,
    length_penalty: opt.LengthPenalty = 1.0,
    repetition_penalty: float = 1.0,
    no_repeat_ngram_size: int = 0,
    stop: Sequence[str] = (),
    choices: Sequence[str] = (),
    draft: str | Path | opt.ModelHandle | None = None,
    language_pair: str = "",
    stream: bool = False,
    score: bool = False,
    seed: opt.Seed = 0,
    device: opt.Device = None,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Generate text from prompts with greedy decoding, sampling, or beam search.

    A causal language model continues the prompts; an encoder-decoder (T5, BART) reads them as its source texts. Any of
    --temperature, --top-k, and --top-p turns sampling on.

    Parameters
    ----------
    model
        Run folder or model folder of a causal language model (GPT, GPT-2, or any run with the objective lm) or an encoder-decoder.
    prompts
        Texts to continue; the empty prompt "" generates from the beginning.
    max_new_tokens
        Maximum number of tokens to generate; generation also stops at the end-of-text token.
    temperature
        Sampling temperature; values below 1 favor likely tokens.
    top_k
        Sample from this many most likely tokens.
    top_p
        Sample from the smallest set of most likely tokens with at least this total probability (nucleus sampling).
    repetition_penalty
        Penalty for tokens that occurred before; 1 is none, larger values penalize more.
    no_repeat_ngram_size
        Length of n-grams that must not occur twice; 0 allows repetition.
    stop
        Stop sequences; the text ends before the first of them.
    choices
        Constrain the output to one of these texts, such as labels.
    draft
        Run folder or model folder of a smaller causal language model with the same tokenizer, which proposes tokens for the
        model to check (speculative decoding); faster, with the same greedy texts and the same distribution of samples.
    language_pair
        Source and target language, as in en-ro, for models with language tokens (mBART).
    stream
        Print each text to stderr while it is generated, one prompt at a time.

    score
        Measure how repetitive and diverse the generated texts are: distinct-n, repeated 4-grams, self-BLEU.

    Examples
    --------
    >>> generate("runs/mine", ["Once upon a time"], temperature=0.8, top_p=0.9, seed=1)[0]["text"]  # doctest: +SKIP
    """
    from pretune.inference.generation.causal_generation import TextGenerator
    from pretune.inference.generation.decoding_loops import GenerationConfig
    from pretune.inference.generation.seq2seq_generation import Seq2SeqGenerator, is_encoder_decoder
    from pretune.metrics.diversity import diversity_metrics, repetition_rate
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import stream_text
    from pretune.verbs.shared_inputs import job_options, open_reference

    if not prompts:
        raise PretuneError('there is no prompt; give a prompt, or "" to generate from the beginning')
    given = job_options(GenerationConfig, locals()) | {"stop": tuple(stop), "choices": tuple(choices)}
    how = GenerationConfig(**given)
    reference, proposer = open_reference(model), None if draft is None else open_reference(draft)
    writer: TextGenerator | Seq2SeqGenerator
    if is_encoder_decoder(reference):
        if draft is not None:
            raise PretuneError(
                f"{reference}: this model is an encoder-decoder, and draft models work with causal language models only; leave out "
                "the draft model"
            )
        writer = Seq2SeqGenerator.load(reference, device, ignore_mismatched, language_pair)
    else:
        writer = TextGenerator.load(reference, device, ignore_mismatched, proposer)
    if stream:
        rows = [stream_text(writer.stream(prompt, how, row)) for row, prompt in enumerate(prompts)]
    else:
        rows = writer.generate(prompts, how)
    facts: dict[str, float] = {}
    if score:
        added = [row.get("continuation", row["text"]) for row in rows]
        rows = [{**row, "repetition_4": repetition_rate(text)} for row, text in zip(rows, added, strict=True)]
        facts = diversity_metrics(added)
    return ResultTable("texts", rows, hidden=("prompt", "continuation"), facts=facts)
