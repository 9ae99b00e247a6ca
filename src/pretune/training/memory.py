"""The memory that training needs, by formula: parameters, gradients, optimizer state, and activations.

Parameters, gradients, and optimizer state are fp32, and their sizes are exact. Activations are an estimate, for a step on a GPU in
bf16. It counts what autograd keeps of one microbatch until the backward pass: the input of every linear layer and norm, and the
output of every linear layer that is not added to the residual stream (Korthikanti et al., 2022, arXiv:2205.05198, without
dropout masks, which are recomputed from their seed, and without attention probabilities, which the kernels do not store).
Besides, it counts the logits at the targets, and the bf16 copies of the weights. It does not count the columns of a batch,
statistics of norms and softmaxes, workspaces of kernels, and what the allocator leaves unused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import LayeredBackbone
from pretune.models.create_model import make_model
from pretune.models.model import Network
from pretune.models.presets import find_preset
from pretune.nn.initialization import SkipInitialization
from pretune.nn.linear import Linear
from pretune.nn.saved_activations import SavedActivations, SavesLogits
from pretune.objectives import JointObjective, parse_objective
from pretune.objectives.objective import MAX_LOGITS
from pretune.text.packing.sequences import Packing
from pretune.training.optim.optimizers import hidden_matrices
from pretune.training.recipe_sections import Batching, Optimizer, resolve_section

FP32, BF16 = 4, 2  # bytes of a number
# Bytes of a logit: in bf16, and in fp32 for the softmax and for the gradient.
LOGIT = BF16 + FP32 + FP32
# Scalars per parameter tensor, such as the number of the step.
SCALARS = {"adamw": 1, "adam": 1, "radam": 1, "lamb": 1, "adafactor": 1, "asgd": 3, "sgd": 0, "muon": 0}


def state_size(name: str, shape: torch.Size, momentum: float = 0.0) -> int:
    """Return how many numbers the state of an optimizer has for one parameter tensor.

    `name` is the name of the optimizer, where `muon` stands for the state of hidden matrices (the other parameters have
    the state of `adamw`); `momentum` is the momentum of `sgd`.

    >>> state_size("adamw", torch.Size([30, 20])), state_size("adafactor", torch.Size([30, 20]))
    (1201, 51)
    """
    match name:
        case "adamw" | "adam" | "radam" | "lamb":  # the first and the second moment
            numbers = 2 * shape.numel()
        case "adafactor" if len(shape) > 1:  # means over rows and over columns
            numbers = shape[:-1].numel() + shape.numel() // shape[-2]
        case "sgd" if not momentum:
            numbers = 0
        case _:  # one moment: adafactor for vectors, sgd with momentum, asgd's average, muon
            numbers = shape.numel()
    return numbers + SCALARS[name]


def optimizer_state_bytes(root: nn.Module, settings: Optimizer) -> int:
    """Return the size of the state of the optimizers that `make_optimizers` builds, in bytes, after a training step."""
    name, momentum = settings.name or "adamw", settings.momentum or 0.0
    hidden: dict[Tensor, int] = hidden_matrices(root) if name == "muon" else {}
    usual = "adamw" if name == "muon" else name
    parameters = [p for p in root.parameters() if p.requires_grad]
    return FP32 * sum(state_size("muon" if p in hidden else usual, p.shape, momentum) for p in parameters)


@dataclass(frozen=True)
class Activations:
    """The estimated memory of a microbatch, in bytes, and the number of tokens for which it is estimated."""

    tokens: int  # of a microbatch, on both sides of an encoder-decoder
    layers: int  # what layers keep
    logits: int
    weights: int  # bf16 copies of the weights

    @property
    def total(self) -> int:
        """The sum of all parts, in bytes."""
        return self.layers + self.logits + self.weights


def estimate_activations(root: Network, joint: JointObjective, batch: Batching) -> Activations | None:
    """Return the estimated memory of one microbatch of a training; None if a layer does not report what it keeps.

    >>> model, joint = make_model("bert-tiny"), parse_objective("nsp").joints[0]
    >>> model.add_heads(joint.objectives)
    >>> estimate_activations(model.root, joint, Batching(tokens=1024, max_length=128)).tokens
    1024
    """
    backbone: Any = root.backbone
    generators = [part for part in root.heads.modules() if isinstance(part, LayeredBackbone)]  # of rtd
    own, *inside = [saved_activations(part, bool(batch.gradient_checkpointing)) for part in (backbone, *generators)]
    if own.unknown or any(saved.unknown for saved in inside):
        return None
    length = max([stage for _, stage in batch.length_schedule or ()] or [batch.max_length or 128])
    tokens = max(min(batch.microbatch_tokens or batch.tokens or 1, batch.tokens or 1), length)
    packing = Packing(tokens, length, sequences=-(-tokens // length) + 8, fixed=True)
    capacity = joint.capacity(packing)
    assert capacity is not None
    sides = [(own, capacity.tokens)]
    if own.source is not None:
        sides = [(own.source, capacity.tokens), (own, (capacity.second or capacity).tokens)]
    logits = 0
    for objective in joint.objectives:
        if count := logits_per_target(root.heads[objective.name], backbone.embed.vocabulary):
            logits += count * min(objective.max_targets(packing).values())
    matrices = {module.weight for module in root.modules() if isinstance(module, Linear)} | {backbone.embed.tokens}
    return Activations(
        tokens=sum(count for _, count in sides),
        layers=BF16 * sum(count * saved.total for saved, count in [*sides, *((saved, tokens) for saved in inside)]),
        logits=LOGIT * min(logits, MAX_LOGITS),
        weights=BF16 * sum(matrix.numel() for matrix in matrices),
    )


def saved_activations(backbone: Any, recompute: bool = False) -> SavedActivations:
    """Return how many numbers per token the layers of a backbone keep for the backward pass.

    With gradient checkpointing (`recompute`), layers keep only their inputs, except that the largest layer is counted in
    full, because it is recomputed.
    """
    saved = SavedActivations(backbone.width, recompute)
    saved.add(backbone)
    return saved


def logits_per_target(head: nn.Module, vocabulary: int) -> int:
    """Return how many logits a head computes for each predicted token; 0 if it does not predict tokens.

    `vocabulary` is the size of the vocabulary of the token embedding.
    """
    counts = [part.logits_per_target(vocabulary) for part in head.modules() if isinstance(part, SavesLogits)]
    return max(counts, default=0)


def preset_memory(name: str) -> dict[str, Any]:
    """Return the memory that training a preset needs with each optimizer, in MB (10^6 bytes), as named values.

    `state_ratio` is the size of the parameters and the optimizer state, relative to the parameters alone.

    >>> {row["optimizer"]: row["state_ratio"] for row in preset_memory("bert-tiny")["memory"]}["adamw"]
    3.0
    """
    preset = find_preset(name)
    mixture = parse_objective(str(preset["objective"]), labels=("a", "b"))
    with torch.device("meta"), SkipInitialization():  # only shapes are needed
        model = make_model(name)
        model.add_heads(mixture.objectives)
    settings = resolve_section(Optimizer, None, dict(preset.get("optimizer") or {}))
    batch = resolve_section(Batching, None, dict(preset.get("batch") or {}))
    kept = estimate_activations(model.root, mixture.joints[0], batch)
    parameters = FP32 * sum(p.numel() for p in model.root.parameters())
    rows = []
    for optimizer in SCALARS:
        state = optimizer_state_bytes(model.root, replace(settings, name=optimizer))  # type: ignore[arg-type]
        rows.append(
            {
                "optimizer": optimizer,
                "parameters": megabytes(parameters),
                "gradients": megabytes(parameters),
                "state": megabytes(state),
                "state_ratio": round((parameters + state) / parameters, 2),
                "activations": None if kept is None else megabytes(kept.total),
                "total": None if kept is None else megabytes(2 * parameters + state + kept.total),
            }
        )
    counted: dict[str, Any] = {"activations": "not estimated, because a layer does not report what it keeps"}
    if kept is not None:
        parts = {"layers": kept.layers, "logits": kept.logits, "bf16_weights": kept.weights}
        counted = {"microbatch_tokens": kept.tokens, **{part: megabytes(size) for part, size in parts.items()}}
    return {"preset_optimizer": settings.name, **counted, "memory": rows}


def megabytes(size: float) -> float:
    """Return a number of bytes in MB (10^6 bytes), rounded to 0.1 MB.

    >>> megabytes(1_260_000)
    1.3
    """
    return round(size / 1e6, 1)
