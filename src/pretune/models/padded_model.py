"""The form in which graphs and programs are exported: a model that takes padded rows, as other libraries give them.

Inside it, tokens are packed: padding is removed first and exists again only within attention, so that the cost of a batch depends
on its real tokens. Every export is loaded back and compared with its model on the inputs of `inputs_to_compare`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from pretune.backbones.backbone import BackboneOutput, LayerSelection, selected_layers
from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.funnel import FunnelStack
from pretune.backbones.onnx_runtime import LAYER_STATES, LOGITS, STATES, TOKEN_STATES, OnnxBackbone
from pretune.backbones.two_streams import TwoStreams
from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.length_bucketing import arrange_texts, batches_by_length
from pretune.models.model import Model
from pretune.nn.attention.patterns import Pattern
from pretune.nn.attention.query_key_layout import TracedPacked
from pretune.nn.pooling import chosen_tokens
from pretune.objectives import OBJECTIVES, Task
from pretune.objectives.tasks.classify import ClassifyHead
from pretune.objectives.tasks.layer_features import LayerFeaturesHead
from pretune.objectives.wrappers import CachedBackbone, WrappedBackbone
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError

LANGUAGE_MODELS = ("mlm", "lm")  # heads that map states and token embeddings to logits over the vocabulary
TOLERANCE = 1e-3  # the largest accepted difference between an export and its model, relative to the largest output
# The texts on which an export is compared with its model, alone and together.
TEXTS = (
    "The ferry leaves at nine.",
    "Yes.",
    "She read the letter twice, folded it, and put it back into the drawer without a word to anybody in the house.",
    "Prices rose by 3.5 % in March; nobody had expected that.",
)
MANY = 9  # how often the texts are repeated for a batch of many rows


@dataclass(frozen=True)
class LanguageModel:
    """A masked or causal language-model head, whose logits over the vocabulary an export outputs for each token."""

    name: str  # one of LANGUAGE_MODELS
    output_per: ClassVar[Literal["token"]] = "token"

    @property
    def pattern(self) -> Pattern | None:
        """The attention pattern with which a language-model head was trained."""
        return OBJECTIVES[self.name].pattern

    def outputs(self, head: nn.Module, backbone: Any, batch: Batch) -> Tensor:
        """Return the logits of a language-model head for each token of a batch, (tokens, vocabulary)."""
        logits: Tensor = head(backbone(*batch.packed).last, backbone.embed.tokens)
        return logits


Scorer = Task | LanguageModel  # what computes the logits of an exported model


def choose_scorer(model: Model, tasks: Sequence[Task]) -> Scorer | None:
    """Return the task, or else the language-model head, whose logits an export outputs; None for no logits."""
    for task in (task for task in tasks if task.name in model.root.heads):
        return None if task.reads_spans else task.with_tokenizer(model.require_tokenizer())
    return next((LanguageModel(name) for name in LANGUAGE_MODELS if name in model.root.heads), None)


def check_exportable(model: Model, what: str) -> None:
    """Raise an error if a model cannot be exported in the form `what`, such as "an ONNX graph".

    The models that cannot be exported are ONNX graphs, models with int8 weights, encoder-decoders, models that read
    images, and models that pool tokens.
    """
    if isinstance(model.backbone, OnnxBackbone):
        raise PretuneError(f"{model.backbone.path}: the model is an ONNX graph already; use this file")
    if model.shape.linear:
        raise PretuneError(f"int8 weights for torch cannot be exported as {what}; export the model before quantization")
    if isinstance(model.backbone, EncoderDecoder):
        raise PretuneError(f"{model.family.name}: encoder-decoders cannot be exported as {what}; use another model")
    if isinstance(model.backbone, TwoStreams):
        raise PretuneError(
            f"{model.family.name}: models that read images cannot be exported as {what}; use another model"
        )
    if isinstance(model.backbone, FunnelStack):
        raise PretuneError(
            f"{model.family.name}: models that pool tokens cannot be exported as {what}; use another model"
        )


class PaddedModel(nn.Module):
    """A model that takes b sequences, padded to L tokens, as other libraries do, instead of concatenated sequences."""

    def __init__(self, model: Model, scorer: Scorer | None, outputs: Sequence[str] | None = None) -> None:
        """Wrap a model; `scorer` is the task or head that computes logits, and `outputs` defaults to `output_names`."""
        super().__init__()
        self.root, self.scorer = model.root, scorer
        self.outputs = output_names(scorer) if outputs is None else outputs
        self.max_length = model.backbone.max_positions or DEFAULT_MAX_LENGTH
        self.layer_numbers = head_layers(model)

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor, attends_all: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of a model for padded inputs, (b, L) each: hidden states and, if there is a head, its logits.

        Hidden states are (b, L, width), and logits (b, classes) or, if the head predicts for each token, (b, L, classes).
        Token states are (b, width): those of the first or last tokens. `mask` is 1 for tokens and 0 for padding;
        `attends_all` is 1 for tokens with global attention.
        """
        real = mask > 0
        rows = real.flatten().nonzero().squeeze(1)  # (n,)
        ends = mask.sum(1).cumsum(0)
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).flatten()[rows]
        packed = TracedPacked(
            ids=ids.flatten()[rows],
            offsets=torch.cat([ends.new_zeros(1), ends]).int(),
            positions=places,
            max_length=self.max_length,
            columns={"segment": segments.flatten()[rows], "global": attends_all.flatten()[rows]},
            pattern=self.scorer.pattern if self.scorer is not None else None,
            mask=real,
            places=rows,
        )
        numbers = [number for number in self.layer_numbers if LAYER_STATES.format(number) in self.outputs]
        backbone: Any = CachedBackbone(self.root.backbone)
        if self.layer_numbers:  # one pass for all of them
            backbone = LayerCache(self.root.backbone, (*self.layer_numbers, self.root.backbone.depth))
        output = backbone(packed)
        found = {}
        for mode, name in TOKEN_STATES.items():
            at = chosen_tokens(packed, mode) if name in self.outputs else None
            if at is not None:
                found[name] = output.last_at(at)

        def padded(x: Tensor) -> Tensor:  # (n, d) → (b, L, d); a lookup is much faster than a scatter
            token = (real.flatten().long().cumsum(0) - 1).clamp(min=0)
            return x.index_select(0, token).view(ids.shape[0], ids.shape[1], x.shape[-1]) * real[:, :, None]

        if self.scorer is not None:
            logits = self.scorer.outputs(self.root.heads[self.scorer.name], backbone, Batch((packed,)))
            found[LOGITS] = logits if self.scorer.output_per == "sequence" else padded(logits)
        found[STATES] = padded(output.last)
        if numbers:
            layers = backbone(packed, keep=numbers).layers
            found |= {LAYER_STATES.format(number): padded(x) for number, x in zip(numbers, layers, strict=True)}
        return tuple(found[name] for name in self.outputs)


