"""Coreference resolution: find the mentions of a document and link those that refer to the same thing.

The end-to-end model of Lee et al., 2017, arXiv:1707.07045, on the hidden states of a pretrained model: every span of a sentence up to
a maximum width is scored as a mention, the best are kept, and each is linked to one of the kept spans before it or to none. Speaker
and genre are not used, and kept spans may cross each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.coreference import coreference_metrics
from pretune.metrics.per_example import ScoredAnswer, score_clusters
from pretune.nn.attention.query_key_layout import token_layout
from pretune.nn.dropout import Dropout
from pretune.nn.linear import Linear, OutputLinear
from pretune.objectives.objective import Data, Loss
from pretune.objectives.registry import register_task
from pretune.objectives.task import Answer, Task
from pretune.packed import Batch, Packed, Targets
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.conll_annotations import Cluster, Mention
from pretune.text.examples.coreference import CoreferenceDocuments, coreference_rows, read_coreference
from pretune.text.examples.labeled import Row, TableChunk
from pretune.text.examples.tagged import TaggedSentences
from pretune.text.packing.sequences import Arrangement, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

NOT_A_SPAN, NO_CLUSTER = -1, 0  # values of the grid of spans beside the numbers of clusters, from 1
DISTANCES = (2, 3, 4, 5, 8, 16, 32, 64)  # lower bounds of the classes of distances in kept spans, after the first class


class Links(NamedTuple):
    """The kept spans of a batch and the scores of their antecedents.

    For k places for kept spans and a candidates for antecedents, `spans` (k,) are the indices of the spans in the grid
    (words · widths), `kept` (k,) is False for unused places, `antecedents` (k, a) are places of kept spans, and `scores`
    (k, a) is -inf where there is no antecedent.
    """

    spans: Tensor
    kept: Tensor
    antecedents: Tensor
    scores: Tensor


class CoreferenceHead(nn.Module):
    """The head of `coref`: the vector of each span, the score of each span as a mention, and the score of each pair."""

    def __init__(
        self, width: int, hidden: int, max_span_width: int, max_antecedents: int, ratio: float, dropout: float
    ) -> None:
        """Build a head on states of `width` numbers, with span vectors of `hidden` numbers."""
        super().__init__()
        self.max_span_width, self.max_antecedents, self.ratio = max_span_width, max_antecedents, ratio
        self.dropout = Dropout(dropout)
        self.first, self.last = Linear(width, hidden), Linear(width, hidden, bias=False)
        self.inside, self.attention = Linear(width, hidden, bias=False), OutputLinear(width, 1)
        self.widths = nn.Parameter(torch.zeros(max_span_width, hidden))
        self.mention = OutputLinear(hidden, 1)
        self.anaphor, self.antecedent = Linear(hidden, hidden), Linear(hidden, hidden, bias=False)
        self.product = Linear(hidden, hidden, bias=False)
        self.distances = nn.Parameter(torch.zeros(len(DISTANCES) + 1, hidden))
        self.pair = OutputLinear(hidden, 1)

    def forward(self, states: Tensor, packed: Packed, words: Targets) -> Links:
        """Return the kept spans of packed documents and the scores of their antecedents.

        `words.at` (q, 2) are the first and the last token of each word, and `words.target` (q, w) is the grid of spans:
        span (i, j) consists of the words i to i + j, and is NOT_A_SPAN if it does not exist.
        """
        owner = token_layout(packed).sequence.long()[words.at[:, 0]]
        real = words.weight > 0
        vectors = self.span_vectors(states, words.at)  # (q, w, hidden)
        mentions = self.mention(self.dropout(vectors, depth=1)).float()[..., 0].flatten()
        exists = ((words.target > NOT_A_SPAN) & real[:, None]).flatten()
        quotas = torch.zeros(packed.offsets.shape[0] - 1, device=states.device).index_add(0, owner, real.float())
        owners = owner[:, None].expand_as(words.target).flatten()
        places = min(len(exists), int(self.ratio * words.at.shape[0]) + quotas.shape[0])
        spans, kept = best_spans(mentions, exists, owners, (self.ratio * quotas).ceil(), places)
        chosen = vectors.flatten(0, 1)[spans]
        # The kept spans are in the order of the text, so the nearest before a span are those in the places before.
        steps = torch.arange(1, self.max_antecedents + 1, device=states.device)
        antecedents = torch.arange(places, device=states.device)[:, None] - steps
        possible = antecedents >= 0
        antecedents = antecedents.clamp(min=0)
        possible = possible & kept[:, None] & kept[antecedents]
        possible = possible & (owners[spans][antecedents] == owners[spans][:, None])
        scores = self.pair_scores(chosen, antecedents, steps)
        scores = scores + mentions[spans][:, None] + mentions[spans][antecedents]
        return Links(spans, kept, antecedents, scores.masked_fill(~possible, -torch.inf))

    def span_vectors(self, states: Tensor, words: Tensor) -> Tensor:
        """Return the vector of each span of the grid, (q, w, hidden), given the first and last token of q words.

        It is computed from the first and the last token of the span, the weighted mean of its words, and its width.
        """
        states = self.dropout(states)
        first = states[words[:, 0]]
        # Word i + j for span (i, j); spans beyond the last word do not exist.
        ends = torch.arange(words.shape[0], device=words.device)[:, None]
        ends = (ends + torch.arange(self.max_span_width, device=words.device)).clamp(max=words.shape[0] - 1)
        logits = self.attention(first).float()[:, 0][ends]  # (q, w)
        # Span (i, j) attends to its words i to i + j.
        inside = torch.ones(self.max_span_width, self.max_span_width, dtype=torch.bool, device=words.device).tril()
        weights = logits[:, None, :].masked_fill(~inside, -torch.inf).softmax(-1)
        mean = weights.to(states.dtype) @ self.inside(first)[ends]
        last = self.last(states[words[:, 1]])[ends]
        return F.relu(self.first(first)[:, None] + last + mean + self.widths.to(states.dtype))

    def pair_scores(self, spans: Tensor, antecedents: Tensor, steps: Tensor) -> Tensor:
        """Return a score, (k, a), for each of k spans (k, hidden) and each of its candidate antecedents (k, a).

        `steps` (a,) are the distances of the candidates. The hidden layer reads both vectors, their product, and a class
        of the distance.
        """
        spans = self.dropout(spans, depth=2)
        classes = torch.stack([steps >= bound for bound in DISTANCES]).sum(0)
        hidden = self.anaphor(spans)[:, None] + self.antecedent(spans)[antecedents]
        hidden = hidden + self.product(spans[:, None] * spans[antecedents])
        hidden = F.relu(hidden + self.distances[classes].to(spans.dtype))
        scores: Tensor = self.pair(self.dropout(hidden, depth=3)).float()[..., 0]
        return scores


def best_spans(scores: Tensor, exists: Tensor, owners: Tensor, quotas: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the best spans of each document in their order, and which of these places are used.

    Of the spans that exist, those with the highest `scores` are kept, `quotas` (documents,) of each document. The number
    of `places` is an upper bound on the number of kept spans, so that shapes do not depend on values.
    """
    order = scores.detach().masked_fill(~exists, -torch.inf).argsort(descending=True, stable=True)
    order = order[owners[order].argsort(stable=True)]
    counts = torch.zeros_like(quotas, dtype=torch.long).index_add(0, owners, torch.ones_like(owners))
    rank = torch.arange(len(scores), device=scores.device) - (counts.cumsum(0) - counts)[owners[order]]
    chosen = torch.zeros_like(exists).scatter(0, order, rank < quotas[owners[order]]) & exists
    spans = (~chosen).int().argsort(stable=True)[:places]
    return spans, chosen[spans]


