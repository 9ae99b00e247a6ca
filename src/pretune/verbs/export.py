"""`export`: a model for other programs, or refitted for what comes next."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretune.runtime.output_paths import new_folder
from pretune.verbs.results import Facts
from pretune.verbs.verb import only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


@verb(
    only(
        "dtype",
        "shard_size",
        where="with --to hf or sentence-transformers (`pretune quantize` makes smaller graphs)",
        when=lambda o: o.to != "onnx",
    ),
    only(
        "pooling",
        "normalize",
        "max_length",
        where="with --to sentence-transformers",
        when=lambda o: o.to in (None, "sentence-transformers"),
    ),
    only("new_positions", where="with --longer", when=lambda o: o.longer is not None),
    out=new_folder,
)
def export(
    model: str | Path | Run,
    *,
    out: str | Path,
    to: Literal["hf", "sentence-transformers", "onnx"] | None = None,
    head: str | None = None,
    pooling: str | None = None,
    normalize: bool = False,
    max_length: int | None = None,
    license: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    shard_size: str | None = None,
    match_vocabulary: str | Path | None = None,
    longer: int | None = None,
    new_positions: Literal["copy", "interpolate"] = "copy",
    partial: bool = False,
) -> Facts:
    """Write a model as a folder that other programs load: transformers, sentence-transformers, ONNX Runtime.

    The folder comes with a model card, README.md. On the way the model can get another vocabulary or more positions; go on
    from the new folder with adapt, pretrain or finetune.

    Parameters
    ----------
    model
        A run or model folder.
    out
        The new folder.
    to
        The format: hf, config.json and model.safetensors as on the Hugging Face Hub; sentence-transformers, the same with the
        modules that give vectors of texts; onnx, a graph with the outputs last_hidden_state and, for a task or a language
        model, logits, which pretune predicts and embeds with, too. By default sentence-transformers for models that were
        trained with contrast, and hf for all others.
    head
        Which of its heads to keep: mlm, lm, classify …, or none for the bare model; all by default.
    pooling
        For sentence-transformers: another pooling than the model's own, which is the mean unless it was trained with
        another: mean, max, start (the first token), last, mean_sqrt_len or weighted_mean; several are joined with +.
    normalize
        For sentence-transformers: scale vectors to unit length.
    max_length
        For sentence-transformers: cut texts to so many tokens.
    license
        The license of the model, for its card, such as apache-2.0; that of the source's card where it has one.
    dtype
        Type of the weights.
    shard_size
        Cut the weights into files of this size at most, e.g. 2GB.
    match_vocabulary
        A tokenizer to put in place of the model's own: tokens that both share keep their vectors, the others start from the mean.
    longer
        Give a model with learned positions so many of them.
    new_positions
        How: the old ones copied over and over, or stretched (interpolate).
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> export("runs/mine", head="mlm", out="for-others").facts["class"]  # doctest: +SKIP
    'BertForMaskedLM'
    """
    import os

    import torch

    from pretune.models.adapt_vocabulary import lengthen
    from pretune.models.adapt_vocabulary import match_vocabulary as match
    from pretune.models.model import LENGTH, find_folder, load
    from pretune.models.model_card import write_card
    from pretune.models.weights import read_size
    from pretune.objectives import Task
    from pretune.runtime.errors import PretuneError
    from pretune.text.tokenizers.tokenizer import Tokenizer

    out, reference = Path(out), os.fspath(model)
    source = Path(reference) if Path(reference).is_dir() else find_folder(reference)
    size = read_size(shard_size) if shard_size is not None else None
    tokenizer = Tokenizer.load(match_vocabulary) if match_vocabulary is not None else None
    loaded = load(reference, partial=partial)
    if to is None:
        to = "sentence-transformers" if gives_vectors(loaded, head) else "hf"
    if to != "sentence-transformers" and (pooling is not None or normalize or max_length is not None):
        raise PretuneError("--pooling, --normalize and --max-length are for --to sentence-transformers; leave them out")
    if to != "onnx" and not loaded.family.elsewhere:
        raise PretuneError(
            f"{reference}: {loaded.family.name} has no layout that `transformers` reads; use it with pretune"
        )
    heads = loaded.root.heads
    known = {name for names in loaded.family.classes for name in names}
    own = {loaded.embedding_head[0]} if loaded.embedding_head is not None else set()
    if to == "sentence-transformers":
        keep_vectors(loaded, reference, head, pooling, normalize)
    elif head is not None or to == "hf":
        keep_heads(loaded, head or "+".join(sharing(heads, known)) or "none", reference)
    report: dict[str, Any] = {}
    facts: dict[str, Any]
    if tokenizer is not None:
        loaded, report["vocabulary"] = match(loaded, tokenizer)
    if longer is not None:
        loaded, report["positions"] = lengthen(loaded, longer, new_positions)
    if max_length is not None:
        least, most = loaded.family.template.overhead(pair=False) + 1, loaded.backbone.longest or max_length
        if not least <= max_length <= most:
            raise PretuneError(f"--max-length {max_length}: {reference} takes from {least} to {most} tokens")
        loaded.max_length = max_length
    if to == "onnx":
        from pretune.models.model import trained_for
        from pretune.models.onnx_export import export_graph

        trained = trained_for(reference)
        parts = trained.objectives if trained is not None else []
        tasks = [part for part in parts if isinstance(part, Task) and part.name in loaded.root.heads]
        facts = export_graph(loaded, out, tasks)
        write_card(
            out, history(source, whole=not report and head is None), exported=True, source=source, license=license
        )
        return Facts({**facts, "files": sorted(file.name for file in out.iterdir()), **report})
    kind = getattr(torch, dtype)
    name = loaded.export(out, kind, compute=kind, shard=size, companions=not loaded.untrained)
    its = {head for names, kind in loaded.family.classes.items() if kind == name for head in names}
    its |= own if to == "sentence-transformers" else set()
    left = [name for name in heads if name not in sharing(heads, its)] if head is None else []
    same = not (left or report or (head is not None and set(head.split("+")) != set(heads)))
    write_card(out, history(source, same), exported=True, source=source, license=license)
    facts = {"folder": str(out), "layout": to, "class": name}
    if loaded.embedding_head is not None:
        facts |= loaded.embedding_head[1].embedding.describe(loaded.backbone.width)
        facts["max_length"] = loaded.longest or LENGTH
    facts |= {
        "parameters": sum(p.numel() for p in loaded.root.parameters()),
        "dtype": dtype,
        "files": sorted(file.name for file in out.iterdir()),
    }
    facts |= {"no_place_for": left} if left else {}
    return Facts({**facts, **({"left_random": loaded.untrained} if loaded.untrained else {}), **report})


def history(source: Path, whole: bool) -> Any:
    """Return how a model was made, where it is a run's; its scores are those of the model as a `whole`."""
    from pretune.training.run_folder import RECIPE, Run

    if not (source / RECIPE).is_file():
        return None
    made = Run(source).history
    return made if whole else replace(made, results={k: x for k, x in made.results.items() if not k.startswith("dev/")})


