from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pretune.nn.pooling import pool
from pretune.objectives import parse_objective
from pretune.objectives.seq2seq.autoencode import Autoencode
from pretune.packed import pack_lists
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, collate
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import KINDS, data


@pytest.mark.parametrize("kind", KINDS[:3])
def test_second_half_repeats_the_first_and_is_predicted_completely(kind: Kind) -> None:
    made, packing = data(kind), Packing(256, 64)
    plan = Autoencode().arrange(made, packing, EpochRandom(1))
    for index in range(min(3, len(plan))):
        clean = plan.pack(index)
        wanted = [clean.ids[a:b].tolist() for a, b in zip(clean.offsets[:-1], clean.offsets[1:], strict=True)]
        twice = Autoencode().corrupt(plan.pack(index), made.tokenizer, EpochRandom(1))
        assert twice.lengths.max() <= 64 and twice.lengths.sum() <= 256
        at, target = twice.targets["autoencode"]
        assert len(at) == len(clean.ids) <= Autoencode().max_targets(packing)["autoencode"]
        assert target.tolist() == [i for sentence in wanted for i in sentence]
        assert twice.ids[at + 1].tolist() == target.tolist()
        assert (np.bincount(twice.owner[at]) == clean.lengths).all()
        batch = collate(twice)
        assert batch.counts["autoencode"] == len(clean.ids)


def test_autoencode_cannot_be_joined_with_other_objectives() -> None:
    from pretune import PretuneError

    with pytest.raises(PretuneError, match="adds tokens to the text"):
        parse_objective("autoencode+lm")


def test_increasing_mean_weights_increase_along_the_text() -> None:
    states, packed = torch.tensor([[1.0], [2.0], [4.0], [5.0]]), pack_lists([[7, 7, 7], [7]])
    # weights 0, 1/2 and 1, normalized; a single token has weight 1
    assert pool(states, packed, "increasing_mean").tolist() == [[pytest.approx((0.5 * 2 + 4) / 1.5)], [5.0]]
    assert pool(torch.zeros(1, 2), pack_lists([[], [3]]), "increasing_mean").tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.not_fast
def test_lstm_pretrained_as_autoencoder_learns_to_classify(tmp_path: Path) -> None:
    import pretune as pt

    words = ["good", "bad", "fine", "poor"]
    lines = [f"a {words[i % 4]} film with a {words[(i // 4) % 4 // 2 * 2 + i % 2]} end" for i in range(64)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines), encoding="utf-8")
    rows = [f"{line},{['yes', 'no'][i % 2]}" for i, line in enumerate(lines)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    pretrained = pt.pretrain(
        "lstm-lm-tiny", tmp_path / "text.txt", objective="autoencode", out=tmp_path / "run", budget=pt.Budget(steps=8),
        batch=pt.Batching(tokens=512, max_length=32), monitor=pt.Monitoring(held_out_fraction=0.0, log_every=1),
    )  # fmt: skip
    losses = [line["autoencode"] for line in pretrained.metrics()]
    assert losses[-1] < losses[0] - 0.2
    task = pt.finetune(
        pretrained, tmp_path / "train.csv", dev=tmp_path / "train.csv", out=tmp_path / "task", epochs=6, num_seeds=1,
        objective="classify(pooling=increasing_mean)", optimizer=pt.Optimizer(lr=5e-3), report=False,
    )  # fmt: skip
    assert task.results["dev/accuracy"] > 0.9
    assert task.predict(["a good film"])[0]["label"] == "yes"
