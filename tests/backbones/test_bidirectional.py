"""Bidirectional backbones: a forward and a backward network."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretune.backbones.bidirectional import BidirectionalBackbone
from pretune.backbones.recurrent import RecurrentBackbone
from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.model import Model, Network
from pretune.nn.attention.query_key_layout import reverse_index
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.initialization import initialize
from pretune.nn.output_heads import TiedVocabularyHead
from pretune.nn.recurrent import RecurrentCells, RecurrentLayer
from pretune.objectives import parse_objective
from pretune.packed import Packed, pack_lists
from tests.support.objective_data import bidirectional_stack, store
from tests.support.parity import check_folder_and_back

SENTENCES = [[5, 6, 7, 8], [9], [4, 5, 6], [11, 10, 9, 8, 7]]


def recurrent(vocabulary: int, width: int = 12, layers: int = 2) -> BidirectionalBackbone:
    torch.manual_seed(0)
    embed = Embeddings(vocabulary, width)

    def one_direction() -> RecurrentBackbone:
        cells = [RecurrentLayer(RecurrentCells(width, width)) for _ in range(layers)]
        return RecurrentBackbone(embed, cells, vocabulary_head=lambda: TiedVocabularyHead(vocabulary))

    return initialize(BidirectionalBackbone(one_direction(), one_direction()), 0.2)


NETWORKS: dict[str, Any] = {"attention": bidirectional_stack, "recurrent": recurrent}


def backward(packed: Packed) -> Packed:
    return pack_lists([sentence[::-1] for sentence in SENTENCES])


@pytest.mark.parametrize("kind", NETWORKS)
def test_states_concatenate_both_directions(kind: str) -> None:
    network, packed = NETWORKS[kind](20).eval(), pack_lists(SENTENCES)
    with torch.no_grad():
        states = network(packed, keep="all")
        ahead, back = network.ahead(packed, keep="all"), network.back(backward(packed), keep="all")
    bounds = pairwise(packed.offsets.tolist())
    turn = np.concatenate([np.arange(start, end)[::-1] for start, end in bounds])
    assert reverse_index(packed).tolist() == turn.tolist()
    assert len(states.layers) == 3 and states.last.shape == (len(packed), network.width)
    for layer, x, y in zip(states.layers, ahead.layers, back.layers, strict=True):
        torch.testing.assert_close(layer, torch.cat([x, y[turn]], 1))
    with torch.no_grad():
        torch.testing.assert_close(network(packed, keep=[1]).last, states.layers[1])
        torch.testing.assert_close(network(packed).last, states.last)


@pytest.mark.parametrize("kind", NETWORKS)
def test_groups_cover_every_module_once(kind: str) -> None:
    network = NETWORKS[kind](20)
    groups = network.groups()
    assert [name for name, _ in groups] == ["embed", "layer 0", "layer 1"]
    parameters = [p for _, modules in groups for module in modules for p in module.parameters()]
    assert len(parameters) == len(set(parameters)) == len(list(network.parameters()))
    names = dict(network.named_parameters())
    assert "embed.tokens" in names and not any(name.startswith("back.embed") for name in names)


@pytest.mark.parametrize("kind", NETWORKS)
def test_padding_changes_nothing(kind: str) -> None:
    from pretune.packed import Capacity

    network, packed = NETWORKS[kind](20).eval(), pack_lists(SENTENCES)
    filled = pack_lists(SENTENCES, capacity=Capacity(24, 12, 5))
    with torch.no_grad():
        torch.testing.assert_close(network(filled).last[: len(packed)], network(packed).last)


def test_save_and_load(tmp_path: Path) -> None:
    family = FAMILIES["elmo-transformer"]
    config = family.read_config(
        {"vocab_size": store().tokenizer.size, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        | {"intermediate_size": 24}
    )
    model = Model(family, config, Network(family.build(config)), store().tokenizer)
    check_folder_and_back(model, parse_objective("bilm"), tmp_path)


def test_the_preset_has_as_many_parameters_as_its_layers() -> None:
    with torch.device("meta"):
        backbone = make_model("elmo-transformer").backbone
    layer = 4 * 512 * 512 + 4 * 512 + 2 * 512 * 2048 + 2048 + 512 + 4 * 512
    assert sum(p.numel() for p in backbone.parameters()) == 30000 * 512 + 2 * (6 * layer + 2 * 512)
    assert backbone.width == 1024 and backbone.max_positions is None
