"""Tests of translation with recurrent models and a Transformer: beam search, ensembles, alignments, heat maps, BLEU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.inference.generation.decoding_loops import GenerationConfig
from pretune.inference.generation.translate import Translator
from tests.support.cli import run_command
from tests.support.translation_models import GERMAN, SENTENCES, SIZES, folder, trained


@pytest.mark.not_fast
@pytest.mark.parametrize("kind", SIZES)
def test_learned_translations_do_not_depend_on_the_batch(kind: str) -> None:
    rows = pt.translate(trained(kind), SENTENCES)
    assert sum(row["translation"] == right for row, right in zip(rows, GERMAN, strict=True)) >= 16
    assert all(row["ended"] for row in rows)
    alone = [pt.translate(trained(kind), [text])[0] for text in SENTENCES[:3]]
    for one, row in zip(alone, rows, strict=False):
        assert one["translation"] == row["translation"] and one["score"] == pytest.approx(row["score"], abs=1e-4)
    greedy = pt.translate(trained(kind), SENTENCES, num_beams=1)
    assert [row["translation"] for row in greedy][:4] == [row["translation"] for row in rows][:4]


@pytest.mark.not_fast
def test_scores_are_log_probabilities_over_the_length() -> None:
    translator = Translator.load([trained("rnn")])
    how = GenerationConfig(num_beams=3, length_penalty=0.7)
    beam = translator.translate(SENTENCES[:1], how)[0]
    model = translator.models[0]
    from pretune.packed import pack_lists

    source, ids = translator.encode(SENTENCES[0]), [*beam.ids, model.require_tokenizer().role("end")]
    with torch.inference_mode():
        states = model.backbone(pack_lists([source]), pack_lists([[*translator.begin, *ids[:-1]]])).last
        logits = model.root.heads["translate"](states, model.backbone.embed.tokens)[:, : model.require_tokenizer().size]
    total = logits.log_softmax(-1)[torch.arange(len(ids)), ids].sum()
    assert beam.score == pytest.approx(float(total) / len(ids) ** 0.7, rel=1e-4)


@pytest.mark.not_fast
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


@pytest.mark.not_fast
@pytest.mark.parametrize("kind", SIZES)
def test_alignments_have_the_words_of_both_sides(kind: str, tmp_path: Path) -> None:
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


@pytest.mark.not_fast
def test_bleu_equals_sacrebleu(tmp_path: Path) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    rows = pt.translate(trained("rnn"), folder() / "text.en.txt", references=folder() / "text.de.txt")
    translations = [row["translation"] for row in rows]
    assert rows.facts["bleu"] == round(sacrebleu.corpus_bleu(translations, [GERMAN]).score, 2) > 50
    assert "nrefs:1" in rows.facts["signature"]


def test_translate_on_the_command_line(tmp_path: Path) -> None:
    shown = run_command("translate", trained("rnn"), SENTENCES[0], "--json").json()
    assert shown["translations"][0]["translation"] == GERMAN[0]


def test_invalid_input_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one line", encoding="utf-8")
    with pytest.raises(pt.PretuneError, match="1 references for 2 texts"):
        pt.translate(trained("rnn"), ["a", "b"], references=tmp_path / "one.txt")
    with pytest.raises(pt.PretuneError, match="no inputs were given"):
        pt.translate(trained("rnn"), [])


def test_translations_are_written_to_a_file(tmp_path: Path) -> None:
    pt.translate(trained("rnn"), SENTENCES[:3], out=tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == GERMAN[:3]
