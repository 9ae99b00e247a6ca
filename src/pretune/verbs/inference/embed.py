"""The `embed` verb: compute text embeddings."""

from __future__ import annotations

from pathlib import Path

from pretune.runtime.output_paths import check_new_file
from pretune.verbs import options as opt
from pretune.verbs.option_modes import TEXT_COLUMN_RULE
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import verb


@verb(TEXT_COLUMN_RULE, out=check_new_file)
def embed(
    model: opt.Model,
    inputs: opt.TextInputs = (),
    *,
    text: opt.Text = None,
    pooling: opt.Pooling = None,
    layer: int = -1,
    prompt: str | None = None,
    prompt_name: str | None = None,
    language: opt.TextLanguage = None,
    engine: opt.Engine = "torch",
    out: str | Path | None = None,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Compute an embedding for each text, in order.

    A model that was trained with `contrast`, or comes from sentence-transformers, uses its own pooling, normalization, prompts, and
    maximum length. Every line of a .txt file has an embedding, so that row i belongs to line i + 1. A message
    reports the number of blank lines, whose embeddings are meaningless.

    Parameters
    ----------
    layer
        Layer to pool: 0 for the token embeddings, -1 for the top layer.
    prompt
        Prompt to prepend to each text, instead of the model's default prompt.
    prompt_name
        Name of the model's prompt to prepend to each text, such as query.
    out
        Write the embeddings to this .npy file instead of printing them.

    Examples
    --------
    >>> len(embed("runs/mine", ["one", "two"]))  # doctest: +SKIP
    2
    """
    import io

    import numpy as np

    from pretune.inference.embed import embed_texts
    from pretune.runtime.atomic_io import write_bytes
    from pretune.verbs.shared_inputs import open_reference, read_texts, with_engine

    texts = [item.text for item in read_texts(inputs, text)]
    reference = with_engine(open_reference(model), engine, measure=True, ignore_mismatched=ignore_mismatched)
    vectors = embed_texts(reference, texts, pooling, layer, ignore_mismatched, prompt, prompt_name, language)
    if out is not None:
        buffer = io.BytesIO()
        np.save(buffer, vectors)
        write_bytes(Path(out), buffer.getvalue())
        return ResultTable("written", [{"file": str(out), "vectors": len(vectors), "width": vectors.shape[1]}])
    return ResultTable("vectors", [{"text": t, "vector": v.tolist()} for t, v in zip(texts, vectors, strict=True)])
