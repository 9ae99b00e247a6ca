"""Hidden states and attention weights of all tokens of texts, as padded tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.backbones.backbone import LayerSelection
from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.recurrent_encoder_decoder import RecurrentEncoderDecoder
from pretune.backbones.transformer_stack import TransformerStack
from pretune.inference.nan_check import check_not_nan
from pretune.models.length_bucketing import rows_by_length, text_batches
from pretune.models.model import Model
from pretune.nn.attention.attention_weights import recorded_attention_weights
from pretune.packed import Packed, pack
from pretune.runtime.arrays import Array
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError, quote


@dataclass(frozen=True)
class States:
    """The outputs of a network for n sequences, padded with 0 to the length L of the longest sequence.

    For an encoder-decoder, these are the outputs of the encoder.
    """

    last_hidden_state: Tensor  # (n, L, width)
    mask: Tensor  # (n, L) True for tokens, False for padding
    ids: Tensor  # (n, L) token ids; 0 for padding
    hidden_states: tuple[Tensor, ...] | None = None  # (n, L, width) of the embeddings and of each layer
    attentions: tuple[Tensor, ...] | None = None  # (n, heads, L, L) of each layer: from query (row) to key (column)

    def __len__(self) -> int:
        return len(self.mask)


@torch.no_grad()
def compute_states(
    model: Model, inputs: Any, hidden_states: bool = False, attentions: bool = False, device: str | None = None
) -> States:
    """Return the hidden states of texts or of lists of token ids, in order.

    Parameters
    ----------
    model
        The model.
    inputs
        Texts, or lists of token ids, to which no special tokens are added; a list of integers is one sequence.
    hidden_states
        Whether to return the states of all layers, too.
    attentions
        Whether to return the attention weights of all layers, too.
    device
        The device to run on; a GPU is used by default if there is one.
    """
    chosen = choose_device(device)
    model.root.ready(chosen)
    network = reading_network(model)
    count, batches = _batches(model, inputs)
    padded = Padding(count)
    for packed, rows in batches:
        keep: LayerSelection = "all" if hidden_states else "last"
        if attentions:
            layers, weights = states_and_weights(model, packed.to(chosen), keep)
        else:
            layers, weights = network(packed.to(chosen), keep=keep).layers, []
        padded.add(packed, rows, [check_not_nan(layer) for layer in layers], weights)
    if not padded.rows:  # no sequences at all
        width, layer_count = network.width, network.depth + 1 if hidden_states else 1
        empty = tuple(torch.zeros(0, 0, width) for _ in range(layer_count))
        nothing = tuple(torch.zeros(0, 0, 0, 0) for _ in range(network.depth if attentions else 0))
        mask, ids = torch.zeros(0, 0, dtype=torch.bool), torch.zeros(0, 0, dtype=torch.long)
        return States(empty[-1], mask, ids, empty if hidden_states else None, nothing if attentions else None)
    return padded.states(hidden_states, attentions)


def reading_network(model: Model) -> Any:
    """Return the part of a model that reads texts: the encoder of an encoder-decoder, else the whole backbone."""
    network = model.backbone
    return network.encoder if isinstance(network, EncoderDecoder | RecurrentEncoderDecoder) else network


def states_and_weights(
    model: Model, packed: Packed, keep: LayerSelection = "last"
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the states of the layers `keep`, (tokens, width) each, and the attention weights of all layers.

    Weights are (sequences, heads, L, L) per layer, padded to the length L of the longest sequence. Raise an error if
    the model does not compute attention weights.
    """
    network = reading_network(model)
    if isinstance(network, TransformerStack):
        with recorded_attention_weights(network) as weights:
            layers = network(packed, keep=keep).layers
        if len(weights) == network.depth:
            return layers, weights
    raise PretuneError(
        f"attention weights are not available for this {model.family.name} model: only Transformers in PyTorch with a softmax "
        "over all pairs of tokens have them; choose such a model"
    )