class LayerCache(WrappedBackbone):
    """A backbone that computes several layers once, and returns those of them that a call selects."""

    def __init__(self, backbone: Any, numbers: Sequence[int]) -> None:
        """Wrap a backbone; `numbers` are the layers that calls select, in ascending order."""
        self.backbone, self.numbers = backbone, list(numbers)
        self.known: tuple[Any, list[Tensor]] | None = None

    def __call__(self, *packed: Any, keep: LayerSelection = "last", **options: Any) -> BackboneOutput:
        """Return the hidden states of the layers that `keep` selects, (tokens, width) each."""
        if self.known is None or self.known[0] is not packed[0]:
            self.known = packed[0], self.backbone(*packed, **options, keep=self.numbers).layers
        wanted = selected_layers(keep, self.backbone.depth)
        return BackboneOutput([x for number, x in zip(self.numbers, self.known[1], strict=True) if number in wanted])


def head_layers(model: Model) -> list[int]:
    """Return the numbers of the layers below the top that heads read, in ascending order; 0 is the embeddings."""
    depth = model.backbone.depth
    heads = [head for head in model.root.heads.values() if isinstance(head, LayerFeaturesHead)]
    chosen = [selected_layers(head.features.keep, depth) for head in heads if head.features.layers != "cove"]
    return sorted(set().union(*chosen) - {depth})


