"""How likely a model finds texts: the log-probability of each token, whatever the model predicts it from.

lm        from the tokens before it
prefix    the same, by a model that reads what it goes on from both ways: here nothing but the beginning
bilm      from those before it and from those after it, the mean of both
mlm       from all others, it alone being masked (Salazar et al., 2020, arXiv:1910.14659: pseudo-log-likelihood)
plm       from all others, it being the last in the order
rtd       that it is not replaced (Clark et al., 2020): no probability of the token, but comparable between texts
the rest  an encoder-decoder writes the text, after it has read another one or none

Long texts are read in windows, and every token counts once, in the window that shows most of what it is predicted from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.inference.batching import TOKENS
from pretune.inference.finite_check import checked
from pretune.models.checkpoint_heads import trained_for
from pretune.models.hf_config import LENGTH
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.nn.attention.patterns import Pattern, causal, permutation
from pretune.nn.attention.patterns import prefix as prefix_pattern
from pretune.packed import pack
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError

Array = np.ndarray[Any, np.dtype[Any]]
LOGITS = 1 << 26  # at once


@dataclass
class View:
    """What a model reads, and which tokens of a text it then tells the likelihood of."""

    ids: Array  # (n,)
    at: Array  # (m,) where it tells; (m, 2) with the way, of two stacks
    target: Array  # (m,) the ids that stand there
    place: Array  # (m,) which tokens of the text these are
    text: int = 0
    weight: float = 1.0
    columns: dict[str, Array] = field(default_factory=dict)  # (n,)
    positions: Array | None = None  # (n,)
    source: Array | None = None  # what an encoder reads


@dataclass(frozen=True)
class Frame:
    """What stands around texts, as ids; of an encoder-decoder, around what it writes."""

    before: Array
    after: Array
    mask: int = 0
    third: int = 0  # of the tokens after a text, so many at the end are a segment of their own

    def around(self, ids: Array) -> Array:
        """(n,) the whole sequence."""
        return np.concatenate([self.before, ids, self.after])

    def segment(self, tokens: int) -> Array:
        """(n,) the segments of a sequence with so many tokens."""
        return np.where(np.arange(tokens) < tokens - self.third, 0, 2)


@dataclass(frozen=True)
class Way:
    """How a kind of model tells likelihoods."""

    views: Callable[[Array, Array, Frame], Iterator[View]]  # of a window's ids, and which of them count
    tell: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]  # of head, states, token embedding and wanted ids
    pattern: Pattern | None = None
    both_sides: bool = True  # whether tokens after a token help
    exact: bool = True  # whether the likelihoods of a text's tokens make up that of the text
    probability: bool = True  # whether they are probabilities of tokens


# -- what is read ---------------------------------------------------------------------------------------------------


def _ahead(ids: Array, counted: Array, frame: Frame) -> Iterator[View]:
    """Each token from the state before it; the first has none where nothing stands before texts."""
    whole = np.concatenate([frame.before, ids])
    at = counted + len(frame.before) - 1
    kept = at >= 0
    prefix = np.zeros(len(whole), dtype=np.int64)
    prefix[: max(1, len(frame.before))] = 1
    columns = {"prefix": prefix, "segment": np.zeros_like(prefix)}
    yield View(whole, at[kept], ids[counted[kept]], counted[kept], columns=columns)


def _both_ways(ids: Array, counted: Array, frame: Frame) -> Iterator[View]:
    """Forward from the state before, backward from the state after; half of each, or all of the only one."""
    whole = frame.around(ids)
    columns = {"segment": frame.segment(len(whole))}
    middle = counted + len(frame.before)
    first, last = middle == 0, middle == len(whole) - 1
    for way, at, lacks, other in ((0, middle - 1, first, last), (1, middle + 1, last, first)):
        for weight, chosen in ((0.5, ~lacks & ~other), (1.0, ~lacks & other)):
            if chosen.any():
                pairs = np.stack([at[chosen], np.full(int(chosen.sum()), way)], 1)
                yield View(whole, pairs, ids[counted[chosen]], counted[chosen], weight=weight, columns=columns)


def _masked(ids: Array, counted: Array, frame: Frame) -> Iterator[View]:
    """A copy for each token, in which it is masked."""
    for place in counted:
        whole = frame.around(ids)
        at = place + len(frame.before)
        whole[at] = frame.mask
        columns = {"segment": frame.segment(len(whole))}
        yield View(whole, np.array([at]), ids[[place]], np.array([place]), columns=columns)


def _queried(ids: Array, counted: Array, frame: Frame) -> Iterator[View]:
    """A copy for each token, with a query at its place; nothing sees the token but itself."""
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
        yield View(made, np.array([at + 1]), ids[[place]], np.array([place]), columns=columns, positions=source)


def _plain(ids: Array, counted: Array, frame: Frame) -> Iterator[View]:
    """The text as it is."""
    whole = frame.around(ids)
    columns = {"segment": frame.segment(len(whole))}
    yield View(whole, counted + len(frame.before), ids[counted], counted, columns=columns)


# -- what comes out -------------------------------------------------------------------------------------------------


def _words(head: nn.Module, states: Tensor, tokens: Tensor, wanted: Tensor) -> Tensor:
    """(m,) by a softmax over the vocabulary."""
    size = max(1, LOGITS // tokens.shape[0])
    parts = zip(torch.split(states, size), torch.split(wanted, size), strict=True)
    return torch.cat([-F.cross_entropy(head(part, tokens).float(), ids, reduction="none") for part, ids in parts])


def _originals(head: nn.Module, states: Tensor, tokens: Tensor, wanted: Tensor) -> Tensor:
    """(m,) by a judge of each token: the logarithm of how sure it is that the token is the original."""
    return F.logsigmoid(-head(states).float())


WRITES = Way(_ahead, _words, causal, both_sides=False)
WAYS: dict[str, Way] = {
    "lm": WRITES,
    "prefix": Way(_ahead, _words, prefix_pattern, both_sides=False),
    "bilm": Way(_both_ways, _words, causal, exact=False),
    "mlm": Way(_masked, _words, exact=False),
    "plm": Way(_queried, _words, permutation, exact=False),
    "rtd": Way(_plain, _originals, exact=False, probability=False),
}


# -- texts ----------------------------------------------------------------------------------------------------------


@dataclass
class Scorer:
    """A model that tells how likely texts are."""

    model: Model
    head: str
    device: torch.device

    @classmethod
    def load(cls, reference: str | Path, device: str | None = None, partial: bool = False) -> Scorer:
        """From a run folder or a model folder."""
        mixture = trained_for(reference)
        names = [part.name for part in mixture.objectives] if mixture is not None else []
        model = load_model(reference, mixture, partial=partial)
        writes = bool(model.family.template.target)
        head = next((name for name in names if name in WAYS or (writes and name != "classify")), None)
        if head is None:
            raise PretuneError(
                f"{reference}: it was trained for {', '.join(names) or 'nothing known'}, which tells no likelihood of texts; "
                f"take a model trained for one of {', '.join(WAYS)}, or an encoder-decoder"
            )
        model.need_trained(head, reference, f"pretrain it with {head} first")
        chosen = choose_device(device)
        model.root.to(chosen).eval()
        return cls(model, head, chosen)

    @property
    def way(self) -> Way:
        """How it tells."""
        return WRITES if self.model.family.template.target else WAYS[self.head]

    @property
    def frame(self) -> Frame:
        """What stands around texts."""
        tokenizer, template = self.model.need_tokenizer(), self.model.family.template
        items = template.target or template.single
        place = items.index("A")
        mask = tokenizer.role("mask") if self.way.views in (_masked, _queried) else 0
        after = (*items[place + 1 :], *template.last)
        third = len(template.last) if template.segments else 0
        return Frame(self._roles(items[:place]), self._roles(after), mask, third)

    def _roles(self, names: Sequence[str]) -> Array:
        tokenizer = self.model.need_tokenizer()
        return np.array([tokenizer.role(name) for name in names if tokenizer.has(name)], dtype=np.int64)

    def _opening(self) -> Array:
        """What documents begin with, where nothing stands before texts: what is between two of them."""
        return self._roles([role for role in self.model.family.template.for_documents.single if role != "A"][-1:])

    @torch.inference_mode()
    def __call__(
        self,
        texts: Sequence[str],
        sources: Sequence[str] | None = None,
        length: int | None = None,
        stride: int | None = None,
    ) -> list[Array]:
        """For each text, the log-likelihood of its tokens; not a number where a token has nothing to be predicted from.

        `sources`: what an encoder reads for each. `length` and `stride`: tokens of a window, and from one to the next.
        """
        if not texts:
            return []
        tokenizer = self.model.need_tokenizer()
        flat, lengths = tokenizer.encode_many(list(texts))
        ids = np.split(flat.astype(np.int64), np.cumsum(lengths)[:-1])
        found = [np.full(len(own), np.nan) for own in ids]
        sums = [np.zeros(len(own)) for own in ids]
        order = sorted(range(len(ids)), key=lambda text: len(ids[text]))
        batch: list[View] = []
        for view in self.views(ids, order, sources, length, stride):
            if batch and sum(len(v.ids) for v in batch) + len(view.ids) > TOKENS:
                self._add(batch, sums, found)
                batch = []
            batch.append(view)
        if batch:
            self._add(batch, sums, found)
        return found

    def views(
        self,
        ids: Sequence[Array],
        order: Sequence[int],
        sources: Sequence[str] | None,
        length: int | None,
        stride: int | None,
    ) -> Iterator[View]:
        """Everything that is read, text by text."""
        frame, way = self.frame, self.way
        longest = min(length or LENGTH, self.model.backbone.longest or 1 << 30)
        room = longest - len(frame.before) - len(frame.after) - 1
        if room < 2:
            raise PretuneError(f"windows of {longest} tokens leave no room for text; ask for longer ones")
        for text in order:
            source = self._source(None if sources is None else sources[text], longest)
            for start, end, counted in windows(len(ids[text]), room, stride or room // 2, way.both_sides):
                begins = start == 0 and not len(frame.before) and not way.both_sides
                opened = replace(frame, before=self._opening()) if begins else frame
                for view in way.views(ids[text][start:end], counted - start, opened):
                    if len(view.at):
                        view.text, view.place, view.source = text, view.place + start, source
                        yield view

    def _source(self, text: str | None, longest: int) -> Array | None:
        tokenizer, template = self.model.need_tokenizer(), self.model.family.template
        if not template.target:
            if text is not None:
                raise PretuneError(
                    f"{self.model.family.name} reads no other text; leave out the column that it should read"
                )
            return None
        place = template.single.index("A")
        before, after = self._roles(template.single[:place]), self._roles(template.single[place + 1 :])
        ids = np.array(tokenizer.encode(text or ""), dtype=np.int64)[: longest - len(before) - len(after)]
        return np.concatenate([before, ids, after])

    def _add(self, views: list[View], sums: list[Array], found: list[Array]) -> None:
        """Read a batch, and add what it tells."""
        lengths = np.array([len(view.ids) for view in views])
        columns = {name: np.concatenate([view.columns[name] for view in views]) for name in views[0].columns}
        places = [view.positions for view in views if view.positions is not None]
        packed = [
            pack(
                np.concatenate([view.ids for view in views]),
                lengths,
                columns=columns,
                positions=np.concatenate(places) if places else None,
                pattern=self.way.pattern,
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
        told = checked(self.way.tell(self.model.root.heads[self.head], chosen, backbone.embed.tokens, wanted))
        ends = np.cumsum([len(view.target) for view in views])
        for view, part in zip(views, np.split(told.double().cpu().numpy(), ends[:-1]), strict=True):
            sums[view.text][view.place] += view.weight * part
            found[view.text][view.place] = sums[view.text][view.place]


def windows(tokens: int, room: int, stride: int, both_sides: bool) -> list[tuple[int, int, Array]]:
    """Windows of at most `room` tokens, so many apart: begin, end, and the tokens that count in each.

    >>> [(start, end, counted.tolist()) for start, end, counted in windows(6, 4, 2, False)]
    [(0, 4, [0, 1, 2, 3]), (2, 6, [4, 5])]
    >>> [(start, end, counted.tolist()) for start, end, counted in windows(6, 4, 2, True)]
    [(0, 4, [0, 1, 2]), (2, 6, [3, 4, 5])]
    """
    stride = max(1, min(stride, room))
    last = max(0, tokens - room)
    starts = np.append(np.arange(0, last, stride), last)
    place = np.arange(tokens)
    left = place[None, :] - starts[:, None]  # (windows, tokens) how many tokens of the window are before each
    right = np.minimum(starts + room, tokens)[:, None] - 1 - place[None, :]
    shown = left
    if both_sides:  # the ends of the text hide nothing
        shown = np.minimum(left + tokens * (starts == 0)[:, None], right + tokens * (starts == last)[:, None])
    inside = (left >= 0) & (right >= 0)
    best = np.where(inside, shown, -1).argmax(0)
    return [
        (int(start), int(min(start + room, tokens)), np.flatnonzero(best == number))
        for number, start in enumerate(starts)
        if (best == number).any()
    ]
