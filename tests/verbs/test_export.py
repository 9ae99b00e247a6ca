"""Tests of `pretune export`: `transformers` loads the class in config.json and gives the same outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.inference.fill import MaskFiller
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.decoding_loops import GenerationConfig
from pretune.inference.predict import predict_texts
from pretune.models.bundled import bundled_folder
from pretune.models.loading import load
from tests.support.tiny_models import random_model
from tests.support.tiny_models import save_random_model as save
from tests.support.tiny_models import small_tokenizer as tokenizer

TEXT = "An assignment is a statement"


def load_with_transformers(kind: str, folder: Path, **options: Any) -> Any:
    """The peer's model, with nothing missing and nothing left over, of the class that config.json names."""
    import transformers

    model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True, **options)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert type(model).__name__ == json.loads((folder / "config.json").read_text())["architectures"][0]
    return model.eval()


def inputs(folder: Path, text: str = TEXT) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")


def test_masked_language_model_agrees_with_transformers(tmp_path: Path) -> None:
    from transformers import pipeline

    run = save(tmp_path / "run", "bert", "mlm+sop")
    facts = pt.export(run, out=tmp_path / "out").facts
    assert facts["class"] == "BertForMaskedLM" and facts["dropped_heads"] == ["sop"]
    assert "head.safetensors" not in facts["files"]
    again = load(tmp_path / "out")
    assert list(again.root.heads) == ["mlm"] and not again.untrained
    load_with_transformers("AutoModelForMaskedLM", tmp_path / "out")
    text = "An assignment is a [MASK]"
    theirs = pipeline("fill-mask", model=str(tmp_path / "out"), top_k=3)(text)
    ours = MaskFiller.load(tmp_path / "out").fill(text, 3)["gaps"][0]
    assert [row["token_str"] for row in theirs] == [row["token"] for row in ours]
    # `transformers` includes special tokens and padding rows of the vocabulary among the candidates.
    assert ours[1]["probability"] / ours[0]["probability"] == pytest.approx(
        theirs[1]["score"] / theirs[0]["score"], abs=1e-4
    )


def test_classifier_agrees_with_transformers(tmp_path: Path) -> None:
    from transformers import pipeline

    from pretune.models.model import Model
    from pretune.objectives import parse_objective

    model = random_model("bert", tokenizer("wordpiece"), "mlm")
    labels = ["bad", "good", "so so"]
    task = Model(model.family, model.config, model.root, model.tokenizer, "classify", labels)
    task.add_heads(parse_objective("classify", labels=tuple(labels)).objectives)
    task.save(tmp_path / "run")
    assert pt.export(tmp_path / "run", out=tmp_path / "out").facts["class"] == "BertForSequenceClassification"
    load_with_transformers("AutoModelForSequenceClassification", tmp_path / "out")
    theirs = pipeline("text-classification", model=str(tmp_path / "out"), top_k=None)([TEXT])[0]
    (ours,) = predict_texts(tmp_path / "run", [TEXT])
    assert {row["label"]: row["score"] for row in theirs} == pytest.approx(ours["probabilities"], abs=1e-5)


def test_causal_language_model_agrees_with_transformers(tmp_path: Path) -> None:
    run = save(tmp_path / "run", "gpt2", "lm")
    assert pt.export(run, out=tmp_path / "out").facts["class"] == "GPT2LMHeadModel"
    reference, given = load_with_transformers("AutoModelForCausalLM", tmp_path / "out"), inputs(tmp_path / "out")
    written = reference.generate(**given, max_new_tokens=8, do_sample=False)[0].tolist()
    (ours,) = TextGenerator.load(tmp_path / "out", "cpu").generate_ids(
        [given["input_ids"][0].tolist()], GenerationConfig(8), set()
    )
    new = written[given["input_ids"].shape[1] :]
    assert ours.ids[: len(new)] == new


def test_encoder_decoder_agrees_with_transformers(tmp_path: Path) -> None:
    run = save(tmp_path / "run", "t5", "spans")
    assert pt.export(run, out=tmp_path / "out").facts["class"] == "T5ForConditionalGeneration"
    reference, given = load_with_transformers("AutoModelForSeq2SeqLM", tmp_path / "out"), inputs(tmp_path / "out")
    model = load(run)
    packed, target = (_pack(ids) for ids in (given["input_ids"][0], [0, 9, 8, 7]))
    ours = model.root.heads["spans"](model.backbone(packed, target).last, model.backbone.embed.tokens)
    with torch.no_grad():
        theirs = reference(**given, decoder_input_ids=torch.tensor([[0, 9, 8, 7]])).logits[0]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def _pack(ids: Any) -> Any:
    import numpy as np

    from pretune.packed import pack

    return pack(np.array([int(i) for i in ids]), np.array([len(ids)]))


