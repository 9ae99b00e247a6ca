"""Conversion of BERT to ALBERT: factorized embeddings, and one layer shared by all depths."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from pretune.families.encoders.albert import ALBERT, AlbertConfig
from pretune.families.encoders.bert import BertConfig
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.runtime.errors import PretuneError


@torch.no_grad()
def convert_to_albert(teacher: Model, vectors: int) -> Model:
    """Return an ALBERT model made from BERT, with the mean of all layers and with embeddings factorized by SVD.

    `vectors` is the width of the factorized embeddings.
    """
    if type(teacher.config) is not BertConfig or teacher.shape:
        raise PretuneError(
            f"--student shared={vectors}: the teacher must be a BERT model that was not pruned, not {teacher.family.name}; use "
            "another student, such as --student layers=6"
        )
    if not 1 <= vectors < teacher.config.hidden_size:
        raise PretuneError(
            f"--student shared={vectors}: choose an embedding size from 1 to {teacher.config.hidden_size - 1}"
        )
    known = {key.name: getattr(teacher.config, key.name) for key in fields(teacher.config)}
    config = AlbertConfig(**{**known, "embedding_size": vectors, "num_hidden_groups": 1, "inner_group_num": 1})
    backbone: Any = ALBERT.build(config)
    old = teacher.backbone
    # ALBERT normalizes the narrow embeddings, BERT the wide ones: the projection up undoes the difference.
    table = normalized_embeddings(old)
    mean = table.mean(0)
    _, _, right = torch.linalg.svd(table - mean, full_matrices=False)
    up = right[:vectors]  # (vectors, width), orthonormal rows
    embed, scale = backbone.embed, float(((table - mean) @ up.T).std())
    embed.tokens.copy_((table - mean) @ up.T / scale)
    embed.positions.weight.copy_((old.embed.positions.weight * old.embed.norm.weight) @ up.T / scale)
    embed.segments.copy_((old.embed.segments * old.embed.norm.weight) @ up.T / scale)
    embed.norm.weight.fill_(1.0)
    embed.norm.bias.zero_()
    embed.project.weight.copy_(up.T * scale)
    embed.project.bias.copy_(mean)
    layers = [dict(layer.named_parameters()) for layer in old.layers]
    for name, parameter in backbone.layers[0][0].named_parameters():
        parameter.copy_(torch.stack([layer[name] for layer in layers]).mean(0))
    student = Model(ALBERT, config, Network(backbone), teacher.tokenizer, teacher.objective, list(teacher.labels))
    student.finetuning = teacher.finetuning
    student.options = dict(teacher.options)
    if teacher.objective:
        mixture = parse_objective(teacher.objective, labels=tuple(teacher.labels), **teacher.options)
        student.add_heads(mixture.objectives)
        for name, head in student.root.heads.items():
            copy_matching_parameters(head, teacher.root.heads[name])
    return student


def normalized_embeddings(backbone: Any) -> Tensor:
    """Return BERT's token embeddings, (vocabulary, width), after layer norm, with the mean position embedding added."""
    embed = backbone.embed
    context = embed.positions.weight.mean(0) + embed.segments[0]
    return embed.norm(embed.tokens + context)  # type: ignore[no-any-return]


def copy_matching_parameters(to: torch.nn.Module, source: torch.nn.Module) -> None:
    """Copy parameters from the module `source` to the module `to` where both have the same name and shape."""
    sources = dict(source.named_parameters())
    for name, parameter in to.named_parameters():
        if name in sources and sources[name].shape == parameter.shape:
            parameter.copy_(sources[name])
