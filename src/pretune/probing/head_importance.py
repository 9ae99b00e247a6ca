"""Importance of attention heads by masking (Michel et al., 2019, *Are Sixteen Heads Really Better than One?*).

The importance of a head is the increase of the loss when its output is set to 0 and everything else stays unchanged:
positive if the model needs the head, about 0 if it does not, and negative if the model is better without the head.
`compression.importance` estimates this increase from gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pretune.inference.hidden_states import reading_network
from pretune.models.model import Model
from pretune.nn.attention.head_masking import masked_head
from pretune.nn.attention.multi_head import ShowsLogits
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import progress


def heads_per_layer(model: Model) -> list[int]:
    """Return the number of self-attention heads in each layer of a Transformer (or its encoder)."""
    network = reading_network(model)
    heads = []
    for layer in getattr(network, "stack", ()):
        heads += [int(part.heads) for part in layer.modules() if isinstance(part, ShowsLogits)]  # type: ignore[attr-defined]
    if not heads or len(heads) != network.depth:
        raise PretuneError(
            f"this {model.family.name} model does not have one self-attention per layer, so no head can be masked; choose a "
            "Transformer such as BERT, in PyTorch instead of ONNX"
        )
    return heads


def head_importance(model: Model, mean_loss: Callable[[], float]) -> tuple[float, list[dict[str, Any]]]:
    """Return a model's loss, and one row per head with the loss when that head is masked and the increase of the loss.

    `mean_loss` is called once per head and measures the current loss of the model, always on the same examples.
    """
    heads = heads_per_layer(model)
    network = reading_network(model)
    whole = mean_loss()
    rows: list[dict[str, Any]] = []
    with progress("masking heads", sum(heads)) as bar:
        for layer, count in enumerate(heads):
            for head in range(count):
                with masked_head(network, layer, head):
                    loss = mean_loss()
                rows.append({"layer": layer + 1, "head": head + 1, "loss": loss, "importance": loss - whole})
                bar.update(len(rows))
    return whole, rows
