"""`predict`, `fill` and `embed`: using models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretune.verbs.results import Rows

if TYPE_CHECKING:
    from pretune.training.runs import Run


def predict(
    model: str | Path | Run,
    texts: Sequence[str] = (),
    *,
    data: str | Path | None = None,
    text: str | None = None,
    pair: str | None = None,
    task: str | None = None,
    out: str | Path | None = None,
    partial: bool = False,
) -> Rows:
    """Label texts with a fine-tuned model: as many answers as texts, in order.

    Parameters
    ----------
    model
        A fine-tuned run or model folder.
    texts
        Texts to label.
    data
        A file of rows to label instead: .csv, .tsv, .jsonl or .parquet.
    text
        Column of the text.
    pair
        Column of the second text.
    task
        Which of its tasks, for a model that was trained for several.
    out
        Write the answers to this .jsonl file.
    partial
        Go on where the checkpoint lacks tensors (these are left random), or has some that are unknown or of another shape.

    Examples
    --------
    >>> predict("runs/task", ["a delightful film"])[0]["label"]  # doctest: +SKIP
    'positive'
    """
    import json
    import os

    from pretune.atomic import write_bytes
    from pretune.errors import PretuneError
    from pretune.inference.predict import Answerer, load_trained, plain_texts

    if data is None and not texts:
        raise PretuneError("nothing to label: give texts, or a file with --data")
    loaded, chosen = load_trained(os.fspath(model), partial, task)
    columns = {role: name for role, name in (("text", text), ("pair", pair)) if name}
    examples = plain_texts(texts) if data is None else chosen.read(data, columns, answered=False)
    answers = Answerer(loaded, chosen, examples)()
    labeled = [{"text": text, **answer} for text, answer in zip(examples.texts, answers, strict=True)]
    if out is not None:
        lines = (json.dumps(row, ensure_ascii=False) for row in labeled)
        write_bytes(Path(out), ("\n".join(lines) + "\n").encode())
    return Rows("predictions", labeled, hidden=("probabilities",))


def fill(
    model: str | Path | Run,
    texts: Sequence[str] = (),
    *,
    top: int = 5,
    mask_rate: float | None = None,
    seed: int = 0,
    partial: bool = False,
) -> Rows:
    """Fill [MASK]s in texts with what a masked language model expects there.

    Parameters
    ----------
    model
        A run or model folder with a masked-language-model head.
    texts
        Texts with one or several [MASK]s.
    top
        How many candidates to show for each.
    mask_rate
        Hide this share of each text's words and show original, masked and restored text instead.
    seed
        Which words to hide.
    partial
        Go on where the checkpoint lacks tensors (these are left random), or has some that are unknown or of another shape.

    Examples
    --------
    >>> fill("runs/mine", ["The capital of France is [MASK]."])[0]["filled"]  # doctest: +SKIP
    """
    import os

    from pretune.errors import PretuneError
    from pretune.inference.fill import Filler

    if not texts:
        raise PretuneError("nothing to fill: give texts")
    filler = Filler.load(os.fspath(model), partial)
    if mask_rate is not None:
        return Rows("restored", [filler.restore(text, mask_rate, seed) for text in texts])
    rows = []
    for text in texts:
        found = filler.fill(text, top)
        for number, gap in enumerate(found["gaps"], 1):
            best = {f"{place}.": f"{c['token']} {c['probability']:.2f}" for place, c in enumerate(gap, 1)}
            rows.append({"text": text, "gap": number, **best, "filled": found["filled"], "candidates": gap})
    return Rows("fills", rows, hidden=("candidates",))


def embed(
    model: str | Path | Run,
    texts: Sequence[str] = (),
    *,
    data: str | Path | None = None,
    text: str | None = None,
    pooling: Literal["mean", "max", "start", "last"] = "mean",
    layer: int = -1,
    out: str | Path | None = None,
    partial: bool = False,
) -> Rows:
    """A vector for each text, in order.

    Parameters
    ----------
    model
        A run or model folder.
    texts
        Texts to embed.
    data
        A file of rows to embed instead: .csv, .tsv, .jsonl or .parquet.
    text
        Column of the text.
    pooling
        What stands for a text: the mean or maximum of its tokens, or its first or last one.
    layer
        0 are the embeddings, -1 the top layer.
    out
        Write the vectors to this .npy file instead of showing them.
    partial
        Go on where the checkpoint lacks tensors (these are left random), or has some that are unknown or of another shape.

    Examples
    --------
    >>> len(embed("runs/mine", ["one", "two"]))  # doctest: +SKIP
    2
    """
    import io
    import os

    import numpy as np

    from pretune.atomic import write_bytes
    from pretune.errors import PretuneError
    from pretune.inference.embed import embed_texts
    from pretune.text.labeled import read_labeled

    inputs = list(texts)
    if data is not None:
        inputs = read_labeled(data, {"text": text} if text else {}, labels=False).texts
    if not inputs:
        raise PretuneError("nothing to embed: give texts, or a file with --data")
    vectors = embed_texts(os.fspath(model), inputs, pooling, layer, partial)
    if out is not None:
        buffer = io.BytesIO()
        np.save(buffer, vectors)
        write_bytes(Path(out), buffer.getvalue())
        return Rows("written", [{"file": str(out), "vectors": len(vectors), "width": vectors.shape[1]}])
    return Rows("vectors", [{"text": t, "vector": v.tolist()} for t, v in zip(inputs, vectors, strict=True)])
