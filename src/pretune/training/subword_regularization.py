"""Subword regularization: tokenize the training data anew in every epoch, with sampled segmentations.

Kudo, 2018 (arXiv:1804.10959); Provilkov et al., 2020 (arXiv:1910.13267). Evaluation and prediction never sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pretune.objectives import Data
from pretune.runtime.randomness import EpochRandom
from pretune.text.store.resampling import check_resampling, resample_store
from pretune.text.tokenizers.sampled_tokenizer import SubwordRegularization
from pretune.text.tokenizers.subword_sampling import SubwordSampling


def epochs_of_sampled_subwords(
    data: Data, settings: SubwordSampling, seed: int, epoch_data: Callable[[int], Data] | None = None
) -> Callable[[int], Data] | None:
    """Return a function from an epoch to its training data, tokenized with sampled segmentations.

    `epoch_data` is a function that returns the data of an epoch, if they differ from `data`; without sampling, it is
    returned. The data of an epoch are determined by the seed, so that an interrupted run continues with the same ones.
    """
    if not settings.active:
        return epoch_data
    tokenizers = SubwordRegularization(data.tokenizer, settings)
    if data.store is not None:
        check_resampling(data.store)
    recent: dict[int, Data] = {}  # several streams read the same epochs

    def sampled_data(epoch: int) -> Data:
        if epoch not in recent:
            own = data if epoch_data is None else epoch_data(epoch)
            sampled = tokenizers.epoch(EpochRandom(seed, epoch))
            store = own.store and resample_store(own.store, np.unique(own.documents), own.tokenizer, sampled)
            for old in [known for known in recent if abs(known - epoch) > 1]:
                del recent[old]
            recent[epoch] = replace(own, tokenizer=sampled, store=store, cache={})
        return recent[epoch]

    return sampled_data
