"""Fill masks: predict the most likely tokens for the gaps of a text with a masked language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pretune.inference.nan_check import check_not_nan
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.length_bucketing import rows_by_length
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference, family_of
from pretune.objectives import parse_objective
from pretune.objectives.pretraining.masking import choose_masked, word_units
from pretune.packed import pack_lists
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Sequences

MASK = "[MASK]"  # marks a gap in the input, whatever the tokenizer's own mask token is


@dataclass
class MaskFiller:
    """A masked language model and its tokenizer, ready to fill masks."""

    model: Model
    device: torch.device

    @classmethod
    def load(cls, reference: ModelReference, ignore_mismatched: bool = False) -> MaskFiller:
        """Load a masked language model and its tokenizer from a run folder or a model folder."""
        stored = stored_objectives(reference)
        trained = {part.shared_head for part in stored.objectives} if stored is not None else set()
        family = family_of(reference)
        # The head of a decoder with tied embeddings has no parameters of its own whose absence would show.
        if "mlm" not in trained and frozenset({"lm"}) in family.classes and frozenset({"mlm"}) not in family.classes:
            raise PretuneError(
                f"{reference}: this {family.name} model was not trained to fill masks; use a model with the objective "
                "'mlm', or continue texts with `pretune generate`"
            )
        model = load_model(reference, parse_objective("mlm"), ignore_mismatched=ignore_mismatched)
        model.require_trained("mlm", reference, "pretrain it with mlm first, or adapt it to a corpus")
        return cls.of(model)

    @classmethod
    def of(cls, model: Model) -> MaskFiller:
        """Return a mask filler for a model that is already in memory, and move the model to the default device."""
        device = choose_device()
        model.root.ready(device)
        return cls(model, device)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, in which [MASK] marks gaps, with start and separator token around them."""
        tokenizer = self.model.require_tokenizer()
        return self._framed(
            tokenizer.encode(text.replace(MASK, tokenizer.vocabulary[tokenizer.role("mask")]), allow_special=True)
        )

    def _framed(self, ids: Sequence[int]) -> list[int]:
        tokenizer = self.model.require_tokenizer()
        return [tokenizer.role("start"), *ids, tokenizer.role("separator")]

    def logits(self, ids: Sequence[int], at: Sequence[int]) -> torch.Tensor:
        """Return the logits at the positions `at` of a sequence of token ids, (positions, vocabulary).

        The logits of special tokens are -inf.
        """
        return self.batch_logits([ids], [at])[0]

    @torch.no_grad()
    def batch_logits(self, batch: Sequence[Sequence[int]], at: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Return the logits at given positions of several sequences, computed in one pass, one tensor per sequence.

        `batch` has the token ids of each sequence, and `at` its positions; see `logits`.
        """
        packed = pack_lists(batch).to(self.device)
        root = self.model.root
        firsts = np.cumsum([0, *map(len, batch)])
        places = [int(first) + place for first, some in zip(firsts, at, strict=False) for place in some]
        states = root.backbone(packed).last_at(torch.tensor(places, device=self.device))
        logits = check_not_nan(root.heads["mlm"](states, root.backbone.embed.tokens)).float().cpu()
        tokenizer = self.model.require_tokenizer()
        logits[:, tokenizer.size :] = -torch.inf  # rows that only pad the vocabulary
        logits[:, torch.from_numpy(np.flatnonzero(tokenizer.specials))] = -torch.inf
        return list(torch.split(logits, [len(some) for some in at]))

    def fill(self, text: str, top_k: int = 5) -> dict[str, Any]:
        """Return the most likely tokens for each [MASK] in a text, and the text with all masks filled one by one."""
        return self.fill_batch([text], top_k)[0]

    def fill_batch(self, texts: Sequence[str], top_k: int = 5, max_masks: int | None = None) -> list[dict[str, Any]]:
        """Fill the masks of several texts, and return one dictionary per text, as `fill` does.

        Texts of similar length are computed in one batch. A text with more than `max_masks` masks raises an error.
        """
        encoded = [self.encode(text) for text in texts]
        gaps = [self.find_gaps(text, ids, max_masks) for text, ids in zip(texts, encoded, strict=True)]
        found: dict[int, dict[str, Any]] = {}
        for rows in map(np.ndarray.tolist, rows_by_length(np.array([len(ids) for ids in encoded], dtype=np.int64))):
            logits = self.batch_logits([encoded[row] for row in rows], [gaps[row] for row in rows])
            for row, some in zip(rows, logits, strict=True):
                found[row] = self._describe(texts[row], encoded[row], gaps[row], some, top_k)
        return [found[row] for row in range(len(texts))]

    def find_gaps(self, text: str, ids: Sequence[int], max_masks: int | None = None) -> list[int]:
        """Return the positions of the masks among the token ids of a text; raise an error if there are none or too many."""
        mask = self.model.require_tokenizer().role("mask")
        gaps = [i for i, token in enumerate(ids) if token == mask]
        if not gaps:
            raise PretuneError(
                f"{text!r}: the text has no mask; put {MASK} in place of each word to predict{if_option('mask-rate', ', or use --mask-rate')}"
            )
        if max_masks is not None and len(gaps) > max_masks:
            raise PretuneError(f"the text has {len(gaps)} masks; use at most {max_masks}")
        longest = self.model.backbone.max_positions
        if longest is not None and len(ids) > longest:
            raise PretuneError(f"the text has {len(ids)} tokens; shorten it to the model's {longest} positions")
        return gaps

    def _describe(
        self, text: str, ids: Sequence[int], gaps: Sequence[int], logits: torch.Tensor, top_k: int
    ) -> dict[str, Any]:
        """Return the result of `fill` for a text, given its token ids, the positions of its masks, and their logits."""
        filled = list(ids)
        if len(gaps) == 1:
            filled[gaps[0]] = int(logits[0].argmax())
        else:
            filled = self.complete(ids, gaps)
        tokenizer = self.model.require_tokenizer()
        return {"text": text, "gaps": self._candidates(logits, top_k), "filled": tokenizer.decode(filled)}

    def candidates(self, ids: Sequence[int], gaps: Sequence[int], top_k: int = 5) -> list[list[dict[str, Any]]]:
        """Return the `top_k` most likely tokens with probabilities and ids for each mask position in `gaps`."""
        return self._candidates(self.logits(ids, gaps), top_k)

    def _candidates(self, logits: torch.Tensor, top_k: int) -> list[list[dict[str, Any]]]:
        tokenizer = self.model.require_tokenizer()
        found = []
        for row in logits.softmax(-1):
            best = row.topk(min(top_k, len(row)))
            ids = best.indices.tolist()
            tokens = [tokenizer.decode([i]).strip() for i in ids]
            rows = zip(tokens, best.values.tolist(), ids, strict=True)
            found.append([{"token": token, "probability": p, "id": i} for token, p, i in rows])
        return found

    def complete(self, ids: Sequence[int], gaps: Sequence[int]) -> list[int]:
        """Return token ids with the masks at `gaps` filled one at a time, the most confident first."""
        filled, left = list(ids), list(gaps)
        while left:
            probabilities = self.logits(filled, left).softmax(-1)
            surest = int(probabilities.max(-1).values.argmax())
            filled[left.pop(surest)] = int(probabilities[surest].argmax())
        return filled

    def restore(self, text: str, rate: float, seed: int = 0) -> dict[str, str]:
        """Mask a fraction (`rate`) of a text's words and fill them in; return original, masked, and restored text."""
        tokenizer = self.model.require_tokenizer()
        ids = np.array(self._framed(tokenizer.encode(text.replace(MASK, " "))))
        special = np.zeros(len(ids), dtype=bool)
        special[[0, -1]] = True
        word = tokenizer.word_starts(ids)
        sequences = Sequences(ids, np.array([len(ids)]), np.array([0]), {"special": special, "word": word})
        gaps = choose_masked(sequences, rate, EpochRandom(seed), word_units(sequences)).tolist()
        masked = ids.copy()
        masked[gaps] = tokenizer.role("mask")
        restored = self.complete(masked.tolist(), gaps)
        shown = tokenizer.decode(masked[1:-1], specials=True)
        return {"original": tokenizer.decode(ids), "masked": shown, "restored": tokenizer.decode(restored)}
