"""The model: a backbone with heads, its tokenizer, and the settings of the tasks that it was trained for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.backbones.pruned_shape import PrunedShape
from pretune.families.family import Family
from pretune.models.saving import export_model, save_model
from pretune.nn.embedding.adaptive_softmax import AdaptiveEmbeddings
from pretune.nn.embedding.character_cnn import CharacterEmbeddings
from pretune.nn.embedding.region_embedding import RegionEmbedding
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.linear import Linear
from pretune.nn.sentence_embedding import TextEmbedding, TextEmbeddingHead
from pretune.objectives import JointObjective, Loss, Objective, RenamedTask, task_names
from pretune.objectives.tasks.bag_of_words import BagOfWords
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.text.tokenizers.tokenizer import Tokenizer


class Network(nn.Module):
    """A backbone with its heads, as one module that can be compiled, replicated, or sharded."""

    def __init__(self, backbone: Backbone, heads: Iterable[tuple[str, nn.Module]] = ()) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.heads = nn.ModuleDict(dict(heads))
        self.keep_all_gradients = False

    def forward(self, joint: JointObjective, batch: Batch) -> Loss:
        """Return the loss of a batch for `joint`, one or several objectives that share one pass of the backbone."""
        loss = joint.loss(self.heads, self.backbone, batch)
        if self.keep_all_gradients:
            # Distributed processes must have gradients for the same parameters, whichever objective is active.
            used = {part.name for part in joint.objectives}
            idle = [p for name, head in self.heads.items() if name not in used for p in head.parameters()]
            first = next(iter(loss.sums))
            loss.sums[first] = loss.sums[first] + 0.0 * sum(p.sum() for p in idle)
        return loss

    def ready(self, device: torch.device) -> Self:
        """Move the network to a device, put it into evaluation mode, and return it; if it is ready, change nothing."""
        # A head may have been added later than the backbone was moved.
        some = [*islice(self.backbone.parameters(), 1), *self.heads.parameters()]
        training = self.training or any(head.training for head in self.heads.values())
        if training or any(parameter.device != device for parameter in some):
            self.to(device).eval()
        return self

    def pack_weights(self) -> None:
        """Store a second copy of the weight matrices of linear layers in the memory layout that is fastest on a CPU."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack()

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters and persistent buffers of the network by name; shared tensors appear once."""
        # Not by `state_dict`, which would shard a model again.
        derived = {
            f"{path}.{name}" for path, module in self.named_modules() for name in module._non_persistent_buffers_set
        }
        buffers = {name: buffer for name, buffer in self.named_buffers() if name not in derived}
        return {**dict(self.named_parameters()), **buffers}

    def set_activation_dtype(self, kind: torch.dtype) -> None:
        """Set the data type `kind` of the activations that embeddings output; parameters keep their data type."""
        for module in self.modules():
            if isinstance(module, Embeddings | AdaptiveEmbeddings | CharacterEmbeddings | RegionEmbedding):
                module.compute = kind


@dataclass
class Model:
    """A network with everything needed to use it: family, configuration, parameters, tokenizer, and task settings.

    It is the `core` of the model that `pretune.load` returns; `save` and `export` write it. `backbone` is the network
    without heads; `root.heads` holds the heads by the names of their objectives.

    >>> model = pretune.load("runs/mine").core  # doctest: +SKIP
    >>> model.export("for-others/")  # doctest: +SKIP
    """

    family: Family
    config: Any
    root: Network
    tokenizer: Tokenizer | None = None
    objective: str = ""  # the objectives of its heads, e.g. "mlm+nsp"
    labels: list[str] = field(default_factory=list)  # class names in order, for classifiers
    untrained: list[str] = field(default_factory=list)  # parameters missing from the checkpoint, which are random
    skipped_head_tensors: list[str] = field(default_factory=list)  # head tensors of the checkpoint that were not loaded
    options: dict[str, Any] = field(default_factory=dict)  # task settings fitted to the examples, such as a threshold
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)  # labels and options of each of several tasks
    shape: PrunedShape = field(default_factory=PrunedShape)  # the changes by pruning and quantization
    sparse: bool = False  # whether matrices with many zeros are saved in a sparse format
    embedding: TextEmbedding | None = None  # how text embeddings are computed, if the model defines it
    max_length: int | None = None  # of sequences, if less than the number of positions
    language: str | None = None  # of texts, for a model with language embeddings; None: no embedding is added
    bag_of_words: BagOfWords | None = None  # whose predictions are averaged with those of the task's head
    finetuning: dict[str, Any] = field(default_factory=dict)  # settings to fine-tune it with, below those of the user

    @property
    def backbone(self) -> Any:
        """The backbone of a model: its network without heads."""
        return self.root.backbone

    @property
    def longest(self) -> int | None:
        """The maximum sequence length in tokens, set by `max_length` or the number of positions; None for no limit."""
        return min(
            (limit for limit in (self.max_length, self.backbone.max_positions) if limit is not None), default=None
        )

    @property
    def embedding_head(self) -> tuple[str, TextEmbeddingHead] | None:
        """The name and the module of the head that computes text embeddings, or None if there is none."""
        heads = self.root.heads.items()
        return next(((name, head) for name, head in heads if isinstance(head, TextEmbeddingHead)), None)

    def random_backbone(self, seed: int) -> Any:
        """Return a backbone of the same architecture as the model's, initialized at random from a seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.shape.apply(self.family.build(self.config))

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer of a model; raise an error if it has none, such as a preset before pretraining."""
        if self.tokenizer is None:
            raise PretuneError(
                f"this {self.family.name} model has no tokenizer; pretrain it, or put the files of a tokenizer into its "
                "folder"
            )
        return self.tokenizer

    def require_trained(self, head: str, where: object, advice: str) -> None:
        """Raise an error if the head named `head` has random weights.

        The message names the model as `where`, and ends with `advice`.
        """
        if not self.untrained:
            return
        own = {id(parameter) for parameter in self.root.heads[head].parameters()}
        random = [name for name in self.untrained if id(self.root.get_parameter(name)) in own]
        if random:
            (first, *_) = self.family.table.published_names(random[0]) or (random[0],)
            raise PretuneError(
                f"{where}: its head for {head} is untrained ({first} is missing from the checkpoint or has another "
                f"shape), so its predictions would be random; {advice}"
            )

    def report_skipped_heads(self, where: object, *, tasks_only: bool = False) -> None:
        """Log which heads of the checkpoint were not loaded, if any; `where` names the model.

        With `tasks_only`, heads of pretraining objectives are left out: fine-tuning always replaces them.
        """
        skipped = [name for name in self.skipped_head_tensors if not (tasks_only and self._is_for_pretraining(name))]
        if skipped:
            heads = dict.fromkeys(re.sub(r"(\.bias)?(\.weight)?$", "", name) for name in skipped)
            log_info(f"{where}: these heads of the checkpoint were not loaded: {', '.join(heads)}")

    def _is_for_pretraining(self, published: str) -> bool:
        """Return whether a head tensor of a checkpoint, by its published name, may belong to a pretraining objective."""
        table, names = self.family.table, self.family.table.our_names(published)
        heads = {name.split(".")[1] for name in names if name.startswith("heads.")}
        return published in (table.output, *table.copied) or bool(heads - set(task_names()))

    def add_heads(self, objectives: Iterable[Objective], seed: int = 0) -> None:
        """Add the heads of objectives, initialized at random from a seed; heads that the model already has are kept."""
        heads = self.root.heads
        # An objective that shares the head of another one (tlm that of mlm, trtd that of rtd) comes after it.
        for objective in sorted(objectives, key=lambda x: isinstance(x, RenamedTask) or x.shared_head != x.name):
            owner = objective.shared_head
            if owner not in heads:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    heads[owner] = objective.head(self.backbone)
            heads[objective.name] = heads[owner]

    def save(self, folder: str | Path, kind: torch.dtype = torch.float32) -> None:
        """Write config.json, weights of data type `kind`, tokenizer and, if needed, head.safetensors to a folder."""
        save_model(self, Path(folder), kind)

    def export(
        self,
        folder: str | Path,
        kind: torch.dtype = torch.float32,
        *,
        compute: torch.dtype = torch.float32,
        shard: int | None = None,
        companions: bool = True,
    ) -> str:
        """Write a folder that `transformers` or sentence-transformers loads, and return the class that loads it.

        A model whose only head computes text embeddings becomes a sentence-transformers folder.

        Parameters
        ----------
        kind
            The data type of the stored weights.
        compute
            The data type in config.json, in which `transformers` computes.
        shard
            The maximum size of a weight file in bytes; None to write all weights to one file.
        companions
            Whether to write models that belong to a head, such as the generator of the objective rtd, into subfolders.
        """
        return export_model(self, Path(folder), kind, compute, shard, companions)

    def state(self, kind: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return the parameters and buffers, copied to the CPU, with floating-point ones in the data type `kind`."""
        state = {name: tensor.detach().cpu() for name, tensor in self.root.tensors().items()}
        # bfloat16 tensors are scales of quantized weights and stay as they are.
        wide = {name for name, x in state.items() if x.is_floating_point() and x.dtype != torch.bfloat16}
        return {name: (x.to(kind) if name in wide else x).contiguous() for name, x in state.items()}
