"""A backbone that is a graph in a file, run by ONNX Runtime: packed tokens in, states out. It can be used, not trained."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pretune.backbones.backbone import Keep, States, TaskParts
from pretune.nn.attention.packed_layout import cut_lengths
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError

Array = np.ndarray[Any, np.dtype[Any]]
GRAPH = "model.onnx"
# The names that Optimum gives the inputs and outputs of its graphs.
IDS, MASK, SEGMENTS, GLOBAL = "input_ids", "attention_mask", "token_type_ids", "global_attention_mask"
STATES, LOGITS = "last_hidden_state", "logits"


def need_runtime() -> Any:
    """The library that runs graphs."""
    try:
        import onnxruntime
    except ImportError as error:
        raise PretuneError("ONNX Runtime is not installed; install it with: pip install 'pretune[export]'") from error
    return onnxruntime


def open_graph(path: Path, threads: int | None = None) -> Any:
    """A graph ready to run, with as many threads as torch has."""
    runtime = need_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has a class of its own for each thing that can be wrong
        raise PretuneError(f"{path}: ONNX Runtime cannot run it ({str(error).splitlines()[0]})") from error


class OnnxBackbone(TaskParts, nn.Module):
    """States of a graph. What heads must know of the network, a blueprint without parameters tells them."""

    def __init__(self, path: Path, blueprint: Any, threads: int | None = None) -> None:
        super().__init__()
        self.path, self.session = path, open_graph(path, threads)
        self.inputs = {entry.name for entry in self.session.get_inputs()}
        self.options = need_runtime().RunOptions()
        self.options.only_execute_path_to_fetches = True  # heads get states; the graph's logits would be for nothing
        self.plan = (blueprint,)  # in a tuple, so that its parameters, which have no values, are nobody's
        self.width: int = blueprint.width
        self.depth: int = blueprint.depth
        self.longest: int | None = blueprint.longest
        self.vocabulary_head = blueprint.vocabulary_head
        self.take_parts(blueprint)

    @property
    def embed(self) -> Any:
        """Who needs vectors of tokens outside the graph is told that there are none."""
        raise PretuneError(f"{self.path}: the vectors of tokens are inside the graph; use the model it was made of")

    def forward(self, packed: Packed, carry: Any = None, keep: Keep = "last") -> States:
        """States of the top layer, (n, width)."""
        if keep != "last" and list(keep) not in ([-1], [self.depth]):
            raise PretuneError(f"{self.path}: a graph gives the states of its top layer alone")
        states = np.empty((len(packed), self.width), dtype=np.float32)
        for feed, places in feeds(packed):
            wanted = {name: rows for name, rows in feed.items() if name in self.inputs}
            states[places] = self._run(wanted, feed[MASK].shape)[feed[MASK] > 0]
        return States([torch.from_numpy(states).to(packed.ids.device)])

    def _run(self, feed: dict[str, Array], shape: tuple[int, ...]) -> Array:
        """Return the states of some rows, (b, L, width); `shape` is (b, L)."""
        try:
            (found,) = self.session.run([STATES], feed, self.options)
        except Exception as error:  # ONNX Runtime has no common class for its errors
            raise PretuneError(f"{self.path}: ONNX Runtime cannot run it ({str(error).splitlines()[0]})") from error
        if not isinstance(found, np.ndarray) or found.shape != (*shape, self.width):
            raise PretuneError(
                f"{self.path}: its states have the shape {np.shape(found)}, but the config.json beside it describes "
                f"{(*shape, self.width)}; the files do not belong together, or one is damaged"
            )
        return found

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Nothing that could move."""
        return []


def feeds(packed: Packed) -> Iterator[tuple[dict[str, Array], Array]]:
    """Yield packed sequences as inputs of a graph, (b, L) each, and the places (n,) that their tokens had.

    Sequences of similar length go together, as the graph pads them within attention.
    """
    # On a machine with a GPU batches may come from there; ONNX Runtime computes on the host.
    offsets = packed.host_offsets if packed.host_offsets is not None else packed.offsets.cpu().numpy()
    starts, lengths = offsets[:-1], np.diff(offsets)
    columns = {IDS: packed.ids.cpu().numpy()}
    for name, column in ((SEGMENTS, packed.columns.get("segment")), (GLOBAL, packed.columns.get("global"))):
        columns[name] = np.zeros(len(packed), dtype=np.int64) if column is None else column.cpu().numpy()
    for rows in alike(lengths):
        real = np.arange(int(lengths[rows].max())) < lengths[rows][:, None]  # (b, L)
        places = spans_to_places(starts[rows], lengths[rows])
        feed = {name: padded(column[places], real) for name, column in columns.items()}
        yield feed | {MASK: real.astype(np.int64)}, places


def alike(lengths: Array) -> list[Array]:
    """Sequences that are run together: of similar length, as the graph pads them within attention."""
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    return [order[first:last] for first, last in pairwise(cut_lengths(lengths[order])) if last > first]


def spans_to_places(starts: Array, lengths: Array) -> Array:
    """Where the tokens of some sequences are."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1])) + np.repeat(starts - (ends - lengths), lengths)


def padded(column: Array, real: Array) -> Array:
    """(n,) → (b, L), 0 where there is no token."""
    rows = np.zeros(real.shape, dtype=np.int64)
    rows[real] = column
    return rows
