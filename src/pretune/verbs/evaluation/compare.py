"""The `compare` verb: test whether one model is better than another."""

from __future__ import annotations

from pathlib import Path

from pretune.verbs.results import ResultTable
from pretune.verbs.verb import verb


@verb()
def compare(first: str | Path, second: str | Path) -> ResultTable:
    """Test whether one model is better than another, by a paired bootstrap over examples and seeds of two evaluations.

    Parameters
    ----------
    first
        Folder of an evaluation on a suite.
    second
        Folder of another evaluation on the same suite.

    Examples
    --------
    >>> compare("runs/a-glue", "runs/b-glue")[0]["p"]  # doctest: +SKIP
    0.012
    """
    from pretune.evaluation.comparison import compare_evaluations

    return ResultTable("differences", compare_evaluations(Path(first), Path(second)))
