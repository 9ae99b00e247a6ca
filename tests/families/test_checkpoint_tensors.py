"""No tensor vanishes: each is in the model that is loaded, listed as left out, known to change nothing, or refused by name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import pretune as pt
from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.objectives import parse_objective
from tests.families.test_config_keys import CASES, TINY, quick
from tests.support.parity import assert_same, close

# What no output depends on: poolers that no loaded head reads, sines, numbers for masks.
HARMLESS = re.compile(r".*\bpooler\b.*|.*\bposition_ids|.*embed_positions.*|.*mask_value.*")
# Classes without one of the stacks.
REFUSED = {"BartForCausalLM", "MBartForCausalLM", "MarianForCausalLM"}


def classes_of(name: str) -> list[str]:
    """All classes of models that `transformers` has for a family."""
    from transformers import AutoConfig, PreTrainedModel

    config = type(AutoConfig.for_model(name))
    module = importlib.import_module(config.__module__.replace("configuration", "modeling"))
    kinds = [getattr(module, kind) for kind in module.__all__ if "pretrained" not in kind.lower()]
    return [kind.__name__ for kind in kinds if issubclass(kind, PreTrainedModel)]


def save(name: str, kind: str, folder: Path) -> dict[str, torch.Tensor]:
    """A model of `transformers` with random numbers everywhere; what it saved."""
    import transformers

    config = transformers.AutoConfig.for_model(name, **TINY[name][0])
    peer = getattr(transformers, kind)(config)
    torch.manual_seed(0)
    for parameter in peer.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    peer.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def check(name: str, folder: Path) -> None:
    for kind in classes_of(name):
        if kind == "ReformerForMaskedLM":  # of a model that reads both ways, which is refused
            continue
        tensors = save(name, kind, folder / kind)
        if kind in REFUSED:
            with pytest.raises(PretuneError, match="is_encoder_decoder false is not supported"):
                pt.load(folder / kind)
            continue
        model = pt.load(folder / kind)
        kept = {number for tensor in model.root.tensors().values() for number in tensor.flatten().tolist()}
        left = {published for published in tensors if not set(tensors[published].flatten().tolist()) <= kept}
        today = FAMILIES[name].variant(kind).table.current_names(tensors)
        unheard = {today[published] for published in left if not HARMLESS.fullmatch(published)}
        assert unheard == {
            published for published in model.skipped_head_tensors if not HARMLESS.fullmatch(published)
        }, kind


@pytest.mark.parametrize("name", quick(TINY))
def test_no_tensor_of_any_class_vanishes(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Tensors replaced, added or, by None, taken away."""
    content = load_file(folder / "model.safetensors") | tensors
    save_file({name: x for name, x in content.items() if x is not None}, folder / "model.safetensors", {"format": "pt"})


def rename(folder: Path, old: str, new: str) -> None:
    content = load_file(folder / "model.safetensors")
    save_file(
        {name.replace(old, new): x for name, x in content.items()}, folder / "model.safetensors", {"format": "pt"}
    )


@pytest.mark.parametrize(
    ("name", "stack", "layers"),
    [
        ("bert", "bert.encoder.layer", 3),
        ("gpt2", "transformer.h", 3),
        ("xlm", "transformer.attentions", 3),
        ("t5", "decoder.block", 3),
    ],
)
def test_more_and_fewer_layers_than_config_has_are_refused(name: str, stack: str, layers: int, tmp_path: Path) -> None:
    case = CASES[name]
    case.peer(tmp_path, {})
    content = load_file(tmp_path / "model.safetensors")
    number = re.compile(rf"(layer_norm[12]|ffns|attentions|{re.escape(stack)})\.{layers - 1}\.")
    last = {tensor: x for tensor, x in content.items() if number.search(tensor)}
    one_more = {number.sub(lambda match: f"{match[1]}.{layers}.", tensor): x for tensor, x in last.items()}
    change(tmp_path, **one_more)
    words = rf"layers: {layers + 1} in {re.escape(stack)}, but {layers} in config\.json; pass --partial to continue without them"
    with pytest.raises(PretuneError, match=words):
        pt.load(tmp_path)
    assert len(pt.load(tmp_path, ignore_mismatched=True).backbone.layers) == layers
    change(tmp_path, **dict.fromkeys((*one_more, *last)))
    with pytest.raises(
        PretuneError, match=rf"layers: {layers - 1} in {re.escape(stack)}, but {layers} in config\.json; pass"
    ):
        pt.load(tmp_path)
    assert pt.load(tmp_path, ignore_mismatched=True).untrained


