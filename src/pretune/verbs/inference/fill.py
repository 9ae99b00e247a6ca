"""The `fill` verb: predict masked words with a masked language model."""

from __future__ import annotations

from collections.abc import Sequence

from pretune.verbs import options as opt
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import only, verb


@verb(
    only("top_k", where="without --mask-rate", when=lambda o: o.mask_rate is None),
    only("seed", where="with --mask-rate", when=lambda o: o.mask_rate is not None),
)
def fill(
    model: opt.Model,
    texts: Sequence[str] = (),
    *,
    top_k: int = 5,
    mask_rate: float | None = None,
    seed: int = 0,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Predict the words at [MASK] tokens with a masked language model.

    Parameters
    ----------
    model
        Run folder or model folder with a masked language modeling head.
    texts
        Texts with one or more [MASK] tokens.
    top_k
        Number of most likely candidates to show for each [MASK].
    mask_rate
        Mask this fraction of each text's words, and show the original, masked, and restored text instead.
    seed
        Random seed of the words to mask.

    Examples
    --------
    >>> fill("runs/mine", ["The capital of France is [MASK]."])[0]["filled"]  # doctest: +SKIP
    """
    from pretune.inference.fill import MaskFiller
    from pretune.runtime.errors import PretuneError
    from pretune.verbs.shared_inputs import open_reference

    if not texts:
        raise PretuneError("no texts were given; give texts with [MASK]")
    filler = MaskFiller.load(open_reference(model), ignore_mismatched)
    if mask_rate is not None:
        return ResultTable("restored", [filler.restore(text, mask_rate, seed) for text in texts])
    rows = []
    for text in texts:
        found = filler.fill(text, top_k)
        for number, gap in enumerate(found["gaps"], 1):
            best = {f"{place}.": f"{c['token']} {c['probability']:.2f}" for place, c in enumerate(gap, 1)}
            rows.append({"text": text, "gap": number, **best, "filled": found["filled"], "candidates": gap})
    return ResultTable("fills", rows, hidden=("candidates",))
