"""Saving and exporting of models as folders with config.json, weights, and tokenizer files."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.onnx_runtime import OnnxBackbone
from pretune.models.hf_config import CONFIG_FILE, DEFAULT_MAX_LENGTH
from pretune.models.language_embeddings import language_ids
from pretune.models.sentence_transformers import write_layout
from pretune.models.weight_files import HEAD_FILE, write_weights
from pretune.objectives import task_names
from pretune.objectives.tasks.bag_of_words import BAG_FILE
from pretune.objectives.tasks.layer_features import LayerFeaturesHead
from pretune.runtime.atomic_io import write_json
from pretune.runtime.checksummed_safetensors import write_tensors
from pretune.runtime.compressed_tensors import encode_int8, encode_sparse
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.progress import log_info
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.models.model import Model

POOLED = ("classify", "choose")  # heads on one vector per sequence that published layouts have
# Maps keys of config.json that families leave open to the tokenizer's role that fills them.
ROLE_KEYS = {"bos_token_id": "start", "eos_token_id": "end", "cls_token_id": "start", "sep_token_id": "separator"}


def save_model(model: Model, folder: Path, kind: torch.dtype) -> None:
    """Write a model to a folder; parameters that the family's published checkpoints lack go to head.safetensors."""
    _, others = _published(model, model.state(kind))
    if others:
        write_tensors(folder / HEAD_FILE, others)
    else:
        (folder / HEAD_FILE).unlink(missing_ok=True)
    _write_model(model, folder, kind, sparse=model.sparse)
    save_bag_of_words(model, folder)


def save_bag_of_words(model: Model, folder: Path) -> None:
    """Write the bag-of-words classifier of a model to a folder.

    If the model has none, delete the file of a model that was saved in the folder before.
    """
    if model.bag_of_words is not None:
        model.bag_of_words.save(folder)
    else:
        (folder / BAG_FILE).unlink(missing_ok=True)


def export_model(
    model: Model, folder: Path, kind: torch.dtype, compute: torch.dtype, shard: int | None, companions: bool
) -> str:
    """Write a model in the format of its family's published checkpoints, and return the class that loads it."""
    if model.shape:
        raise PretuneError(
            f"a config.json of the family {model.family.name} cannot describe {model.shape.describe()}; "
            f"use the model with pretune{if_option('format', ', or export it with --format onnx')}"
        )
    numbers = language_ids(model)
    if model.language in numbers:
        log_info(
            f"{folder}: in `transformers`, pass langs filled with {numbers[model.language]}, the number of the language {model.language}; "
            "without langs, no language embedding is added"
        )
    text_embedding = model.embedding_head if len(model.root.heads) == 1 else None
    if text_embedding is None:
        return _write_model(model, folder, kind, compute, shard, companions)
    check_encoder(model, folder)
    tokenizer = model.require_tokenizer()
    if not tokenizer.has_role("padding"):  # sentence-transformers always pads
        roles = {**tokenizer.role_tokens, "padding": tokenizer.vocabulary[tokenizer.role("end")]}
        tokenizer = Tokenizer(tokenizer.backend, roles, tokenizer.characters)
    name = _write_model(replace(model, tokenizer=tokenizer), folder, kind, compute, shard, companions)
    head, module = text_embedding
    write_layout(
        folder, module.embedding, model.backbone.width, model.longest or DEFAULT_MAX_LENGTH, head, model.state(kind)
    )
    return name


def check_encoder(model: Model, folder: Path) -> None:
    """Raise an error if a model is an encoder-decoder: sentence-transformers would use only its encoder."""
    if isinstance(model.backbone, EncoderDecoder):
        raise PretuneError(
            f"{folder}: sentence-transformers uses only the encoder of {model.family.name}, but pretune uses "
            "its decoder, too; use an encoder model"
        )


def describe_model(model: Model, compute: torch.dtype = torch.float32) -> dict[str, Any]:
    """Return the content of a model's config.json; `compute` is the data type in which `transformers` will compute."""
    return _config(model, model.config, _head_names(model), compute)


def _write_model(
    model: Model,
    folder: Path,
    kind: torch.dtype,
    compute: torch.dtype = torch.float32,
    shard: int | None = None,
    companions: bool = True,
    sparse: bool = False,
) -> str:
    """Write a model and, with `companions`, further models that its heads contain; return its `transformers` class.

    `kind` is the data type of the weights, `compute` that in config.json; `sparse` encodes tensors with many zeros.
    """
    if isinstance(model.backbone, OnnxBackbone):
        raise PretuneError(
            f"{model.backbone.path}: an ONNX graph cannot be saved; use the model from which it was exported"
        )
    state = model.state(kind)
    published, _ = _published(model, state)
    config = describe_model(model, compute)
    if model.shape.linear:  # embeddings are int8 in the file only, since they are looked up, not multiplied
        published = encode_int8(published, model.family.table.published_names("backbone.embed.tokens") or ())
    _write_files(model, folder, encode_sparse(published) if sparse else published, config, shard)
    for head in model.root.heads.values():
        for name, export in getattr(head, "exports", dict)().items():
            if companions and name in model.family.companions:
                published, _ = model.family.table.write(export.tensors(state))
                sizes = replace(model.config, **export.sizes, tie_word_embeddings=True)
                inside = _config(model, sizes, export.heads, compute)
                _write_files(model, folder / name, published, inside, shard)
    return str(config["architectures"][0])


