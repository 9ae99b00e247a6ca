"""Find out which heads a stored model has: the objectives that it was trained with, and its text embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.families.family import Family
from pretune.models.hf_config import CONFIG_FILE, problem_objective, published_class, read_config, stored_labels
from pretune.models.name_resolution import ModelReference, find_folder
from pretune.models.sentence_transformers import read_layout
from pretune.nn.sentence_embedding import TextEmbedding
from pretune.objectives import Mixture, Task, parse_objective
from pretune.objectives.tasks.bag_of_words import BagOfWords, WithBagOfWords
from pretune.objectives.tasks.contrast import Contrast


def stored_objectives(reference: ModelReference) -> Mixture | None:
    """Return the objectives that a stored model (a folder or a model name) has heads for; None if it has no heads."""
    folder = find_folder(reference)
    family, content = read_config(folder)
    if (layout := read_layout(folder)) is not None:
        return parse_objective(Contrast.name, embedding=layout.embedding)
    path = folder / CONFIG_FILE
    section, labels = content.get("pretune", {}), stored_labels(folder, family, content, path)
    heads = family.heads_of(published_class(content))
    tasks = {"classify": problem_objective(content, labels, path)} if "classify" in heads else {}
    objective = section.get("objective") or "+".join(tasks.get(head, head) for head in sorted(heads))
    config = family.read_config(content, str(path))
    pooling = family.poolings.get(getattr(config, "classifier_pooling", ""), "cls")
    known = {"labels": tuple(labels), "pooling": pooling, **section.get("options", {})}
    known |= {"embedding": read_embedding(folder)} if "embedding" in section else {}
    if not objective:
        return None
    mixture, bag = parse_objective(objective, section.get("tasks"), **known), BagOfWords.load(folder)
    for task in (part for part in mixture.objectives if isinstance(part, Task)):
        mixture = mixture if bag is None else mixture.with_part(WithBagOfWords(task, bag))
    return mixture


def unsupported_head(reference: ModelReference) -> str:
    """Return a description of a stored model's head that pretune does not support, for messages, or "" if none."""
    family, content = read_config(find_folder(reference))
    head = family.unsupported_classes.get(class_name := published_class(content), "")
    return f"its class {class_name} has {head}" if head else ""


def text_embedding_of(reference: ModelReference) -> TextEmbedding | None:
    """Return the settings for text embeddings of a model, given by folder or name, or None if it has none."""
    return read_embedding(find_folder(reference))


def read_embedding(folder: Path) -> TextEmbedding | None:
    """Return the settings for text embeddings of the model in a folder, or None if it has none."""
    if (layout := read_layout(folder)) is not None:
        return layout.embedding
    content = read_config(folder)[1].get("pretune", {}).get("embedding")
    return TextEmbedding.read(content, str(folder / CONFIG_FILE)) if content else None


def stored_heads(family: Family, content: Mapping[str, Any]) -> set[str]:
    """Return the heads that a config.json implies: those of its `transformers` class and of its training objectives."""
    objective = content.get("pretune", {}).get("objective", "")
    parts = parse_objective(objective).objectives if objective else ()
    class_name = published_class(content)
    published = (heads for heads, name in family.classes.items() if name == class_name)
    return {name for part in parts for name in (part.kind, part.name)}.union(family.heads_of(class_name), *published)
