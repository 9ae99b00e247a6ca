"""The decoding loops: greedy decoding, sampling, and beam search with a key-value cache, and their settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pretune.inference.generation.beam_search import BeamSearch, Candidates, Hypothesis, candidate_count, next_beams
from pretune.inference.generation.decoding_session import Reader
from pretune.inference.generation.sampling import AllowedTokens, mask_disallowed, penalize_repetition, sample
from pretune.inference.generation.static_decoding import StaticSession, begin_steps
from pretune.inference.generation.stop_strings import StopCondition
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import uniform


@dataclass(frozen=True)
class GenerationConfig:
    """The decoding settings: greedy by default; sampling if temperature, top_k, or top_p is set; or beam search."""

    max_new_tokens: int = 50  # the most new tokens
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    seed: int = 0
    stop: tuple[str, ...] = ()  # stop strings; a text ends before the first of them
    choices: tuple[str, ...] = ()  # the continuations that are allowed; (): any

    def __post_init__(self) -> None:
        lowest = {"max_new_tokens": 1, "top_k": 1, "num_beams": 1, "no_repeat_ngram_size": 0}
        for name, least in lowest.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise PretuneError(f"{name}={value} is too small; give {least} or more")
        for name in ("temperature", "top_p", "repetition_penalty"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise PretuneError(f"{name}={value:g} is not positive; give a number above 0")
        if self.top_p is not None and self.top_p > 1:
            raise PretuneError(f"top_p={self.top_p:g} is not a probability; give a number above 0 and up to 1")
        for name in ("stop", "choices"):
            if any(not text.strip(" ") for text in getattr(self, name)):
                raise PretuneError(
                    f"{name}: there is an empty text among {', '.join(map(repr, getattr(self, name)))}; leave it out"
                )
        if self.num_beams > 1 and self.is_sampling:
            raise PretuneError(
                "beam search and sampling cannot be combined; leave out temperature, top_k, and top_p, or num_beams"
            )

    @property
    def is_sampling(self) -> bool:
        """Return whether these decoding settings sample tokens, instead of greedy decoding or beam search."""
        return (self.temperature, self.top_k, self.top_p) != (None, None, None)

    @property
    def penalizes_repetition(self) -> bool:
        """Return whether the next token depends on penalties for tokens that occurred before."""
        return self.repetition_penalty != 1.0 or self.no_repeat_ngram_size > 0


def generate_texts(
    reader: Reader,
    prompts: Sequence[list[int]],
    rows: Sequence[int],
    limits: Sequence[int],
    decoding: GenerationConfig,
    end: set[int],
    allowed: AllowedTokens | None = None,
    ended: StopCondition | None = None,
) -> list[Hypothesis]:
    """Continue prompts by greedy decoding, sampling or beam search, and return the generated texts.

    `rows` has a number for each prompt that seeds its random draws, so that these do not depend on the batch. `limits`
    has the maximum number of new tokens for each prompt, and `end` the ids of the tokens that end a text. `allowed` is
    a function from the tokens generated so far to the tokens that may follow, and `ended` a function that returns
    whether the tokens generated so far are a finished text.
    """
    if decoding.num_beams > 1:
        return beam_search_texts(reader, prompts, limits, decoding, end, allowed, ended)
    *_, texts = sample_steps(reader, prompts, rows, limits, decoding, end, allowed, ended)
    return texts


def sample_steps(
    reader: Reader,
    prompts: Sequence[list[int]],
    rows: Sequence[int],
    limits: Sequence[int],
    decoding: GenerationConfig,
    end: set[int],
    allowed: AllowedTokens | None = None,
    ended: StopCondition | None = None,
) -> Iterator[list[Hypothesis]]:
    """Continue prompts by greedy decoding or sampling; after each token, yield the continuations so far, one per prompt.

    `rows` has a number for each prompt that seeds its random draws, and `limits` the maximum number of new tokens for
    each prompt. `generate_texts` explains the other parameters.
    """
    texts = [Hypothesis([], 0.0) for _ in prompts]
    going = list(range(len(prompts)))  # the prompts of the reader's sequences
    logits = reader.read(prompts)
    stepper = begin_steps(reader)
    most_ahead = stepper.steps_per_sync if allowed is None and not decoding.penalizes_repetition else 1
    while True:
        remaining = max(1, *(limits[i] - len(texts[i].ids) for i in going if not texts[i].ended))
        step = max(len(texts[i].ids) for i in going)
        steps: list[Tensor] = []  # (sequences,) each: the tokens that were chosen since the last look at them
        for ahead in range(min(most_ahead, remaining)):
            if steps:
                logits = stepper.advance(steps[-1])
            histories = ([*prompts[i], *texts[i].ids] for i in going)
            logits = penalize_repetition(logits, histories, decoding.repetition_penalty, decoding.no_repeat_ngram_size)
            logits = mask_disallowed(logits, (texts[i].ids for i in going), allowed)
            steps.append(choose_tokens(logits, decoding, [rows[i] for i in going], step + ahead))
        for chosen in stepper.to_host(steps):
            for i, token in zip(going, chosen, strict=True):
                add_token(texts[i], token, limits[i], end, ended)
            stay = [k for k, i in enumerate(going) if is_unfinished(texts[i], limits[i])]
            yield texts
            if not stay:
                stepper.close()
                return
        kept, tokens = stepper.keep(stay), steps[-1]
        if len(kept) < len(going):
            going, tokens = [going[k] for k in kept], tokens[torch.tensor(kept, device=tokens.device)]
        logits = stepper.advance(tokens)


def choose_tokens(logits: Tensor, decoding: GenerationConfig, rows: Sequence[int], step: int) -> Tensor:
    """Return the next token of each text, (b,), given logits, (b, vocabulary), by greedy decoding or sampling.

    `rows` has a number for each text that seeds its random draws, and `step` is the number of tokens before.
    """
    if not decoding.is_sampling:
        return logits.argmax(-1)
    chance = uniform(decoding.seed, "generate", np.array(rows), step)
    return sample(logits, chance, decoding.temperature or 1.0, decoding.top_k, decoding.top_p)


def add_token(text: Hypothesis, token: int, limit: int, end: set[int], ended: StopCondition | None) -> None:
    """Add a token to a text, or end the text if the token is in `end`; a finished text stays as it is."""
    if not is_unfinished(text, limit):
        return
    last = token in end
    text.ids += [] if last else [token]
    text.ended = last or (ended is not None and ended(text.ids))


def is_unfinished(text: Hypothesis, limit: int) -> bool:
    """Return whether a text has neither ended nor reached its limit of tokens."""
    return not text.ended and len(text.ids) < limit


def beam_search_texts(
    reader: Reader,
    prompts: Sequence[list[int]],
    limits: Sequence[int],
    decoding: GenerationConfig,
    end: set[int],
    allowed: AllowedTokens | None = None,
    ended: StopCondition | None = None,
) -> list[Hypothesis]:
    """Continue prompts by beam search, and return the best text of each; the parameters are those of `generate_texts`."""
    searches = [BeamSearch(decoding.num_beams, limit, decoding.length_penalty, end, ended=ended) for limit in limits]
    logits = reader.read(prompts)
    if allowed is None and ended is None and not decoding.penalizes_repetition:
        stepper = begin_steps(reader, decoding.num_beams)
        if isinstance(stepper, StaticSession):
            return search_on_device(stepper, logits, searches)
    while True:
        histories = ([*p, *beam.ids] for p, s in zip(prompts, searches, strict=True) for beam in s.beams)
        scores = logits.log_softmax(-1)
        scores = penalize_repetition(scores, histories, decoding.repetition_penalty, decoding.no_repeat_ngram_size)
        scores = mask_disallowed(scores, (beam.ids for search in searches for beam in search.beams), allowed)
        # Candidates are selected on the model's device, because copying the whole vocabulary to the host is slow.
        best, tokens = (
            part.cpu() for part in scores.topk(min(candidate_count(decoding.num_beams, end), scores.shape[1]))
        )
        rows: list[int] = []
        first = 0
        for search in searches:
            if count := len(search.beams):
                part = slice(first, first + count)
                rows += [first + origin for origin in search.step(best[part], tokens[part])]
                first += count
        if not rows:
            return [search.finished[0] for search in searches]
        reader.select(rows)
        logits = reader.read([beam.ids[-1:] for search in searches for beam in search.beams])


def search_on_device(reader: StaticSession, logits: Tensor, searches: Sequence[BeamSearch]) -> list[Hypothesis]:
    """Run beam searches whose steps choose the next beams on the device; return the best text of each.

    `logits`, (searches, vocabulary), are those of the token after each prompt. The host follows the searches every few
    steps, from the candidates of each step, and ignores those of searches that have ended.
    """
    width, ends = searches[0].width, torch.tensor(sorted(searches[0].ends), dtype=torch.long, device=logits.device)
    first = torch.arange(len(searches), device=logits.device)[:, None] * width  # first sequence of each search
    scores = logits.new_full((len(searches), width), -torch.inf)
    scores[:, 0] = 0.0  # all beams are the same so far
    logits, done = logits.repeat_interleave(width, 0), 0
    beams: Candidates | None = None
    while True:
        remaining = max(search.limit for search in searches if search.beams) - done
        steps: list[Tensor] = []
        for _ in range(min(reader.steps_per_sync, remaining)):
            if beams is not None:
                logits = reader.advance_many(beams.tokens.view(-1, 1), (first + beams.origins).flatten())[:, -1]
            candidates, beams = next_beams(logits.log_softmax(-1), scores, ends)
            scores = beams.scores
            steps.append(candidates.stacked())
        for step in reader.to_host(steps):
            for search, found, origins, tokens in zip(searches, *step, strict=True):
                if search.beams:
                    search.choose(found, list(map(int, origins)), list(map(int, tokens)))
            done += 1
            if not any(search.beams for search in searches):
                reader.close()
                return [search.finished[0] for search in searches]
