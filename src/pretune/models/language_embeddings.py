"""The language in which a model with language embeddings, such as XLM, reads texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretune.backbones.onnx_runtime import OnnxBackbone
from pretune.models.hf_config import log_once
from pretune.models.name_resolution import ModelReference
from pretune.nn.embedding.token_embedding import ColumnEmbedding, Embeddings
from pretune.runtime.errors import PretuneError, if_option, suggest

if TYPE_CHECKING:
    from pretune.models.model import Model


def language_table(model: Model) -> ColumnEmbedding | None:
    """Return the language embeddings of a model, or None if it has none or runs an ONNX graph."""
    if isinstance(model.backbone, OnnxBackbone):
        return None
    embed = model.backbone.embed
    table = embed.columns["language"] if isinstance(embed, Embeddings) and "language" in embed.columns else None
    return table if isinstance(table, ColumnEmbedding) else None


def language_ids(model: Model) -> dict[str, int]:
    """Return the index of each language's embedding in a model, by language; {} without language embeddings.

    If the configuration does not name the languages (`lang2id`), their names are their indices.

    >>> from pretune.models.create_model import make_model
    >>> language_ids(make_model("xlm-tiny", languages=["en", "fr"]))
    {'en': 0, 'fr': 1}
    """
    table = language_table(model)
    if table is None:
        return {}
    return dict(model.config.lang2id or {str(number): number for number in range(len(table.weight))})


def set_language(model: Model, language: str | None, reference: ModelReference) -> None:
    """Let a model read the texts that follow as texts in `language`; None: without a language embedding.

    An ONNX graph always reads them in the language with which it was exported. Error messages call the model
    `reference`.
    """
    if isinstance(model.backbone, OnnxBackbone):
        if language != model.language:
            own = "without a language" if model.language is None else f"as {model.language}"
            raise PretuneError(
                f"{reference}: the ONNX graph was exported to read texts {own} only; to read them otherwise, "
                "use the model from which the graph was exported"
            )
        return
    table, known = language_table(model), language_ids(model)
    if language is not None and language not in known:
        if table is None:
            raise PretuneError(
                f"{reference}: the model has no language embeddings, so it cannot be told that texts are in {language!r}"
                f"{if_option('language', '; leave out --language')}"
            )
        hint = suggest(language, known, f"the model has {', '.join(known)}")
        raise PretuneError(f"{reference}: there is no embedding of the language {language!r}; {hint}")
    if table is not None:
        table.absent = None if language is None else known[language]


def use_language(model: Model, language: str | None, reference: ModelReference) -> None:
    """Let a model read the texts that follow as texts in `language`; None stands for the language saved with the model.

    If `language` is None and no language was saved, no language embedding is added, as in `transformers` without
    `langs`. If `language` is None, the choice is logged. Error messages call the model `reference`.
    """
    chosen = language if language is not None else model.language
    set_language(model, chosen, reference)
    if language is None and (known := language_ids(model)):
        own = "no language embedding is added" if chosen is None else f"texts are read as {chosen}"
        advice = if_option("language", "; choose another one with --language")
        log_once(f"{reference} has embeddings of the languages {', '.join(known)}: {own}{advice}")
