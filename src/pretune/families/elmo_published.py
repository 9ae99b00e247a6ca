"""ELMo's published layout: options.json beside a file of weights, .hdf5 (Peters et al., 2018).

Matrices lie the other way round, gates in TensorFlow's order (input, candidate, forget, output), and the forget gate's bias
of 1 is added when the model runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.errors import PretuneError
from pretune.families.elmo import ElmoConfig

Array = np.ndarray[Any, np.dtype[Any]]
GATES = (0, 2, 1, 3)  # torch's order, as places in TensorFlow's
OPTIONS = "options.json"


def is_published(folder: Path) -> bool:
    """Whether a folder holds a model in this layout."""
    return folder.is_dir() and bool(_files(folder)[0])


def read_published(folder: Path, vocabulary: int) -> tuple[ElmoConfig, dict[str, Tensor]]:
    """The configuration, and the parameters by our names."""
    try:
        import h5py
    except ImportError as error:
        raise PretuneError('reading .hdf5 files needs h5py: pip install "pretune[elmo]"') from error
    options_file, weights_file = _files(folder)
    if options_file is None or weights_file is None:
        raise PretuneError(f"{folder}: ELMo comes as two files, {OPTIONS} and weights that end in .hdf5")
    config = read_options(json.loads(options_file.read_text(encoding="utf-8")), vocabulary, options_file)
    with h5py.File(weights_file, "r") as file:
        try:
            return config, read_weights(file, config)
        except KeyError as error:
            raise PretuneError(f"{weights_file}: not ELMo's layout ({error})") from error


def _files(folder: Path) -> tuple[Path | None, Path | None]:
    options = next(iter(sorted(folder.glob("*options.json"))), None)
    return options, next(iter(sorted(folder.glob("*.hdf5"))), None)


def read_options(options: Mapping[str, Any], vocabulary: int, where: Path) -> ElmoConfig:
    """options.json as our configuration."""
    try:
        lstm, characters = options["lstm"], options["char_cnn"]
        return ElmoConfig(
            vocab_size=vocabulary,
            hidden_size=lstm["dim"],
            projection_size=lstm["projection_dim"],
            num_hidden_layers=lstm["n_layers"],
            residual=bool(lstm.get("use_skip_connections", False)),
            character_size=characters["embedding"]["dim"],
            max_characters=characters["max_characters_per_token"],
            filters=tuple((int(seen), int(count)) for seen, count in characters["filters"]),
            highways=characters["n_highway"],
            activation=characters["activation"],
            dropout=0.0,
            cell_clip=lstm.get("cell_clip"),
            proj_clip=lstm.get("proj_clip"),
        )
    except KeyError as error:
        raise PretuneError(f"{where}: {error} is missing; these are not ELMo's options") from error


def read_weights(file: Any, config: ElmoConfig) -> dict[str, Tensor]:
    """The parameters of the backbone."""
    found: dict[str, Array] = {"embed.symbols": file["char_embed"][...]}
    for number, _ in enumerate(config.filters):
        # (1, letters, vectors, filters) there
        found[f"embed.filters.{number}.weight"] = file["CNN"][f"W_cnn_{number}"][...][0].transpose(2, 1, 0)
        found[f"embed.filters.{number}.bias"] = file["CNN"][f"b_cnn_{number}"][...]
    for number in range(config.highways):
        layer = file[f"CNN_high_{number}"]
        for ours, theirs in (("gate", "carry"), ("transform", "transform")):
            found[f"embed.highways.{number}.{ours}.weight"] = layer[f"W_{theirs}"][...].T
            found[f"embed.highways.{number}.{ours}.bias"] = layer[f"b_{theirs}"][...]
    found["embed.project.weight"] = file["CNN_proj"]["W_proj"][...].T
    found["embed.project.bias"] = file["CNN_proj"]["b_proj"][...]
    for way, number in (("ahead", 0), ("back", 1)):
        cells = file[f"RNN_{number}"]["RNN"]["MultiRNNCell"]
        for layer_number in range(config.num_hidden_layers):
            cell, name = cells[f"Cell{layer_number}"]["LSTMCell"], f"{way}.layers.{layer_number}.cells"
            both, bias = _gates(cell["W_0"][...].T), _gates(cell["B"][...])
            width = config.hidden_size
            bias[width : 2 * width] += 1.0  # of the forget gate
            found[f"{name}.weight_ih"] = both[:, : config.projection_size]
            found[f"{name}.weight_hh"] = both[:, config.projection_size :]
            found[f"{name}.bias"] = bias
            found[f"{name}.weight_hr"] = cell["W_P_0"][...].T
    return {name: torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)) for name, array in found.items()}


def _gates(array: Array) -> Array:
    """Blocks of rows, one for each gate, in torch's order."""
    blocks = np.split(np.array(array, dtype=np.float32), 4)
    return np.concatenate([blocks[place] for place in GATES])