class Padding:
    """Collects the outputs of packed batches, and returns them as padded tensors in the order of the inputs."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.rows: list[Tensor] = []
        self.places: list[tuple[Tensor, Tensor]] = []  # (tokens,) the input and the position of each token
        self.ids: list[Tensor] = []
        self.layers: list[list[Tensor]] = []
        self.weights: list[list[Tensor]] = []

    def add(self, packed: Packed, rows: Array, layers: list[Tensor], weights: list[Tensor]) -> None:
        """Collect the layer outputs and attention weights of a batch, whose indices among the inputs are `rows`."""
        lengths = packed.offsets.diff()[: len(rows)].long()
        at = torch.from_numpy(np.asarray(rows)).long()
        used = int(lengths.sum())
        steps = torch.arange(used) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
        self.rows.append(at)
        self.places.append((torch.repeat_interleave(at, lengths), steps))
        self.ids.append(packed.ids[:used])
        self.layers.append([layer[:used].float().cpu() for layer in layers])
        self.weights.append([weight[: len(rows)].float().cpu() for weight in weights])

    def states(self, hidden_states: bool, attentions: bool) -> States:
        """Return the collected states of the last layer, padded.

        With `hidden_states`, the states of all layers are included; with `attentions`, their attention weights.
        """
        row, step = (torch.cat(parts) for parts in zip(*self.places, strict=True))
        longest = int(step.max()) + 1 if len(step) else 0

        def pad(parts: Sequence[Tensor]) -> Tensor:
            values = torch.cat(list(parts))
            made = values.new_zeros(self.count, longest, *values.shape[1:])
            made[row, step] = values
            return made

        layers = tuple(pad(parts) for parts in zip(*self.layers, strict=True))
        mask = pad([torch.ones(len(row), dtype=torch.bool)])
        weights = tuple(self.pad_weights(parts, longest) for parts in zip(*self.weights, strict=True))
        return States(
            layers[-1], mask, pad(self.ids), layers if hidden_states else None, weights if attentions else None
        )

    def pad_weights(self, parts: Sequence[Tensor], longest: int) -> Tensor:
        """Return a layer's attention weights, (n, heads, longest, longest), given one tensor per batch (`parts`)."""
        made = parts[0].new_zeros(self.count, parts[0].shape[1], longest, longest)
        for rows, part in zip(self.rows, parts, strict=True):
            made[rows, :, : part.shape[2], : part.shape[3]] = part
        return made


def _batches(model: Model, inputs: Any) -> tuple[int, Iterator[tuple[Packed, Array]]]:
    """Return the number of inputs (texts or lists of token ids), and batches of them with their indices."""
    if not isinstance(inputs, Sequence) or isinstance(inputs, str | bytes):
        raise PretuneError(
            f"{quote(inputs)} is neither a list of texts nor a list of token ids; give texts, or lists of integers"
        )
    if inputs and isinstance(inputs[0], str):
        return len(inputs), ((batch.packed[0], batch.rows) for batch in text_batches(model, inputs))
    sequences = [inputs] if inputs and isinstance(inputs[0], int) else list(inputs)
    return len(sequences), id_batches(model, sequences)


def id_batches(model: Model, sequences: Sequence[Sequence[int]]) -> Iterator[tuple[Packed, Array]]:
    """Yield batches of token id sequences of similar length, concatenated without padding, with their indices."""
    size, longest = model.config.vocab_size, model.longest
    arrays = []
    for number, sequence in enumerate(sequences):
        if not isinstance(sequence, Sequence) or isinstance(sequence, str) or not all(map(_is_id, sequence)):
            raise PretuneError(
                f"sequence {number} of the token ids, {quote(sequence)}, is not a list of integers; give only lists of "
                "integers, or only texts"
            )
        if wrong := [i for i in sequence if not 0 <= i < size]:
            raise PretuneError(
                f"sequence {number} has the token id {wrong[0]}, but the vocabulary has {size} tokens; give ids from 0 to "
                f"{size - 1}"
            )
        if not sequence:
            raise PretuneError(f"sequence {number} has no token ids; remove this sequence")
        if longest is not None and len(sequence) > longest:
            raise PretuneError(
                f"sequence {number} has {len(sequence)} tokens, but the model reads at most {longest}; shorten it"
            )
        arrays.append(np.array(sequence, dtype=np.int64))
    lengths = np.array(list(map(len, arrays)), dtype=np.int64)
    for rows in rows_by_length(lengths):
        ids = np.concatenate([arrays[row] for row in rows])
        columns = {"segment": np.zeros(len(ids), dtype=np.int64)}
        if model.tokenizer is not None and model.tokenizer.characters:
            columns["characters"] = model.tokenizer.token_characters[ids]
        yield pack(ids, lengths[rows], columns=columns), rows


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