@register_task
@dataclass(frozen=True)
class Coref(Task):
    """Coreference resolution: clusters of mentions that refer to the same thing.

    A mention has at most `max_span_width` words of a sentence. Per word, `mention_ratio` spans are kept, and each is
    compared with the `max_antecedents` kept spans before it; `hidden` is the size of the vectors of spans. Documents that
    exceed the maximum length are cut at the end of a sentence.
    """

    max_span_width: int = 10
    mention_ratio: float = 0.4
    max_antecedents: int = 50
    hidden: int = 256
    dropout: float = 0.3

    name: ClassVar[str] = "coref"
    output_per: ClassVar[Literal["sequence", "token", "text"]] = "token"
    primary_metric: ClassVar[str] = "conll_f1"
    purpose: ClassVar[tuple[str, str]] = (
        "It links the mentions of a document that refer to the same thing",
        "token-classification",
    )
    reads_spans: ClassVar[bool] = True
    combinable: ClassVar[bool] = True
    settings: ClassVar[Mapping[str, Any]] = {"batch": {"max_length": 512}}

    def __post_init__(self) -> None:
        for name, value in {
            "max_span_width": self.max_span_width,
            "max_antecedents": self.max_antecedents,
            "hidden": self.hidden,
        }.items():
            if value < 1:
                raise PretuneError(f"coref({name}={value}): the value is too small; give 1 or more")
        if not 0 < self.mention_ratio <= 1:
            raise PretuneError(f"coref(mention_ratio={self.mention_ratio:g}): give a number above 0, and at most 1")

    def rows(self, file: Path) -> Iterator[tuple[int, Row]]:
        """Yield the documents of a file with their line numbers."""
        return coreference_rows(file)

    def read(
        self, file: str | Path | TableChunk, columns: Mapping[str, str], *, answered: bool = True
    ) -> CoreferenceDocuments:
        """Read documents, with their clusters of coreferent mentions if `answered`."""
        return read_coreference(file, columns, clusters=answered)

    def fit(self, examples: CoreferenceDocuments) -> Self:
        """Return the task; log how many mentions are too long, and raise an error if there are no mentions."""
        assert examples.clusters is not None
        mentions = [mention for document in examples.clusters for cluster in document for mention in cluster]
        if not mentions:
            raise PretuneError(
                f"{examples.file}: no document has coreferent mentions, so there is nothing to learn; check the field or column of clusters"
            )
        wide = sum(last - first >= self.max_span_width for first, last in mentions)
        if wide:
            log_info(
                f"{examples.file}: {wide} of {len(mentions)} mentions have more than max_span_width={self.max_span_width} words and cannot be found"
            )
        return self

    def tokenize_examples(self, data: Data, length: int) -> Arrangement:
        """Return one sequence of at most `length` tokens per document; longer ones are cut at the end of a sentence."""
        if not isinstance(data.rows, CoreferenceDocuments):
            raise PretuneError(
                "the task coref needs documents with sentences; give a CoNLL-2012 file or folder, or a .jsonl file"
            )
        if data.template.target:
            raise PretuneError(
                "the task coref needs an encoder, because it scores spans of its input; choose an encoder instead of an encoder-decoder"
            )
        room = length - data.template.num_special_tokens(pair=False)
        if room < 1:
            raise PretuneError(f"sequences of {length} tokens leave no room for text; increase the maximum length")
        documents = data.rows
        tokens = TaggedSentences(documents.file, {}, words=documents.words).tokenize(data.tokenizer)
        sizes = np.array([len(words) for document in documents.sentences for words in document], dtype=np.int64)
        sentence = np.repeat(np.arange(len(sizes)), sizes)  # of each word
        # Cut after the last sentence that fits; a first sentence that is too long is cut between tokens.
        ends = tokens.units[np.cumsum(sizes)]  # (sentences,) the token after each sentence
        lengths = tokens.rows.lengths[:, 0].copy()
        bounds = np.cumsum([0, *map(len, documents.sentences)])
        for row in np.flatnonzero(lengths > room):
            start = tokens.rows.starts[row, 0]
            fitting = ends[bounds[row] : bounds[row + 1]] - start
            lengths[row] = fitting[fitting <= room].max(initial=0) or room
        truncated = int((lengths < tokens.rows.lengths[:, 0]).sum())
        written = np.flatnonzero(np.diff(tokens.units))  # words with tokens
        grid = np.full((len(tokens.word), self.max_span_width), NOT_A_SPAN, dtype=np.int32)
        grid[tokens.units[written]] = self.span_grid(documents, tokens.bounds, sentence, written)
        return Arrangement(
            tokens.rows,
            data.tokenizer,
            data.template,
            tokens.rows.starts,
            lengths[:, None],
            {"example": np.arange(len(documents))},
            truncated=truncated,
            tokens={"word": tokens.word, "cluster": grid},
        )

    def span_grid(self, documents: CoreferenceDocuments, bounds: Array, sentence: Array, written: Array) -> Array:
        """Return the grid of spans, (q, max_span_width): the number of the cluster of the span (i, j), from 1.

        It is NO_CLUSTER for other spans, and NOT_A_SPAN if the words i to i + j are not in one sentence. `written` (q,)
        are the indices of the words that have tokens, `sentence` is the number of the sentence of each word, and `bounds`
        has the first word of each document.
        """
        grid = np.full((len(written), self.max_span_width), NOT_A_SPAN, dtype=np.int32)
        own = sentence[written]
        for width in range(min(self.max_span_width, len(written))):
            same = own[: len(own) - width] == own[width:]
            grid[: len(own) - width, width] = np.where(same, NO_CLUSTER, NOT_A_SPAN)
        place = {word: number for number, word in enumerate(written.tolist())}
        for begin, clusters in zip(bounds[:-1].tolist(), documents.clusters or (), strict=False):
            for number, cluster in enumerate(clusters, 1):
                for first, last in cluster:
                    i, end = place.get(begin + first, -1), place.get(begin + last, -1)
                    if i >= 0 and 0 <= end - i < self.max_span_width and grid[i, end - i] != NOT_A_SPAN:
                        grid[i, end - i] = number
        return grid

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the first and last token of each word as a target, with the clusters of the spans that begin at the word."""
        text = np.flatnonzero(~sequences.columns["special"])
        begins = np.flatnonzero(sequences.columns["word"][text] >= 0)
        first, last = text[begins], text[np.append(begins[1:], len(text))[: len(begins)] - 1]
        grid, owner = sequences.columns["cluster"][first], sequences.owner[first]
        for width in range(1, self.max_span_width):  # spans may end after the cut of their document
            cut = np.ones(len(first), dtype=bool)
            cut[:-width] = owner[:-width] != owner[width:]
            grid[cut, width] = NOT_A_SPAN
        sequences.targets[self.name] = (np.stack([first, last], 1), grid)
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return an upper bound on the number of targets per batch: one per token, as each can start a word."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """Build a head that scores spans as mentions, and pairs of them as coreferent."""
        return CoreferenceHead(
            backbone.width, self.hidden, self.max_span_width, self.max_antecedents, self.mention_ratio, self.dropout
        )

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the negative log-likelihood of all gold antecedents of each kept span; without one, of no antecedent."""
        words = batch.targets[self.name]
        links: Links = head(backbone(*batch.packed).last, batch.packed[-1], words)
        cluster = words.target.flatten()[links.spans]
        gold = (cluster[links.antecedents] == cluster[:, None]) & (cluster > NO_CLUSTER)[:, None]
        gold = gold & (links.scores > -torch.inf)
        gold = torch.cat([~gold.any(1, keepdim=True), gold], 1)
        scores = torch.cat([torch.zeros_like(links.scores[:, :1]), links.scores], 1)
        losses = scores.logsumexp(1) - scores.masked_fill(~gold, -torch.inf).logsumexp(1)
        right = gold.gather(1, scores.argmax(1, keepdim=True))[:, 0] & links.kept
        logs = {
            f"{self.name}/accuracy": right.sum().float().detach(),
            f"{self.name}/accuracy/of": links.kept.sum().float().detach(),
        }
        return Loss(sums={self.name: (losses * links.kept).sum()}, logs=logs)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the antecedent of each span, (tokens, max_span_width), in the rows of the first tokens of the spans.

        The antecedent (i, j), with word i of the sequence, is written as i · max_span_width + j, and none as -1.
        """
        words, packed = batch.targets[self.name], batch.packed[-1]
        links: Links = head(backbone(*batch.packed).last, packed, words)
        best = links.scores.argmax(1, keepdim=True)
        found = links.kept & (links.scores.gather(1, best)[:, 0] > 0)
        antecedent = links.spans[links.antecedents.gather(1, best)[:, 0]]
        # Words are counted from the first one of their sequence.
        owner = token_layout(packed).sequence.long()[words.at[:, 0]]
        begins = torch.searchsorted(words.at[:, 0].contiguous(), packed.offsets.long())[owner]
        antecedent = antecedent - (begins * self.max_span_width)[antecedent // self.max_span_width]
        grid = torch.full(words.target.shape, -1.0, device=antecedent.device).flatten()
        grid[links.spans[found]] = antecedent[found].float()
        rows = torch.full((len(packed), self.max_span_width), -1.0, device=antecedent.device)
        rows[words.at[:, 0]] = grid.view(words.target.shape)
        return rows

    def answers(
        self, outputs: Sequence[Array], arrangement: Arrangement, examples: CoreferenceDocuments
    ) -> list[Answer]:
        """Return the clusters of each document as lists of mentions, [first, last], and the texts of the mentions."""
        lead = arrangement.template.single.index("A")
        begins = np.cumsum([0, *map(len, examples.words)])
        found = []
        for row, (rows, start, span) in enumerate(
            zip(outputs, arrangement.starts[:, 0], arrangement.spans[:, 0], strict=True)
        ):
            word = arrangement.tokens["word"][start : start + span]
            at = np.flatnonzero(word >= 0)
            words = (word[at] - begins[row]).tolist()  # indices in the document of the words that were read
            grid = rows[lead + at].astype(np.int64).ravel() if len(rows) else np.empty(0, dtype=np.int64)
            cluster_of: dict[int, list[int]] = {}
            for place in np.flatnonzero(grid >= 0).tolist():  # antecedents come before their spans
                cluster = cluster_of.setdefault(int(grid[place]), [int(grid[place])])
                cluster.append(place)
                cluster_of[place] = cluster
            clusters = {id(cluster): cluster for cluster in cluster_of.values()}.values()
            width = self.max_span_width
            mentions = [[(words[p // width], words[p // width + p % width]) for p in cluster] for cluster in clusters]
            found.append(answer_clusters(examples, row, sorted(map(sorted, mentions))))
        return found

    def combine(self, answers: Sequence[Answer], examples: CoreferenceDocuments, row: int) -> Answer:
        """Return an ensemble's answer for document `row`: mentions are linked if more than half of the models link them."""
        votes: Counter[tuple[Mention, Mention]] = Counter()
        for answer in answers:
            for cluster in answer["clusters"]:
                votes.update(combinations(sorted((first, last) for first, last in cluster), 2))
        clusters: list[set[Mention]] = []
        for pair in (pair for pair, count in votes.items() if 2 * count > len(answers)):
            joined = [cluster for cluster in clusters if not cluster.isdisjoint(pair)]
            clusters = [cluster for cluster in clusters if cluster not in joined] + [set(pair).union(*joined)]
        return answer_clusters(examples, row, sorted(map(sorted, clusters)))

    def metric_sums(self, answers: Sequence[Answer], examples: Any) -> AdditiveMetrics:
        """Return MUC, B³, CEAF-φ4 and the mean of their F1 as sums over documents."""
        return coreference_metrics(examples.clusters, [answer["clusters"] for answer in answers])

    def judge(self, answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
        """Score the clusters of each document by the mean F1 of the three metrics."""
        return score_clusters(answers, examples)

    def majority_answers(self, learned: Any, judged: Any) -> tuple[str, list[Answer]]:
        """Return a description of the baseline without clusters, and its answer to each of the documents `judged`."""
        return "no coreference", [{"clusters": []} for _ in range(len(judged))]

    def simple_baselines(self, learned: Any, judged: Any) -> dict[str, list[Answer]]:
        """Return the answers of a baseline to the documents `judged`: equal mentions are coreferent.

        Mentions are the words that are mentions in most of their occurrences in the training documents `learned`.
        """
        return {"equal words": same_words(learned, judged, self.max_span_width)}

    def demonstration(self) -> CoreferenceDocuments:
        """Return an example of the task: two sentences about a person and a house."""
        sentences = [["Ann", "saw", "the", "old", "house", "."], ["She", "bought", "it", "."]]
        return CoreferenceDocuments(
            Path("example"), {}, [sentences], [[[(0, 0), (6, 6)], [(2, 4), (8, 8)]]], [""], [None]
        )

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return the mentions of each gold cluster, joined by =, for `pretune show objectives`.

        `at` (q, 2) has the indices in `ids` of the first and the last token of each word, and `target` is the grid.
        """
        clusters = defaultdict(list)
        for i, j in zip(*np.nonzero(target > NO_CLUSTER), strict=True):
            clusters[target[i, j]].append(spell(ids[at[i, 0] : at[i + j, 1] + 1]))
        return "; ".join(" = ".join(mentions) for mentions in clusters.values())


def answer_clusters(examples: CoreferenceDocuments, row: int, clusters: list[Cluster]) -> Answer:
    """Return the answer for a document: its clusters, and the mentions with their texts.

    Mentions of a document that was given as a text have the characters at which they start and end, too.
    """
    original, words = examples.originals[row], [word for sentence in examples.sentences[row] for word in sentence]

    def describe(mention: Mention) -> dict[str, Any]:
        first, last = mention
        if original is None:
            return {"text": " ".join(words[first : last + 1]), "first": first, "last": last}
        text, bounds = original
        start, end = bounds[first][0], bounds[last][1]
        return {"text": text[start:end], "first": first, "last": last, "start": start, "end": end}

    return {
        "clusters": [[list(mention) for mention in cluster] for cluster in clusters],
        "mentions": [[describe(mention) for mention in cluster] for cluster in clusters],
    }


def same_words(learned: CoreferenceDocuments, judged: CoreferenceDocuments, longest: int) -> list[Answer]:
    """Return clusters of equal mentions for the documents `judged`, ignoring case; the longest mentions come first.

    Mentions are the words, at most `longest`, that are mentions in most of their occurrences in `learned`.
    """

    def spelled(words: Sequence[str], first: int, last: int) -> str:
        return " ".join(words[first : last + 1]).casefold()

    mentions: Counter[str] = Counter()
    for words, clusters in zip(learned.words, learned.clusters or (), strict=True):
        spans = [(first, last) for cluster in clusters for first, last in cluster if last - first < longest]
        mentions.update(spelled(words, first, last) for first, last in spans)
    seen: Counter[str] = Counter()
    for words in learned.words:
        spans = [(i, i + j) for i in range(len(words)) for j in range(min(longest, len(words) - i))]
        seen.update(text for text in (spelled(words, *span) for span in spans) if text in mentions)
    usual = {text for text, count in mentions.items() if 2 * count > seen[text]}
    found = []
    for document in judged.sentences:
        groups: dict[str, Cluster] = {}
        words = [word for sentence in document for word in sentence]
        for begin, end in pairwise(np.cumsum([0, *map(len, document)]).tolist()):
            first = begin
            while first < end:
                lasts = range(min(end, first + longest) - 1, first - 1, -1)
                last = next((last for last in lasts if spelled(words, first, last) in usual), None)
                if last is not None:
                    groups.setdefault(spelled(words, first, last), []).append((first, last))
                first = first + 1 if last is None else last + 1
        found.append({"clusters": [list(map(list, group)) for group in groups.values() if len(group) > 1]})
    return found
