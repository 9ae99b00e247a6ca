"""Weight files of a model folder: safetensors and the pickles of older checkpoints, in one file or in shards."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from pretune.runtime.atomic_io import write_json
from pretune.runtime.checksummed_safetensors import (
    Tensors,
    check_finite,
    check_not_lfs_pointer,
    read_tensors,
    reading_tensors,
    write_tensors,
)
from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.parsing import is_file_name, read_mapping, validate_schema

WEIGHTS_FILE, PICKLE_FILE = "model.safetensors", "pytorch_model.bin"
HEAD_FILE = "head.safetensors"  # parameters that the published layout does not have
INDEX = ".index.json"  # suffix of either name: the file that maps tensors to shards
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def read_weights(folder: Path) -> Tensors:
    """Return the tensors of a model folder by name; raise an error for wrong checksums, NaN, and infinity."""
    for name, read in ((WEIGHTS_FILE, read_tensors), (PICKLE_FILE, read_pickle)):
        if (folder / name).is_file():
            tensors = read(folder / name)
        elif (folder / f"{name}{INDEX}").is_file():
            tensors = read_shards(folder / f"{name}{INDEX}", read)
        else:
            continue
        check_finite(tensors, folder)
        return tensors
    other = sorted(file.name for pattern in ("*.h5", "*.msgpack", "*.ckpt.index") for file in folder.glob(pattern))
    raise PretuneError(
        f"{folder}: there are no weights in {WEIGHTS_FILE} or {PICKLE_FILE}, in one file or in shards"
        + (f"; convert {other[0]} to one of these formats first" if other else "; put them there")
    )


def stored_dtype(folder: Path) -> torch.dtype:
    """Return the data type of most weights in a folder if it is fp16 or bf16, otherwise fp32."""
    counts: dict[torch.dtype, int] = {}
    for tensor in read_weights(folder).values():
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel()
    most_common = max(counts, key=lambda kind: counts[kind], default=torch.float32)
    return most_common if most_common in (torch.float16, torch.bfloat16) else torch.float32


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a model folder by name; of safetensors files, only the headers are read."""
    files = [folder / WEIGHTS_FILE]
    if (index := folder / f"{WEIGHTS_FILE}{INDEX}").is_file() and not files[0].is_file():
        files = [folder / shard for shard in sorted(set(_places(index).values()))]
    if not all(file.is_file() for file in files):
        return {name: tuple(tensor.shape) for name, tensor in read_weights(folder).items()}
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        with reading_tensors(file), safe_open(file, framework="pt") as content:
            shapes |= {name: tuple(content.get_slice(name).get_shape()) for name in content.keys()}  # noqa: SIM118
    return shapes


def read_pickle(path: Path) -> Tensors:
    """Return the tensors of a `torch.save` file without running its code; raise an error for other objects."""
    check_not_lfs_pointer(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        raise PretuneError(
            f"{path}: the file is damaged, or holds more than plain tensors, so it is not loaded; convert it to safetensors"
        ) from error
    except OSError as error:
        raise PretuneError(
            f"{path}: the file is damaged or cannot be read ({error.strerror or error}); get it again from its source"
        ) from error
    except Exception as error:  # torch raises many types of errors on damaged files
        raise PretuneError(f"{path}: the file is damaged or has no tensors; get it again from its source") from error
    others = {type(content).__name__}
    if isinstance(content, dict):
        others = {type(value).__name__ for value in content.values() if type(value) not in (Tensor, nn.Parameter)}
        others |= {type(name).__name__ for name in content if not isinstance(name, str)}
    if others:
        raise PretuneError(
            f"{path}: the file holds {', '.join(sorted(others))} besides named tensors, so it is not loaded; "
            "convert it to safetensors"
        )
    return {name: value.detach() for name, value in content.items()}


def read_shards(index: Path, read: Callable[[Path], Tensors]) -> Tensors:
    """Return the tensors of all shards that an index file lists, by name; `read` reads one shard."""
    places = _places(index)
    tensors: Tensors = {}
    for shard in sorted(set(places.values())):
        content = read(index.parent / shard)
        wanted = [name for name, place in places.items() if place == shard]
        if missing := [name for name in wanted if name not in content]:
            raise PretuneError(
                f"{index.parent / shard}: {index.name} lists tensors that are missing here, {', '.join(missing)}; "
                "get both files again from their source"
            )
        tensors |= {name: content[name] for name in wanted}
    return tensors


def _places(index: Path) -> dict[str, str]:
    """Return the file name of each tensor's shard, by tensor name, read from an index file."""
    content = read_mapping(index, "an index of shards")
    if "weight_map" not in content:
        raise PretuneError(
            f"{index}: the file is not an index of shards, because weight_map is missing; get the file again from its source"
        )
    places = validate_schema(content["weight_map"], dict[str, str], f"{index}: weight_map")
    for shard in sorted(set(places.values())):
        if not is_file_name(shard):
            raise PretuneError(
                f"{index}: the shard {quote(shard)} must be the name of a file in the same folder; correct the index"
            )
    return places


def write_weights(folder: Path, tensors: Tensors, shard: int | None = None) -> list[str]:
    """Write tensors to one file, or to shards of at most `shard` bytes with an index; return the names of the files."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    if shard is None or total <= shard:
        write_tensors(folder / WEIGHTS_FILE, tensors, {"format": "pt"})
        _remove_others(folder, {WEIGHTS_FILE})
        return [WEIGHTS_FILE]
    shards: list[Tensors] = [{}]
    free = shard
    for name, tensor in tensors.items():
        if shards[-1] and tensor.nbytes > free:
            shards.append({})
            free = shard
        shards[-1][name] = tensor
        free -= tensor.nbytes
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, part in zip(names, shards, strict=True):
        write_tensors(folder / name, part, {"format": "pt"})
    places = {tensor: name for name, part in zip(names, shards, strict=True) for tensor in part}
    write_json(folder / f"{WEIGHTS_FILE}{INDEX}", {"metadata": {"total_size": total}, "weight_map": places})
    _remove_others(folder, {*names, f"{WEIGHTS_FILE}{INDEX}"})
    return names


def parse_size(text: str) -> int:
    """Return a size such as "2GB" in bytes.

    >>> parse_size("2GB"), parse_size("500 MB")
    (2000000000, 500000000)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]B)?", text.strip(), re.IGNORECASE)
    size = float(match[1]) * UNITS[(match[2] or "").upper()] if match else 0.0
    if size < 1:
        raise PretuneError(f"{text!r} is not a size; give one such as 500MB or 2GB")
    return int(size)


def _remove_others(folder: Path, written: set[str]) -> None:
    """Delete the weight files in a folder that remain from an earlier save: all except those just `written`."""
    for file in folder.iterdir():
        saved = file.name in (WEIGHTS_FILE, f"{WEIGHTS_FILE}{INDEX}") or SHARD.fullmatch(file.name)
        if saved and file.name not in written:
            file.unlink()
