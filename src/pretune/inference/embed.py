"""Vectors for texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.devices import choose_device
from pretune.inference.batches import text_batches
from pretune.model import load_model, trained_for
from pretune.nn.pooling import pool
from pretune.objectives.contrast import Contrast
from pretune.progress import say

Array = np.ndarray[Any, np.dtype[Any]]


@torch.no_grad()
def embed_texts(
    reference: str | Path, texts: Sequence[str], pooling: str | None = None, layer: int = -1, partial: bool = False
) -> Array:
    """(n, width): one vector a text, in order. `layer` 0 are the embeddings, -1 the top.

    `pooling` is that of a model that was trained for vectors, else the mean, unless something is said.
    """
    model = load_model(reference, partial=partial)
    trained = trained_for(reference)
    own = [part.vector for part in trained.objectives if isinstance(part, Contrast)] if trained is not None else []
    pooling = pooling or next(iter(own), "mean")
    device = choose_device()
    root = model.root.to(device).eval()
    out = np.zeros((len(texts), model.backbone.width), dtype=np.float32)
    if empty := sum(not text.strip() for text in texts):
        say(f"{empty} of {len(texts)} texts {'are' if empty > 1 else 'is'} empty: such vectors stand for no text")
    for batch in text_batches(model, texts):
        batch = batch.to(device)
        states = root.backbone(*batch.packed, keep=[layer]).last
        out[batch.rows] = pool(states, batch.packed[0], pooling)[: len(batch.rows)].float().cpu().numpy()
    return out
