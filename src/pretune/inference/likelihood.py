"""Likelihoods of texts: the log-probability of each token, for any kind of language model.

lm        given the tokens before it
prefix    the same, by a prefix language model whose prefix is only the start of the text
bilm      the mean of the log-probabilities given the tokens before it and given those after it
mlm       given all other tokens, with only this one masked (pseudo-log-likelihood; Salazar et al., 2020, arXiv:1910.14659)
plm       given all other tokens, as the last token of the factorization order
rtd       the log-probability that the token is not replaced (Clark et al., 2020): not its probability, but comparable
          between texts
others    by an encoder-decoder that generates the text, given a source text or none

Long texts are read in windows, and every token is scored once, in the window that has most of its context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.inference.nan_check import check_not_nan
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.length_bucketing import TOKENS
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference
from pretune.nn.attention.patterns import Pattern, causal, permutation
from pretune.nn.attention.patterns import prefix as prefix_pattern
from pretune.packed import pack
from pretune.runtime.arrays import Array
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError

LOGITS = 1 << 26  # computed at once


@dataclass
class ScoringInput:
    """One input sequence of a model, with the positions of the tokens whose log-likelihoods are computed."""

    ids: Array  # (n,)
    at: Array  # (m,) the states that predict; (m, 2) with the direction, for models of two stacks
    target: Array  # (m,) the ids to predict
    place: Array  # (m,) which tokens of the text these are
    text: int = 0
    weight: float = 1.0
    columns: dict[str, Array] = field(default_factory=dict)  # (n,)
    positions: Array | None = None  # (n,)
    source: Array | None = None  # the input of an encoder


@dataclass(frozen=True)
class TemplateTokens:
    """The ids of the special tokens around a text; for an encoder-decoder, around the target."""

    before: Array
    after: Array
    mask: int = 0
    third: int = 0  # how many of the last special tokens have segment 2

    def around(self, ids: Array) -> Array:
        """Return token ids with the template's special tokens before and after them, (n,)."""
        return np.concatenate([self.before, ids, self.after])

    def segment(self, tokens: int) -> Array:
        """Return the segment ids of a sequence, (tokens,), given its number of tokens, including special ones."""
        return np.where(np.arange(tokens) < tokens - self.third, 0, 2)


@dataclass(frozen=True)
class ScoringMethod:
    """A way to compute log-likelihoods of tokens, for models with one kind of objective, such as masked LM."""

    # (ids of a window, tokens to score, special tokens) → inputs
    inputs: Callable[[Array, Array, TemplateTokens], Iterator[ScoringInput]]
    # (head, states, token embedding, ids) → log-probabilities
    log_probabilities: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
    pattern: Pattern | None = None
    both_sides: bool = True  # whether the tokens after a token are part of its context
    exact: bool = True  # whether the log-probabilities of the tokens sum to that of the text
    probability: bool = True  # whether they are probabilities of tokens


# -- inputs ---------------------------------------------------------------------------------------------------------


def _left_to_right(ids: Array, counted: Array, frame: TemplateTokens) -> Iterator[ScoringInput]:
    """Yield the one input of a causal LM that scores the tokens at the indices `counted` of `ids`.

    The input has the special tokens of `frame` and then `ids`.
    """
    whole = np.concatenate([frame.before, ids])
    at = counted + len(frame.before) - 1
    kept = at >= 0
    prefix = np.zeros(len(whole), dtype=np.int64)
    prefix[: max(1, len(frame.before))] = 1
    columns = {"prefix": prefix, "segment": np.zeros_like(prefix)}
    yield ScoringInput(whole, at[kept], ids[counted[kept]], counted[kept], columns=columns)


def _both_directions(ids: Array, counted: Array, frame: TemplateTokens) -> Iterator[ScoringInput]:
    """Yield the inputs of a forward and a backward LM that score the tokens at the indices `counted` of `ids`.

    A token that both of them score gets the mean of the two scores.
    """
    whole = frame.around(ids)
    columns = {"segment": frame.segment(len(whole))}
    middle = counted + len(frame.before)
    first, last = middle == 0, middle == len(whole) - 1
    for direction, at, lacks, other in ((0, middle - 1, first, last), (1, middle + 1, last, first)):
        for weight, chosen in ((0.5, ~lacks & ~other), (1.0, ~lacks & other)):
            if chosen.any():
                pairs = np.stack([at[chosen], np.full(int(chosen.sum()), direction)], 1)
                yield ScoringInput(whole, pairs, ids[counted[chosen]], counted[chosen], weight=weight, columns=columns)


