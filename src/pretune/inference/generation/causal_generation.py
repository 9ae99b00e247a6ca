"""Text generation with causal language models: greedy decoding, sampling, and beam search, with a key-value cache."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretune.inference.generation.beam_search import BeamSearch, Candidates, Hypothesis, candidate_count, next_beams
from pretune.inference.generation.decoding_session import DecodingSession, Reader
from pretune.inference.generation.sampling import AllowedTokens, mask_disallowed, penalize_repetition, sample
from pretune.inference.generation.static_decoding import StaticSession, begin_steps
from pretune.inference.generation.stop_strings import StopCondition, TextStream, stop_condition, truncate_at_stop
from pretune.models.hf_config import read_config
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference, find_folder
from pretune.objectives import parse_objective
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import uniform
from pretune.text.tokenizers.token_trie import TokenTrie

ROWS = 32, 512  # the most sequences of a batch, on a CPU and on a GPU
SLOTS = 1 << 15  # cached tokens of all sequences of a batch on a GPU
FEW = 3  # up to this many rows, a CPU multiplies faster with row-major weight matrices


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


def batch_rows(slots: Sequence[int], beams: int, device: torch.device) -> Iterator[list[int]]:
    """Yield, for each batch, the indices of the prompts in it, the longest prompts first.

    Prompt i needs `slots[i]` tokens in the cache for each of its `beams`.
    """
    order = sorted(range(len(slots)), key=lambda row: -slots[row])
    few, many = ROWS
    while order:
        most = few if device.type == "cpu" else max(few, min(many, SLOTS // slots[order[0]]))
        count = max(1, most // beams)
        yield order[:count]
        order = order[count:]


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
    reader = begin_steps(reader)
    most_ahead = reader.steps_per_sync if allowed is None and not decoding.penalizes_repetition else 1
    while True:
        remaining = max(1, *(limits[i] - len(texts[i].ids) for i in going if not texts[i].ended))
        step = max(len(texts[i].ids) for i in going)
        steps: list[Tensor] = []  # (sequences,) each: the tokens that were chosen since the last look at them
        for ahead in range(min(most_ahead, remaining)):
            if steps:
                logits = reader.advance(steps[-1])
            histories = ([*prompts[i], *texts[i].ids] for i in going)
            logits = penalize_repetition(logits, histories, decoding.repetition_penalty, decoding.no_repeat_ngram_size)
            logits = mask_disallowed(logits, (texts[i].ids for i in going), allowed)
            steps.append(choose_tokens(logits, decoding, [rows[i] for i in going], step + ahead))
        for chosen in reader.to_host(steps):
            for i, token in zip(going, chosen, strict=True):
                add_token(texts[i], token, limits[i], end, ended)
            stay = [k for k, i in enumerate(going) if is_unfinished(texts[i], limits[i])]
            yield texts
            if not stay:
                reader.close()
                return
        kept, tokens = reader.keep(stay), steps[-1]
        if len(kept) < len(going):
            going, tokens = [going[k] for k in kept], tokens[torch.tensor(kept, device=tokens.device)]
        logits = reader.advance(tokens)


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


@dataclass
class TextGenerator:
    """A causal language model and its tokenizer, ready to generate text."""

    model: Model
    device: torch.device

    @classmethod
    def load(
        cls, reference: ModelReference, device: str | None = None, ignore_mismatched: bool = False
    ) -> TextGenerator:
        """Load a causal language model and its tokenizer from a run folder or a model folder."""
        family, content = read_config(find_folder(reference))
        objective = content.get("pretune", {}).get("objective")
        if family.template.target:
            raise PretuneError(
                f"{reference}: this {family.name} model is an encoder-decoder, which cannot continue a text; use `pretune generate`"
            )
        trained = [part.name for part in parse_objective(objective).objectives] if objective else []
        if "lm" not in trained and frozenset({"lm"}) not in family.classes:
            raise PretuneError(
                f"{reference}: this {family.name} model was not trained to generate text; use a model with the objective 'lm'"
            )
        model = load_model(reference, parse_objective("lm"), ignore_mismatched=ignore_mismatched)
        model.require_trained("lm", reference, "pretrain it with lm first")
        chosen = choose_device(device)
        model.root.to(chosen).eval()
        return cls(model, chosen)

    def encode(self, prompt: str) -> list[int]:
        """Return the token ids of a prompt, preceded by the special tokens with which the model's inputs start.

        An empty prompt gives at least one token, with which documents start.
        """
        tokenizer, template = self.model.require_tokenizer(), self.model.family.template
        ids = [tokenizer.role(role) for role in template.single[: template.single.index("A")]]
        ids += tokenizer.encode(prompt)
        between = [role for role in template.document_template.single if role != "A"]
        if not ids and not between:
            raise PretuneError(
                f"the prompt is empty, and {self.model.family.name} has no start token to begin with; give a few words"
            )
        ids = ids or [tokenizer.role(between[-1])]
        longest = self.model.backbone.max_positions
        if longest is not None and len(ids) >= longest:
            raise PretuneError(
                f"the model has {longest} positions, so a prompt of {len(ids)} tokens is too long; shorten the prompt"
            )
        return ids

    def generate(self, prompts: Sequence[str], decoding: GenerationConfig) -> list[dict[str, Any]]:
        """Generate a continuation of each prompt; return one dictionary per prompt (see `describe`), in order."""
        prompts = [prompt.rstrip(" ") for prompt in prompts] if decoding.choices else prompts
        ids = [self.encode(prompt) for prompt in prompts]
        texts = self.generate_ids(ids, decoding, self.ends)
        return [self.describe(*row, decoding) for row in zip(prompts, ids, texts, strict=True)]

    @torch.inference_mode()
    def stream(self, prompt: str, decoding: GenerationConfig, row: int = 0) -> Generator[str, None, dict[str, Any]]:
        """Yield the continuation of a prompt in pieces; the generator's return value is a dictionary as in `generate`.

        `row` is the number of the prompt, on which the random draws of sampling depend.
        """
        check_streamable(decoding)
        tokenizer = self.model.require_tokenizer()
        prompt = prompt.rstrip(" ") if decoding.choices else prompt
        ids = self.encode(prompt)
        before, pieces = tokenizer.decode(ids), TextStream(decoding.stop)
        decoding, allowed, (limit,) = self.plan([ids], decoding)
        reader = DecodingSession(self.model, 1, len(ids) + limit)
        steps = sample_steps(
            reader, [ids], [row], [limit], decoding, self.ends, allowed, stop_condition(decoding.stop, tokenizer)
        )
        for (text,) in steps:
            whole = text.ended or len(text.ids) == limit
            yield pieces.update(tokenizer.decode([*ids, *text.ids]).removeprefix(before), whole)
        return self.describe(prompt, ids, text, decoding)

    @property
    def ends(self) -> set[int]:
        """Return the ids of the tokens that end a generated text."""
        tokenizer = self.model.require_tokenizer()
        return {tokenizer.role("end")} if tokenizer.has_role("end") else set()

    def plan(
        self, prompts: Sequence[list[int]], decoding: GenerationConfig
    ) -> tuple[GenerationConfig, AllowedTokens | None, list[int]]:
        """Return the decoding settings, the allowed tokens, and the limits with which tokenized prompts are continued.

        If `decoding` has choices, the settings are changed to allow their length, and the second result is a function
        from the tokens generated so far to the tokens that may follow; otherwise it is None. There is one limit of new
        tokens per prompt.
        """
        longest = self.model.backbone.max_positions or 1 << 30
        if not decoding.choices:
            return decoding, None, [min(decoding.max_new_tokens, longest - len(prompt)) for prompt in prompts]
        tokenizer = self.model.require_tokenizer()
        spelled = {choice: tokenizer.encode(f" {choice}") for choice in decoding.choices}
        if not self.ends:
            raise PretuneError(
                "choices need a tokenizer with a token that ends a text, and this one has none; generate without choices"
            )
        for choice, ids in spelled.items():
            if not ids or set(ids) & {*self.ends, tokenizer.roles.get("unknown", -1)}:
                raise PretuneError(f"choice {choice!r}: the model's tokenizer cannot represent it; choose another word")
        trie = TokenTrie([*ids, *self.ends] for ids in spelled.values())
        if max(map(len, prompts)) + trie.longest > longest:
            raise PretuneError(
                f"a prompt of {max(map(len, prompts))} tokens leaves no room for all choices: the model has {longest} "
                "positions; shorten the prompt"
            )
        return replace(decoding, max_new_tokens=trie.longest), trie.after, [trie.longest] * len(prompts)

    def generate_ids(self, prompts: Sequence[list[int]], decoding: GenerationConfig, end: set[int]) -> list[Hypothesis]:
        """Continue each tokenized prompt; a continuation ends before its first token that is in `end`, or at its limit."""
        decoding, allowed, limits = self.plan(prompts, decoding)
        ended = stop_condition(decoding.stop, self.model.require_tokenizer())
        if self.device.type == "cpu" and min(ROWS[0], len(prompts) * decoding.num_beams) > FEW:
            make_column_major(self.model.root)
        texts: dict[int, Hypothesis] = {}
        slots = [len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)]
        for rows in batch_rows(slots, decoding.num_beams, self.device):
            batch, batch_limits = [prompts[row] for row in rows], [limits[row] for row in rows]
            with torch.inference_mode():
                reader = DecodingSession(self.model, len(rows), slots[rows[0]])
                found = generate_texts(reader, batch, rows, batch_limits, decoding, end, allowed, ended)
            texts |= dict(zip(rows, found, strict=True))
        return [texts[row] for row in range(len(prompts))]

    def describe(self, prompt: str, ids: list[int], text: Hypothesis, decoding: GenerationConfig) -> dict[str, Any]:
        """Return a dictionary of prompt, text, continuation, number of new tokens, and whether the text is finished."""
        tokenizer = self.model.require_tokenizer()
        whole = tokenizer.decode([*ids, *text.ids])
        added = whole.removeprefix(tokenizer.decode(ids))
        kept = truncate_at_stop(added, decoding.stop)
        return {
            "prompt": prompt,
            "text": whole[: len(whole) - len(added) + len(kept)],
            "continuation": kept,
            "tokens": len(text.ids),
            "ended": text.ended,
        }


def check_streamable(decoding: GenerationConfig) -> None:
    """Raise an error if the decoding settings use beam search, whose text is known only at the end."""
    if decoding.num_beams > 1:
        raise PretuneError("beam search knows its text only at the end and cannot be streamed; leave out num_beams")


def make_column_major(root: nn.Module) -> None:
    """Store the weight matrices of a module in column-major order, which speeds up batched products on a CPU."""
    for parameter in root.parameters():
        if parameter.dim() == 2 and parameter.is_contiguous():
            parameter.data = parameter.data.t().contiguous().t()
