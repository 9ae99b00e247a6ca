"""Loading of a model from a folder in the Hugging Face layout, with checks of every key and tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pretune.backbones.onnx_runtime import ENGINE, GRAPH, MOBILE_GRAPH, OnnxBackbone
from pretune.backbones.pruned_shape import PrunedShape
from pretune.families.checkpoint_mismatches import find_mismatches, skipped_heads
from pretune.families.config_bounds import count_layers
from pretune.families.family import Family
from pretune.models.checkpoint_heads import read_embedding, stored_heads, stored_objectives
from pretune.models.hf_config import CONFIG_FILE, read_config, stored_labels
from pretune.models.language_embeddings import set_language
from pretune.models.model import Model, Network
from pretune.models.name_resolution import ModelReference, find_folder
from pretune.models.open_model import OpenModel
from pretune.models.saving import check_encoder
from pretune.models.sentence_transformers import read_layout
from pretune.models.weight_files import HEAD_FILE, read_weights
from pretune.nn.dropout import disable_attention_dropout
from pretune.nn.initialization import SkipInitialization
from pretune.objectives import Mixture, RenamedTask
from pretune.objectives.tasks.bag_of_words import BagOfWords
from pretune.runtime.checksummed_safetensors import check_finite, read_tensors
from pretune.runtime.compressed_tensors import decode_tensors, is_sparse_entry
from pretune.runtime.errors import PretuneError, if_option, suggest
from pretune.runtime.parsing import file_digest
from pretune.runtime.progress import log_info
from pretune.text.tokenizers.tokenizer import Tokenizer

Result = TypeVar("Result")

FEW_LAYERS = 64  # up to this number, layers may share their weights
DERIVED_NUMBERS = 1 << 24  # numbers of a network that are not in its weights: tables computed from its configuration


def load(reference: ModelReference, *, ignore_mismatched: bool = False) -> Model:
    """Load a model with its heads and its tokenizer from a run folder, a bundled model, or a Hugging Face model folder.

    Weights are model.safetensors or pytorch_model.bin, in one file or in shards; a pickle is read only if it holds
    nothing but tensors. Unknown keys of config.json and unknown tensors are an error, since they may change the output.
    With `ignore_mismatched`, they are skipped, and missing or misshapen tensors are initialized randomly.

    >>> load("pretune-small-en").family.name
    'modernbert'
    """
    model = load_model(reference, stored_objectives(reference), ignore_mismatched=ignore_mismatched)
    model.report_skipped_heads(reference)
    return model


def load_model(
    reference: ModelReference,
    objectives: Mixture | None = None,
    seed: int = 0,
    ignore_mismatched: bool = False,
    dropout: Mapping[str, float] | None = None,
) -> Model:
    """Load a model with the heads of the given objectives.

    Parameters
    ----------
    reference
        A run folder, a bundled model, a folder in the Hugging Face layout, or an open model, whose parameters are shared.
    objectives
        The objectives whose heads the model gets: from the checkpoint if it has them, otherwise new ones.
    seed
        The seed of parameters that the checkpoint does not have.
    ignore_mismatched
        Whether to accept unknown keys and tensors and missing parts of the backbone, which are otherwise an error.
    dropout
        Dropout rates that replace those of config.json, under the names that they have there.

    >>> model = load_model("runs/mine")  # doctest: +SKIP
    """
    if isinstance(reference, OpenModel) and not seed and not dropout:
        shared = reference.load(objectives, ignore_mismatched)
        set_language(shared, shared.language, reference)  # another call may have read texts in another language
        return shared
    folder = find_folder(reference)
    family, content = read_config(folder)
    path = folder / CONFIG_FILE
    config = family.read_config(content, str(path))
    config = replace(config, **_checked_dropout(config, dropout or {}, path))
    if unknown := family.unknown_keys(content):
        listed = f"{path}: unknown keys for {family.name}, which may change its output: {', '.join(unknown)}"
        _report_mismatch(listed, "they are ignored", ignore_mismatched)
    section = content.get("pretune", {})
    graph = find_graph(folder, section.get("engine"))
    if graph is not None and "graph_sha256" in section and file_digest(graph) != section["graph_sha256"]:
        raise PretuneError(f"{graph}: the file is damaged (its checksum is wrong); get it again from its source")
    tensors = read_weights(folder) if graph is None else {}
    sparse = any(is_sparse_entry(name) for name in tensors)
    tensors = _with_path(folder, lambda: family.table.normalize(decode_tensors(tensors)))
    if family.is_tied(config) and family.table.has_own_output(tensors):
        log_info(f"{folder}: {family.table.output} differs from the token embedding, so the two are loaded untied")
        config = replace(config, tie_word_embeddings=False)
    tied = family.is_tied(config)
    head_tensors = read_tensors(folder / HEAD_FILE) if (folder / HEAD_FILE).is_file() else {}
    check_finite(head_tensors, folder / HEAD_FILE)
    shape = PrunedShape.read(section.get("shape", {}))
    if graph is None and count_layers(config) > max(FEW_LAYERS, len(tensors)):
        raise PretuneError(
            f"{path}: the file describes {count_layers(config)} layers, but the weights have only {len(tensors)} "
            "tensors; use the config.json and the weights of the same model"
        )
    with torch.device("meta"), SkipInitialization():  # shapes only
        blueprint = _with_path(path, lambda: shape.apply(family.build(config)))
    if graph is None:
        _check_memory(path, blueprint, tensors)
        with SkipInitialization():
            root = Network(shape.apply(family.build(config)))
    else:
        running: Any = OnnxBackbone(graph, blueprint)
        root = Network(running)
    model = Model(family, config, root, _tokenizer(folder), shape=shape, sparse=sparse)
    model.objective = section.get("objective", "")
    model.labels = stored_labels(folder, family, content, path)
    model.options, model.tasks = section.get("options", {}), section.get("tasks", {})
    model.finetuning, model.language = section.get("finetuning", {}), section.get("language")
    layout = read_layout(folder)
    model.embedding, model.bag_of_words = read_embedding(folder), BagOfWords.load(folder)
    model.max_length = layout.max_length if layout is not None else section.get("max_length")
    if layout is not None:
        check_encoder(model, folder)
        model.tokenizer = model.tokenizer and layout.prepare(model.tokenizer)
    if objectives is not None:
        model.add_heads(objectives.objectives, seed)
    if layout is not None and model.embedding_head is not None:
        head_tensors |= layout.tensors(model.embedding_head[0])
    if model.embedding is not None and model.embedding.has_parameters and model.embedding_head is None:
        model.embedding = None  # a description without its parameters
        log_info(f"{folder}: the layers after pooling are not loaded; only the objective `contrast` uses them")
    wanted = model.root.tensors()
    heads = stored_heads(family, content)
    found, missing, extra = _with_path(folder, lambda: family.table.read(tensors, wanted, heads, tied))
    found |= _read_renamed_heads(family, tensors, wanted, objectives, heads, tied)
    # A head of another shape (another number of classes) counts as missing.
    found |= {n: t for n, t in head_tensors.items() if n in wanted and t.shape == wanted[n].shape}
    missing = [name for name in missing if name not in found]
    learned = dict(model.root.named_parameters())
    model.untrained = [name for name in missing if name in learned]
    if mismatches := find_mismatches(family, tensors, wanted, missing, extra, len(model.labels)):
        listed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in mismatches.items())
        _report_mismatch(f"{folder}: {listed}", "missing parameters are initialized randomly", ignore_mismatched)
    model.skipped_head_tensors = skipped_heads(family.table, extra)
    if lacking := [name for name in model.untrained if name.startswith("backbone.")]:
        random = Network(model.random_backbone(seed)).tensors()
        found |= {name: random[name] for name in lacking}
    if new_heads := sorted({name.split(".")[1] for name in model.untrained if name.startswith("heads.")}):
        start = "head {} is new and starts" if len(new_heads) == 1 else "heads {} are new and start"
        log_info(f"{folder}: the {start.format(', '.join(new_heads))} from random weights")
    model.root.load_state_dict(found, strict=False)
    disable_attention_dropout(model.root)  # config.json keeps its value
    if model.tokenizer is not None and model.tokenizer.size > config.vocab_size:
        raise PretuneError(
            f"{folder}: the tokenizer has {model.tokenizer.size} tokens, but vocab_size in {CONFIG_FILE} is only "
            f"{config.vocab_size}; put the tokenizer of this model into the folder"
        )
    for other, own in model.tokenizer.differing_frames(family.template) if model.tokenizer is not None else ():
        log_info(f"{folder}: tokenizer.json has the template {other!r}, but {own!r} of {family.name} is used")
    set_language(model, model.language, folder)
    return model


def _read_renamed_heads(
    family: Family,
    tensors: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    objectives: Mixture | None,
    heads: Collection[str],
    tied: bool,
) -> dict[str, Tensor]:
    """Return parameters of the heads of tasks with custom names, from the checkpoint's head for the same kind of task.

    `tensors` are those of the checkpoint, `wanted` those of the model; the result has names of the model. `heads` names
    the heads that the checkpoint has, and `tied` tells whether input and output embeddings are shared.
    """
    found: dict[str, Tensor] = {}
    for task in (part for part in (objectives.objectives if objectives else ()) if isinstance(part, RenamedTask)):
        own, kind = f"heads.{task.name}.", f"heads.{task.task.shared_head}."
        of_kind = {kind + name.removeprefix(own): tensor for name, tensor in wanted.items() if name.startswith(own)}
        read, _, _ = family.table.read(dict(tensors), of_kind, heads, tied)
        found |= {own + name.removeprefix(kind): tensor for name, tensor in read.items()}
    return found


def find_graph(folder: Path, engine: str | None) -> Path | None:
    """Return the ONNX graph of a model folder, or None if the model is not a graph.

    `engine` is the entry of that name in config.json: None for a model that pretune runs in PyTorch. For an engine
    other than ONNX Runtime, raise an error.
    """
    if engine is None:
        return None
    if engine != ENGINE:
        raise PretuneError(f"{folder}: this folder was exported for {engine}; load the model that it was exported from")
    return folder / (MOBILE_GRAPH if (folder / MOBILE_GRAPH).is_file() else GRAPH)


def _report_mismatch(problem: str, consequence: str, ignore_mismatched: bool) -> None:
    """Raise an error for a mismatch of checkpoint and model; if `ignore_mismatched`, log it with its consequence."""
    if not ignore_mismatched:
        raise PretuneError(
            f"{problem}{if_option('ignore-mismatched', '; pass --ignore-mismatched to continue without them')}"
        )
    log_info(f"mismatch of checkpoint and model ignored: {problem}; {consequence}")


def _check_memory(path: Path, blueprint: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise an error, before memory is allocated, if a config.json describes a network far larger than its weights.

    `path` is that of config.json, `blueprint` the network without data, and `tensors` the weights.
    """
    described = sum(x.numel() for x in (*blueprint.parameters(), *blueprint.buffers()))
    stored = sum(x.numel() for x in tensors.values())
    if described > 8 * stored + DERIVED_NUMBERS:
        raise PretuneError(
            f"{path}: the file describes a network of {described:,} parameters, but the weights have {stored:,}; "
            "use the config.json and the weights of the same model"
        )


