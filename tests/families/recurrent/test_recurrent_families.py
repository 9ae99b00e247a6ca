"""AWD-LSTM, ULMFiT and ELMo: parameter counts, save and load, batching, truncated BPTT, and resumed runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.loading import load
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.packed import Packed, pack, pack_lists
from pretune.text.tokenizers.character_ids import encode_characters
from tests.support.parity import check_folder_and_back
from tests.support.texts import english_documents

# LSTM weights, biases (one of the two of torch's LSTM, which are added anyway) and embeddings.
COUNTS = {
    "awd-lstm-ptb": 10_000 * 400 + 4 * (1150 * (400 + 1150 + 1) + 1150 * (1150 + 1150 + 1) + 400 * (1150 + 400 + 1)),
    "ulmfit": 60_000 * 400 + 4 * (1150 * (400 + 1150 + 1) + 1150 * (1150 + 1150 + 1) + 400 * (1150 + 400 + 1)),
    "lstm-lm": 60_000 * 512 + 4 * 1024 * (512 + 1024 + 1),
    "elmo-original": 93_600_848,  # 93.6M as in the released model; then 28.0M and 13.6M
    "elmo-medium": 28_027_728,
    "elmo-small": 13_593_296,
}
SIZES: dict[str, dict[str, Any]] = {
    "lstm": {"embedding_size": 12, "hidden_size": 20, "num_hidden_layers": 2},
    "bilstm": {"embedding_size": 12, "hidden_size": 20, "num_hidden_layers": 2},
    "elmo": {
        "hidden_size": 20,
        "projection_size": 8,
        "filters": [[1, 4], [2, 6]],
        "highways": 1,
    },
}


@cache
def tokenizer(kind: str) -> pt.Tokenizer:
    folder = Path(mkdtemp())
    (folder / "text.txt").write_text("\n".join(english_documents()[:3]), encoding="utf-8")
    return pt.train_tokenizer(folder / "text.txt", kind="words" if kind == "lstm" else "characters", vocab_size=200)  # type: ignore[arg-type]


def tiny_model(kind: str, **options: Any) -> Model:
    torch.manual_seed(0)
    family = FAMILIES[kind]
    config = family.read_config({"vocab_size": 200, **SIZES[kind], **options})
    return Model(family, config, Network(family.build(config)), tokenizer(kind))


def texts(kind: str, sentences: list[list[int]]) -> Packed:
    ids = np.array([i for sentence in sentences for i in sentence])
    columns = {"characters": encode_characters([f"w{i}" for i in ids])} if kind == "elmo" else {}
    return pack(ids, np.array([len(sentence) for sentence in sentences]), columns=columns)


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_match_the_publications(name: str) -> None:
    with torch.device("meta"):
        backbone = make_model(name).backbone
    assert sum(p.numel() for p in backbone.parameters()) == COUNTS[name]


@pytest.mark.parametrize("kind", SIZES)
def test_batched_states_match_those_of_single_texts(kind: str) -> None:
    backbone = tiny_model(kind).backbone.eval()
    sentences = [[5, 6, 7, 8], [9], [4, 5, 6], [11, 10, 9, 8, 7]]
    with torch.no_grad():
        together = backbone(texts(kind, sentences), keep="all").layers
        for place, sentence in enumerate(sentences):
            start = sum(map(len, sentences[:place]))
            alone = backbone(texts(kind, [sentence]), keep="all").layers
            for x, y in zip(together, alone, strict=True):
                torch.testing.assert_close(x[start : start + len(sentence)], y)


@pytest.mark.parametrize(
    ("kind", "objective", "options"),
    [
        ("lstm", "lm", {}),
        ("lstm", "lm", {"tie_word_embeddings": False, "cell": "gru"}),
        ("lstm", "lm(backward=true)", {"backward": True}),
        ("elmo", "bilm", {}),
        ("bilstm", "bilm", {}),
    ],
)
def test_save_and_load_round_trip(kind: str, objective: str, options: dict[str, Any], tmp_path: Path) -> None:
    check_folder_and_back(tiny_model(kind, **options), parse_objective(objective), tmp_path)


def test_gradients_stop_at_the_truncated_bptt_window() -> None:
    packed = pack_lists([list(range(5, 30))])
    reach = []
    for bptt in (None, 10):
        backbone = tiny_model("lstm", bptt=bptt).backbone.eval()
        kept: list[torch.Tensor] = []
        backbone.embed.register_forward_hook(lambda m, i, out, kept=kept: kept.append(out) or out)
        (gradient,) = torch.autograd.grad(backbone(packed).last[15].sum(), kept[0])
        reach.append(int((gradient.abs().sum(1) > 0).nonzero()[0]))
    assert reach == [0, 10]


@pytest.mark.end_to_end
@pytest.mark.parametrize("preset", ["awd-lstm-tiny", "elmo-tiny", "rnnsearch-tiny"])
def test_a_resumed_run_ends_with_identical_weights(preset: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(english_documents()[:4]), encoding="utf-8")
    sentences = [" ".join(text.split()[:9]) for text in english_documents()[:40]]
    for name, lines in (("en", sentences), ("fr", [line[::-1] for line in sentences])):
        (tmp_path / f"pairs.{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    pairs = [tmp_path / "pairs.en.txt", tmp_path / "pairs.fr.txt"]
    data = pairs if preset.startswith("rnn") else tmp_path / "text.txt"
    settings = {"batch": pt.Batching(tokens=80, max_length=20), "data": data}
    small = {"kind": "characters" if preset.startswith("elmo") else "words", "vocab_size": 300}
    small |= {"target": 200} if preset.startswith("rnn") else {}
    monitor = pt.Monitoring(log_every=1, save_every=2, held_out_fraction=0.0, eval_every=0)

    def learn(steps: int, out: Path, **more: Any) -> pt.Run:
        budget = pt.Budget(steps=steps)
        return pt.pretrain(preset, out=out, tokenizer=small, budget=budget, monitor=monitor, **settings, **more)  # type: ignore[arg-type]

    whole = learn(4, tmp_path / "whole")
    from pretune.training import loop

    calls = {"n": 0}
    step = loop.step_optimizers

    def interrupted(*arguments: Any, **named: Any) -> None:
        calls["n"] += 1
        if calls["n"] == 4:
            raise RuntimeError("killed")
        step(*arguments, **named)

    loop.step_optimizers = interrupted
    try:
        with pytest.raises(RuntimeError, match="killed"):
            learn(4, tmp_path / "parts")
    finally:
        loop.step_optimizers = step
    parts = learn(4, tmp_path / "parts", resume=True)
    for name, tensor in load(whole.folder).root.tensors().items():
        assert torch.equal(tensor, load(parts.folder).root.tensors()[name]), name
