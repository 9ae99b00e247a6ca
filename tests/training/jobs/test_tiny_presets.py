"""Tests that every published system has a tiny preset with the same recipe, and that it runs."""

from __future__ import annotations

from functools import cache
from importlib import resources
from math import log
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import yaml

import pretune as pt
from pretune.backbones.recurrent import RecurrentBackbone
from pretune.models.loading import load_model
from pretune.models.presets import find_preset, preset_names
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from pretune.training.jobs import pretraining
from pretune.training.jobs.pretraining_settings import resolve_pretraining
from tests.support.drawn_shapes import write_captions
from tests.support.texts import english_documents

TINY_PRESETS = [name for name in preset_names() if name.endswith("-tiny")]


@cache
def files() -> dict[str, list[Path]]:
    """Return text, pairs of texts, both for presets that alternate between them, and texts with images."""
    folder = Path(mkdtemp())
    paragraphs = [" ".join(text.split())[:1500] for text in english_documents()[:30]]
    (folder / "text.txt").write_text("\n".join(paragraphs), encoding="utf-8")
    sentences = [part.strip() for text in paragraphs for part in text.split(". ") if part.strip()]
    (folder / "pairs.en.txt").write_text("\n".join(sentences), encoding="utf-8")
    (folder / "pairs.fr.txt").write_text("\n".join(s[::-1] for s in sentences), encoding="utf-8")
    tokenizer = train_tokenizer([Document(text, folder, 1) for text in paragraphs], "bpe", 800)
    pt.prepare(folder / "text.txt", tokenizer, folder / "store", language="en", split_by="line", processes=1)
    pairs = [folder / "pairs.en.txt", folder / "pairs.fr.txt"]
    images = [write_captions(folder, 60)]
    return {"text": [folder / "text.txt"], "pairs": pairs, "both": [folder / "store", *pairs], "images": images}


def learn(name: str, out: Path, **settings: Any) -> pt.Run:
    objective = find_preset(name)["objective"]
    kinds = {"translate": "pairs", "tlm": "both", "itm": "images"}
    kind = next((kind for part, kind in kinds.items() if part in objective), "text")
    return pt.pretrain(name, files()[kind], out=out, **settings)


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", TINY_PRESETS)
def test_tiny_preset_runs(name: str, tmp_path: Path) -> None:
    settings = {
        "batch": pt.Batching(tokens=256, max_length=64),
        "monitor": pt.Monitoring(log_every=1, held_out_fraction=0.0),
    }
    small = {**find_preset(name)["tokenizer"], "vocab_size": 600}
    tokenizer = {} if "tlm" in find_preset(name)["objective"] else {"tokenizer": small}
    run = learn(name, tmp_path / "run", budget=pt.Budget(steps=2), **settings, **tokenizer)
    assert run.finished
    assert len(run.metrics()) == 2
    assert load_model(tmp_path / "run").backbone.width in (128, 256)


@pytest.mark.not_fast
@pytest.mark.parametrize(("name", "continues_state"), [("lstm-lm-tiny", False), ("awd-lstm-tiny", True)])
def test_only_stateful_objectives_carry_recurrent_state(
    name: str, continues_state: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, seen = RecurrentBackbone.forward, []

    def watched(self: RecurrentBackbone, packed: Any, state: Any = None, keep: Any = "last") -> Any:
        seen.append(state is not None)
        return forward(self, packed, state, keep)

    monkeypatch.setattr(RecurrentBackbone, "forward", watched)
    settings = {
        "batch": pt.Batching(tokens=512, max_length=64),
        "monitor": pt.Monitoring(save_every=0, held_out_fraction=0.0),
    }
    learn(name, tmp_path / "run", budget=pt.Budget(steps=4), tokenizer={"kind": "words", "vocab_size": 600}, **settings)
    assert seen == [False, *[continues_state] * 3]


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", TINY_PRESETS)
def test_tiny_preset_has_the_same_losses_on_gpu_and_cpu(
    name: str, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "pays_to_compile", lambda plan, model: compiled)
    small = {**find_preset(name)["tokenizer"], "vocab_size": 600}
    tokenizer = {} if "tlm" in find_preset(name)["objective"] else {"tokenizer": small}
    lines = []
    for device in ("cpu", "cuda"):
        settings = {
            "batch": pt.Batching(tokens=512, max_length=64),
            "monitor": pt.Monitoring(log_every=1, held_out_fraction=0.0),
        }
        budget = pt.Budget(steps=8)
        lines.append(learn(name, tmp_path / device, device=device, budget=budget, **settings, **tokenizer).metrics())
    for here, there in zip(*lines, strict=True):
        for term in (name for name in here if "/" not in name and isinstance(here[name], float)):
            if term not in ("seconds", "tokens_per_second", "mfu", "flops", "tokens", "gradient_norm"):
                assert there[term] == pytest.approx(here[term], rel=0.03), (here["step"], term)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY_PRESETS)