def _with_path(path: Path, read: Callable[[], Result]) -> Result:
    """Return the result of calling `read`; prefix the messages of errors that it raises with a path."""
    try:
        return read()
    except PretuneError as error:
        raise PretuneError(f"{path}: the model cannot be loaded: {error}") from error


def _checked_dropout(config: Any, dropout: Mapping[str, float], path: Path) -> dict[str, float]:
    """Return dropout rates to set in a configuration; raise an error for unknown names and for rates outside [0, 1)."""
    known = [field.name for field in fields(config) if "drop" in field.name]
    for name, share in dropout.items():
        if name not in known:
            raise PretuneError(f"{path}: no dropout is named {name!r}; {suggest(name, known)}")
        if not 0 <= share < 1:
            raise PretuneError(
                f"--dropout.{name} {share:g}: the rate must be at least 0 and less than 1, for example 0.1"
            )
    return dict(dropout)


def _tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer in a model folder; None if it has none, or separate ones for source and target."""
    if not (folder / "tokenizer.json").is_file():
        files = [*map(folder.joinpath, ("vocab.txt", "vocab.json", "encoder.json")), *folder.glob("*.model")]
        if (folder / "source.spm").is_file() or not any(file.is_file() for file in files):
            return None
    return Tokenizer.load(folder)