def _masked(ids: Array, counted: Array, frame: TemplateTokens) -> Iterator[ScoringInput]:
    """Yield one masked LM input per index in `counted`: `ids` with that token masked, and special tokens (`frame`)."""
    for place in counted:
        whole = frame.around(ids)
        at = place + len(frame.before)
        whole[at] = frame.mask
        columns = {"segment": frame.segment(len(whole))}
        yield ScoringInput(whole, np.array([at]), ids[[place]], np.array([place]), columns=columns)


def _queried(ids: Array, counted: Array, frame: TemplateTokens) -> Iterator[ScoringInput]:
    """Yield one XLNet input per index in `counted`: `ids` with special tokens (`frame`), and a query for that token."""
    whole = frame.around(ids)
    for place in counted:
        at = place + len(frame.before)
        source = np.insert(np.arange(len(whole)), at + 1, at)
        query = np.zeros(len(source), dtype=np.int64)
        query[at + 1] = 1
        made = np.where(query > 0, frame.mask, whole[source])
        columns = {
            "order": (source == at).astype(np.int64),
            "stream": query,
            "segment": frame.segment(len(whole))[source],
        }
        yield ScoringInput(made, np.array([at + 1]), ids[[place]], np.array([place]), columns=columns, positions=source)


def _unchanged(ids: Array, counted: Array, frame: TemplateTokens) -> Iterator[ScoringInput]:
    """Yield one input, `ids` with special tokens (`frame`), to score the tokens at the indices `counted`."""
    whole = frame.around(ids)
    columns = {"segment": frame.segment(len(whole))}
    yield ScoringInput(whole, counted + len(frame.before), ids[counted], counted, columns=columns)


# -- scores ---------------------------------------------------------------------------------------------------------


