"""The `export` verb: write a model for transformers, sentence-transformers, ONNX Runtime, torch, or as a single Python file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.results import ResultSummary
from pretune.verbs.verb import only, verb

GRAPHS = ("onnx", "ort")  # formats that ONNX Runtime reads


@verb(
    only(
        "dtype",
        where="with --format hf, sentence-transformers, onnx, or ort",
        when=lambda o: o.format not in ("torch", "single-file"),
    ),
    only(
        "max_shard_size",
        where="with --format hf or sentence-transformers",
        when=lambda o: o.format in (None, "hf", "sentence-transformers"),
    ),
    only(
        "pooling",
        "normalize",
        "max_length",
        where="with --format sentence-transformers",
        when=lambda o: o.format in (None, "sentence-transformers"),
    ),
    only("position_init", where="with --max-positions", when=lambda o: o.max_positions is not None),
    common=("format", "head", "pooling", "max_length", "license", "dtype"),
    out=check_new_folder,
)
def export(
    model: opt.Model,
    *,
    out: str | Path,
    format: Literal["hf", "sentence-transformers", "onnx", "ort", "torch", "single-file"] | None = None,
    head: str | None = None,
    pooling: opt.Pooling = None,
    normalize: bool = False,
    max_length: int | None = None,
    license: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16", "int8"] = "float32",
    max_shard_size: str | None = None,
    new_tokenizer: str | Path | None = None,
    max_positions: int | None = None,
    position_init: Literal["copy", "interpolate"] = "copy",
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultSummary:
    """Export a model to a folder: for transformers, sentence-transformers, ONNX Runtime, or torch, or as a single Python file.

    The exported model is loaded again and compared with the original on texts, one and many, before the command reports success.
    --new-tokenizer replaces the vocabulary, and --max-positions extends the maximum length; train the result further with adapt,
    pretrain, or finetune.

    Parameters
    ----------
    out
        Folder to write.
    format
        hf: config.json and model.safetensors, as on the Hugging Face Hub; sentence-transformers: the same with pooling modules; onnx: a
        graph with the outputs last_hidden_state and, for a task or language model, logits, which also works with pretune; ort: the same
        in the format of ONNX Runtime's mobile builds; torch: the same as a program of torch.export (.pt2); single-file: model.py, one
        readable file that runs the model with torch and tokenizers alone. By default sentence-transformers for models
        that were trained with contrast, and hf for all others.
    head
        Head to keep: mlm, lm, classify, …, or none for the bare model; all by default.
    normalize
        For sentence-transformers: normalize embeddings to unit length.
    max_length
        For sentence-transformers: truncate texts to this many tokens.
    license
        License for the model card, such as apache-2.0; by default that of the source's card, if it has one.
    dtype
        Data type of the weights. int8 is for onnx and ort; to compare such a model with the original, use quantize.
    max_shard_size
        Maximum size of a weight file, e.g. 2GB; larger models are split.
    new_tokenizer
        Tokenizer to replace the model's: shared tokens keep their embeddings, new ones are initialized with the mean.
    max_positions
        New maximum number of positions, for a model with learned position embeddings.
    position_init
        How new position embeddings are initialized: by repeating the old ones (copy), or by interpolating them (interpolate).

    Examples
    --------
    >>> export("runs/mine", head="mlm", out="for-others").facts["class"]  # doctest: +SKIP
    'BertForMaskedLM'
    """

    import torch

    from pretune.models.adapt_vocabulary import extend_positions, replace_vocabulary
    from pretune.models.hf_config import DEFAULT_MAX_LENGTH
    from pretune.models.loading import load
    from pretune.models.model_card import write_card
    from pretune.models.name_resolution import find_folder
    from pretune.models.reload_check import check_reloaded
    from pretune.models.weight_files import parse_size
    from pretune.objectives import Task
    from pretune.runtime.progress import log_info
    from pretune.text.tokenizers.tokenizer import Tokenizer
    from pretune.verbs.shared_inputs import model_reference

    out, reference = Path(out), model_reference(model)
    source = Path(reference) if Path(reference).is_dir() else find_folder(reference)
    size = parse_size(max_shard_size) if max_shard_size is not None else None
    tokenizer = Tokenizer.load(new_tokenizer) if new_tokenizer is not None else None
    loaded = load(reference, ignore_mismatched=ignore_mismatched)
    if format is None:
        format = "sentence-transformers" if gives_vectors(loaded, head) else "hf"
    if format != "sentence-transformers" and (pooling is not None or normalize or max_length is not None):
        raise PretuneError(
            "--pooling, --normalize and --max-length apply only with --format sentence-transformers; leave these options "
            "out, or choose this format"
        )
    if (dtype == "int8") != (format in GRAPHS and dtype != "float32"):
        raise PretuneError(
            f"--dtype {dtype} does not apply with --format {format}; "
            f"choose {'float32 or int8' if format in GRAPHS else 'float32, bfloat16, or float16'}"
        )
    if format in ("hf", "sentence-transformers") and not loaded.family.in_transformers:
        raise PretuneError(
            f"{reference}: `transformers` has no model class for {loaded.family.name}; use the model with pretune"
        )
    heads = loaded.root.heads
    known = {name for names in loaded.family.classes for name in names}
    own = {loaded.embedding_head[0]} if loaded.embedding_head is not None else set()
    if format == "sentence-transformers":
        keep_vectors(loaded, reference, head, pooling, normalize)
    elif format != "single-file" and (head is not None or format == "hf"):
        keep_heads(loaded, head or "+".join(sharing(heads, known)) or "none", reference)
    report: dict[str, Any] = {}
    facts: dict[str, Any]
    if tokenizer is not None:
        loaded, report["vocabulary"] = replace_vocabulary(loaded, tokenizer)
    if max_positions is not None:
        loaded, report["positions"] = extend_positions(loaded, max_positions, position_init)
    if max_length is not None:
        least = loaded.family.template.num_special_tokens(pair=False) + 1
        most = loaded.backbone.max_positions or max_length
        if not least <= max_length <= most:
            raise PretuneError(
                f"--max-length {max_length}: choose a length from {least} to {most} tokens for {reference}"
            )
        loaded.max_length = max_length
    if format == "single-file":
        from pretune.models.checkpoint_heads import stored_objectives
        from pretune.models.single_file.export import export_single_file

        trained = stored_objectives(reference)
        facts = export_single_file(loaded, out, trained.objectives if trained is not None else (), head, license)
        return ResultSummary({**facts, **report})
    if format in (*GRAPHS, "torch"):
        from pretune.compression.onnx_int8 import quantize_graph_dynamic
        from pretune.models.checkpoint_heads import stored_objectives
        from pretune.models.onnx_export import export_graph
        from pretune.models.torch_export import export_program

        trained = stored_objectives(reference)
        parts = trained.objectives if trained is not None else []
        tasks = [part for part in parts if isinstance(part, Task) and part.name in loaded.root.heads]
        if format == "torch":
            facts = export_program(loaded, out, tasks)
        else:
            quantize = quantize_graph_dynamic if dtype == "int8" else None
            facts = export_graph(loaded, out, tasks, quantize=quantize, mobile=format == "ort")
            if any(task.reads_word_vectors for task in tasks):
                log_info(
                    f"{out}: the graph runs in ONNX Runtime alone; pretune cannot predict with it, because the head reads word "
                    "vectors. Use the original with pretune"
                )
        if loaded.bag_of_words is not None:
            share = loaded.bag_of_words.share
            also = "replaces its predictions by" if share == 1 else f"averages its predictions ({1 - share:.0%}) with"
            log_info(
                f"{out}: the graph is the network alone, also its logits; with this folder, pretune {also} those of a bag of words"
            )
        write_card(
            out, history(source, whole=not report and head is None), exported=True, source=source, license=license
        )
        return ResultSummary({**facts, "files": sorted(file.name for file in out.iterdir()), **report})
    kind = getattr(torch, dtype)
    name = loaded.export(out, kind, compute=kind, shard=size, companions=not loaded.untrained)
    check_reloaded(loaded, out, kind)
    its = {head for names, kind in loaded.family.classes.items() if kind == name for head in names}
    its |= own if format == "sentence-transformers" else set()
    left = [name for name in heads if name not in sharing(heads, its)] if head is None else []
    same = not (left or report or (head is not None and set(head.split("+")) != set(heads)))
    write_card(out, history(source, same), exported=True, source=source, license=license)
    facts = {"folder": str(out), "format": format, "class": name}
    if loaded.embedding_head is not None:
        facts |= loaded.embedding_head[1].embedding.describe(loaded.backbone.width)
        facts["max_length"] = loaded.longest or DEFAULT_MAX_LENGTH
    facts |= {
        "parameters": sum(p.numel() for p in loaded.root.parameters()),
        "dtype": dtype,
        "files": sorted(file.name for file in out.iterdir()),
    }
    facts |= {"dropped_heads": left} if left else {}
    if left:
        advice = ""
        if set(left) <= frozenset().union(*loaded.family.classes):  # a class has the usual head of the task
            advice = "; --format onnx keeps it, and so does a model of `pretune finetune --strategy full`"
        log_info(
            f"{reference}: the class {name} of `transformers` has no head for {', '.join(left)}, so the exported model lacks "
            f"it{advice}"
        )
    return ResultSummary(
        {**facts, **({"randomly_initialized": loaded.untrained} if loaded.untrained else {}), **report}
    )


def history(source: Path, whole: bool) -> Any:
    """Return the training history of a run folder, or None for other folders.

    `whole` is false if the exported model was changed; then the dev scores of the original are left out.
    """
    from pretune.training.run_folder import RECIPE, Run

    if not (source / RECIPE).is_file():
        return None
    made = Run(source).history
    return made if whole else replace(made, results={k: x for k, x in made.results.items() if not k.startswith("dev/")})


def gives_vectors(model: Any, head: str | None) -> bool:
    """Return whether a model's only head computes text embeddings; `head`, unless None, must name this head."""
    vectors = model.embedding_head
    return vectors is not None and len(model.root.heads) == 1 and head in (None, vectors[0])