def test_tiny_preset_learns_in_fifty_steps(name: str, tmp_path: Path) -> None:
    settings = {"batch": pt.Batching(tokens=2048), "monitor": pt.Monitoring(log_every=10, held_out_fraction=0.0)}
    run = learn(name, tmp_path / "run", budget=pt.Budget(steps=50), **settings)
    first, last = run.metrics()[0], run.metrics()[-1]
    term = parse_objective(find_preset(name)["objective"]).joints[0].objectives[0].name
    term = "generator" if term == "rtd" else term
    assert last[term] < first[term] - 0.2
    assert last[term] < log(4096)


def test_every_family_has_a_tiny_preset_with_the_same_recipe() -> None:
    assert {find_preset(name)["family"] for name in TINY_PRESETS} == {
        find_preset(name)["family"] for name in preset_names()
    }
    for name in TINY_PRESETS:
        preset, system = find_preset(name), find_preset(parent_preset(name))
        assert (preset["family"], preset["objective"]) == (system["family"], system["objective"])
        assert preset["optimizer"]["name"] == system["optimizer"]["name"]
        assert preset["tokenizer"] == system["tokenizer"] | {"vocab_size": 4096}
        plan = resolve_pretraining(name, ["texts"], "run", {}, 0, None)
        assert plan.budget.tokens is None and plan.batch.length_schedule is None
        assert 0 < (plan.budget.steps or 0) <= 2000
        assert 0 < (plan.batch.tokens or 0) <= 4096
        assert 0 < (plan.batch.max_length or 0) <= 256


def parent_preset(name: str) -> str:
    return str(
        yaml.safe_load((resources.files("pretune.models.presets") / f"{name}.yaml").read_text(encoding="utf-8"))["like"]
    )


@pytest.mark.parametrize(
    ("name", "objective", "optimizer"),
    [
        ("albert-base-v2", "mlm(unit=ngram)+sop", "lamb"),
        ("bart-large", "denoise", "adamw"),
        ("bert-base", "mlm+nsp", "adamw"),
        ("deberta-large", "mlm(unit=span,max_span_length=3)", "adamw"),
        ("deberta-v3-base", "rtd(generator_size=1,generator_layers=6)", "adamw"),
        ("electra-base", "rtd(generator_hidden_size=256)", "adamw"),
        ("electra-large", "rtd(mask_rate=0.25,generator_size=0.25)", "adamw"),
        ("mass", "mass", "adam"),
        ("mbart-large-50", "denoise(infill_rate=0.35,poisson_lambda=3.5)", "adamw"),
        ("roberta-base", "mlm", "adamw"),
        ("spanbert-base", "mlm(unit=span,span_boundary=true)", "adamw"),
        ("t5-11b", "spans", "adafactor"),
        ("transformer-big", "translate", "adam"),
        ("xlm-mlm-tlm-xnli15-1024", "mlm|tlm", "adamw"),
    ],
)
def test_presets_have_the_published_objective_and_optimizer(name: str, objective: str, optimizer: str) -> None:
    preset = find_preset(name)
    assert (preset["objective"], preset["optimizer"]["name"]) == (objective, optimizer)


@pytest.mark.not_fast
def test_electra_saves_both_networks(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

    settings = {"batch": pt.Batching(tokens=256, max_length=64), "monitor": pt.Monitoring(held_out_fraction=0.0)}
    tokenizer = {**find_preset("electra-tiny")["tokenizer"], "vocab_size": 600}
    learn("electra-tiny", tmp_path / "run", budget=pt.Budget(steps=1), tokenizer=tokenizer, **settings)
    for kind, folder, width in ((AutoModelForPreTraining, "run", 128), (AutoModelForMaskedLM, "run/generator", 32)):
        loaded, report = kind.from_pretrained(tmp_path / folder, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"]
        assert loaded.config.hidden_size == width
    assert load_model(tmp_path / "run", parse_objective("rtd(generator_size=0.25)")).root.heads["rtd"] is not None
