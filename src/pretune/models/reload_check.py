"""A check of exports: load an exported model from its folder, and compare it with the original in memory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.length_bucketing import arrange_texts, batches_by_length
from pretune.models.loading import load
from pretune.models.model import Model
from pretune.models.padded_model import MANY, TEXTS
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import quiet

# The largest accepted difference of hidden states, relative to the largest one, by the data type of the stored weights.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def check_reloaded(model: Model, folder: Path, kind: torch.dtype) -> None:
    """Load an exported folder, and raise an error if its hidden states of texts differ from those of the model.

    `kind` is the data type of the stored weights. A model without a tokenizer has no texts to compare.
    """
    with quiet():  # heads that the folder lacks are reported by the caller
        again = load(folder, ignore_mismatched=bool(model.untrained))
    if model.tokenizer is None or again.tokenizer is None:
        return
    for texts in (TEXTS[:1], TEXTS * MANY):
        ours, theirs = (text_states(one, texts) for one in (model, again))
        difference = (
            float((theirs - ours).abs().max()) / max(1.0, float(ours.abs().max()))
            if ours.shape == theirs.shape
            else float("inf")
        )
        if not difference < TOLERANCES[kind]:  # also true for NaN
            raise PretuneError(
                f"{folder}: the exported model, loaded again, differs from the original by {difference:.2g} of the largest hidden "
                "state, so it is not usable; export it with --dtype float32, or report this as a bug"
            )


@torch.no_grad()
def text_states(model: Model, texts: tuple[str, ...]) -> Tensor:
    """Return the hidden states of all tokens of texts, (tokens, width), with short texts first."""
    root = model.root.cpu().eval()
    longest = min(model.longest or DEFAULT_MAX_LENGTH, DEFAULT_MAX_LENGTH)
    sides = 2 if isinstance(model.backbone, EncoderDecoder) else 1  # source and target
    arranged = batches_by_length(arrange_texts(model, texts, None, longest))
    return torch.cat([root.backbone(*(batch.packed * sides)[:sides]).last for batch in arranged])
