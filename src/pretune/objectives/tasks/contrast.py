"""Text embeddings: texts that match get similar vectors, learned with in-batch negatives or from similarity scores.

Sources: Reimers and Gurevych, 2019, arXiv:1908.10084 (mean pooling, regression of cosines on scores); Henderson et al., 2017,
arXiv:1705.00652 (in-batch negatives); Gao et al., 2021, arXiv:2104.08821 (the temperature).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.patterns import Pattern
from pretune.nn.text_embedding import PROMPT, TextEmbedding, TextEmbeddingHead
from pretune.objectives.objective import Data, Loss
from pretune.objectives.task import Answer, fitted
from pretune.objectives.tasks.candidates import group_targets
from pretune.objectives.tasks.classify import need_rows
from pretune.objectives.tasks.rank import need_pairs
from pretune.packed import Batch, Targets
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import say
from pretune.runtime.randomness import Draws
from pretune.text.examples.labeled import Excerpt, Labeled, number, read_labeled
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.packing.token_rows import TokenRows
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]
ROLES = {"score": ("score", "similarity", "label", "is_duplicate")}
FAR = -1e4  # no similarity at all; finite, so that a batch of nothing has a loss
MEAN = TextEmbedding()
BLOCK = 1024  # texts among which a text's own pair is looked for


@dataclass(frozen=True)
class Contrast:
    """`vector` is the pooling that gives the vector of a text: that of the model by default, which is the mean where the
    model has none. Several are joined with +. `normalize` scales vectors to unit length. `embedding` is how the model that
    is trained computes vectors already.

    Without scores, a text's own pair must be nearer than those of all other rows of the batch, and the other way round;
    cosines are divided by `temperature` first. This is the one loss that is not a sum over rows alone: what a batch is cut
    into decides who is compared. With scores, cosines are to be like them.
    """

    vector: str = ""
    temperature: float = 0.05
    normalize: bool = False
    scored: bool = fitted(False)
    lowest: float = fitted(0.0)  # the score that is learned as a cosine of 0,
    highest: float = fitted(1.0)  # and that of 1
    embedding: TextEmbedding = fitted(MEAN)  # noqa: RUF009 (immutable)

    name: ClassVar[str] = "contrast"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    each: ClassVar[Literal["sequence", "token"]] = "sequence"

    def __post_init__(self) -> None:
        _ = self.described  # refuses unknown poolings

    @property
    def described(self) -> TextEmbedding:
        """How vectors are computed: as the model does it, but for what the options say."""
        return self.embedding.changed(self.vector, self.normalize)

    @property
    def decides(self) -> str:
        """The metric by which models are compared."""
        return "spearman" if self.scored else "accuracy"

    def read(self, file: str | Path | Excerpt, columns: Mapping[str, str], *, answered: bool = True) -> Labeled:
        """Rows with two texts, and a score where there is one."""
        rows = read_labeled(file, columns, labels=False, roles=ROLES if answered else {"score": ()})
        need_pairs(self.name, rows)
        scores, column = rows.more.pop("score", None), rows.columns.get("score")
        if answered and scores is not None:
            rows.labels = []
            for row, score in enumerate(scores):
                try:
                    rows.labels.append(number(score))
                except ValueError as error:
                    raise PretuneError(f"{rows.place(row)}: {error} in {column!r}") from error
        return rows

    def fit(self, examples: Labeled) -> Self:
        """With the range of the scores of some rows; those from -1 to 1 are cosines already."""
        if examples.labels is None:
            if len(set(examples.pairs or ())) < 2:
                raise PretuneError(f"{examples.file}: contrast takes two pairs of texts at least")
            return self
        lowest, highest = min(examples.labels), max(examples.labels)
        if lowest == highest:
            raise PretuneError(f"{examples.file}: every row has the score {lowest:g}; there is nothing to learn")
        if lowest >= -1 and highest <= 1:
            return replace(self, scored=True)
        say(f"{examples.file}: scores from {lowest:g} to {highest:g} are learned as cosines from 0 to 1")
        return replace(self, scored=True, lowest=lowest, highest=highest)

    def lay_out(self, data: Data, length: int) -> Arrangement:
        """Arrange two sequences per row, one after the other; texts that are too long lose their end."""
        rows, prompt = need_rows(self.name, data), self.embedding.prompt
        need_pairs(self.name, rows)
        assert rows.pairs is not None
        if self.embedding.similarity != "cosine":
            raise PretuneError(
                f"the vectors of this model are compared by {self.embedding.similarity}, and contrast learns and gives "
                "cosines; set similarity_fn_name to cosine in its config_sentence_transformers.json if that is intended"
            )
        tokens = data.token_rows
        if prompt:
            texts, pairs = ([prompt + text for text in column] for column in (rows.texts, rows.pairs))
            tokens = data.once(PROMPT, lambda: TokenRows.make(replace(rows, texts=texts, pairs=pairs), data.tokenizer))
        lengths = tokens.lengths.reshape(-1, 1)
        room = length - data.template.overhead(pair=False)
        example = np.repeat(np.arange(len(rows)), 2)
        both = np.array([rows.texts, rows.pairs], dtype=object).T.ravel()
        labels = {"example": example, "group": example, "text": np.unique(both, return_inverse=True)[1]}
        if rows.labels is not None:
            labels["score"] = np.repeat(np.array(rows.labels, dtype=np.float32), 2)
        before = prompt_tokens(prompt, data.tokenizer, data.template, length)
        if not self.embedding.include_prompt:
            labels[PROMPT] = np.full(len(both), before)
        cut = int((lengths > room).sum())
        starts, spans = tokens.starts.reshape(-1, 1), np.minimum(lengths, room)
        return Arrangement(tokens, data.tokenizer, data.template, starts, spans, labels, truncated=cut)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Rows in any order, their texts together."""
        return plan_epoch(self.lay_out(data, packing.length), packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Set one target per row, at both its texts: its score, or which texts they are."""
        labels = sequences.labels
        if PROMPT in labels:
            sequences = mark_prompts(sequences, labels[PROMPT])
        at, _ = group_targets(labels["group"], np.ones(len(sequences.lengths)), most=2)
        target = labels["text"][at]
        if self.scored and "score" in labels:
            target = (labels["score"][at[:, 0]] - self.lowest) / (self.highest - self.lowest)
        sequences.targets[self.name] = (at, target)
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """One target for two sequences."""
        return {self.name: min(packing.sequences, packing.tokens) // 2}

    def head(self, backbone: Backbone) -> nn.Module:
        """Pooling and what follows it; only dense layers and layer norms have parameters."""
        return TextEmbeddingHead(self.described, backbone.width)

    def outputs(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Tensor:
        """(sequences, width) vectors."""
        vectors: Tensor = head(backbone(*batch.packed).last, batch.packed[-1])
        return vectors

    def answers(self, outputs: Sequence[Array], laid: Arrangement, examples: Labeled) -> list[Answer]:
        """The cosine of each pair, and which place the second text has among those of a thousand rows or so, by their cosines."""
        vectors = np.stack(outputs).astype(np.float64)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        first, second, text = vectors[::2], vectors[1::2], laid.labels["text"][1::2]
        found: list[Answer] = []
        for start in range(0, len(first), BLOCK):
            part = slice(start, start + BLOCK)
            cosines = first[part] @ second[part].T
            own = np.diagonal(cosines)
            nearer = (cosines >= own[:, None]) & (text[part][:, None] != text[part][None])
            places = 1 + nearer.sum(1)
            found += [{"similarity": float(x), "place": int(place)} for x, place in zip(own, places, strict=True)]
        return found

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of finding each text's pair among those of the batch, both ways; or the squared error of cosines."""
        targets = batch.targets[self.name]
        vectors = F.normalize(self.outputs(head, backbone, batch).float(), dim=-1)
        first, second = vectors[targets.at[:, 0]], vectors[targets.at[:, 1]]
        if self.scored:
            errors = (first * second).sum(-1) - targets.target
            return Loss(sums={self.name: (errors.square() * targets.weight).sum()})
        return contrast_loss(self.name, first @ second.T / self.temperature, targets)


def prompt_tokens(prompt: str, tokenizer: Tokenizer, template: Template, length: int) -> int:
    """Return how many tokens a prompt takes, with the special tokens before it; 0 without a prompt.

    A prompt that leaves no room for text in sequences of `length` tokens is refused.
    """
    tokens = len(tokenizer.encode(prompt)) if prompt else 0
    if tokens >= length - template.overhead(pair=False):
        raise PretuneError(
            f"the prompt {prompt!r} has {tokens} tokens, and sequences of {length} have no room for more"
        )
    return tokens + template.single.index("A") if prompt else 0


def mark_prompts(sequences: Sequences, tokens: Array) -> Sequences:
    """Mark so many tokens at the beginning of each sequence, (b,), as those of a prompt, which a pooling may leave out."""
    sequences.columns[PROMPT] = sequences.place < np.repeat(tokens, sequences.lengths)
    return sequences


def contrast_loss(name: str, similar: Tensor, targets: Targets) -> Loss:
    """From (m, m) similarities of first and second texts, whose numbers are the targets (m, 2).

    Unused slots are nobody's negatives, nor is a text that a row has itself.
    """
    own = torch.eye(len(similar), dtype=torch.bool, device=similar.device)
    unused = targets.weight == 0
    losses = torch.zeros_like(targets.weight)
    for logits, text in ((similar, targets.target[:, 1]), (similar.T, targets.target[:, 0])):
        wrong = (text[:, None] == text[None]) | unused[None]
        masked = logits.masked_fill(wrong & ~own, FAR)
        losses = losses - masked.log_softmax(-1).diagonal() / 2
    right = similar.masked_fill(unused[None] & ~own, FAR).argmax(-1) == torch.arange(
        len(similar), device=similar.device
    )
    logs = {f"{name}/accuracy": (right.float() * targets.weight).sum().detach()}
    return Loss(sums={name: (losses * targets.weight).sum()}, logs=logs)
