"""Folders in the layout of sentence-transformers: a Transformer, its pooling, and the modules after it.

    modules.json                        the modules in order, with their paths and types
    config_sentence_transformers.json   prompts, similarity function, truncate_dim
    sentence_bert_config.json           max_seq_length, do_lower_case; next to the files of the Transformer
    1_Pooling/config.json …             one folder per further module, with weights if it has any

The Transformer is in the folder itself or, if an old release wrote the folder, in 0_Transformer. A setting that pretune
does not apply is an error, unless it is known not to change the embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers
from torch import Tensor
from typing_extensions import TypedDict

from pretune.models.weight_files import WEIGHTS_FILE, read_weights
from pretune.nn.sentence_embedding import (
    DenseSpec,
    DropoutSpec,
    LayerNormSpec,
    NormalizeSpec,
    TextEmbedding,
    TransformSpec,
)
from pretune.runtime.atomic_io import check_file_name, write_json
from pretune.runtime.checksummed_safetensors import write_tensors
from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import read_json, read_mapping, validate_schema
from pretune.text.tokenizers.tokenizer import Tokenizer

# Names of the classes of sentence-transformers, by kind of transform.
CLASSES = {"dense": "Dense", "layer_norm": "LayerNorm", "dropout": "Dropout", "normalize": "Normalize"}
MODULES, SETTINGS, TRANSFORMER = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
# The names of sentence_bert_config.json in old releases, by the architecture of the Transformer.
OLD_TRANSFORMERS = [
    f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
UNLIMITED = 1 << 24  # tokenizers without a limit have 10**30
TYPES = "sentence_transformers.models."  # the prefix of module types that all releases read
# Maps their poolings to ours, in the order in which releases before 6 concatenate several.
POOLINGS = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
# The boolean key of each pooling in releases before 6.
FLAGS = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
POOLING_FLAGS = {mode: f"pooling_mode_{flag}" for mode, flag in zip(POOLINGS, FLAGS, strict=True)}
VECTOR = "sentence_embedding"  # their name of the embedding of a text
# Settings of the Transformer that must have these values (FIXED), and those without effect on the result (COMPUTING).
TEXT_MODALITY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
FIXED = {
    "transformer_task": ("feature-extraction",),
    "modality_config": (TEXT_MODALITY,),
    "module_output_name": ("token_embeddings",),
    "processing_kwargs": ({}, None),
    "query_length": (None,),
    "document_length": (None,),
    "query_expansion": (None,),
    "config_args": ({}, None),
    "config_kwargs": ({}, None),
    "tokenizer_name_or_path": (None,),
}
COMPUTING = {"attn_implementation", "dtype", "torch_dtype", "padding_side", "use_fast", "trust_remote_code"}
SETTINGS_KIND = "settings by name"  # the content of their JSON files, for error messages
Size = Annotated[int, Ge(1), Le(1 << 20)]
Share = Annotated[float, Ge(0), Le(1)]


class SentenceTransformersSettings(TypedDict, total=False):
    """The keys of config_sentence_transformers.json that pretune reads."""

    prompts: dict[str, str | None] | None
    default_prompt_name: str | None
    similarity_fn_name: str | None
    truncate_dim: Size | None
    model_type: str


@dataclass(frozen=True)
class SentenceTransformersLayout:
    """The settings of a sentence-transformers folder: how it turns texts into embeddings."""

    embedding: TextEmbedding
    max_length: int | None  # in tokens, including special tokens; longer texts are truncated
    lowercase: bool  # whether texts are lowercased before tokenization
    folders: tuple[Path, ...]  # the folders of the modules after the pooling

    def tensors(self, head: str) -> dict[str, Tensor]:
        """Return the weights of the modules after pooling, renamed to the parameters of the head named `head`."""
        found: dict[str, Tensor] = {}
        for number, (part, folder) in enumerate(zip(self.embedding.transforms, self.folders, strict=True)):
            if isinstance(part, DenseSpec | LayerNormSpec):
                own = read_weights(folder)
                check_tensors(folder, own, part)
                found |= {f"{transform_prefix(head, number)}{name}": tensor for name, tensor in own.items()}
        return found

    def prepare(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer, with lowercasing added if the sentence-transformers settings require it."""
        if not self.lowercase:
            return tokenizer
        backend = Backend.from_str(tokenizer.backend.to_str())
        others = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
        return Tokenizer(backend, tokenizer.role_tokens, tokenizer.characters)


