"""Labels and probabilities from a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.devices import choose_device
from pretune.errors import PretuneError
from pretune.inference.batches import text_batches
from pretune.model import Model, find_folder, labels_in, load_model, read_config
from pretune.objectives import parse_objective
from pretune.objectives.classify import Classify

Array = np.ndarray[Any, np.dtype[Any]]


def load_classifier(reference: str | Path, partial: bool = False) -> Model:
    """A model that was trained to classify."""
    family, content = read_config(find_folder(reference))
    labels = labels_in(content)
    if not labels:
        raise PretuneError(f"{reference}: this model was not trained to classify; fine-tune it first")
    objective = content.get("pretune", {}).get("objective", "")
    pooling = family.poolings.get(getattr(family.read_config(content), "classifier_pooling", ""), "start")
    objective = objective if "classify" in objective else "classify"
    return load_model(reference, parse_objective(objective, labels=tuple(labels), pooling=pooling), partial=partial)


@torch.no_grad()
def probabilities(
    model: Model, texts: Sequence[str], pairs: Sequence[str] | None = None, device: torch.device | None = None
) -> Array:
    """(n, classes) in the order of the texts."""
    device = device or choose_device()
    root = model.root.to(device).eval()
    objective = Classify(labels=tuple(model.labels))
    out = np.zeros((len(texts), len(model.labels)), dtype=np.float32)
    for batch in text_batches(model, texts, pairs, global_starts=True):
        logits = objective.logits(root.heads["classify"], root.backbone, batch.to(device))
        out[batch.rows] = logits[: len(batch.rows)].float().softmax(-1).cpu().numpy()
    return out


def predict_texts(
    reference: str | Path, texts: Sequence[str] | str, pairs: Sequence[str] | None = None, partial: bool = False
) -> list[dict[str, Any]]:
    """A label and the probability of each class, for each text."""
    if isinstance(texts, str):
        texts = [texts]
    model = load_classifier(reference, partial)
    rows = probabilities(model, texts, pairs)
    return [
        {
            "label": model.labels[int(row.argmax())],
            "probability": float(row.max()),
            "probabilities": {label: float(p) for label, p in zip(model.labels, row, strict=True)},
        }
        for row in rows
    ]
