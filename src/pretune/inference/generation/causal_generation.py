"""Text generation with causal language models, optionally with a draft model for speculative decoding."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from pretune.inference.generation.beam_search import Hypothesis
from pretune.inference.generation.decoding_loops import GenerationConfig, beam_search_texts, sample_steps
from pretune.inference.generation.decoding_session import DecodingSession
from pretune.inference.generation.sampling import AllowedTokens
from pretune.inference.generation.speculative import PROPOSALS, check_draft, speculative_steps
from pretune.inference.generation.stop_strings import StopCondition, TextStream, stop_condition, truncate_at_stop
from pretune.models.hf_config import read_config
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference, find_folder
from pretune.objectives import parse_objective
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.token_trie import TokenTrie

ROWS = 32, 512  # the most sequences of a batch, on a CPU and on a GPU
SLOTS = 1 << 15  # cached tokens of all sequences of a batch on a GPU
FEW = 3  # up to this many rows, a CPU multiplies faster with row-major weight matrices


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


@dataclass
class TextGenerator:
    """A causal language model and its tokenizer, ready to generate text."""

    model: Model
    device: torch.device
    draft: Model | None = None  # a smaller model with the same tokenizer, for speculative decoding

    @classmethod
    def load(
        cls,
        reference: ModelReference,
        device: str | None = None,
        ignore_mismatched: bool = False,
        draft: ModelReference | None = None,
    ) -> TextGenerator:
        """Load a causal language model and its tokenizer from a run folder or a model folder.

        `draft` is another one, with the same tokenizer, for speculative decoding.
        """
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
        if draft is None:
            return cls(model, chosen)
        other = cls.load(draft, device, ignore_mismatched).model
        if other.require_tokenizer().digest != model.require_tokenizer().digest:
            raise PretuneError(
                f"the draft model {draft} has a different tokenizer than {reference}, so it cannot propose tokens for it; choose "
                "a draft model that was trained with the same tokenizer"
            )
        return cls(model, chosen, other)

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
        ended = stop_condition(decoding.stop, tokenizer)
        for (text,) in self.steps([ids], [row], [limit], decoding, self.ends, allowed, ended):
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
        times = decoding.num_beams if self.draft is None else PROPOSALS + 1  # rows of matrix products per prompt
        if self.device.type == "cpu" and min(ROWS[0], len(prompts) * times) > FEW:
            make_column_major(self.model.root)
        texts: dict[int, Hypothesis] = {}
        slots = [len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)]
        for rows in batch_rows(slots, decoding.num_beams, self.device):
            batch, batch_limits = [prompts[row] for row in rows], [limits[row] for row in rows]
            with torch.inference_mode():
                *_, found = self.steps(batch, rows, batch_limits, decoding, end, allowed, ended)
            texts |= dict(zip(rows, found, strict=True))
        return [texts[row] for row in range(len(prompts))]

    def steps(
        self,
        prompts: Sequence[list[int]],
        rows: Sequence[int],
        limits: Sequence[int],
        decoding: GenerationConfig,
        end: set[int],
        allowed: AllowedTokens | None = None,
        ended: StopCondition | None = None,
    ) -> Iterator[list[Hypothesis]]:
        """Continue a batch of prompts; yield the continuations so far after each step, or only at the end for beam search.

        The parameters are those of `generate_texts`.
        """
        if self.draft is not None:
            check_draft(decoding, self.model, self.draft, prompts)
            yield from speculative_steps((self.model, self.draft), prompts, rows, limits, decoding, end, ended)
            return
        slots = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
        reader = DecodingSession(self.model, len(prompts), slots)
        if decoding.num_beams > 1:
            yield beam_search_texts(reader, prompts, limits, decoding, end, allowed, ended)
        else:
            yield from sample_steps(reader, prompts, rows, limits, decoding, end, allowed, ended)

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
