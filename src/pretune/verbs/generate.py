"""`generate`: a language model writes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.verbs.results import Rows
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


def samples(o: Options) -> bool:
    """Return whether tokens are sampled."""
    return (o.temperature, o.top_k, o.top_p) != (None, None, None)


def told_languages(o: Options) -> bool:
    """Return whether a model is told from which language to which it writes."""
    import os

    from pretune.models.hf_config import read_config
    from pretune.models.references import find_folder

    family, _ = read_config(find_folder(os.fspath(o.model)))
    return "language" in (*family.template.single, *(family.template.target or ()))


@verb(
    only("seed", where="to sampling (--temperature, --top-k or --top-p)", when=samples),
    only("length_penalty", where="to beam search (--beams 2 or more)", when=lambda o: o.beams > 1),
    only("tokens", where="without --choices, which end where they end", when=lambda o: not o.choices),
    only("languages", where="to models that are told the languages, such as mBART", when=told_languages),
)
def generate(
    model: str | Path | Run,
    prompts: Sequence[str] = (),
    *,
    tokens: int = 50,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    beams: int = 1,
    length_penalty: float = 1.0,
    repetition_penalty: float = 1.0,
    no_repeat_ngram: int = 0,
    stop: Sequence[str] = (),
    choices: Sequence[str] = (),
    languages: str = "",
    stream: bool = False,
    seed: int = 0,
    device: str | None = None,
    partial: bool = False,
) -> Rows:
    """Let a language model write on from beginnings: always the likeliest token, by chance, or by beam search.

    An encoder-decoder (T5, BART) reads the prompts, and writes texts of its own.
    With any of --temperature, --top-k and --top-p, tokens are drawn; the same seed draws the same text.

    Parameters
    ----------
    model
        A run or model folder with a causal language model (GPT, GPT-2, or any run with the objective lm), or an encoder-decoder.
    prompts
        Beginnings. An empty one, "", leaves the beginning to the model.
    tokens
        New tokens at most; a text also stops where the model ends it.
    temperature
        Below 1 likely tokens become likelier, above 1 less so.
    top_k
        Draw from the so many likeliest tokens.
    top_p
        Draw from the likeliest tokens that together have this probability.
    beams
        Look for the likeliest text with so many beginnings at a time.
    length_penalty
        How beams of different length compare: scores are divided by the length to this power.
    repetition_penalty
        Above 1, tokens that were there before become less likely.
    no_repeat_ngram
        So many tokens in a row never come twice; 0 allows everything.
    stop
        Strings, before the first of which a text ends.
    choices
        The only texts that may be written, such as labels.
    languages
        From which to which, as in en-ro, where a model must be told (mBART).
    stream
        Show each text on stderr while it is written; texts are then written one by one.
    seed
        All chance follows from it.
    device
        cpu or cuda; a GPU is used where there is one.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> generate("runs/mine", ["Once upon a time"], temperature=0.8, top_p=0.9, seed=1)[0]["text"]  # doctest: +SKIP
    """
    import os

    from pretune.inference.generation.generate import Decoding, Writer
    from pretune.inference.generation.seq2seq_generation import Rewriter, reads_and_writes
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import show

    if not prompts:
        raise PretuneError('nothing to write on from: give a beginning, or "" to leave it to the model')
    how = Decoding(
        tokens,
        temperature,
        top_k,
        top_p,
        beams,
        length_penalty,
        repetition_penalty,
        no_repeat_ngram,
        seed,
        tuple(stop),
        tuple(choices),
    )
    reference = os.fspath(model)
    writer: Writer | Rewriter
    if reads_and_writes(reference):
        writer = Rewriter.load(reference, device, partial, languages)
    else:
        writer = Writer.load(reference, device, partial)
    if stream:
        rows = [show(writer.stream(prompt, how, row)) for row, prompt in enumerate(prompts)]
    else:
        rows = writer.write(prompts, how)
    return Rows("texts", rows, hidden=("prompt", "continuation"))
