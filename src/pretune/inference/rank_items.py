"""Next-item evaluation: the rank that a model gives to the last item of each user history (BERT4Rec)."""

from __future__ import annotations

import numpy as np
import torch

from pretune.inference.nan_check import check_not_nan
from pretune.models.model import Model
from pretune.objectives.pretraining.masked_items import MaskedItem, history_bounds
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.batch_planning import plan_packs
from pretune.text.packing.sequences import Arrangement, collate
from pretune.text.store.store import Store

TOKENS = 8192  # per batch


@torch.no_grad()
def rank_last_items(model: Model, store: Store, length: int = 128, back: int = 1) -> Array:
    """Return the rank that a model gives to the last item of each history, given the items before it, (histories,).

    The rank is among all items; 1 is the best, and items with equal scores share their mean rank. With `back`=2, the
    last item of each history is ignored and the one before it is ranked, as for a validation set. Histories that are
    too short are skipped, and long histories are truncated to their newest `length` tokens.
    """
    tokenizer, template = model.require_tokenizer(), model.family.template
    length = min(length, model.backbone.max_positions or length)
    begin, end = history_bounds(store, np.arange(store.documents), held=back - 1)
    if not len(begin):
        raise PretuneError(f"{store.folder}: there is no history of {back + 1} items or more; give longer histories")
    begin = np.maximum(begin, end - (length - template.num_special_tokens(pair=False)))
    arrangement = Arrangement(store, tokenizer, template, begin[:, None], (end - begin)[:, None])
    plan = plan_packs(arrangement.lengths, tokens=max(TOKENS, length), sequences=1 << 30, shuffle=False)
    # Special tokens and padding rows are not items.
    never = torch.ones(model.backbone.embed.vocabulary, dtype=torch.bool)
    never[: tokenizer.size] = torch.from_numpy(tokenizer.specials)
    root, device = model.root.eval(), model.backbone.embed.tokens.device
    ranks = []
    for index in range(len(plan)):
        batch = collate(
            MaskedItem(mask_last_rate=1.0).corrupt(arrangement.take(plan.pack(index)), tokenizer, EpochRandom(0))
        ).to(device)
        targets = batch.targets[MaskedItem.name]
        states = root.backbone(*batch.packed).last[targets.at]
        logits = check_not_nan(root.heads[MaskedItem.name](states, root.backbone.embed.tokens)).float().cpu()
        logits[:, never] = -torch.inf
        right = logits.gather(1, targets.target.cpu()[:, None])
        better, equal = (logits > right).sum(1), (logits == right).sum(1)
        ranks.append((better + (equal + 1) / 2).numpy())
    return np.concatenate(ranks)
