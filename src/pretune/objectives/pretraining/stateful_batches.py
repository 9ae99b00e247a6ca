"""Stateful batches: documents as streams of contiguous text, in which each batch continues where the previous one ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pretune.objectives.objective import Data
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.batch_planning import TextStreams, build_streams
from pretune.text.packing.sequences import LazyColumns, Packing, Sequences
from pretune.text.spans import span_indices
from pretune.text.store.store import Store


def stream_epoch(
    data: Data, packing: Packing, draws: EpochRandom, *, backward: bool = False, framed: bool = False
) -> StreamEpoch:
    """Divide documents into streams of contiguous text, and return an epoch of batches that continue each other.

    With `backward`, streams are read from end to start. With `framed`, each document is enclosed in the special tokens
    of the template.
    """
    store = data.require_store("a stateful objective")
    if data.languages:
        raise PretuneError(
            "a stateful objective reads text in one language, but the data has several; give text in one language, or remove stateful=true from the objective"
        )
    items = data.template.document_template.single if framed else ("A",)
    place = items.index("A")
    before, after = (
        np.array([data.tokenizer.role(role) for role in roles], dtype=np.int64)
        for roles in (items[:place], items[place + 1 :])
    )
    edges = store.sentence_offsets[store.document_offsets]
    begin, lengths = edges[data.documents], edges[data.documents + 1] - edges[data.documents]
    lengths = np.where(lengths > 0, lengths + len(before) + len(after), 0)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    # as many streams as windows of `packing.length` tokens fit into the packs of one step
    count = max(1, packing.tokens // packing.length) * packing.packs_per_step
    streams = build_streams(bounds[:-1], lengths, num_streams=count, window=packing.length, draws=draws)
    return StreamEpoch(store, streams, packing.packs_per_step, begin, bounds, before, after, backward)


@dataclass
class StreamEpoch:
    """An epoch of stateful batches, in which each sequence continues a stream of contiguous text.

    The concatenated documents are cut into equally long streams, and the streams are divided into `groups` groups.
    Batch t · groups + i has the t-th piece of each stream of group i.
    """

    store: Store
    streams: TextStreams
    groups: int
    begin: Array  # (documents,) where each starts in the store
    bounds: Array  # (documents + 1,) where each starts in the concatenation
    before: Array  # ids of the special tokens before each document
    after: Array  # ids of the special tokens after each document
    backward: bool = False  # whether time runs from the end of each stream to its start

    def __len__(self) -> int:
        return len(self.streams) * self.groups

    def sizes(self) -> Array:
        """Return the number of sequences in each batch, (batches,), including sequences that are only padding."""
        per_pack, window = self.streams.num_streams // self.groups, self.streams.window
        return np.full(len(self), per_pack - (-per_pack * (window - self.streams.shortest) // window))

    def pack(self, index: int) -> Sequences:
        """Return batch `index`: one group of streams at one time step, one sequence per stream.

        The column `next` of the sequences has the id of the token that is read after each token, or -1; the column
        `document_start` marks the starts of documents and streams.
        """
        time, group = divmod(index, self.groups)
        window = self.streams.batch(len(self.streams) - 1 - time if self.backward else time)
        per_pack = self.streams.num_streams // self.groups
        in_group = window.stream // per_pack == group
        lane, spans = window.stream[in_group] - group * per_pack, window.lengths[in_group]
        lengths = np.bincount(lane, weights=spans, minlength=per_pack).astype(np.int64)
        places = span_indices(window.starts[in_group], spans)
        document = np.searchsorted(self.bounds, places, side="right") - 1
        first, last = (places == self.bounds[document], places == self.bounds[document + 1] - 1)
        fresh, end = (last, first) if self.backward else (first, last)
        ids, special = self.look_up(places, document)
        following = self.look_up(np.where(end, places, places - 1 if self.backward else places + 1), document)[0]
        if time == 0:  # a stream may start inside a document
            edges = np.cumsum(lengths)
            fresh[(edges - 1 if self.backward else edges - lengths)[lengths > 0]] = True
        columns = LazyColumns(
            {"special": special, "document_start": fresh, "next": np.where(end, -1, following)},
            word=lambda: self.words(places, document, special),
        )
        if self.store.tokenizer.characters:
            columns["characters"] = self.store.tokenizer.token_characters[ids]
        index_of = np.arange(per_pack) + group * per_pack + time * self.streams.num_streams
        return Sequences(ids, lengths, index_of, columns)

    def look_up(self, places: Array, document: Array) -> tuple[Array, Array]:
        """Return the ids of the tokens at `places` (n,) in the concatenated documents, and a mask of special tokens.

        `document` (n,) has the document number of each token; the mask is (n,), too.
        """
        inside = places - self.bounds[document]
        ahead = inside < len(self.before)
        # 0 at the first token after the text
        late = inside - (self.bounds[document + 1] - self.bounds[document] - len(self.after))
        special = ahead | (late >= 0)
        text = np.where(special, self.begin[document], self.begin[document] + inside - len(self.before))
        ids = self.store.gather(text, np.ones_like(text)).astype(np.int64)
        ids[ahead] = self.before[inside[ahead]]
        ids[late >= 0] = self.after[late[late >= 0]]
        return ids, special

    def words(self, places: Array, document: Array, special: Array) -> Array:
        """Return a mask (n,), True for those of n tokens that are special or start a word.

        `places` (n,) has the positions of the tokens in the concatenated documents, `document` (n,) their document
        numbers, and `special` (n,) is True for special tokens.
        """
        at = (self.begin[document] + places - self.bounds[document] - len(self.before))[~special]
        found = np.ones(len(places), dtype=bool)
        found[~special] = self.store.gather_words(at, np.ones_like(at))
        return found
