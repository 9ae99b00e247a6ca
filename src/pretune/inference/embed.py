"""Vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.inference.batching import text_batches
from pretune.inference.finite_check import checked
from pretune.models.model import LENGTH, embedding_of, load_model, trained_for
from pretune.nn.text_embedding import TextEmbedding
from pretune.objectives import Named, alone
from pretune.objectives.tasks.contrast import Contrast, mark_prompts, prompt_tokens
from pretune.objectives.tasks.layer_features import On
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import say
from pretune.text.packing.sequences import Sequences

Array = np.ndarray[Any, np.dtype[Any]]
TOP = -1


@torch.no_grad()
def embed_texts(
    reference: str | Path,
    texts: Sequence[str],
    pooling: str | None = None,
    layer: int = TOP,
    partial: bool = False,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> Array:
    """Return one vector per text, (n, width), in order.

    Parameters
    ----------
    reference
        The model.
    texts
        The texts.
    pooling
        Another pooling than the model's own; models that have none take the mean.
    layer
        Which layer's states are pooled: 0 are the embeddings, -1 is the top layer.
    partial
        Whether the checkpoint may lack tensors.
    prompt, prompt_name
        A text to put before each text, or the name of one of the model's prompts; its default prompt otherwise.
    """
    if prompt is not None and prompt_name is not None:
        raise PretuneError("--prompt and --prompt-name exclude each other; give one of them")
    task = vector_task(reference, pooling)
    embedding: TextEmbedding = task.unwrapped.described
    if layer != TOP and (embedding.learned or isinstance(task, On)):
        raise PretuneError(f"{reference}: its vectors are trained on all of the model; leave out --layer")
    if prompt is None:
        prompt = embedding.prompt if prompt_name is None else embedding.find_prompt(prompt_name)
    model = load_model(reference, alone(task), partial=partial)
    if not partial and any(name.startswith(f"heads.{task.name}.") for name in model.untrained):
        raise PretuneError(f"{reference}: the layers after its pooling have no weights, so vectors would be random")
    before = prompt_tokens(prompt, model.need_tokenizer(), model.family.template, model.longest or LENGTH)
    device = choose_device()
    root = model.root.to(device).eval()
    if empty := sum(not text.strip() for text in texts):
        say(f"{empty} of {len(texts)} texts {'are' if empty > 1 else 'is'} empty: such vectors stand for no text")
    head = root.heads[task.name]

    def mark(sequences: Sequences) -> Sequences:
        return mark_prompts(sequences, np.full(len(sequences.lengths), before))

    found: dict[int, Array] = {}
    for batch in text_batches(model, [prompt + text for text in texts], change=mark):
        batch = batch.to(device)
        if layer == TOP:
            vectors = task.outputs(head, root.backbone, batch)
        else:
            vectors = head(root.backbone(*batch.packed, keep=[layer]).last, batch.packed[-1])
        found |= zip(
            batch.rows.tolist(), checked(vectors).float().cpu().numpy(), strict=False
        )  # filler sequences have no row
    return np.stack([found[row] for row in range(len(texts))])


def vector_task(reference: str | Path, pooling: str | None) -> Any:
    """Return the task whose head gives a model's vectors: the one that it was trained for, or one that only pools."""
    trained = trained_for(reference)
    tasks: list[Any] = [part for part in (trained.objectives if trained else ()) if part.kind == Contrast.name]
    if not tasks:
        return Contrast(pooling or "", embedding=embedding_of(reference) or TextEmbedding())
    task = tasks[0]
    if pooling is None:
        return task
    if isinstance(task, Named):
        own: Any = task.task
        return replace(task, task=replace(own, vector=pooling))
    return Contrast(pooling, embedding=task.unwrapped.embedding)