def keep_vectors(model: Any, reference: str, head: str | None, pooling: str | None, normalize: bool) -> None:
    """Replace all heads of a model by one for text embeddings: its existing one, or a pooling of the top layer.

    `head` is the value of --head, and `reference` names the model in error messages.
    """
    from torch import nn

    from pretune.nn.sentence_embedding import TextEmbedding, TextEmbeddingHead
    from pretune.objectives.tasks.contrast import Contrast
    from pretune.objectives.tasks.layer_features import LayerFeaturesHead

    name, own = model.embedding_head or ("", None)
    if head is not None and head != name:
        raise PretuneError(f"--head {head}: a sentence-transformers folder cannot contain this head; use --format hf")
    if any(
        isinstance(h, LayerFeaturesHead) and isinstance(h.head, TextEmbeddingHead) for h in model.root.heads.values()
    ):
        raise PretuneError(
            f"{reference}: the objective {model.objective!r} reads several layers, which the sentence-transformers format cannot express; export it with --format hf"
        )
    embedding = (own.embedding if own is not None else model.embedding or TextEmbedding()).with_options(
        pooling, normalize
    )
    made = TextEmbeddingHead(embedding, model.backbone.width)
    if own is not None:  # pooling and normalization have no parameters
        made.load_state_dict(own.state_dict())
    model.root.heads = nn.ModuleDict({Contrast.name: made})
    model.objective, model.labels, model.options, model.tasks = Contrast.name, [], {}, {}
    model.untrained = [name for name in model.untrained if not name.startswith("heads.")]