def _token_scores(head: nn.Module, states: Tensor, tokens: Tensor, wanted: Tensor) -> Tensor:
    """Return the log-probabilities of m token ids (`wanted`), (m,), given the m hidden states that predict them.

    `tokens` has the token embeddings, (vocabulary, width).
    """
    size = max(1, LOGITS // tokens.shape[0])
    parts = zip(torch.split(states, size), torch.split(wanted, size), strict=True)
    return torch.cat([-F.cross_entropy(head(part, tokens).float(), ids, reduction="none") for part, ids in parts])


def _originality_scores(head: nn.Module, states: Tensor, tokens: Tensor, wanted: Tensor) -> Tensor:
    """Return the log-probabilities, (m,), that m tokens are not replaced, according to the head of an ELECTRA model.

    `states` has the hidden states of the tokens, (m, width); the other parameters are not used.
    """
    return F.logsigmoid(-head(states).float())


LEFT_TO_RIGHT = ScoringMethod(_left_to_right, _token_scores, causal, both_sides=False)
SCORING_METHODS: dict[str, ScoringMethod] = {
    "lm": LEFT_TO_RIGHT,
    "prefix": ScoringMethod(_left_to_right, _token_scores, prefix_pattern, both_sides=False),
    "bilm": ScoringMethod(_both_directions, _token_scores, causal, exact=False),
    "mlm": ScoringMethod(_masked, _token_scores, exact=False),
    "plm": ScoringMethod(_queried, _token_scores, permutation, exact=False),
    "rtd": ScoringMethod(_unchanged, _originality_scores, exact=False, probability=False),
}


# -- texts ----------------------------------------------------------------------------------------------------------


@dataclass
class LikelihoodScorer:
    """A model that computes the log-likelihoods of the tokens of texts."""

    model: Model
    head: str
    device: torch.device

    @classmethod
    def load(
        cls, reference: ModelReference, device: str | None = None, ignore_mismatched: bool = False
    ) -> LikelihoodScorer:
        """Load a language model from a run folder or a model folder, to score texts with it."""
        mixture = stored_objectives(reference)
        names = [part.name for part in mixture.objectives] if mixture is not None else []
        model = load_model(reference, mixture, ignore_mismatched=ignore_mismatched)
        writes = bool(model.family.template.target)
        head = next((name for name in names if name in SCORING_METHODS or (writes and name != "classify")), None)
        if head is None:
            raise PretuneError(
                f"{reference}: the model was trained for {', '.join(names) or 'no known objective'}, which gives no likelihoods of "
                f"texts; choose a model trained for one of {', '.join(SCORING_METHODS)}, or an encoder-decoder"
            )
        model.require_trained(head, reference, f"pretrain it with {head} first")
        chosen = choose_device(device)
        model.root.ready(chosen)
        return cls(model, head, chosen)

    @property
    def method(self) -> ScoringMethod:
        """Return the method of scoring tokens for the model's pretraining objective, such as masked LM."""
        return LEFT_TO_RIGHT if self.model.family.template.target else SCORING_METHODS[self.head]

    @property
    def frame(self) -> TemplateTokens:
        """Return the special tokens that the model's template puts around a text."""
        tokenizer, template = self.model.require_tokenizer(), self.model.family.template
        items = template.target or template.single
        place = items.index("A")
        mask = tokenizer.role("mask") if self.method.inputs in (_masked, _queried) else 0
        after = (*items[place + 1 :], *template.last)
        third = len(template.last) if template.segments else 0
        return TemplateTokens(self._roles(items[:place]), self._roles(after), mask, third)

    def _roles(self, names: Sequence[str]) -> Array:
        """Return the ids of the special tokens with the roles `names`, such as mask, that the tokenizer has."""
        tokenizer = self.model.require_tokenizer()
        return np.array([tokenizer.role(name) for name in names if tokenizer.has_role(name)], dtype=np.int64)

    def _opening(self) -> Array:
        """Return the id of the document separator, which starts a text if the template has no start token."""
        return self._roles([role for role in self.model.family.template.document_template.single if role != "A"][-1:])

    @torch.inference_mode()
    def __call__(
        self,
        texts: Sequence[str],
        sources: Sequence[str] | None = None,
        length: int | None = None,
        stride: int | None = None,
    ) -> list[Array]:
        """Return the log-likelihood of each token of each text, one array (tokens,) per text.

        The log-likelihood of a token without any context is NaN. `sources` has the input texts of an encoder-decoder.
        Long texts are read in windows of `length` tokens, which start every `stride` tokens.
        """
        if not texts:
            return []
        tokenizer = self.model.require_tokenizer()
        flat, lengths = tokenizer.encode_many(list(texts))
        ids = np.split(flat.astype(np.int64), np.cumsum(lengths)[:-1])
        found = [np.full(len(own), np.nan) for own in ids]
        sums = [np.zeros(len(own)) for own in ids]
        order = sorted(range(len(ids)), key=lambda text: len(ids[text]))
        batch: list[ScoringInput] = []
        for view in self.inputs(ids, order, sources, length, stride):
            if batch and sum(len(v.ids) for v in batch) + len(view.ids) > TOKENS:
                self._add(batch, sums, found)
                batch = []
            batch.append(view)
        if batch:
            self._add(batch, sums, found)
        return found

    def inputs(
        self,
        ids: Sequence[Array],
        order: Sequence[int],
        sources: Sequence[str] | None,
        length: int | None,
        stride: int | None,
    ) -> Iterator[ScoringInput]:
        """Yield the model inputs for all windows of tokenized texts, whose outputs give the scores of all tokens.

        `ids` has the token ids of each text, and `order` the indices of the texts in the order in which to yield them;
        the other parameters are those of `__call__`.
        """
        frame, method = self.frame, self.method
        longest = min(length or DEFAULT_MAX_LENGTH, self.model.backbone.max_positions or 1 << 30)
        room = longest - len(frame.before) - len(frame.after) - 1
        if room < 2:
            raise PretuneError(
                f"windows of {longest} tokens leave no room for text; increase the length of the windows"
            )
        for text in order:
            source = self._source(None if sources is None else sources[text], longest)
            for start, end, counted in scoring_windows(len(ids[text]), room, stride or room // 2, method.both_sides):
                begins = start == 0 and not len(frame.before) and not method.both_sides
                opened = replace(frame, before=self._opening()) if begins else frame
                for view in method.inputs(ids[text][start:end], counted - start, opened):
                    if len(view.at):
                        view.text, view.place, view.source = text, view.place + start, source
                        yield view

    def _source(self, text: str | None, longest: int) -> Array | None:
        """Return the token ids of the encoder's input `text`, at most `longest`; None for a model without encoder."""
        tokenizer, template = self.model.require_tokenizer(), self.model.family.template
        if not template.target:
            if text is not None:
                raise PretuneError(
                    f"{self.model.family.name} is not an encoder-decoder and reads no source text; leave out the source column"
                )
            return None
        place = template.single.index("A")
        before, after = self._roles(template.single[:place]), self._roles(template.single[place + 1 :])
        ids = np.array(tokenizer.encode(text or ""), dtype=np.int64)[: longest - len(before) - len(after)]
        return np.concatenate([before, ids, after])

    def _add(self, views: list[ScoringInput], sums: list[Array], found: list[Array]) -> None:
        """Score a batch of model inputs, `views`; add the token scores to `sums`, and copy the new sums to `found`.

        `sums` and `found` have one array per text, with one score per token; tokens not scored yet are 0 and NaN.
        """
        lengths = np.array([len(view.ids) for view in views])
        columns = {name: np.concatenate([view.columns[name] for view in views]) for name in views[0].columns}
        places = [view.positions for view in views if view.positions is not None]
        packed = [
            pack(
                np.concatenate([view.ids for view in views]),
                lengths,
                columns=columns,
                positions=np.concatenate(places) if places else None,
                pattern=self.method.pattern,
            )
        ]
        sources = [view.source for view in views if view.source is not None]
        if sources:
            packed.insert(0, pack(np.concatenate(sources), np.array([len(source) for source in sources])))
        backbone = self.model.backbone
        states = backbone(*(side.to(self.device) for side in packed)).last
        firsts = np.cumsum(lengths) - lengths
        at = np.concatenate(
            [
                view.at.reshape(len(view.at), -1) + [first, 0][: view.at.ndim]
                for view, first in zip(views, firsts, strict=True)
            ]
        )
        where = torch.from_numpy(at).to(states.device)
        chosen = states[where[:, 0]] if at.shape[1] == 1 else states.view(len(states), 2, -1)[where[:, 0], where[:, 1]]
        wanted = torch.from_numpy(np.concatenate([view.target for view in views])).to(states.device)
        scores = check_not_nan(
            self.method.log_probabilities(self.model.root.heads[self.head], chosen, backbone.embed.tokens, wanted)
        )
        ends = np.cumsum([len(view.target) for view in views])
        for view, part in zip(views, np.split(scores.double().cpu().numpy(), ends[:-1]), strict=True):
            sums[view.text][view.place] += view.weight * part
            found[view.text][view.place] = sums[view.text][view.place]


def scoring_windows(tokens: int, room: int, stride: int, both_sides: bool) -> list[tuple[int, int, Array]]:
    """Return the windows in which a text is scored, each as (start, end, indices of the tokens to score).

    The text has `tokens` tokens, a window has at most `room` tokens, and windows start every `stride` tokens. Each
    token is scored in one window only: the one that has most context to its left or, with `both_sides`, on both sides.

    >>> [(start, end, counted.tolist()) for start, end, counted in scoring_windows(6, 4, 2, False)]
    [(0, 4, [0, 1, 2, 3]), (2, 6, [4, 5])]
    >>> [(start, end, counted.tolist()) for start, end, counted in scoring_windows(6, 4, 2, True)]
    [(0, 4, [0, 1, 2]), (2, 6, [3, 4, 5])]
    """
    stride = max(1, min(stride, room))
    last = max(0, tokens - room)
    starts = np.append(np.arange(0, last, stride), last)
    place = np.arange(tokens)
    left = place[None, :] - starts[:, None]  # (windows, tokens) number of tokens of the window before each token
    right = np.minimum(starts + room, tokens)[:, None] - 1 - place[None, :]
    shown = left
    if both_sides:  # at the ends of the text no context is missing
        shown = np.minimum(left + tokens * (starts == 0)[:, None], right + tokens * (starts == last)[:, None])
    inside = (left >= 0) & (right >= 0)
    best = np.where(inside, shown, -1).argmax(0)
    return [
        (int(start), int(min(start + room, tokens)), np.flatnonzero(best == number))
        for number, start in enumerate(starts)
        if (best == number).any()
    ]
