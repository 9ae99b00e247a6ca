"""The `contamination` verb: measure how much of a suite occurs in a pretraining corpus."""

from __future__ import annotations

from pathlib import Path

from pretune.verbs import options as opt
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import verb


@verb()
def contamination(
    store: opt.Store, *, suite: str, data: opt.SuiteFolder, tasks: opt.Tasks = (), ngram_size: int = 13
) -> ResultTable:
    """Measure how much of a suite's dev and test files occurs in a pretraining store, by shared n-grams of words.

    Parameters
    ----------
    store
        Token store that a model was pretrained on.
    suite
        Suite to look for: glue, superglue, russian-superglue, …, or a .yaml file.
    ngram_size
        Length of an n-gram in words. Shorter texts, of at least 5 words, must occur as a whole.

    Examples
    --------
    >>> contamination("store/", suite="glue", data="glue/")[0]["contaminated"]  # doctest: +SKIP
    0.003
    """
    from pretune.evaluation.contamination import ngram_overlap, read_splits
    from pretune.evaluation.suites.declaration import find_suite
    from pretune.runtime.errors import PretuneError
    from pretune.text.corpus.ngram_hashes import FEWEST_WORDS
    from pretune.text.store.store import Store

    if ngram_size < FEWEST_WORDS:
        raise PretuneError(
            f"--ngram-size {ngram_size}: n-grams must have at least {FEWEST_WORDS} words, because shorter ones occur in any store; "
            f"give {FEWEST_WORDS} or more"
        )
    splits = read_splits(find_suite(suite).select_tasks(list(tasks)), Path(data), allow_incomplete=True)
    if not splits:
        raise PretuneError(
            f"{data}: this folder has no dev or test file of {suite}; give the folder with the official files of the suite"
        )
    opened = store if isinstance(store, Store) else Store(store)
    return ResultTable("overlap", ngram_overlap(opened, splits, ngram_size), hidden=("first",))