def gives_vectors(model: Any, head: str | None) -> bool:
    """Return whether vectors of texts are all that a model was trained for, and what is asked of it."""
    vectors = model.embedding_head
    return vectors is not None and len(model.root.heads) == 1 and head in (None, vectors[0])


def keep_vectors(model: Any, reference: str, head: str | None, pooling: str | None, normalize: bool) -> None:
    """Leave the model one head, that gives vectors of texts: its own, or a pooling of the top layer's states."""
    from torch import nn

    from pretune.nn.text_embedding import TextEmbedding, TextEmbeddingHead
    from pretune.objectives.tasks.contrast import Contrast
    from pretune.objectives.tasks.layer_features import OnHead
    from pretune.runtime.errors import PretuneError

    name, own = model.embedding_head or ("", None)
    if head is not None and head != name:
        raise PretuneError(f"--head {head} is for --to hf; sentence-transformers folders have no such head")
    if any(isinstance(h, OnHead) and isinstance(h.head, TextEmbeddingHead) for h in model.root.heads.values()):
        raise PretuneError(
            f"{reference}: {model.objective} uses several layers, which sentence-transformers cannot say"
        )
    embedding = (own.embedding if own is not None else model.embedding or TextEmbedding()).changed(pooling, normalize)
    made = TextEmbeddingHead(embedding, model.backbone.width)
    if own is not None:  # what is added has no parameters
        made.load_state_dict(own.state_dict())
    model.root.heads = nn.ModuleDict({Contrast.name: made})
    model.objective, model.labels, model.options, model.tasks = Contrast.name, [], {}, {}
    model.untrained = [name for name in model.untrained if not name.startswith("heads.")]


def sharing(heads: Any, names: set[str]) -> list[str]:
    """Heads that have one of the names, or are the same as one that has (tlm's is mlm's)."""
    return [name for name in heads if any(heads[name] is heads[other] for other in names & heads.keys())]


def keep_heads(model: Any, names: str, reference: str) -> None:
    """Leave the model those heads alone, in the order of its own; `none` is a name too."""
    from torch import nn

    from pretune.objectives import task_names
    from pretune.runtime.errors import PretuneError

    wanted = [] if names == "none" else names.split("+")
    heads = model.root.heads
    for name in wanted:
        if name not in heads:
            raise PretuneError(f"{reference}: no head {name!r}; it has {', '.join(heads) or 'none'}")
    if sorted(wanted) != sorted(heads):
        options = dict(re.findall(r"([a-z_]+)(\([^)]*\))?", model.objective))
        # A head that two objectives share is named by the one that was trained.
        own = [
            name
            for name in wanted
            if name in options or not any(heads[name] is heads[x] for x in options if x in heads)
        ]
        model.objective = "+".join(f"{name}{options.get(name, '')}" for name in own)
    if not set(wanted) & set(task_names()):  # labels are a task's
        model.labels, model.options = [], {}
    model.root.heads = nn.ModuleDict({name: head for name, head in heads.items() if name in wanted})
    model.untrained = [
        name for name in model.untrained if name.split(".")[0] != "heads" or name.split(".")[1] in wanted
    ]