def token_states(model: Model) -> list[str]:
    """Return the names of the outputs with the hidden states of single tokens that heads of a model read.

    A graph has these outputs beside those of `output_names`, because most of its top layer can be left out for them.
    """
    heads = [head for head in model.root.heads.values() if isinstance(head, ClassifyHead) and not head.backward]
    return sorted({TOKEN_STATES[head.pooling] for head in heads if head.pooling in TOKEN_STATES})


def output_names(scorer: Scorer | None) -> list[str]:
    """Return the names of the outputs of an export: hidden states and, if `scorer` is a task or LM head, logits."""
    return [STATES] if scorer is None else [STATES, LOGITS]


def synthetic_inputs(lengths: list[int], vocabulary: int, longest: int) -> tuple[Tensor, ...]:
    """Return synthetic inputs of an exported model: padded sequences of the given lengths, at most `longest` each.

    They are token ids, attention mask, segments, and the mask of global attention, (sequences, tokens) each.
    """
    lengths = [min(length, longest) for length in lengths]
    steps = torch.arange(max(lengths))
    mask = (steps < torch.tensor(lengths)[:, None]).long()
    ids = (steps * 7 + torch.arange(len(lengths))[:, None] * 13 + 5) % vocabulary
    first = (steps == 0).long().expand_as(mask)  # the global attention of Longformer's classifiers
    return ids * mask, mask, torch.zeros_like(mask), first


def inputs_to_compare(model: Model) -> Iterator[tuple[Tensor, ...]]:
    """Yield the inputs on which an export is compared with its model.

    These are synthetic sequences and, if the model has a tokenizer, batches of one text, of several, and of many texts.
    """
    longest = min(model.backbone.max_positions or DEFAULT_MAX_LENGTH, DEFAULT_MAX_LENGTH)
    yield synthetic_inputs([2, 7, 4, 1], model.config.vocab_size, longest)
    if model.tokenizer is not None:
        for texts in (TEXTS[:1], TEXTS, TEXTS * MANY):
            yield from padded_rows(model, texts, longest)


def padded_rows(model: Model, texts: Sequence[str], longest: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches of texts, truncated to `longest` tokens and padded with 0, as the inputs of an exported model."""
    for batch in batches_by_length(arrange_texts(model, texts, None, longest)):
        (packed,) = batch.packed
        lengths = packed.offsets.diff().tolist()
        empty = torch.zeros_like(packed.ids)
        segments, attends_all = (packed.columns.get(name, empty) for name in ("segment", "global"))
        columns = (packed.ids, torch.ones_like(packed.ids), segments, attends_all)
        yield tuple(pad_sequence(list(torch.split(column, lengths)), batch_first=True) for column in columns)


@torch.no_grad()
def model_outputs(
    model: Model, scorer: Scorer | None, outputs: Sequence[str] | None = None
) -> list[tuple[str, Tensor]]:
    """Return the outputs of a model for the inputs of `inputs_to_compare`, as pairs of name and tensor."""
    module = PaddedModel(model, scorer, outputs).cpu().eval()
    rows = list(inputs_to_compare(model))
    return [pair for inputs in rows for pair in zip(module.outputs, module(*inputs), strict=True)]


def check_outputs(
    model: Model, scorer: Scorer | None, found: Sequence[Tensor], what: str, outputs: Sequence[str] | None = None
) -> None:
    """Raise an error if the outputs of an export (`found`) differ from those of the model; `what` is the kind of export."""
    for (name, ours), theirs in zip(model_outputs(model, scorer, outputs), found, strict=True):
        difference = float((theirs - ours).abs().max()) / max(1.0, float(ours.abs().max()))
        if not difference < TOLERANCE:  # also true for NaN
            raise PretuneError(
                f"{model.family.name}: the {name} of the {what} differ from the model's by {difference:.2g} of the largest "
                f"value, so the {what} is not usable; please report this as a bug"
            )
