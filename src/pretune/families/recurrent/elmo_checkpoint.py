"""The published checkpoints of ELMo: options.json and an .hdf5 file of weights (Peters et al., 2018).

Matrices are transposed, gates are in TensorFlow's order (input, candidate, forget, output), and 1 must be added to the
bias of the forget gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.families.recurrent.elmo import ElmoConfig, build
from pretune.nn.feed_forward import ACTIVATIONS
from pretune.runtime.arrays import Array
from pretune.runtime.checksummed_safetensors import check_finite
from pretune.runtime.errors import PretuneError
from pretune.runtime.optional_imports import import_optional
from pretune.runtime.parsing import as_tuples, read_mapping, validate_schema
from pretune.runtime.value_ranges import Interval, check_number

GATES = (0, 2, 1, 3)  # torch's order, as indices into TensorFlow's
OPTIONS = "options.json"
SIZE, FEW = Interval(1, 1_000_000), Interval(1, 100)


def is_published(folder: Path) -> bool:
    """Return whether a folder holds a published ELMo checkpoint."""
    return folder.is_dir() and bool(_files(folder)[0])


def read_published(folder: Path, vocabulary: int) -> tuple[ElmoConfig, dict[str, Tensor]]:
    """Return the configuration and parameters of an ELMo checkpoint; `vocabulary` is the size of its vocabulary."""
    h5py = import_optional("h5py", "reading .hdf5 files")
    options_file, weights_file = _files(folder)
    if options_file is None or weights_file is None:
        raise PretuneError(
            f"{folder}: a published ELMo has two files, {OPTIONS} and one that ends in .hdf5, and one of the two is missing; add the missing file to the folder"
        )
    config = read_options(read_mapping(options_file, "ELMo's options"), vocabulary, options_file)
    try:
        with h5py.File(weights_file, "r") as file:
            tensors = read_weights(file, config)
    except (OSError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise PretuneError(
            f"{weights_file}: the file is damaged or does not hold ELMo weights ({error}); get it again from its source"
        ) from error
    with torch.device("meta"):
        expected = dict(build(config).named_parameters())  # the shared embedding appears once
    wrong = {name for name, x in expected.items() if name not in tensors or tensors[name].shape != x.shape}
    if wrong:
        raise PretuneError(
            f"{folder}: {OPTIONS} and the weights disagree on the shapes of {', '.join(sorted(wrong))}; use the two files of one published model"
        )
    check_finite(tensors, weights_file)
    return config, tensors


def _files(folder: Path) -> tuple[Path | None, Path | None]:
    """Return the ELMo options file and weights file in a folder, or None for a missing one."""
    options = next(iter(sorted(folder.glob("*options.json"))), None)
    return options, next(iter(sorted(folder.glob("*.hdf5"))), None)


def read_options(options: Mapping[str, Any], vocabulary: int, where: Path) -> ElmoConfig:
    """Return the configuration in a published ELMo's options.json; `vocabulary` is the vocabulary size."""
    lstm, characters = (
        validate_schema(options.get(key), dict[str, Any], f"{where}: {key}") for key in ("lstm", "char_cnn")
    )
    embedding = validate_schema(characters.get("embedding"), dict[str, Any], f"{where}: char_cnn.embedding")

    def option(section: Mapping[str, Any], key: str, kind: Any) -> Any:
        if key not in section:
            raise PretuneError(f"{where}: the key '{key}' is missing; use the options.json of a published ELMo")
        return validate_schema(section[key], kind, f"{where}: {key}")

    sizes = {
        "hidden_size": option(lstm, "dim", int),
        "projection_size": option(lstm, "projection_dim", int),
        "num_hidden_layers": option(lstm, "n_layers", int),
        "character_size": option(embedding, "dim", int),
        "max_characters": option(characters, "max_characters_per_token", int),
        "highways": option(characters, "n_highway", int),
    }
    filters = validate_schema(as_tuples(characters.get("filters")), tuple[tuple[int, int], ...], f"{where}: filters")
    for name, value in [*sizes.items(), *(("filters", number) for pair in filters for number in pair)]:
        check_number(f"{where}: {name}", value, SIZE)
    check_number(f"{where}: n_layers", sizes["num_hidden_layers"], FEW)
    check_number(f"{where}: n_highway", sizes["highways"], FEW)
    if (activation := option(characters, "activation", str)) not in ACTIVATIONS or not filters:
        raise PretuneError(
            f"{where}: char_cnn.activation is {activation!r}, which is not supported, or char_cnn.filters is missing; "
            "use the options.json of a published ELMo"
        )
    return ElmoConfig(
        vocab_size=vocabulary,
        **sizes,
        residual=bool(lstm.get("use_skip_connections", False)),
        filters=filters,
        activation=activation,
        dropout=0.0,
        cell_clip=option({"cell_clip": None, **lstm}, "cell_clip", float | None),
        proj_clip=option({"proj_clip": None, **lstm}, "proj_clip", float | None),
    )


def read_weights(file: Any, config: ElmoConfig) -> dict[str, Tensor]:
    """Return the parameters of ELMo's backbone, under pretune's names, from an open .hdf5 file."""
    found: dict[str, Array] = {"embed.symbols": file["char_embed"][...]}
    for number, _ in enumerate(config.filters):
        # (1, width, embedding size, filters) in the file
        found[f"embed.filters.{number}.weight"] = file["CNN"][f"W_cnn_{number}"][...][0].transpose(2, 1, 0)
        found[f"embed.filters.{number}.bias"] = file["CNN"][f"b_cnn_{number}"][...]
    for number in range(config.highways):
        layer = file[f"CNN_high_{number}"]
        for ours, published in (("gate", "carry"), ("transform", "transform")):
            found[f"embed.highways.{number}.{ours}.weight"] = layer[f"W_{published}"][...].T
            found[f"embed.highways.{number}.{ours}.bias"] = layer[f"b_{published}"][...]
    found["embed.project.weight"] = file["CNN_proj"]["W_proj"][...].T
    found["embed.project.bias"] = file["CNN_proj"]["b_proj"][...]
    for way, number in (("ahead", 0), ("back", 1)):
        cells = file[f"RNN_{number}"]["RNN"]["MultiRNNCell"]
        for layer_number in range(config.num_hidden_layers):
            cell, name = cells[f"Cell{layer_number}"]["LSTMCell"], f"{way}.layers.{layer_number}.cells"
            both, bias = _gates(cell["W_0"][...].T), _gates(cell["B"][...])
            width = config.hidden_size
            bias[width : 2 * width] += 1.0  # the bias of the forget gate
            found[f"{name}.weight_ih"] = both[:, : config.projection_size]
            found[f"{name}.weight_hh"] = both[:, config.projection_size :]
            found[f"{name}.bias"] = bias
            found[f"{name}.weight_hr"] = cell["W_P_0"][...].T
    return {name: torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)) for name, array in found.items()}


def _gates(array: Array) -> Array:
    """Reorder the four gates in an array of LSTM weights from TensorFlow's order to torch's."""
    blocks = np.split(np.array(array, dtype=np.float32), 4)
    return np.concatenate([blocks[place] for place in GATES])
