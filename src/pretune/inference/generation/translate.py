"""Translation with an encoder-decoder, or with an ensemble that averages next-token probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.inference.attention_alignment import WordAlignment, align_words, cross_attention_weights
from pretune.inference.generation.beam_search import Hypothesis
from pretune.inference.generation.causal_generation import batch_rows
from pretune.inference.generation.decoding_loops import GenerationConfig, generate_texts
from pretune.inference.generation.decoding_session import DecodingSession, Reader
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference
from pretune.nn.attention.patterns import causal
from pretune.objectives.seq2seq.source_target import with_target_side
from pretune.objectives.seq2seq.translate import Translate
from pretune.packed import Packed, pack_lists
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, quote
from pretune.text.tokenizers.template import Template

SPARE = 10  # a translation may have twice as many tokens as its source, and this many more


class EnsembleSession(Reader):
    """Several decoding sessions that read the same tokens and average their next-token probabilities."""

    def __init__(self, members: Sequence[DecodingSession]) -> None:
        self.members = members

    def read(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Read further tokens of each sequence; return log-probabilities of the next token, (sequences, vocabulary).

        The probabilities are means over the models.
        """
        expected = torch.stack([member.read(ids).log_softmax(-1) for member in self.members])
        return expected.logsumexp(0) - log(len(self.members))

    def select(self, rows: Sequence[int]) -> None:
        """Reorder the caches of all models, so that the new sequence i continues the old sequence `rows[i]`."""
        for member in self.members:
            member.select(rows)


@dataclass
class Translator:
    """One or several encoder-decoders with the same tokenizer, ready to translate."""

    models: list[Model]
    head: str  # the objective whose head predicts tokens
    templates: tuple[Template, Template]
    device: torch.device

    @classmethod
    def load(
        cls, references: Sequence[ModelReference], device: str | None = None, ignore_mismatched: bool = False
    ) -> Translator:
        """Load one or several encoder-decoders for translation from run folders or model folders."""
        models: list[Model] = []
        found: list[Any] = []
        for reference in references:
            mixture = stored_objectives(reference)
            writing = [part for part in mixture.objectives if part.two_sided] if mixture is not None else []
            if mixture is None or not writing:
                raise PretuneError(
                    f"{reference}: this model was not trained to translate; choose one trained with the task 'translate'"
                )
            model = load_model(reference, mixture, ignore_mismatched=ignore_mismatched)
            if models and model.require_tokenizer().digest != models[0].require_tokenizer().digest:
                raise PretuneError(
                    f"{reference} has a different tokenizer than {references[0]}; an ensemble needs models with the same "
                    "tokenizer, such as runs of `pretune pretrain --tokenizer`"
                )
            models.append(model)
            found.append(next((part for part in writing if isinstance(part, Translate)), writing[0]))
            model.require_trained(found[-1].name, reference, "pretrain it with translate first")
        if len({part.name for part in found}) > 1:
            raise PretuneError(
                f"{', '.join(map(str, references))} were trained for different objectives; give models with the same objective"
            )
        chosen = choose_device(device)
        for model in models:
            model.root.to(chosen).eval()
        objective, template = found[0], with_target_side(models[0].family.template)
        templates = Template(template.single, ()), Template(template.target, ())
        if isinstance(objective, Translate):
            templates = objective.templates(template)
        return cls(models, objective.name, templates, chosen)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a source text with special tokens, truncated to the model's maximum length."""
        tokenizer = self.models[0].require_tokenizer()
        items = self.templates[0].single
        longest = min(model.backbone.max_positions or 1 << 30 for model in self.models)
        own = tokenizer.encode(text)[: longest - len(items) + 1]
        return [i for item in items for i in (own if item == "A" else [tokenizer.role(item)])]

    @property
    def begin(self) -> list[int]:
        """Return the token ids with which the decoder starts each translation."""
        items = self.templates[1].single
        return [self.models[0].require_tokenizer().role(item) for item in items[: items.index("A")]]

    def translate(self, texts: Sequence[str], decoding: GenerationConfig) -> list[Hypothesis]:
        """Translate texts, and return the translations in order."""
        tokenizer = self.models[0].require_tokenizer()
        sources, begin = [self.encode(text) for text in texts], self.begin
        end = {tokenizer.role(self.templates[1].single[-1])}
        longest = min(model.backbone.max_positions or 1 << 30 for model in self.models) - len(begin)
        limits = [max(1, min(decoding.max_new_tokens, 2 * len(source) + SPARE, longest)) for source in sources]
        slots = [limit + len(begin) for limit in limits]
        found: dict[int, Hypothesis] = {}
        for rows in batch_rows(slots, decoding.num_beams, self.device):
            batch, batch_limits = [sources[row] for row in rows], [limits[row] for row in rows]
            with torch.inference_mode():
                reader = self.reader(batch, slots[rows[0]])
                translations = generate_texts(reader, [begin] * len(rows), rows, batch_limits, decoding, end)
            found |= dict(zip(rows, translations, strict=True))
        return [found[row] for row in range(len(texts))]

    def reader(self, sources: Sequence[list[int]], slots: int) -> Reader:
        """Return a decoding session for tokenized sources with room for `slots` tokens per translation.

        With several models, it averages their next-token probabilities.
        """
        packed = pack_lists(sources).to(self.device)
        members = [DecodingSession(model, len(sources), slots, [packed], head=self.head) for model in self.models]
        return members[0] if len(members) == 1 else EnsembleSession(members)

    @torch.inference_mode()
    def align(self, texts: Sequence[str], written: Sequence[Hypothesis]) -> list[WordAlignment]:
        """Return the word alignment of each text with its translation (`written`), from cross-attention weights."""
        tokenizer = self.models[0].require_tokenizer()
        begin, end = self.begin, tokenizer.role(self.templates[1].single[-1])
        found = []
        for text, beam in zip(texts, written, strict=True):
            source, ids = self.encode(text), [*beam.ids, *([end] if beam.ended else [])]
            target: Packed = pack_lists([[*begin, *ids[:-1]]], pattern=causal)
            sides = pack_lists([source]).to(self.device), target.to(self.device)
            weights = torch.stack([cross_attention_weights(model.backbone, *sides) for model in self.models]).mean(0)
            found.append(align_words(weights[len(begin) - 1 :].float().cpu().numpy(), source, ids, tokenizer))
        return found

    def align_target(self, text: str, target: str) -> WordAlignment:
        """Return the word alignment of a text with a given target, from cross-attention weights; both may be truncated."""
        longest = min(model.backbone.max_positions or 1 << 30 for model in self.models) - len(self.begin)
        ids = self.models[0].require_tokenizer().target.encode(target)[:longest]
        if not ids:
            raise PretuneError(f"the target {quote(target)} has no tokens to align; give a text with words")
        return self.align([text], [Hypothesis(ids, 0.0, ended=True)])[0]

    def describe(
        self, texts: Sequence[str], written: Sequence[Hypothesis], alignments: bool = False
    ) -> list[dict[str, Any]]:
        """Return one dictionary per text with its translation (`written`), score and, with `alignments`, alignment."""
        tokenizer = self.models[0].require_tokenizer().target
        rows: list[dict[str, Any]] = []
        aligned = self.align(texts, written) if alignments else [None] * len(texts)
        for text, beam, one in zip(texts, written, aligned, strict=True):
            row = {"text": text, "translation": tokenizer.decode(beam.ids), "score": beam.score, "ended": beam.ended}
            if one is not None:
                weights = np.round(one.weights, 4).tolist()
                row["alignment"] = {"source": one.source, "target": one.target, "weights": weights}
            rows.append(row)
        return rows