def test_what_the_config_has_no_place_for_is_refused(tmp_path: Path) -> None:
    """A projection of token vectors that are as wide as states, by config.json."""
    CASES["electra"].peer(tmp_path, {"embedding_size": 32})
    change(
        tmp_path,
        **{"electra.embeddings_project.weight": torch.eye(32), "electra.embeddings_project.bias": torch.zeros(32)},
    )
    with pytest.raises(
        PretuneError, match=r"tensors that config\.json does not describe: electra\.embeddings_project\.\w+, "
    ):
        pt.load(tmp_path)


def test_heads_that_are_not_loaded_are_listed_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("pretune.models.model.log_info", said.append)
    monkeypatch.setattr("pretune.models.loading.log_info", said.append)
    save("bert", "BertForPreTraining", tmp_path)
    assert list(pt.load(tmp_path).root.heads) == ["mlm", "nsp"] and not said
    model = load_model(tmp_path, parse_objective("classify", labels=("a", "b")))
    heads = {name.rpartition(".")[0] for name in model.skipped_head_tensors}
    assert heads == {
        "cls.predictions", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.seq_relationship",
    }  # fmt: skip
    assert torch.equal(
        model.root.heads["classify"].pooler.dense.weight,
        load_file(tmp_path / "model.safetensors")["bert.pooler.dense.weight"],
    )
    said.clear()
    model.report_skipped_heads(tmp_path)
    (line,) = said
    assert line.startswith(f"{tmp_path}: heads of the checkpoint that were not loaded: cls.predictions")


def test_a_head_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    save("bert", "BertForSequenceClassification", tmp_path)
    change(tmp_path, **{"classifier2.weight": torch.zeros(2, 32)})
    for read in (pt.load, load_model):
        with pytest.raises(PretuneError, match=r"unknown tensors for bert: classifier2\.weight; pass --partial"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"), [("openai-gpt", "OpenAIGPTDoubleHeadsModel"), ("gpt2", "GPT2DoubleHeadsModel")]
)
def test_a_model_with_two_heads_is_a_language_model_and_chooses(name: str, kind: str, tmp_path: Path) -> None:
    import transformers

    save(name, kind, tmp_path)
    peer = getattr(transformers, kind).from_pretrained(tmp_path).eval()
    case = CASES[name]
    model = pt.load(tmp_path)
    assert list(model.root.heads) == ["choose", "lm"] and not model.untrained and not model.skipped_head_tensors
    (batch,) = case.batches(peer.config)
    with torch.no_grad():
        ours = model.root.eval().heads["lm"](model.backbone(batch.packed).last, model.backbone.embed.tokens)
        close(ours, batch.flat(peer(**batch.inputs).logits))


def test_a_bare_backbone_beside_a_head_is_read(tmp_path: Path) -> None:
    """GPT-2 as it was released: names without a prefix; a head never has one."""
    save("gpt2", "GPT2ForSequenceClassification", tmp_path)
    whole = pt.load(tmp_path)
    rename(tmp_path, "transformer.", "")
    assert_same(whole.root, pt.load(tmp_path).root)


def test_one_tensor_of_two_ages_must_be_one(tmp_path: Path) -> None:
    save("bert", "BertModel", tmp_path)
    change(
        tmp_path,
        **{
            "embeddings.LayerNorm.gamma": load_file(tmp_path / "model.safetensors")[
                "embeddings.LayerNorm.weight"
            ].clone()
        },
    )
    pt.load(tmp_path)
    change(tmp_path, **{"embeddings.LayerNorm.gamma": torch.zeros(32)})
    with pytest.raises(PretuneError, match=r"are two names of one parameter"):
        pt.load(tmp_path)
