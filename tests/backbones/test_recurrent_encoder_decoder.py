"""Recurrent encoder-decoders: batching and incremental decoding do not change outputs, and they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pretune.backbones.recurrent_encoder_decoder import RecurrentEncoderDecoder
from pretune.backbones.recurrent_state import RecurrentCache
from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import Data, parse_objective
from pretune.packed import Capacity, pack, pack_lists
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, collate
from tests.support.objective_data import TEMPLATES, data

SMALL = {"vocab_size": 40, "embedding_size": 8, "hidden_size": 12, "encoder_layers": 2, "decoder_layers": 2}
KINDS: dict[str, dict[str, Any]] = {
    "2014": {},
    "forward": {"reverse_source": False},
    "gru every": {"cell": "gru", "vector_at": "every"},
    "luong": {"attention": "multiplicative"},
    "two ways": {"bidirectional": True, "attention": "additive", "target_vocab_size": 30},
    "local": {"attention": "scaled", "attention_reach": "local", "attention_window": 2},
    "monotonic": {"attention": "dot", "attention_reach": "local-monotonic", "attention_window": 1},
    "hard": {"attention": "cosine", "attention_reach": "hard"},
    "bahdanau": {
        "cell": "gru", "bidirectional": True, "attention": "additive", "input_feeding": True, "maxout_size": 6,
        "encoder_layers": 1, "decoder_layers": 1,
    },
    "fed": {"attention": "dot", "input_feeding": True, "vector_at": "every", "embedding_size": 12, "tie_word_embeddings": True},
}  # fmt: skip
SOURCES, TARGETS = [[5, 6, 7, 8], [9], [4, 5, 6]], [[2, 7], [2, 8, 9, 10, 11], [2, 3, 4]]


def make_network(kind: str, **more: Any) -> RecurrentEncoderDecoder:
    torch.manual_seed(0)
    family = FAMILIES["seq2seq"]
    config = family.read_config({**SMALL, "initializer_range": 0.5, **KINDS[kind], **more})
    backbone: Any = family.build(config)
    return backbone.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_batched_states_match_those_of_single_pairs(kind: str) -> None:
    backbone = make_network(kind)
    capacities = (Capacity(12, 6, 4), Capacity(14, 6, 5))
    with torch.no_grad():
        together = backbone(pack_lists(SOURCES), pack_lists(TARGETS), keep="all").layers
        filled = backbone(
            *(pack_lists(texts, capacity=c) for texts, c in zip((SOURCES, TARGETS), capacities, strict=True))
        )
        torch.testing.assert_close(filled.last[:10], together[-1])
        for place, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
            start = sum(map(len, TARGETS[:place]))
            alone = backbone(pack_lists([source]), pack_lists([target]), keep="all").layers
            assert len(alone) == backbone.depth + 1
            for x, y in zip(together, alone, strict=True):
                torch.testing.assert_close(x[start : start + len(target)], y)


@pytest.mark.parametrize("kind", KINDS)
def test_incremental_decoding_equals_one_pass(kind: str) -> None:
    backbone = make_network(kind)
    targets = [target[:2] for target in TARGETS]
    with torch.inference_mode():
        source = pack_lists(SOURCES)
        wanted = backbone(source, pack_lists(targets)).last.view(3, 2, -1)
        cache = RecurrentCache(3, 5)
        first = backbone(source, pack_lists([[t[0]] for t in targets]), state=cache).last
        torch.testing.assert_close(first, wanted[:, 0])
        order = np.array([2, 0, 0, 1])
        cache.select(order)
        ids = np.array([targets[i][1] for i in order])
        packed = pack(ids, np.ones(4, dtype=np.int64), positions=np.ones(4, dtype=np.int64))
        second = backbone(source, packed, state=cache).last
        torch.testing.assert_close(second, wanted[order, 1])
        assert cache.used.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_in_one_group_and_learns(kind: str) -> None:
    backbone = make_network(kind).train()
    parameters = [p for _, modules in backbone.groups() for m in modules for p in m.parameters()]
    assert set(parameters) == set(backbone.parameters())
    head = backbone.vocabulary_head()
    states = backbone(pack_lists(SOURCES), pack_lists(TARGETS)).last
    head(states, backbone.embed.tokens).log_softmax(-1)[:, 3].sum().backward()
    assert not [name for name, p in backbone.named_parameters() if p.grad is None or not p.grad.abs().sum()]


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(kind: str, tmp_path: Path) -> None:
    family, mixture = FAMILIES["seq2seq"], parse_objective("translate")
    config = family.read_config({**SMALL, **KINDS[kind]})
    model = Model(family, config, Network(family.build(config)))
    model.add_heads(mixture.objectives)
    for parameter in model.root.parameters():
        nn.init.normal_(parameter)
    model.save(tmp_path / "a")
    assert not (tmp_path / "a" / "head.safetensors").exists()
    again = load_model(tmp_path / "a", mixture)
    for name, tensor in model.root.tensors().items():
        assert torch.equal(tensor, again.root.tensors()[name])


def test_decoder_is_causal_and_source_order_is_configurable() -> None:
    for kind, reads in (("2014", True), ("forward", False)):
        backbone = make_network(kind)
        assert backbone.encoder.backward == reads and backbone.copied
        with torch.no_grad():
            states = [backbone(pack_lists([[5, 6, 7]]), pack_lists([[2, 3, last]])).last for last in (4, 9)]
            torch.testing.assert_close(states[0][:2], states[1][:2])
            turned = make_network("forward" if reads else "2014")
            turned.load_state_dict(backbone.state_dict())
            again = turned(pack_lists([[7, 6, 5]]), pack_lists([[2, 3, 4]])).last
            torch.testing.assert_close(states[0], again)


def test_alignments_are_weights_over_the_source() -> None:
    weights = make_network("luong").align(pack_lists(SOURCES), pack_lists(TARGETS))
    assert weights.shape == (10, 4)
    torch.testing.assert_close(weights.sum(1), torch.ones(10))
    assert (weights[2:7, 1:] == 0).all()
    from pretune import PretuneError

    with pytest.raises(PretuneError, match="no attention"):
        make_network("2014").align(pack_lists(SOURCES), pack_lists(TARGETS))


def test_the_2014_model_has_384_million_parameters() -> None:
    with torch.device("meta"):
        backbone = make_model("seq2seq-2014").backbone
        head = backbone.vocabulary_head()
    count = sum(p.numel() for module in (backbone, head) for p in module.parameters())
    layers = 8 * (4 * 1000 * 2000 + 4000)
    assert count == 160_000_000 + 80_000_000 + layers + 80_000 * 1001 == 384_112_000


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "objective", ["translate(label_smoothing=0)", "skip_thought(pooling=last)", "spans", "denoise"]
)
@pytest.mark.parametrize("kind", ["2014", "two ways", "bahdanau"])
def test_seq2seq_objectives_memorize_a_batch(kind: str, objective: str) -> None:
    made_data = data(sentinels=40, template="bart")
    if objective.startswith("translate"):
        made_data = Data(made_data.tokenizer, TEMPLATES["bart"], rows=made_data.rows)
    part: Any = parse_objective(objective).objectives[0]
    sizes = {"vocab_size": made_data.tokenizer.size, "target_vocab_size": None, "initializer_range": 0.15}
    backbone = make_network(kind, **sizes).train()
    head = part.head(backbone)
    epoch = part.arrange(made_data, Packing(128, 32), EpochRandom(0))
    batch = collate(part.corrupt(epoch.pack(0), made_data.tokenizer, EpochRandom(0)))
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=0.01)
    losses = []
    for _ in range(25):
        loss = part.loss(head, backbone, batch).over(batch.counts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.85 * losses[0]
