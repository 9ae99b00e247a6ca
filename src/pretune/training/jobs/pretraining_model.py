"""The model of a pretraining job: a preset or an existing model, with the heads of the objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pretune.inference.word_vector_models import copy_word_vectors
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import find_folder
from pretune.models.presets import is_preset
from pretune.objectives import Mixture
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.progress import log_info
from pretune.text.corpus.word_vector_files import read_word_vectors
from pretune.text.examples.image_texts import region_sizes
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.jobs.pretraining_settings import PretrainingJob

ROUND_VOCABULARY = 64  # the vocabulary is padded to a multiple: such matrices are faster


def rounded_size(tokenizer: Tokenizer) -> int:
    """Return the number of embeddings for a tokenizer: its vocabulary size, rounded up for fast matrix products."""
    return -(-tokenizer.size // ROUND_VOCABULARY) * ROUND_VOCABULARY


def get_model(
    plan: PretrainingJob, tokenizer: Tokenizer, mixture: Mixture, languages: Sequence[str] = (), rows: Any = None
) -> Model:
    """Return the model of a pretraining job, with heads for its objectives; it is loaded, or created from a preset.

    A new model has embeddings for `languages`, and for the regions of images in `rows`.
    """
    if is_preset(plan.model):
        size, padding = rounded_size(tokenizer), tokenizer.roles.get("padding")
        target = rounded_size(tokenizer.target) if tokenizer.target is not tokenizer else None
        regions = region_sizes(rows)
        model = make_model(
            plan.model, size, plan.seed, padding=padding, languages=languages, target=target, regions=regions
        )
        if plan.init_from is not None:
            source = load_model(plan.init_from, ignore_mismatched=plan.ignore_mismatched)
            check_tokenizer(source, tokenizer, plan.init_from)
            copy_backbone(source, model, plan.init_from)
            model.finetuning = model.finetuning or source.finetuning
    else:
        model = load_model(plan.model, mixture, seed=plan.seed, ignore_mismatched=plan.ignore_mismatched)
        model.report_skipped_heads(plan.model)
        check_tokenizer(model, tokenizer, plan.model)
    model.add_heads(mixture.objectives, plan.seed)
    model.tokenizer, model.objective, model.labels = tokenizer, plan.objective, []
    if plan.word_vectors is not None:
        copy_word_vectors(model, read_word_vectors(plan.word_vectors), plan.word_vectors)
    return model


def copy_backbone(source: Model, model: Model, name: str) -> None:
    """Copy the backbone weights of the model `source` to `model`; raise an error if shapes differ.

    `name` is the name of the source model in the error message.
    """
    weights, own = source.backbone.state_dict(), model.backbone.state_dict()
    if wrong := [key for key in own if key not in weights or weights[key].shape != own[key].shape]:
        raise PretuneError(
            f"{name}: the shapes of these tensors differ from the new model's: {', '.join(wrong)}; use a preset of the same sizes"
        )
    model.backbone.load_state_dict(weights)


def check_tokenizer(model: Model, tokenizer: Tokenizer, name: str) -> None:
    """Raise an error if `tokenizer`, with which the text was tokenized, is not the tokenizer of the model.

    `name` is the name of the model in the error message.
    """
    if model.tokenizer is not None and model.tokenizer.digest != tokenizer.digest:
        raise PretuneError(
            f"{name}: the text was tokenized with another tokenizer than this model's; "
            f"prepare it with `pretune prepare --tokenizer {find_folder(name)}`"
        )
    if tokenizer.size > model.backbone.embed.vocabulary:
        raise PretuneError(
            f"the tokenizer has {tokenizer.size} tokens, but {name} has embeddings for {model.backbone.embed.vocabulary}; use "
            "the tokenizer of the model"
        )


def check_length(length: int, model: Model) -> int:
    """Return the sequence length `length`; raise an error if the model has fewer positions than this."""
    longest = model.backbone.max_positions
    if longest is not None and length > longest:
        raise PretuneError(
            f"sequences have {length} tokens, but the model has {longest} positions; set a smaller batch.max_length"
        )
    return length


def check_stages(stages: Sequence[tuple[float, int]], model: Model) -> list[int]:
    """Return the sequence length of each training stage, given pairs (share of the budget, sequence length until then).

    An error is raised unless the shares increase and end at 1.
    """
    shares = [share for share, _ in stages]
    if shares != sorted(shares) or shares[-1] != 1.0:
        raise PretuneError(
            f"batch.length_schedule: the shares of the budget are {shares}, but they must increase and end at 1, as in "
            "[[0.9, 128], [1.0, 512]]"
        )
    return [check_length(length, model) for _, length in stages]


def number_languages(model: Model, names: Sequence[str], reference: str) -> dict[str, int]:
    """Return the index of each language's embedding in a model, by name; error messages call the model `reference`."""
    vectors = getattr(model.backbone.embed, "columns", {})
    known = getattr(model.config, "lang2id", None) or {}
    if len(names) < 2:
        return {name: known[name] for name in names if name in known and "language" in vectors}
    if "language" not in vectors:
        log_info(f"{reference} has no language embeddings: it cannot tell {', '.join(names)} apart")
        return {name: number for number, name in enumerate(names)}
    if missing := [name for name in names if name not in known]:
        instead = f"the model has {', '.join(known) or 'none'}"
        hint = suggest(missing[0], known, instead)
        raise PretuneError(f"{reference}: there is no embedding of the language {missing[0]!r}; {hint}")
    return {name: known[name] for name in names}


def count_parameters(model: Model) -> int:
    """Return the number of parameters of a model, where shared parameters count once."""
    return sum(p.numel() for p in model.root.parameters())
