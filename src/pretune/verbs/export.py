"""`export`: a model for other programs, or refitted for what comes next."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretune.verbs.results import Facts

if TYPE_CHECKING:
    from pretune.training.runs import Run


def export(
    model: str | Path | Run,
    *,
    out: str | Path,
    to: Literal["hf", "onnx"] = "hf",
    head: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    shard_size: str | None = None,
    match_vocabulary: str | Path | None = None,
    longer: int | None = None,
    new_positions: Literal["copy", "interpolate"] = "copy",
    partial: bool = False,
) -> Facts:
    """Write a model as a folder that other programs load, such as `transformers` with AutoModel….

    On the way it can get another vocabulary or more positions; go on from the new folder with adapt, pretrain or finetune.

    Parameters
    ----------
    model
        A run or model folder.
    out
        The new folder.
    to
        The format: hf, config.json and model.safetensors as on the Hugging Face Hub; onnx, a graph with the outputs
        last_hidden_state and, for a task or a language model, logits, which pretune predicts and embeds with, too.
    head
        Which of its heads to keep: mlm, lm, classify …, or none for the bare model; all by default.
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
        Go on where tensors are missing, unknown or of another shape; what the model lacks is left random.

    Examples
    --------
    >>> export("runs/mine", head="mlm", out="for-others").facts["class"]  # doctest: +SKIP
    'BertForMaskedLM'
    """
    import os

    import torch

    from pretune.errors import PretuneError
    from pretune.model import load
    from pretune.objectives import Task
    from pretune.refit import lengthen
    from pretune.refit import match_vocabulary as match
    from pretune.text.tokenizer import Tokenizer
    from pretune.weights import read_size

    out, reference = Path(out), os.fspath(model)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PretuneError(f"{out}: exists and is not empty; choose another --out")
    if to == "onnx" and (dtype != "float32" or shard_size is not None):
        raise PretuneError("--dtype and --shard-size are for --to hf; `pretune quantize` makes smaller graphs")
    size = read_size(shard_size) if shard_size is not None else None
    tokenizer = Tokenizer.load(match_vocabulary) if match_vocabulary is not None else None
    loaded = load(reference, partial=partial)
    if to == "hf" and not loaded.family.elsewhere:
        raise PretuneError(
            f"{reference}: {loaded.family.name} has no layout that `transformers` reads; use it with pretune"
        )
    heads = loaded.root.heads
    known = {name for names in loaded.family.classes for name in names}
    if head is not None or to == "hf":
        keep_heads(loaded, head or "+".join(sharing(heads, known)) or "none", reference)
    report: dict[str, Any] = {}
    if tokenizer is not None:
        loaded, report["vocabulary"] = match(loaded, tokenizer)
    if longer is not None:
        loaded, report["positions"] = lengthen(loaded, longer, new_positions)
    if to == "onnx":
        from pretune.model import trained_for
        from pretune.onnx_export import export_graph

        trained = trained_for(reference)
        parts = trained.objectives if trained is not None else []
        return Facts({**export_graph(loaded, out, [part for part in parts if isinstance(part, Task)]), **report})
    kind = getattr(torch, dtype)
    name = loaded.export(out, kind, compute=kind, shard=size, companions=not loaded.untrained)
    its = {head for names, kind in loaded.family.classes.items() if kind == name for head in names}
    left = [name for name in heads if name not in sharing(heads, its)] if head is None else []
    facts: dict[str, Any] = {
        "folder": str(out),
        "class": name,
        "parameters": sum(p.numel() for p in loaded.root.parameters()),
        "dtype": dtype,
        "files": sorted(file.name for file in out.iterdir()),
    }
    facts |= {"no_place_for": left} if left else {}
    return Facts({**facts, **({"left_random": loaded.untrained} if loaded.untrained else {}), **report})


def sharing(heads: Any, names: set[str]) -> list[str]:
    """Heads that have one of the names, or are the same as one that has (tlm's is mlm's)."""
    return [name for name in heads if any(heads[name] is heads[other] for other in names & heads.keys())]


def keep_heads(model: Any, names: str, reference: str) -> None:
    """Leave the model those heads alone, in the order of its own; `none` is a name too."""
    from torch import nn

    from pretune.errors import PretuneError
    from pretune.objectives import OBJECTIVES

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
    if not any(hasattr(OBJECTIVES[name], "answers") for name in wanted):  # labels are a task's
        model.labels, model.options = [], {}
    model.root.heads = nn.ModuleDict({name: head for name, head in heads.items() if name in wanted})
    model.untrained = [
        name for name in model.untrained if name.split(".")[0] != "heads" or name.split(".")[1] in wanted
    ]