def sharing(heads: Any, names: set[str]) -> list[str]:
    """Return the names of the heads in `names`, and of other heads that are the same module, as tlm and mlm are."""
    return [name for name in heads if any(heads[name] is heads[other] for other in names & heads.keys())]


def keep_heads(model: Any, names: str, reference: str) -> None:
    """Remove all heads of a model except those in `names`, which are joined with `+`; "none" removes all."""
    from torch import nn

    from pretune.objectives import task_names

    wanted = [] if names == "none" else names.split("+")
    heads = model.root.heads
    for name in wanted:
        if name not in heads:
            instead = f"its heads are: {', '.join(heads) or 'none'}"
            raise PretuneError(f"{reference}: the model has no head {name!r}; {suggest(name, heads, instead)}")
    if sorted(wanted) != sorted(heads):
        options = dict(re.findall(r"([a-z_]+)(\([^)]*\))?", model.objective))
        # A head that two objectives share is named after the one that was trained.
        own = [
            name
            for name in wanted
            if name in options or not any(heads[name] is heads[x] for x in options if x in heads)
        ]
        model.objective = "+".join(f"{name}{options.get(name, '')}" for name in own)
    if not set(wanted) & set(task_names()):  # only tasks have labels
        model.labels, model.options = [], {}
    model.root.heads = nn.ModuleDict({name: head for name, head in heads.items() if name in wanted})
    model.untrained = [
        name for name in model.untrained if name.split(".")[0] != "heads" or name.split(".")[1] in wanted
    ]
