"""Translation with recurrent models and a Transformer: beam search, ensembles, alignments, heat maps, BLEU."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.families import FAMILIES
from pretune.inference.generation.causal_generation import GenerationConfig
from pretune.inference.generation.translate import Translator
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective

WORDS = {"the": "die", "cat": "Katze", "dog": "Hund", "sees": "sieht", "a": "eine", "bird": "Vogel", "red": "rote"}
SENTENCES = [
    f"the {a} sees a {c} {b}" if c else f"the {a} sees a {b}"
    for a in ("cat", "dog", "bird")
    for b in ("cat", "dog", "bird")
    for c in ("", "red")
]
GERMAN = [" ".join(WORDS[word] for word in line.split()) for line in SENTENCES]
SIZES: dict[str, dict[str, Any]] = {
    "rnn": {"family": "seq2seq", "embedding_size": 24, "hidden_size": 32, "encoder_layers": 1, "decoder_layers": 1,
            "attention": "dot", "reverse_source": False, "initializer_range": 0.3},
    "transformer": {"family": "marian", "d_model": 32, "encoder_layers": 1, "decoder_layers": 2,
                    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64,
                    "decoder_ffn_dim": 64, "max_position_embeddings": 32, "dropout": 0.0, "init_std": 0.1},
}  # fmt: skip


@cache
def folder() -> Path:
    made = Path(mkdtemp())
    (made / "text.en.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    (made / "text.de.txt").write_text("\n".join(GERMAN), encoding="utf-8")
    return made


@cache
def trained(kind: str, seed: int = 0) -> Path:
    """A model that knows these sentences by heart."""
    where = folder() / f"{kind}-{seed}"
    tokenizer = pt.train_tokenizer([folder() / "text.en.txt", folder() / "text.de.txt"], kind="words", size=64)
    sizes = dict(SIZES[kind])
    family = FAMILIES[sizes.pop("family")]
    ids = {"pad_token_id": tokenizer.role("padding"), "eos_token_id": tokenizer.role("end")}
    config = family.read_config(
        {"vocab_size": tokenizer.size, **ids, "decoder_start_token_id": ids["pad_token_id"], **sizes}
    )
    torch.manual_seed(seed)
    start = Model(family, config, Network(family.build(config)), tokenizer, "translate(smoothing=0)")
    start.add_heads(parse_objective("translate").objectives)
    start.save(where / "start")
    pt.pretrain(
        where / "start", [folder() / "text.en.txt", folder() / "text.de.txt"], objective="translate(smoothing=0)",
        tokenizer=where / "start", out=where / "run", budget=pt.Budget(steps=90), batch=pt.Batching(tokens=256, length=16),
        optimizer=pt.Optimizer(lr=2e-2 if kind == "rnn" else 1e-2), watching=pt.Monitoring(held_out=0.0), seed=seed,
    )  # fmt: skip
    return where / "run"


@pytest.mark.parametrize("kind", SIZES)
def test_learned_translations_do_not_depend_on_the_batch(kind: str) -> None:
    rows = pt.translate(trained(kind), SENTENCES)
    assert sum(row["translation"] == right for row, right in zip(rows, GERMAN, strict=True)) >= 16
    assert all(row["ended"] for row in rows)
    alone = [pt.translate(trained(kind), [text])[0] for text in SENTENCES[:3]]
    for one, row in zip(alone, rows, strict=False):
        assert one["translation"] == row["translation"] and one["score"] == pytest.approx(row["score"], abs=1e-4)
    greedy = pt.translate(trained(kind), SENTENCES, beams=1)
    assert [row["translation"] for row in greedy][:4] == [row["translation"] for row in rows][:4]


def test_scores_are_log_probabilities_over_the_length() -> None:
    translator = Translator.load([trained("rnn")])
    how = GenerationConfig(beams=3, length_penalty=0.7)
    beam = translator.translate(SENTENCES[:1], how)[0]
    model = translator.models[0]
    from pretune.packed import pack_lists

    source, ids = translator.encode(SENTENCES[0]), [*beam.ids, model.require_tokenizer().role("end")]
    with torch.inference_mode():
        states = model.backbone(pack_lists([source]), pack_lists([[*translator.begin, *ids[:-1]]])).last
        logits = model.root.heads["translate"](states, model.backbone.embed.tokens)[:, : model.require_tokenizer().size]
    total = logits.log_softmax(-1)[torch.arange(len(ids)), ids].sum()
    assert beam.score == pytest.approx(float(total) / len(ids) ** 0.7, rel=1e-4)


def test_ensembles_average_next_token_probabilities() -> None:
    runs = [trained("rnn"), trained("rnn", seed=1)]
    translator = Translator.load(runs)
    sources = [translator.encode(text) for text in SENTENCES[:2]]
    with torch.inference_mode():
        together = translator.reader(sources, 8).read([translator.begin] * 2)
        each = [Translator.load([run]).reader(sources, 8).read([translator.begin] * 2).softmax(-1) for run in runs]
    torch.testing.assert_close(together.exp(), sum(each) / 2)
    rows = pt.translate(runs, SENTENCES[:5])
    assert [row["translation"] for row in rows] == GERMAN[:5]
    with pytest.raises(pt.PretuneError, match="not trained to translate"):
        pt.translate([trained("rnn"), "pretune-small-en"], ["a"])


@pytest.mark.parametrize("kind", SIZES)
def test_alignments_have_the_words_on_both_sides(kind: str, tmp_path: Path) -> None:
    row = pt.translate(trained(kind), SENTENCES[:2], alignments=True, plot=tmp_path / "map.png")[0]
    aligned = row["alignment"]
    assert aligned["source"] == [*SENTENCES[0].split(), "[SEP]"]
    assert aligned["target"] == [*row["translation"].split(), "[SEP]"]
    weights = np.array(aligned["weights"])
    assert weights.shape == (len(aligned["target"]), len(aligned["source"]))
    assert weights.sum(1) == pytest.approx(1.0, abs=1e-3)
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert "alignment" not in pt.translate(trained(kind), SENTENCES[:1])[0]


def test_alignments_of_subwords_are_merged_into_words() -> None:
    from pretune.inference.attention_alignment import align_words
    from pretune.text.corpus.documents import Document
    from pretune.text.tokenizers.training import train_on_documents

    tokenizer = train_on_documents([Document("low lower lowest newest wide " * 9, Path("x"), 1)], "wordpiece", 24)
    source, target = tokenizer.encode("widest new"), tokenizer.encode("lowes")
    assert len(source) > 2 and len(target) > 1
    weights = np.random.default_rng(0).dirichlet(np.ones(len(source)), len(target))
    aligned = align_words(weights, source, target, tokenizer)
    assert aligned.source == ["widest", "new"] and len(aligned.target) == 1
    assert aligned.weights.sum() == pytest.approx(1.0)


def test_bleu_equals_sacrebleu(tmp_path: Path) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    rows = pt.translate(trained("rnn"), folder() / "text.en.txt", references=folder() / "text.de.txt")
    said = [row["translation"] for row in rows]
    assert rows.facts["bleu"] == round(sacrebleu.corpus_bleu(said, [GERMAN]).score, 2) > 50
    assert "nrefs:1" in rows.facts["signature"]


def test_on_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pretune", "translate", str(trained("rnn"))]
    shown = subprocess.run([*command, SENTENCES[0], "--json"], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown)["translations"][0]["translation"] == GERMAN[0]


def test_bad_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one line", encoding="utf-8")
    with pytest.raises(pt.PretuneError, match="1 references for 2 texts"):
        pt.translate(trained("rnn"), ["a", "b"], references=tmp_path / "one.txt")
    with pytest.raises(pt.PretuneError, match="nothing to translate"):
        pt.translate(trained("rnn"), [])


def test_translations_go_to_a_file(tmp_path: Path) -> None:
    pt.translate(trained("rnn"), SENTENCES[:3], out=tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == GERMAN[:3]
