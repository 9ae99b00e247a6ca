"""A backbone that runs an exported ONNX graph with ONNX Runtime, for inference only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretune.backbones.backbone import BackboneOutput, DeferredOutput, LayerSelection, TaskHeadParts, selected_layers
from pretune.nn.pooling import chosen_tokens
from pretune.packed import Packed
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.optional_imports import import_optional
from pretune.text.spans import span_indices

ENGINE = "onnxruntime"  # in config.json: the weights are in a graph for ONNX Runtime
GRAPH = "model.onnx"
MOBILE_GRAPH = "model.ort"  # the same in the format of ONNX Runtime's mobile builds
# The names that Optimum gives the inputs and outputs of its graphs.
INPUTS = IDS, MASK, SEGMENTS, GLOBAL = "input_ids", "attention_mask", "token_type_ids", "global_attention_mask"
STATES, LOGITS = "last_hidden_state", "logits"
ALL_TOKENS = "all_tokens"  # an optional input: whether to compute STATES if a graph has other outputs (True by default)
# Pooling → the output with the hidden state of the only token of each sequence that the pooling reads.
TOKEN_STATES = {"cls": "first_hidden_state", "last": "final_hidden_state"}
LAYER_STATES = "hidden_states.{}"  # outputs with the hidden states of lower layers that heads read; 0: the embeddings
# The largest number of tokens, with padding, that a graph gets at once, unless one sequence has more: about what fits into a core's
# cache (see docs/measurements/inference.md).
TOKENS_PER_RUN = 256


def open_session(path: Path, threads: int | None = None) -> Any:
    """Return an ONNX Runtime session for an ONNX file; `threads` defaults to the number that torch uses."""
    runtime = import_optional("onnxruntime", "running an ONNX graph")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has no common class for its errors
        raise PretuneError(
            f"{path}: ONNX Runtime cannot load the graph ({str(error).splitlines()[0]}); export it again"
        ) from error


class OnnxBackbone(TaskHeadParts, nn.Module):
    """A backbone whose hidden states are computed by an exported ONNX graph."""

    def __init__(self, path: Path, blueprint: Any, threads: int | None = None) -> None:
        """Load the ONNX graph in the file `path`, to run on `threads` threads (None: as many as torch uses).

        `blueprint` is the same network in torch, without weights; sizes and task heads are taken from it.
        """
        super().__init__()
        self.path, self.session = path, open_session(path, threads)
        self.inputs = {entry.name for entry in self.session.get_inputs()}
        optional = {entry.name for entry in self.session.get_overridable_initializers()}
        self.without_states = {name: np.array(False) for name in optional & {ALL_TOKENS}}
        outputs = {entry.name for entry in self.session.get_outputs()}
        self.token_states = {mode: name for mode, name in TOKEN_STATES.items() if name in outputs}
        self.layer_states = {
            number: name for number in range(blueprint.depth) if (name := LAYER_STATES.format(number)) in outputs
        }
        self.plan = (blueprint,)  # in a tuple, so that its parameters, which have no values, are not registered
        self.width: int = blueprint.width
        self.depth: int = blueprint.depth
        self.max_positions: int | None = blueprint.max_positions
        self.vocabulary_head = blueprint.vocabulary_head
        self.copy_parts(blueprint)

    @property
    def embed(self) -> Any:
        """Raise an error: the token embeddings of an ONNX model are not accessible outside the graph."""
        raise PretuneError(
            f"{self.path}: the token embeddings of an ONNX graph cannot be read; use the model from which the graph was exported"
        )

    def forward(self, packed: Packed, state: Any = None, keep: LayerSelection = "last") -> BackboneOutput:
        """Return the hidden states of the layers that `keep` selects, (tokens, width) each.

        Raise an error if the graph has no output for one of them. Every graph has one for the top layer.
        """
        wanted = selected_layers(keep, self.depth)
        if wanted == {self.depth}:
            return DeferredOutput(partial(self.compute, packed))
        names = {**self.layer_states, self.depth: STATES}
        if not wanted <= names.keys():
            raise PretuneError(
                f"{self.path}: an ONNX graph returns only the hidden states of its top layer and of the layers that its "
                "heads read; for other layers, use the model from which the graph was exported"
            )
        return BackboneOutput(self.all_states(packed, [names[number] for number in sorted(wanted)]))

    def all_states(self, packed: Packed, outputs: Sequence[str]) -> list[Tensor]:
        """Return the hidden states of all tokens, (tokens, width), from each of the graph's `outputs`."""
        found = [np.empty((len(packed), self.width), dtype=np.float32) for _ in outputs]
        for feed, indices, _ in padded_inputs(packed):
            for states, rows in zip(found, self._run(outputs, feed, feed[MASK].shape), strict=True):
                states[indices] = rows[feed[MASK] > 0]
        return [torch.from_numpy(states).to(packed.ids.device) for states in found]

    def compute(self, packed: Packed, at: Tensor | None) -> Tensor:
        """Return the hidden states of the tokens with the indices `at`, (m, width), or of all tokens for None.

        If `at` is one token of each sequence for which the graph has an output, only its top layer for them is computed.
        """
        without_empty = at is not None and bool(packed.offsets.diff().all())
        for mode, output in self.token_states.items() if without_empty else ():
            expected = chosen_tokens(packed, mode)
            if at is not None and expected is not None and torch.equal(at, expected):
                found = np.empty((len(at), self.width), dtype=np.float32)
                for feed, _, rows in padded_inputs(packed):
                    (found[rows],) = self._run([output], feed, (len(rows),), self.without_states)
                return torch.from_numpy(found).to(packed.ids.device)
        (every,) = self.all_states(packed, [STATES])
        return every if at is None else every[at]

    def _run(
        self,
        outputs: Sequence[str],
        feed: dict[str, Array],
        shape: tuple[int, ...],
        switches: Mapping[str, Array] | None = None,
    ) -> list[Array]:
        """Run the ONNX graph on `feed`, b padded sequences of length L, and return the `outputs` with hidden states.

        `feed` maps names of inputs to arrays, (b, L), and `switches` those of optional inputs. The results are
        (*shape, width) each; an error is raised if the graph fails or an output has another shape.
        """
        try:
            wanted = {name: rows for name, rows in feed.items() if name in self.inputs}
            found: list[Any] = self.session.run(list(outputs), {**wanted, **(switches or {})})
        except Exception as error:  # ONNX Runtime has no common class for its errors
            raise PretuneError(
                f"{self.path}: ONNX Runtime cannot run the graph ({str(error).splitlines()[0]}); export it again"
            ) from error
        for states in found:
            if not isinstance(states, np.ndarray) or states.shape != (*shape, self.width):
                raise PretuneError(
                    f"{self.path}: the graph returns hidden states of shape {np.shape(states)}, but the config.json beside it "
                    f"describes {(*shape, self.width)}, so one of the two files is wrong or damaged; export the model again"
                )
        return found

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return an empty list: an ONNX graph has no layers that could be trained."""
        return []


def padded_inputs(packed: Packed) -> Iterator[tuple[dict[str, Array], Array, Array]]:
    """Yield, for each group of sequences of similar length, its padded ONNX inputs and the indices of its tokens and rows.

    The inputs are arrays by name, (b, L) each, for b sequences padded to the length L of the longest. The indices tell,
    row by row, which token of `packed` is at each place that is not padding; the last array has the numbers of the b
    sequences.
    """
    # Batches may be on a GPU; ONNX Runtime computes on the host.
    offsets = packed.host_offsets if packed.host_offsets is not None else packed.offsets.cpu().numpy()
    starts, lengths = offsets[:-1], np.diff(offsets)
    columns = {IDS: packed.ids.cpu().numpy()}
    for name, column in ((SEGMENTS, packed.columns.get("segment")), (GLOBAL, packed.columns.get("global"))):
        columns[name] = np.zeros(len(packed), dtype=np.int64) if column is None else column.cpu().numpy()
    for rows in _length_buckets(lengths):
        real = np.arange(int(lengths[rows].max())) < lengths[rows][:, None]  # (b, L)
        indices = span_indices(starts[rows], lengths[rows])
        feed = {name: _pad(column[indices], real) for name, column in columns.items()}
        yield feed | {MASK: real.astype(np.int64)}, indices, rows


def _length_buckets(lengths: Array) -> list[Array]:
    """Group sequences of similar length, given all `lengths`; return the indices of the sequences in each group.

    A group has at most `TOKENS_PER_RUN` tokens, with padding, or one sequence. Empty sequences are left out.

    >>> [group.tolist() for group in _length_buckets(np.array([100, 3, 0, 120, 4]))]
    [[3, 0], [4, 1]]
    """
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    groups = []
    while len(order):
        count = max(1, TOKENS_PER_RUN // int(lengths[order[0]]))
        count = min(count, int((lengths[order] * 2 >= lengths[order[0]]).sum()))
        groups.append(order[:count])
        order = order[count:]
    return groups


def _pad(column: Array, real: Array) -> Array:
    """Return the values of n tokens as rows of b sequences, (b, L), with 0 for padding.

    `real`, (b, L), is True at the places of the n tokens, row by row.
    """
    rows = np.zeros(real.shape, dtype=np.int64)
    rows[real] = column
    return rows
