"""Text generation with encoder-decoders: greedy decoding, sampling, and beam search."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.inference.generation.beam_search import Hypothesis
from pretune.inference.generation.causal_generation import check_streamable
from pretune.inference.generation.decoding_loops import GenerationConfig, sample_steps
from pretune.inference.generation.decoding_session import DecodingSession
from pretune.inference.generation.stop_strings import TextStream, stop_condition, truncate_at_stop
from pretune.inference.generation.text_to_text_answers import generate_for_sequences, target_frame
from pretune.models.hf_config import read_config
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference, find_folder
from pretune.objectives import Data, single_objective
from pretune.objectives.tasks.generate import Generate
from pretune.runtime.devices import choose_device
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Arrangement, collate

LENGTH = 512  # tokens of input, for models without a maximal length


def is_encoder_decoder(reference: ModelReference) -> bool:
    """Return whether a model is an encoder-decoder."""
    family, _ = read_config(find_folder(reference))
    return bool(family.template.target)


@dataclass
class Seq2SeqGenerator:
    """An encoder-decoder and its tokenizer, ready to generate text."""

    model: Model
    device: torch.device
    task: Any  # defines the templates of source and target

    @classmethod
    def load(
        cls, reference: ModelReference, device: str | None = None, ignore_mismatched: bool = False, languages: str = ""
    ) -> Seq2SeqGenerator:
        """Load an encoder-decoder from a run folder or a model folder; `languages` is a language pair such as en-ro."""
        task: Any = Generate(language_pair=languages)
        model = load_model(reference, single_objective(task), ignore_mismatched=ignore_mismatched)
        model.require_trained(task.name, reference, "fine-tune it with generate first")
        chosen = choose_device(device)
        model.root.to(chosen).eval()
        return cls(model, chosen, task)

    def tokenize_examples(self, prompts: Sequence[str]) -> Arrangement:
        """Tokenize input texts, truncating long ones, and return one sequence per text."""
        rows = LabeledRows(Path("texts"), {}, list(prompts))
        data = Data(self.model.require_tokenizer(), self.model.family.template, rows=rows)
        return self.task.tokenize_examples(data, self.model.backbone.max_positions or LENGTH)  # type: ignore[no-any-return]

    def plan(self, decoding: GenerationConfig) -> tuple[GenerationConfig, Any]:
        """Return decoding settings with room for the choices, and a function that gives the allowed next tokens.

        The function is None if there are no choices, so that every token may follow.
        """
        if not decoding.choices:
            return decoding, None
        closed = replace(self.task, constrained=True, labels=decoding.choices)
        trie = closed.closed_trie(self.model.require_tokenizer(), self.model.family.template)
        return replace(decoding, max_new_tokens=trie.longest), trie.after

    @torch.inference_mode()
    def generate(self, prompts: Sequence[str], decoding: GenerationConfig) -> list[dict[str, Any]]:
        """Generate a text for each input text; return one dictionary per input (see `describe`), in order."""
        tokenizer, (decoding, allowed) = self.model.require_tokenizer(), self.plan(decoding)
        ended = stop_condition(decoding.stop, tokenizer)
        texts = generate_for_sequences(self.model, self.task, self.tokenize_examples(prompts), decoding, allowed, ended)
        return [self.describe(prompt, text, decoding) for prompt, text in zip(prompts, texts, strict=True)]

    @torch.inference_mode()
    def stream(self, prompt: str, decoding: GenerationConfig, row: int = 0) -> Generator[str, None, dict[str, Any]]:
        """Yield the text for an input in pieces; the generator's return value is a dictionary as in `generate`.

        `row` is the number of the input, on which the random draws of sampling depend.
        """
        check_streamable(decoding)
        tokenizer, (decoding, allowed) = self.model.require_tokenizer(), self.plan(decoding)
        begin, end = target_frame(self.model, self.task)
        limit = min(decoding.max_new_tokens, (self.model.backbone.max_positions or 1 << 30) - len(begin))
        arrangement = self.tokenize_examples([prompt])
        (packed,) = collate(arrangement.take(np.arange(1))).packed
        reader = DecodingSession(self.model, 1, len(begin) + limit, [packed.to(self.device)], head=self.task.name)
        pieces = TextStream(decoding.stop)
        steps = sample_steps(
            reader, [begin], [row], [limit], decoding, end, allowed, stop_condition(decoding.stop, tokenizer)
        )
        for (text,) in steps:
            yield pieces.update(tokenizer.decode(text.ids), text.ended or len(text.ids) == limit)
        return self.describe(prompt, text, decoding)

    def describe(self, prompt: str, text: Hypothesis, decoding: GenerationConfig) -> dict[str, Any]:
        """Return a dictionary of input, generated text, its number of tokens, and whether the text is finished."""
        written = truncate_at_stop(self.model.require_tokenizer().decode(text.ids), decoding.stop)
        return {"prompt": prompt, "text": written, "tokens": len(text.ids), "ended": text.ended}