def check_tensors(folder: Path, tensors: Mapping[str, Tensor], part: TransformSpec) -> None:
    """Raise an error if the weights of a module do not have the names and shapes that its config.json implies."""
    with torch.device("meta"):
        wanted = {name: tuple(tensor.shape) for name, tensor in part.build().state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != wanted:
        raise PretuneError(
            f"{folder}: {CONFIG} implies the tensors {wanted}, but the weights are {found}; correct {CONFIG}"
        )


def transform_prefix(head: str, number: int) -> str:
    """Return the prefix of the parameter names of a module after the pooling.

    `head` is the name of the head that computes embeddings, and `number` the index of the module, counted from 0, among
    those after the pooling.
    """
    return f"heads.{head}.transforms.{number}."


def transformer_folder(folder: Path) -> Path:
    """Return the folder of a model's Transformer module: the one that modules.json names, if any, else `folder`."""
    return module_folder(folder, read_modules(folder)[0]) if (folder / MODULES).is_file() else folder


def read_layout(folder: Path) -> SentenceTransformersLayout | None:
    """Return the settings of a sentence-transformers model, given the folder of its Transformer; None for others."""
    roots = [place for place in (folder, folder.parent) if (place / MODULES).is_file()]
    root = next((place for place in roots if transformer_folder(place) == folder), None)
    if root is None:
        return None
    modules = read_modules(root)
    kinds = [module_class(root, module) for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise PretuneError(
            f"{root / MODULES}: the modules {', '.join(kinds)} are not supported; give a Transformer and a Pooling, then any "
            "of Dense, LayerNorm, Dropout, and Normalize"
        )
    folders = [module_folder(root, module) for module in modules]
    pooling, include_prompt = read_pooling(folders[1] / CONFIG)
    transforms = tuple(read_transform(kind, path) for kind, path in zip(kinds[2:], folders[2:], strict=True))
    settings = read_settings(root / SETTINGS)
    embedding = TextEmbedding(pooling, transforms, include_prompt=include_prompt, **settings)
    max_length, lowercase = read_transformer(folder)
    return SentenceTransformersLayout(embedding, max_length, lowercase, tuple(folders[2:]))


def read_modules(root: Path) -> list[dict[str, Any]]:
    """Return the entries of a sentence-transformers modules.json in the folder `root`, after a check of their keys."""
    path = root / MODULES
    content = validate_schema(read_json(path), list[dict[str, Any]], f"{path}: not a list of modules")
    if not content:
        raise PretuneError(f"{path}: the list of modules is empty; get the file again from its source")
    for number, part in enumerate(content):
        for key in ("path", "type"):
            validate_schema(part.get(key), str, f"{path}: {key} of module {number}")
        check_keys(path, part, {"idx", "name", "path", "type", "kwargs"})
    return list(content)


def module_folder(root: Path, module: Mapping[str, Any]) -> Path:
    """Return the folder of a sentence-transformers module; raise an error if it is outside `root`."""
    inside = Path(module["path"])
    if inside.is_absolute() or ".." in inside.parts:
        raise PretuneError(
            f"{root / MODULES}: the path {module['path']!r} of a module must be inside the folder; correct the path"
        )
    check_file_name(inside)
    return root / inside


def module_class(root: Path, module: Mapping[str, Any]) -> str:
    """Return the class name of a module; raise an error if the class is not part of sentence-transformers."""
    package, _, kind = module["type"].rpartition(".")
    if package.split(".")[0] != "sentence_transformers":
        raise PretuneError(
            f"{root / MODULES}: the module {module['type']} is custom code, which pretune does not run; use a model without it"
        )
    return kind


def read_pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    """Return the pooling modes of a Pooling module, and whether pooling includes the tokens of prompts."""
    content = read_mapping(path, SETTINGS_KIND)
    flags = {name: mode for mode, name in POOLING_FLAGS.items()}
    dimensions = {"embedding_dimension", "word_embedding_dimension"}  # the hidden size, which the model has, too
    check_keys(path, content, {"pooling_mode", "include_prompt", *flags, *dimensions})
    modes = content.get("pooling_mode", [mode for name, mode in flags.items() if content.get(name)] or "mean")
    modes = [modes] if isinstance(modes, str) else validate_schema(modes, list[str], f"{path}: pooling_mode")
    if not modes:
        raise PretuneError(f"{path}: pooling_mode is empty; give one of {', '.join(POOLINGS)}")
    for mode in modes:
        if mode not in POOLINGS:
            raise PretuneError(f"{path}: unsupported pooling_mode {mode!r}; use one of {', '.join(POOLINGS)}")
    return tuple(POOLINGS[mode] for mode in modes), bool(content.get("include_prompt", True))


def read_transform(kind: str, folder: Path) -> TransformSpec:
    """Return the specification of a module after the pooling, given its class name `kind` and its folder."""
    path = folder / CONFIG
    content = read_mapping(path, SETTINGS_KIND) if path.is_file() or kind != "Normalize" else {}
    places = {"module_input_name", "module_output_name"}
    for place in places & content.keys():
        if content[place] not in (VECTOR, None):
            raise PretuneError(
                f"{path}: {place} is {content[place]!r}; only {VECTOR} is supported, so use a model with this value"
            )
    if kind == "Normalize":
        check_keys(path, content, places)
        return NormalizeSpec()
    if kind == "Dropout":
        check_keys(path, content, {"dropout"})
        return DropoutSpec(validate_schema(content.get("dropout", 0.2), Share, f"{path}: dropout"))
    if kind == "LayerNorm":
        check_keys(path, content, {"dimension"})
        return LayerNormSpec(validate_schema(content.get("dimension"), Size, f"{path}: dimension"))
    if kind == "Dense":
        names = ("in_features", "out_features")
        sizes = {name: validate_schema(content.get(name), Size, f"{path}: {name}") for name in names}
        check_keys(path, content, {*sizes, *places, "bias", "activation_function", "use_residual"})
        activation = str(content.get("activation_function", "torch.nn.modules.activation.Tanh"))
        if not activation.startswith("torch.nn.modules."):
            raise PretuneError(
                f"{path}: the activation {activation} is custom code, which pretune does not run; use one of torch.nn"
            )
        bias, residual = bool(content.get("bias", True)), bool(content.get("use_residual", False))
        return DenseSpec(**sizes, bias=bias, activation=activation.rpartition(".")[2], residual=residual)
    raise PretuneError(
        f"{folder}: unsupported module {kind}; use Dense, LayerNorm, Dropout or Normalize after the Pooling"
    )


def read_optional(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file that holds settings by name, or an empty mapping if there is no such file."""
    return read_mapping(path, SETTINGS_KIND) if path.is_file() else {}


def read_settings(path: Path) -> dict[str, Any]:
    """Return the prompts, the similarity function, and truncate_dim from config_sentence_transformers.json."""
    content = read_optional(path)
    given = {"prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"}
    check_keys(path, content, {*given, "model_type", "__version__", "requirements"})
    validate_schema(content, SentenceTransformersSettings, str(path))
    kind = content.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise PretuneError(f"{path}: the model_type {kind} is not supported; use a model with one vector per text")
    return {
        "prompts": {name: text or "" for name, text in (content.get("prompts") or {}).items()},
        "default_prompt_name": content.get("default_prompt_name"),
        "similarity": content.get("similarity_fn_name") or "cosine",
        "truncate_dim": content.get("truncate_dim"),
    }


def read_transformer(folder: Path) -> tuple[int | None, bool]:
    """Return the maximum text length in tokens (None for no limit) and whether texts are lowercased."""
    files = [folder / name for name in (TRANSFORMER, *OLD_TRANSFORMERS)]
    path = next((file for file in files if file.is_file()), files[0])
    content = read_optional(path)
    arguments = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs")
    check_keys(path, content, {"max_seq_length", "do_lower_case", "unpad_inputs", *arguments, *FIXED})
    for name, usual in FIXED.items():
        if name in content and content[name] not in usual:
            raise PretuneError(
                f"{path}: {name} {json.dumps(content[name])} is not supported; use a model with {name} {json.dumps(usual[0])}"
            )
    for name in arguments:
        validate_schema(content.get(name) or {}, dict[str, Any], f"{path}: {name}")
        check_keys(path, content.get(name) or {}, {*COMPUTING, "model_max_length"})
    limits = [content.get("max_seq_length")]
    limits += [(content.get(name) or {}).get("model_max_length") for name in arguments]
    if not any(limits):  # 6.x takes the tokenizer's limit, but at most the number of positions
        keys = {TOKENIZER_CONFIG: "model_max_length", CONFIG: "max_position_embeddings"}
        limits = [read_optional(folder / name).get(key) for name, key in keys.items()]
    if wrong := [limit for limit in limits if not isinstance(limit, int | float | None)]:
        raise PretuneError(f"{path}: the maximum length {wrong[0]!r} is not a number; give a number of tokens")
    found = [int(limit) for limit in limits if limit is not None and 0 < limit < UNLIMITED]
    return min(found, default=None), bool(content.get("do_lower_case", False))


def check_keys(path: Path, content: Collection[str], known: Collection[str]) -> None:
    """Raise an error if a file has settings that are not in `known`, since they may change the embeddings.

    `content` has the names of the settings in the file.
    """
    if unknown := sorted(set(content) - set(known)):
        raise PretuneError(
            f"{path}: unknown settings {', '.join(unknown)}, which may change the embeddings; remove them from the "
            "file if you know that they do not"
        )


def write_layout(
    folder: Path, embedding: TextEmbedding, hidden: int, max_length: int, head: str, state: Mapping[str, Tensor]
) -> None:
    """Write the files that turn a folder in the Hugging Face layout into a sentence-transformers folder.

    `hidden` is the hidden size, `head` the name of the head that computes embeddings, and `state` has the parameters of
    the model by name.
    """
    kinds = ["Transformer", "Pooling", *(CLASSES[part.kind] for part in embedding.transforms)]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    write_json(folder / TRANSFORMER, {"max_seq_length": max_length, "do_lower_case": False})
    write_json(folder / paths[1] / CONFIG, pooling_config(embedding, hidden))
    for number, (part, path) in enumerate(zip(embedding.transforms, paths[2:], strict=True)):
        write_json(folder / path / CONFIG, transform_config(part))
        prefix = transform_prefix(head, number)
        if own := {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}:
            write_tensors(folder / path / WEIGHTS_FILE, own, {"format": "pt"})
    settings: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "prompts": dict(embedding.prompts),
        "default_prompt_name": embedding.default_prompt_name,
        "similarity_fn_name": embedding.similarity,
    }
    settings |= {} if embedding.truncate_dim is None else {"truncate_dim": embedding.truncate_dim}
    write_json(folder / SETTINGS, settings)
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{TYPES}{kind}"}
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    write_json(folder / MODULES, modules)


def pooling_config(embedding: TextEmbedding, hidden: int) -> dict[str, Any]:
    """Return the settings of a sentence-transformers Pooling module, in a form that all releases read if possible."""
    names = {ours: mode for mode, ours in POOLINGS.items()}
    modes = [names[mode] for mode in embedding.pooling]
    prompts = {"include_prompt": embedding.include_prompt}
    if modes == [mode for mode in POOLINGS if mode in modes]:
        flags = {name: mode in modes for mode, name in POOLING_FLAGS.items()}
        return {"word_embedding_dimension": hidden, **flags, **prompts}
    return {"embedding_dimension": hidden, "pooling_mode": modes, **prompts}  # an order that only 6.x supports


def transform_config(part: TransformSpec) -> dict[str, Any]:
    """Return the content of config.json for a sentence-transformers module after the pooling."""
    if isinstance(part, DenseSpec):
        module = "linear" if part.activation == "Identity" else "activation"
        activation = f"torch.nn.modules.{module}.{part.activation}"
        sizes = {"in_features": part.in_features, "out_features": part.out_features, "bias": part.bias}
        return sizes | {"activation_function": activation} | ({"use_residual": True} if part.residual else {})
    if isinstance(part, LayerNormSpec):
        return {"dimension": part.dimension}
    return {"dropout": part.share} if isinstance(part, DropoutSpec) else {}