def _write_files(
    model: Model, folder: Path, published: dict[str, Tensor], config: dict[str, Any], shard: int | None
) -> None:
    """Write a model's weights, config.json and tokenizer to a folder; `shard` is the maximum size of a weight file."""
    write_weights(folder, published, shard)
    write_json(folder / CONFIG_FILE, config)
    if model.tokenizer is not None:
        model.tokenizer.save(folder, model.family.template, model.backbone.max_positions)


def _published(model: Model, state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split parameters (`state`) into those that the family's published checkpoints have, too, and all others.

    The first mapping has the names of published checkpoints, the second those of pretune.
    """
    heads = _exported_heads(model, _head_names(model))
    return model.family.table.write(state, heads, model.family.is_tied(model.config))


def _head_names(model: Model) -> frozenset[str]:
    """Return the names of a model's heads; of a head with several names, only the first name."""
    return frozenset({head: name for name, head in reversed([*model.root.heads.items()])}.values())


def _exported_heads(model: Model, heads: frozenset[str]) -> frozenset[str]:
    """Return the largest subset of `heads` that a single class of `transformers` has.

    Of several such subsets of the same size, one with the head of a task is preferred.
    """
    fits = {name for name in heads if name not in model.root.heads or _is_exportable(model, name)}
    known = [names for names in model.family.classes if names <= fits]
    return max(known, key=lambda names: (len(names), any(name in task_names() for name in names)))


def _is_exportable(model: Model, name: str) -> bool:
    """Return whether `transformers` can compute a head: it must read only the top layer, with a known pooling."""
    head = model.root.heads[name]
    return not isinstance(head, LayerFeaturesHead) and (name not in POOLED or head.pooling in _poolings(model))


def _poolings(model: Model) -> dict[str, str]:
    """Return a mapping from pretune's poolings to the values of `classifier_pooling` in config.json."""
    return {ours: published for published, ours in model.family.poolings.items()} or {"cls": ""}


def _config(model: Model, sizes: Any, heads: frozenset[str], compute: torch.dtype) -> dict[str, Any]:
    """Return the config.json of a model with the given `heads`, for a class of `transformers` that has them.

    `sizes` is the configuration of the backbone, `compute` the data type in which `transformers` computes.
    """
    best = _exported_heads(model, heads)
    config: dict[str, Any] = {
        "architectures": [model.family.classes[best]],
        "model_type": model.family.name,
        "dtype": str(compute).removeprefix("torch."),
        **asdict(sizes),
    }
    pooled = next((name for name in POOLED if name in best), "")
    if pooled and (pooling := _poolings(model)[str(model.root.heads[pooled].pooling)]):
        config["classifier_pooling"] = pooling
    if "classify" in best and (problem := model.root.heads["classify"].problem):
        config["problem_type"] = problem
    if model.tokenizer is not None:
        config |= _special_ids(model, model.tokenizer, config)
    # `transformers` names the output of a regression, too.
    labels = model.labels or (["LABEL_0"] if "classify" in best else [])
    if labels:
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        config["label2id"] = {label: i for i, label in enumerate(labels)}
    section: dict[str, Any] = {"options": model.options, "tasks": model.tasks}
    if sizes == model.config:
        head, embedding = model.embedding_head, model.embedding
        if head is not None:
            embedding = head[1].embedding
        elif embedding is not None and embedding.has_parameters:  # useless without its parameters
            embedding = None
        section |= {"embedding": embedding and embedding.write(), "max_length": model.max_length}
        section |= {"finetuning": model.finetuning, "language": model.language}
    config["pretune"] = {"objective": model.objective} | {name: value for name, value in section.items() if value}
    if sizes == model.config and model.shape:
        config["pretune"]["shape"] = model.shape.write()
    return config


def _special_ids(model: Model, tokenizer: Tokenizer, config: dict[str, Any]) -> dict[str, int]:
    """Return the special-token ids for config.json; for encoder-decoders also those that generation needs."""
    roles = {key: role for key, role in ROLE_KEYS.items() if config.get(key, 0) is None}
    roles |= {"pad_token_id": "padding"} if config.get("pad_token_id") is None else {}
    if target := model.family.template.target:
        roles |= {"pad_token_id": "padding", "eos_token_id": "end"}
        if target[0] != "language":  # which differs from text to text
            roles["decoder_start_token_id"] = target[0]
        roles |= {"bos_token_id": "start"} if "start" in target else {}
    found = {key: tokenizer.role(role) for key, role in roles.items() if tokenizer.has_role(role)}
    opening = tokenizer.special_token_names(model.family.template).get("bos_token")
    if "bos_token_id" in found and opening is not None:  # as in tokenizer_config.json
        found["bos_token_id"] = tokenizer.vocabulary.index(opening)
    return found