def test_model_without_head_agrees_with_transformers(tmp_path: Path) -> None:
    run = save(tmp_path / "run", "modernbert", "mlm")
    assert pt.export(run, head="none", out=tmp_path / "out").facts["class"] == "ModernBertModel"
    reference, given = load_with_transformers("AutoModel", tmp_path / "out"), inputs(tmp_path / "out")
    with torch.no_grad():
        theirs = reference(**given).last_hidden_state[0]
    torch.testing.assert_close(load(run).backbone(_pack(given["input_ids"][0])).last, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.not_fast
def test_one_of_several_heads_can_be_exported(tmp_path: Path) -> None:
    run = save(tmp_path / "run", "bert", "mlm+nsp")
    names = {"mlm": "BertForMaskedLM", "nsp": "BertForNextSentencePrediction", "mlm+nsp": "BertForPreTraining"}
    for number, (head, name) in enumerate(names.items()):
        assert pt.export(run, head=head, out=tmp_path / str(number)).facts["class"] == name
        assert list(load(tmp_path / str(number)).root.heads) == head.split("+")
    save(tmp_path / "odd", "bert", "0.5*mlm(mask_rate=0.3)|nsp")
    pt.export(tmp_path / "odd", head="mlm", out=tmp_path / "options")
    assert load(tmp_path / "options").objective == "mlm(mask_rate=0.3)"
    with pytest.raises(PretuneError, match="no head 'lm'; did you mean 'mlm'"):
        pt.export(run, head="lm", out=tmp_path / "none")


@pytest.mark.not_fast
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_and_shards_can_be_loaded(dtype: Any, tmp_path: Path) -> None:
    run = save(tmp_path / "run", "bert", "mlm")
    facts = pt.export(run, dtype=dtype, max_shard_size="10KB", out=tmp_path / "out").facts
    assert "model.safetensors.index.json" in facts["files"]
    reference = load_with_transformers("AutoModelForMaskedLM", tmp_path / "out", dtype="auto")
    assert reference.dtype == getattr(torch, dtype)
    ours = load(tmp_path / "out").backbone.embed.tokens
    assert ours.dtype == torch.float32
    assert torch.equal(ours.to(reference.dtype), reference.get_input_embeddings().weight)


def test_generator_is_exported_if_it_was_trained(tmp_path: Path) -> None:
    run = save(tmp_path / "run", "electra", "rtd")
    facts = pt.export(run, out=tmp_path / "out").facts
    assert facts["class"] == "ElectraForPreTraining" and "generator" in facts["files"]
    (run / "head.safetensors").unlink()  # as published: only the discriminator
    assert "generator" not in pt.export(run, out=tmp_path / "alone").facts["files"]


def test_vocabulary_and_positions_can_be_changed(tmp_path: Path) -> None:
    run = save(tmp_path / "run", "bert", "mlm")
    new = tokenizer("byte-level-bpe")
    new.save(tmp_path / "words")
    facts = pt.export(run, new_tokenizer=tmp_path / "words", max_positions=100, out=tmp_path / "out").facts
    assert facts["vocabulary"]["tokens"] == new.size
    assert facts["vocabulary"]["matched"] > 40
    assert facts["positions"] == {"positions": 100, "before": 24, "initialization": "copied"}
    reference = load_with_transformers("AutoModelForMaskedLM", tmp_path / "out")
    assert reference.config.vocab_size == new.size and reference.config.max_position_embeddings == 100
    assert reference(**inputs(tmp_path / "out", TEXT * 8)).logits.shape[1] > 50


def test_unsupported_exports_are_rejected(tmp_path: Path) -> None:
    run = save(tmp_path / "elmo", "elmo-transformer", "bilm")
    with pytest.raises(PretuneError, match="`transformers` has no model class for elmo-transformer"):
        pt.export(run, out=tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(PretuneError, match="exists and is not empty"):
        pt.export("pretune-small-en", out=tmp_path / "full")
    with pytest.raises(PretuneError, match="is not a size"):
        pt.export("pretune-small-en", max_shard_size="big", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.not_fast
def test_bundled_model_gives_the_same_predictions_in_a_pipeline(tmp_path: Path) -> None:
    from transformers import pipeline

    pt.export("pretune-small-en", out=tmp_path / "out")
    texts = ["The capital of France is [MASK].", "She put the [MASK] on the table."]
    ours = [[row["token"] for row in line["candidates"]] for line in pt.fill("pretune-small-en", texts)]
    for folder in (bundled_folder("pretune-small-en"), tmp_path / "out"):
        theirs = pipeline("fill-mask", model=str(folder), top_k=5)(texts)
        assert [[row["token_str"] for row in rows] for rows in theirs] == ours


@pytest.mark.not_fast
def test_lm_eval_computes_the_same_likelihoods(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed; `pip install -e .[dev]` brings it")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from pretune.inference.likelihood import LikelihoodScorer

    pt.export(save(tmp_path / "run", "gpt2", "lm"), out=tmp_path / "out")
    reference = HFLM(pretrained=str(tmp_path / "out"), device="cpu", batch_size=2)
    assert reference.max_length == 24
    pairs = [("An assignment is", " a statement"), ("The object", " is a class and"), ("x", " is bound")]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    found = [value for value, _ in reference.loglikelihood(requests, disable_tqdm=True)]
    scorer = LikelihoodScorer.load(tmp_path / "out", "cpu")
    model, words = scorer.model, scorer.model.require_tokenizer()

    def likelihood(context: str, text: str) -> float:
        """Return the log-likelihood of a text after its context, from the logits."""
        ids, begin = words.encode(context + text), len(words.encode(context))
        logits = model.root.heads["lm"](model.backbone(_pack(ids)).last, model.backbone.embed.tokens)
        chances = logits[begin - 1 : -1].log_softmax(-1)
        return float(chances.gather(1, torch.tensor(ids[begin:])[:, None]).sum())

    assert found == pytest.approx([likelihood(*pair) for pair in pairs], abs=1e-4)
    # Whole texts are scored after the token between documents.
    requests = [Instance("loglikelihood_rolling", {}, ("".join(pair),), 0) for pair in pairs]
    whole = [float(x.sum()) for x in scorer(["".join(pair) for pair in pairs])]
    assert reference.loglikelihood_rolling(requests, disable_tqdm=True) == pytest.approx(whole, abs=1e-4)
