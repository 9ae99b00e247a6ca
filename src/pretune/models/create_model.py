"""Models with random parameters: from a preset, or of the same architecture as another model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch

from pretune.families import find_family
from pretune.models.language_embeddings import set_language
from pretune.models.model import Model, Network
from pretune.models.presets import find_preset
from pretune.runtime.errors import PretuneError, suggest


def make_model(
    name: str,
    vocabulary: int | None = None,
    seed: int = 0,
    padding: int | None = None,
    languages: Sequence[str] = (),
    target: int | None = None,
    regions: tuple[int, int | None] | None = None,
) -> Model:
    """Return a randomly initialized model with the configuration of a preset.

    `vocabulary` is the vocabulary size and, for families with two vocabularies, `target` that of the target language;
    the preset's sizes are the defaults. `padding` is the id of the padding token. `languages` are the names of
    languages, for families with language embeddings. `regions` are the width of the features of image regions and the
    number of their classes (None: unknown), for families that read images.

    >>> make_model("bert-tiny").backbone.width
    128
    """
    preset = find_preset(name)
    family = find_family(preset["family"], name)
    config = family.read_config(preset["config"])
    known = [field.name for field in fields(config)]
    if unknown := [key for key in preset["config"] if key not in known]:
        raise PretuneError(f"{name}: unknown key {unknown[0]!r} in config; {suggest(unknown[0], known)}")
    if vocabulary is not None:
        config = replace(config, vocab_size=vocabulary)
    if hasattr(config, "target_vocab_size") and (vocabulary is not None or target is not None):
        config = replace(config, target_vocab_size=target)
    elif target is not None:
        raise PretuneError(f"{name} has one vocabulary for source and target; remove the option tokenizer.target")
    if padding is not None and hasattr(config, "pad_token_id"):  # the first position of RoBERTa depends on it
        config = replace(config, pad_token_id=padding)
    if regions is not None and hasattr(config, "v_feature_size"):
        features, classes = regions
        config = replace(config, v_feature_size=features, v_target_size=classes or config.v_target_size)
    if len(languages) > 1 and hasattr(config, "lang2id"):
        numbers = {language: number for number, language in enumerate(languages)}
        names = {str(number): language for language, number in numbers.items()}
        config = replace(config, n_langs=len(languages), lang2id=numbers, id2lang=names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(family, config, Network(family.build(config)), finetuning=preset.get("finetuning", {}))


def random_copy(model: Model, seed: int = 0) -> Model:
    """Return a randomly initialized copy of a model: the same architecture and tokenizer, without heads.

    >>> random_copy(make_model("bert-tiny"), seed=1).config == make_model("bert-tiny").config
    True
    """
    root, limit = Network(model.random_backbone(seed)), model.max_length
    copy = Model(model.family, model.config, root, model.tokenizer, shape=model.shape, max_length=limit)
    copy.finetuning, copy.language = model.finetuning, model.language
    set_language(copy, copy.language, "the randomly initialized copy")
    return copy
