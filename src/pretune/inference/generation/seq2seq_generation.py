"""Texts from texts: an encoder-decoder reads one and writes another, with any way of choosing its tokens."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.inference.generation.beam_search import Beam
from pretune.inference.generation.generate import Decoding, Reader, check_streamed, write_steps
from pretune.inference.generation.generate_answers import around, write_for
from pretune.inference.generation.stop_strings import Pieces, cut, ends_at
from pretune.models.hf_config import read_config
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.references import find_folder
from pretune.objectives import Data, alone
from pretune.objectives.tasks.generate import Generate
from pretune.runtime.devices import choose_device
from pretune.text.examples.labeled import Labeled
from pretune.text.packing.sequences import Arrangement, collate

LENGTH = 512  # of what is read, where a model takes any


def reads_and_writes(reference: str | Path) -> bool:
    """Whether a model is an encoder-decoder."""
    family, _ = read_config(find_folder(reference))
    return bool(family.template.target)


@dataclass
class Rewriter:
    """An encoder-decoder and its tokenizer, ready to write."""

    model: Model
    device: torch.device
    task: Any  # how texts are laid out

    @classmethod
    def load(
        cls, reference: str | Path, device: str | None = None, partial: bool = False, languages: str = ""
    ) -> Rewriter:
        """From a run folder or a model folder."""
        task: Any = Generate(languages=languages)
        model = load_model(reference, alone(task), partial=partial)
        model.need_trained(task.name, reference, "fine-tune it with generate first")
        chosen = choose_device(device)
        model.root.to(chosen).eval()
        return cls(model, chosen, task)

    def lay_out(self, prompts: Sequence[str]) -> Arrangement:
        """What is read, a text to a sequence; too long ones are cut."""
        rows = Labeled(Path("texts"), {}, list(prompts))
        data = Data(self.model.need_tokenizer(), self.model.family.template, rows=rows)
        return self.task.lay_out(data, self.model.backbone.longest or LENGTH)  # type: ignore[no-any-return]

    def plan(self, how: Decoding) -> tuple[Decoding, Any]:
        """How to write, and which tokens may follow."""
        if not how.choices:
            return how, None
        closed = replace(self.task, closed=True, labels=how.choices)
        trie = closed.closed_trie(self.model.need_tokenizer(), self.model.family.template)
        return replace(how, tokens=trie.longest), trie.after

    @torch.inference_mode()
    def write(self, prompts: Sequence[str], how: Decoding) -> list[dict[str, Any]]:
        """What is written for each text, in order, whatever the batching."""
        tokenizer, (how, allowed) = self.model.need_tokenizer(), self.plan(how)
        ended = ends_at(how.stop, tokenizer)
        texts = write_for(self.model, self.task, self.lay_out(prompts), how, allowed, ended)
        return [self.describe(prompt, text, how) for prompt, text in zip(prompts, texts, strict=True)]

    @torch.inference_mode()
    def stream(self, prompt: str, how: Decoding, row: int = 0) -> Generator[str, None, dict[str, Any]]:
        """What is written for a text, piece by piece while it is; in the end, what `write` says of text number `row`."""
        check_streamed(how)
        tokenizer, (how, allowed) = self.model.need_tokenizer(), self.plan(how)
        begin, end = around(self.model, self.task)
        limit = min(how.tokens, (self.model.backbone.longest or 1 << 30) - len(begin))
        laid = self.lay_out([prompt])
        (packed,) = collate(laid.take(np.arange(1))).packed
        reader = Reader(self.model, 1, len(begin) + limit, [packed.to(self.device)], head=self.task.name)
        pieces = Pieces(how.stop)
        steps = write_steps(reader, [begin], [row], [limit], how, end, allowed, ends_at(how.stop, tokenizer))
        for (text,) in steps:
            yield pieces.grow(tokenizer.decode(text.ids), text.ended or len(text.ids) == limit)
        return self.describe(prompt, text, how)

    def describe(self, prompt: str, text: Beam, how: Decoding) -> dict[str, Any]:
        """What there is to say of a text."""
        written = cut(self.model.need_tokenizer().decode(text.ids), how.stop)
        return {"prompt": prompt, "text": written, "tokens": len(text.ids), "ended": text.ended}
