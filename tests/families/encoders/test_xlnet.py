"""XLNet against `transformers`: one and two streams, segments, memory, heads, round trips of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.nn.attention.patterns import permutation
from pretune.objectives import parse_objective
from pretune.packed import Packed, pack
from pretune.text.tokenizers.tokenizer import Tokenizer
from tests.support.family_configs import XLNET
from tests.support.parity import (
    Ragged,
    close,
    compare_classifier,
    compare_export,
    compare_gradients,
    compare_mlm,
    save_reference,
)

LENGTH, ROWS, PREDICTED = 10, 3, 3


def make_reference(folder: Path, kind: str = "XLNetLMHeadModel", **changes: Any) -> Any:
    import transformers

    config = transformers.XLNetConfig(**XLNET, **changes, summary_last_dropout=0.0)
    return save_reference(getattr(transformers, kind), config, folder)


@pytest.mark.parametrize("changes", [{}, {"clamp_len": 4, "ff_activation": "relu"}])
def test_hidden_states_logits_loss_and_gradients_match_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    reference = make_reference(tmp_path, **changes)
    compare_mlm(reference, tmp_path, Ragged.make(60), objective="plm")


class Segment:
    """A random batch: ids, segments, a factorization order, and the predicted positions (the last of the order)."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.ids = rng.integers(5, 60, (ROWS, LENGTH))
        self.types = rng.integers(0, 2, (ROWS, LENGTH))
        self.order = np.stack([rng.permutation(LENGTH) for _ in range(ROWS)])
        self.predicted = self.order >= LENGTH - PREDICTED

    def packed(self) -> Packed:
        """Return the batch as the objective packs it: each query follows its token."""
        source = np.repeat(np.arange(ROWS * LENGTH), 1 + self.predicted.ravel())
        query = np.concatenate([[False], source[1:] == source[:-1]])
        columns = {"segment": self.types, "order": self.order, "document_start": np.zeros_like(self.ids, dtype=bool)}
        return pack(
            np.where(query, 0, self.ids.ravel()[source]), np.full(ROWS, LENGTH + PREDICTED), positions=source % LENGTH,
            columns={name: column.ravel()[source] for name, column in columns.items()} | {"stream": query.astype(int)},
            pattern=permutation,
        )  # fmt: skip

    def transformers_inputs(self) -> dict[str, Tensor]:
        hidden = torch.from_numpy(self.order)
        mask = (hidden[:, None, :] >= hidden[:, :, None]).float()  # 1: row i may not attend to column j
        mapping = torch.zeros(ROWS, PREDICTED, LENGTH)
        for row in range(ROWS):
            mapping[row, torch.arange(PREDICTED), torch.from_numpy(np.flatnonzero(self.predicted[row]))] = 1.0
        return {
            "input_ids": torch.from_numpy(self.ids),
            "token_type_ids": torch.from_numpy(self.types),
            "perm_mask": mask,
            "target_mapping": mapping,
        }


@pytest.mark.parametrize("memory", [0, 6, LENGTH, 2 * LENGTH + 4])
def test_both_streams_and_the_memory_match_transformers(memory: int, tmp_path: Path) -> None:
    reference = make_reference(tmp_path, mem_len=memory)
    model = load_model(tmp_path, parse_objective("plm"))
    assert model.backbone.memory == memory
    mems, carry = None, None
    for number in range(4):
        segment = Segment(number)
        packed = segment.packed()
        query = packed.columns["stream"].bool()
        wanted = torch.from_numpy(segment.ids[segment.predicted])
        theirs = reference(
            **segment.transformers_inputs(), mems=mems, use_mems=memory > 0, output_hidden_states=True,
            labels=wanted.view(ROWS, PREDICTED),
        )  # fmt: skip
        ours = model.backbone(packed, state=carry, keep="all")
        streams = theirs.hidden_states  # content and query alternate
        for layer, content, copies in zip(ours.layers, streams[::2], streams[1::2], strict=True):
            close(layer[~query], content.flatten(0, 1))
            close(layer[query], copies.flatten(0, 1))
        logits = model.root.heads["plm"](ours.last[query], model.backbone.embed.tokens)
        close(logits, theirs.logits.flatten(0, 1))
        loss = F.cross_entropy(logits, wanted)
        close(loss, theirs.loss)
        if memory:
            mems, carry = theirs.mems, ours.state
            assert carry.used.tolist() == [min(memory, (number + 1) * LENGTH)] * ROWS
            for mine, expected in zip(carry.states, mems, strict=True):
                close(mine[:, -len(expected) :], expected.transpose(0, 1))
    loss.backward()
    theirs.loss.backward()
    compare_gradients(model, reference)


def test_export_loads_in_transformers_and_a_second_export_is_identical(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    reference = make_reference(tmp_path / "reference", mem_len=7)
    compare_export(reference, tmp_path / "reference", tmp_path, Ragged.make(60), AutoModelForCausalLM, "plm")


def test_a_model_without_heads_loads(tmp_path: Path) -> None:
    reference = make_reference(tmp_path / "whole")
    reference.transformer.save_pretrained(tmp_path / "bare")
    whole, bare = load_model(tmp_path / "whole"), load_model(tmp_path / "bare")
    for name, tensor in whole.root.state_dict().items():
        assert torch.equal(tensor, bare.root.state_dict()[name])


def test_a_classifier_pools_the_last_token_and_round_trips_through_transformers(tmp_path: Path) -> None:
    compare_classifier(FAMILIES["xlnet"], XLNET, tmp_path, Ragged.make(60, left=True))


def test_the_published_vocabulary_ends_texts_with_the_cls_token(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    specials = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]  # in their order
    backend = Backend(WordLevel({word: i for i, word in enumerate([*specials, "one", "two"])}, "<unk>"))
    backend.pre_tokenizer = Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    words = Tokenizer.load(tmp_path)
    roles = {"unknown": 0, "start": 3, "separator": 4, "padding": 5, "mask": 6, "end": 2}
    assert {name: words.role(name) for name in roles} == roles
    words.save(tmp_path / "ours", FAMILIES["xlnet"].template)
    dressed = Backend.from_file(str(tmp_path / "ours" / "tokenizer.json"))
    single, pair = dressed.encode("one two"), dressed.encode("one", "two")
    assert (single.ids, single.type_ids) == ([9, 10, 4, 3], [0, 0, 0, 2])
    assert (pair.ids, pair.type_ids) == ([9, 4, 10, 4, 3], [0, 0, 1, 1, 2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_type": "uni"}, 'attn_type "uni" is not supported'),
        ({"summary_type": "mean"}, 'summary_type "mean" is not supported'),
        ({"bi_data": True}, "bi_data true is not supported"),
    ],
)
def test_unsupported_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        FAMILIES["xlnet"].build(FAMILIES["xlnet"].read_config(XLNET | changes))
