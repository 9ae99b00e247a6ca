"""Next-item recommendation with a model of user histories (BERT4Rec): score all items, recommend some, rank the last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from pretune.inference.nan_check import check_not_nan
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference
from pretune.objectives import parse_objective
from pretune.objectives.pretraining.masked_items import MaskedItem, history_bounds, last_items
from pretune.runtime.arrays import Array
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.text.packing.batch_planning import plan_packs
from pretune.text.packing.sequences import Arrangement, collate
from pretune.text.packing.token_rows import TokenRows
from pretune.text.store.store import Store

TOKENS, HISTORIES = 8192, 256  # per batch


class Recommendation(NamedTuple):
    """A recommended item, and the probability, among all items, that it is the next item of a user's history."""

    item: str
    probability: float


@torch.no_grad()
def next_item_scores(model: Model, histories: Sequence[Array], length: int = 128) -> Iterator[tuple[Array, Array]]:
    """Yield (indices of histories, logits of all tokens as their next item) in batches: (b,) and (b, vocabulary).

    `histories` has the token ids of each user's items, oldest first. The model reads the newest items and a [MASK] after
    them, at most `length` tokens with the special tokens. The logits of tokens that are not items are -inf.
    """
    tokenizer, template = model.require_tokenizer(), model.family.template
    length = min(length, model.backbone.max_positions or length)
    room = length - template.num_special_tokens(pair=False) - 1
    if room < 1:
        raise PretuneError(f"sequences of {length} tokens leave no room for an item and a [MASK]; increase the length")
    mask = np.array([tokenizer.role("mask")])
    rows = [np.concatenate([history[-room:], mask]) for history in histories]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.concatenate(rows)
    source = TokenRows(ids, np.ones(len(ids), dtype=bool), (np.cumsum(lengths) - lengths)[:, None], lengths[:, None])
    arrangement = Arrangement(source, tokenizer, template, source.starts, source.lengths)
    plan = plan_packs(arrangement.lengths, tokens=max(TOKENS, length), sequences=HISTORIES, shuffle=False)
    never = torch.from_numpy(~is_item(model))
    root, device = model.root.eval(), model.backbone.embed.tokens.device
    for index in range(len(plan)):
        chosen = plan.pack(index)
        sequences = arrangement.take(chosen)
        batch = collate(sequences).to(device)
        states = root.backbone(*batch.packed).last_at(torch.from_numpy(last_items(sequences)).to(device))
        logits = check_not_nan(root.heads[MaskedItem.name](states, root.backbone.embed.tokens)).float().cpu()
        logits[:, never] = -torch.inf
        yield chosen, logits.numpy()


def is_item(model: Model) -> Array:
    """Return a mask, (vocabulary,), of the tokens in a model's output that are items, not special tokens or padding."""
    tokenizer = model.require_tokenizer()
    found = np.zeros(model.backbone.embed.vocabulary, dtype=bool)
    found[: tokenizer.size] = ~np.asarray(tokenizer.specials)
    return found


def rank_targets(scores: Array, targets: Array) -> Array:
    """Return the rank, from 1, of the target of each row among the scores of the row, (b,).

    Items with equal scores share their mean rank. Items with the score -inf are not candidates; the rank of such a
    target is infinity.

    >>> rank_targets(np.array([[0.5, 2.0, 0.5], [1.0, -np.inf, 0.0]]), np.array([0, 1])).tolist()
    [2.5, inf]
    """
    right = np.take_along_axis(scores, targets[:, None], 1)
    ranks = (scores > right).sum(1) + ((scores == right).sum(1) + 1) / 2
    return np.where(np.isneginf(right[:, 0]), np.inf, ranks)


def rank_last_items(model: Model, store: Store, length: int = 128, back: int = 1) -> Array:
    """Return the rank that a model gives to the last item of each history, given the items before it, (histories,).

    The rank is among all items; 1 is the best, and items with equal scores share their mean rank. With `back`=2, the
    last item of each history is ignored and the one before it is ranked, as for a validation set. Histories that are
    too short are skipped, and long histories are truncated to their newest `length` tokens.
    """
    begin, end = history_bounds(store, np.arange(store.documents), held=back - 1)
    if not len(begin):
        raise PretuneError(f"{store.folder}: there is no history of {back + 1} items or more; give longer histories")
    items = [store.gather(start, size) for start, size in zip(begin[:, None], (end - begin)[:, None], strict=True)]
    targets = np.array([history[-1] for history in items])
    ranks = np.empty(len(items))
    for chosen, scores in next_item_scores(model, [history[:-1] for history in items], length):
        ranks[chosen] = rank_targets(scores, targets[chosen])
    return ranks


def encode_histories(model: Model, histories: Sequence[Sequence[str]]) -> list[Array]:
    """Return the token ids of each history of items; raise an error if an item does not become one token."""
    tokenizer = model.require_tokenizer()
    ids, lengths = tokenizer.encode_many([" ".join(items) for items in histories])
    for items, size in zip(histories, lengths, strict=True):
        if len(items) != size:
            raise PretuneError(
                f"the model's tokenizer splits the items {' '.join(items[:3])} … into {size} tokens, not {len(items)}; "
                "recommendation needs a tokenizer of the kind 'items'"
            )
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return [np.asarray(ids[start:end]) for start, end in pairwise(ends)]


def recommend_items(
    model: Model, histories: Sequence[Array], top_k: int = 10, include_seen: bool = False, length: int = 128
) -> list[list[Recommendation]]:
    """Return the `top_k` most probable next items of each history, best first.

    `histories` has the token ids of each user's items, as `encode_histories` returns them. Without `include_seen`, the
    items of a user's own history are not recommended to this user.
    """
    if top_k < 1:
        raise PretuneError(f"--top-k {top_k}: at least one item must be recommended; choose a number above 0")
    vocabulary = model.require_tokenizer().vocabulary
    found: list[list[Recommendation]] = [[] for _ in histories]
    for chosen, scores in next_item_scores(model, histories, length):
        probabilities = torch.from_numpy(scores).softmax(-1).numpy()
        for place, history, row, chances in zip(
            chosen, (histories[i] for i in chosen), scores, probabilities, strict=True
        ):
            if not include_seen:
                row[history] = -np.inf
            best = np.argsort(-row, kind="stable")[:top_k]
            best = best[np.isfinite(row[best])]
            found[place] = [Recommendation(vocabulary[i], float(chances[i])) for i in best]
    return found


def load_recommender(reference: ModelReference, ignore_mismatched: bool = False) -> Model:
    """Load a model that was pretrained with the objective item, and its tokenizer, from a run or a model folder."""
    stored = stored_objectives(reference)
    if stored is None or MaskedItem.name not in {part.shared_head for part in stored.objectives}:
        raise PretuneError(
            f"{reference}: this model was not trained to predict items; pretrain one on user histories with the objective 'item'"
        )
    model = load_model(reference, parse_objective(MaskedItem.name), ignore_mismatched=ignore_mismatched)
    model.require_trained(MaskedItem.name, reference, "pretrain it on user histories first")
    model.root.ready(choose_device())
    return model


def report_unknown(model: Model, histories: Sequence[Array]) -> None:
    """Log how many items of histories the model does not know; raise an error if it knows none."""
    known = is_item(model)[np.concatenate(histories)]
    if not known.any():
        raise PretuneError(
            "the model knows none of the items in these histories; give histories with the items of its training data"
        )
    if not known.all():
        log_info(f"{int((~known).sum())} of {len(known)} events have items that the model does not know")
