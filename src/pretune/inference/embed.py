"""Text embeddings: one vector per text, pooled from a layer or computed by a trained embedding head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pretune.inference.nan_check import check_not_nan
from pretune.models.checkpoint_heads import stored_objectives, text_embedding_of
from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.language_embeddings import use_language
from pretune.models.length_bucketing import text_batches
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference
from pretune.nn.sentence_embedding import TextEmbedding
from pretune.objectives import RenamedTask, single_objective
from pretune.objectives.tasks.contrast import Contrast, mark_prompts, prompt_tokens
from pretune.objectives.tasks.layer_features import OnLayerFeatures
from pretune.runtime.arrays import Array
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.progress import log_info
from pretune.text.packing.sequences import Sequences

TOP = -1  # the top layer


def embed_texts(
    reference: ModelReference,
    texts: Sequence[str],
    pooling: str | None = None,
    layer: int = TOP,
    ignore_mismatched: bool = False,
    prompt: str | None = None,
    prompt_name: str | None = None,
    language: str | None = None,
) -> Array:
    """Return one embedding per text, (n, width), in order.

    Parameters
    ----------
    reference
        A model folder, a run folder, or the name of a model.
    pooling
        A pooling to use instead of the model's own; by default, models without a pooling use the mean.
    layer
        The layer whose states are pooled: 0 is the embedding layer, -1 the top layer.
    ignore_mismatched
        Whether the checkpoint may lack tensors, which are then initialized at random.
    prompt, prompt_name
        A text to put before each text, or the name of one of the model's prompts; by default the model's default.
    language
        The language of the texts, for a model with language embeddings; by default the one saved with the model.
    """
    return TextEmbedder.load(reference, pooling, layer, ignore_mismatched, prompt, prompt_name, language)(texts)


@dataclass
class TextEmbedder:
    """A model and the task whose head computes its embeddings, ready to embed texts."""

    model: Model
    task: Any
    layer: int
    prompt: str  # put before each text
    before: int  # tokens of the prompt and before it
    device: torch.device

    @classmethod
    def load(
        cls,
        reference: ModelReference,
        pooling: str | None = None,
        layer: int = TOP,
        ignore_mismatched: bool = False,
        prompt: str | None = None,
        prompt_name: str | None = None,
        language: str | None = None,
    ) -> TextEmbedder:
        """Load a model to embed texts with; the parameters are those of `embed_texts`."""
        if prompt is not None and prompt_name is not None:
            raise PretuneError("--prompt and --prompt-name cannot be combined; give one of them")
        task = embedding_task(reference, pooling)
        embedding: TextEmbedding = task.unwrapped.described
        if layer != TOP and (embedding.has_parameters or isinstance(task, OnLayerFeatures)):
            raise PretuneError(
                f"{reference}: the embeddings of this model were trained on its last layer"
                f"{if_option('layer', '; leave out --layer')}"
            )
        if prompt is None:
            prompt = embedding.prompt if prompt_name is None else embedding.find_prompt(prompt_name)
        model = load_model(reference, single_objective(task), ignore_mismatched=ignore_mismatched)
        if not ignore_mismatched and any(name.startswith(f"heads.{task.name}.") for name in model.untrained):
            raise PretuneError(
                f"{reference}: the checkpoint lacks the weights of the layers after pooling, so embeddings would be random; "
                "fine-tune the model with the task 'contrast' first"
            )
        use_language(model, language, reference)
        before = prompt_tokens(
            prompt, model.require_tokenizer(), model.family.template, model.longest or DEFAULT_MAX_LENGTH
        )
        device = choose_device()
        model.root.ready(device)
        return cls(model, task, layer, prompt, before, device)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Array:
        """Return one embedding per text, (n, width), in order."""
        if empty := sum(not text.strip() for text in texts):
            log_info(
                f"{empty} of {len(texts)} texts {'are' if empty > 1 else 'is'} empty: their embeddings are meaningless"
            )
        root = self.model.root
        head = root.heads[self.task.name]

        def mark(sequences: Sequences) -> Sequences:
            return mark_prompts(sequences, np.full(len(sequences.lengths), self.before))

        found: dict[int, Array] = {}
        for batch in text_batches(self.model, [self.prompt + text for text in texts], change=mark):
            batch = batch.to(self.device)
            if self.layer == TOP:
                vectors = self.task.outputs(head, root.backbone, batch)
            else:
                vectors = head(root.backbone(*batch.packed, keep=[self.layer]).last, batch.packed[-1])
            # Filler sequences have no row.
            found |= zip(batch.rows.tolist(), check_not_nan(vectors).float().cpu().numpy(), strict=False)
        return np.stack([found[row] for row in range(len(texts))])


def embedding_task(reference: ModelReference, pooling: str | None) -> Any:
    """Return the task that computes a model's embeddings: its trained embedding head, or plain pooling."""
    trained = stored_objectives(reference)
    tasks: list[Any] = [part for part in (trained.objectives if trained else ()) if part.kind == Contrast.name]
    if not tasks:
        return Contrast(pooling or "", embedding=text_embedding_of(reference) or TextEmbedding())
    task = tasks[0]
    if pooling is None:
        return task
    if isinstance(task, RenamedTask):
        own: Any = task.task
        return replace(task, task=replace(own, embedding_pooling=pooling))
    return Contrast(pooling, embedding=task.unwrapped.embedding)
