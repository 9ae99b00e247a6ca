"""A cache of vectors on disk: one vector per layer for each text or span, in memory-mapped files.

A folder holds the vectors of one model with one pooling. Vectors are added in segments, each a safetensors file that appears whole or
not at all, so that an interrupted computation continues where it stopped; a damaged segment is deleted and its vectors are computed
again. Vectors are found by a digest of their text and span, whichever task asks for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pretune.models.model import Model
from pretune.probing.probing_task import Span
from pretune.runtime.arrays import Array
from pretune.runtime.checksummed_safetensors import verify_checksum, write_tensors
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info

KEYS = "keys"
DIGEST_BYTES = 16
SATURATION = 65504.0  # largest half-precision number; larger states, which occur in a few models, are clipped to it


class Passage(NamedTuple):
    """A text, or a span of characters in it, for which the cache stores one vector per layer."""

    text: str
    span: Span | None = None

    @property
    def key(self) -> bytes:
        """Return a digest of the text and the span, under which the cache stores the vectors.

        >>> Passage("a b", (0, 1)).key == Passage("a b").key
        False
        """
        where = "" if self.span is None else f"{self.span[0]},{self.span[1]}"
        content = f"{where}\0{self.text}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def model_digest(model: Model) -> str:
    """Return a SHA-256 digest of everything that the hidden states of a model depend on: weights, settings, tokenizer."""
    settings = [model.family.name, model.longest, model.require_tokenizer().digest, asdict(model.config)]
    made = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.backbone.state_dict().items()):
        made.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        made.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()


class RepresentationCache:
    """A cache of the vectors of passages in all layers: a folder of memory-mapped files with verified checksums."""

    def __init__(self, folder: Path) -> None:
        """Open the cache in a folder; files with damaged vectors are deleted and reported."""
        self.folder = folder
        self.files: list[Path] = []
        self.places: dict[bytes, tuple[int, int]] = {}  # digest of a passage → segment, row
        for path in sorted(folder.glob("*.safetensors")):
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            verify_checksum(path)
            with safe_open(path, framework="pt") as segment:
                keys = segment.get_tensor(KEYS).numpy()
        except (PretuneError, SafetensorError, ValueError, TypeError, AttributeError, OSError) as error:
            log_info(f"{path}: this file of cached representations is damaged ({error}); they are computed again")
            path.unlink(missing_ok=True)
            return
        self.files.append(path)
        self.places |= {key.tobytes(): (len(self.files) - 1, row) for row, key in enumerate(keys)}

    def missing(self, passages: Sequence[Passage]) -> list[Passage]:
        """Return the distinct passages for which the cache has no vectors."""
        return [passage for passage in dict.fromkeys(passages) if passage.key not in self.places]

    def add(self, passages: Sequence[Passage], layers: Sequence[Tensor]) -> None:
        """Write the vectors of passages, (passages, width) for each layer, as a new file in half precision."""
        keys = np.frombuffer(b"".join(passage.key for passage in passages), dtype=np.uint8)
        tensors = {
            f"layer_{number}": layer.clamp(-SATURATION, SATURATION).half().contiguous()
            for number, layer in enumerate(layers)
        }
        tensors[KEYS] = torch.from_numpy(keys.reshape(-1, DIGEST_BYTES).copy())
        name = hashlib.blake2b(keys.tobytes(), digest_size=DIGEST_BYTES).hexdigest()
        path = self.folder / f"{name}.safetensors"
        write_tensors(path, tensors)
        self._open(path)

    def width(self, layer: int) -> int:
        """Return the width of the vectors of a layer; the cache must not be empty."""
        with safe_open(self.files[0], framework="pt") as segment:
            return int(segment.get_slice(f"layer_{layer}").get_shape()[1])

    def read(self, passages: Sequence[Passage], layer: int) -> Array:
        """Return the vectors of passages in a layer, (passages, width), in half precision."""
        places = np.array([self.places[passage.key] for passage in passages], dtype=np.int64).reshape(-1, 2)
        found: Array | None = None
        for number in np.unique(places[:, 0]):
            at = np.flatnonzero(places[:, 0] == number)
            with safe_open(self.files[number], framework="pt") as segment:
                vectors = segment.get_tensor(f"layer_{layer}").numpy()  # memory-mapped; only the rows below are read
            if found is None:
                found = np.empty((len(places), vectors.shape[1]), dtype=vectors.dtype)
            found[at] = vectors[places[at, 1]]
        return np.empty((0, 0), dtype=np.float16) if found is None else found
