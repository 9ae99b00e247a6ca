"""No tensor is lost: each is loaded, reported as skipped, known to have no effect, or refused by name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.loading import load, load_model
from pretune.objectives import parse_objective
from tests.support.parity import assert_same, close
from tests.support.transformers_cases import CASES, TINY, quick

# Tensors that no output depends on: unused poolers, sinusoidal positions, mask values.
HARMLESS = re.compile(r".*\bpooler\b.*|.*\bposition_ids|.*embed_positions.*|.*mask_value.*")
# Classes that lack the encoder.
REFUSED = {"BartForCausalLM", "MBartForCausalLM", "MarianForCausalLM"}


def classes_of(name: str) -> list[str]:
    """Return all model classes that `transformers` has for a family."""
    from transformers import AutoConfig, PreTrainedModel

    config = type(AutoConfig.for_model(name))
    module = importlib.import_module(config.__module__.replace("configuration", "modeling"))
    kinds = [getattr(module, kind) for kind in module.__all__ if "pretrained" not in kind.lower()]
    return [kind.__name__ for kind in kinds if issubclass(kind, PreTrainedModel)]


def save(name: str, kind: str, folder: Path) -> dict[str, torch.Tensor]:
    """Save a `transformers` model with random parameters, and return its tensors."""
    import transformers

    config = transformers.AutoConfig.for_model(name, **TINY[name][0])
    reference = getattr(transformers, kind)(config)
    torch.manual_seed(0)
    for parameter in reference.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    reference.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def check(name: str, folder: Path) -> None:
    for kind in classes_of(name):
        if kind == "ReformerForMaskedLM":  # of a bidirectional model, which is refused
            continue
        tensors = save(name, kind, folder / kind)
        if kind in REFUSED:
            with pytest.raises(PretuneError, match=r"is_(decoder true|encoder_decoder false) is not supported"):
                load(folder / kind)
            continue
        model = load(folder / kind)
        kept = {number for tensor in model.root.tensors().values() for number in tensor.flatten().tolist()}
        left = {published for published in tensors if not set(tensors[published].flatten().tolist()) <= kept}
        today = FAMILIES[name].variant(kind).table.current_names(tensors)
        unheard = {today[published] for published in left if not HARMLESS.fullmatch(published)}
        assert unheard == {
            published for published in model.skipped_head_tensors if not HARMLESS.fullmatch(published)
        }, kind


@pytest.mark.not_fast
@pytest.mark.parametrize("name", quick(TINY))
def test_no_tensor_of_any_class_is_lost(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


def edit_tensors(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or, with None, remove tensors of a checkpoint."""
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
def test_a_number_of_layers_that_contradicts_the_config_is_refused(
    name: str, stack: str, layers: int, tmp_path: Path
) -> None:
    case = CASES[name]
    case.reference(tmp_path, {})
    content = load_file(tmp_path / "model.safetensors")
    number = re.compile(rf"(layer_norm[12]|ffns|attentions|{re.escape(stack)})\.{layers - 1}\.")
    last = {tensor: x for tensor, x in content.items() if number.search(tensor)}
    one_more = {number.sub(lambda match: f"{match[1]}.{layers}.", tensor): x for tensor, x in last.items()}
    edit_tensors(tmp_path, **one_more)
    words = rf"layers: {layers + 1} in {re.escape(stack)}, but {layers} in config\.json; pass --ignore-mismatched to continue without them"
    with pytest.raises(PretuneError, match=words):
        load(tmp_path)
    assert len(load(tmp_path, ignore_mismatched=True).backbone.layers) == layers
    edit_tensors(tmp_path, **dict.fromkeys((*one_more, *last)))
    with pytest.raises(
        PretuneError, match=rf"layers: {layers - 1} in {re.escape(stack)}, but {layers} in config\.json; pass"
    ):
        load(tmp_path)
    assert load(tmp_path, ignore_mismatched=True).untrained


def test_tensors_that_the_config_does_not_describe_are_refused(tmp_path: Path) -> None:
    """A projection of embeddings is refused where config.json gives them the width of the hidden states."""
    CASES["electra"].reference(tmp_path, {"embedding_size": 32})
    edit_tensors(
        tmp_path,
        **{"electra.embeddings_project.weight": torch.eye(32), "electra.embeddings_project.bias": torch.zeros(32)},
    )
    with pytest.raises(
        PretuneError, match=r"tensors that config\.json does not describe: electra\.embeddings_project\.\w+, "
    ):
        load(tmp_path)


def test_heads_that_are_not_loaded_are_listed_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr("pretune.models.model.log_info", logged.append)
    monkeypatch.setattr("pretune.models.loading.log_info", logged.append)
    save("bert", "BertForPreTraining", tmp_path)
    assert list(load(tmp_path).root.heads) == ["mlm", "nsp"] and not logged
    model = load_model(tmp_path, parse_objective("classify", labels=("a", "b")))
    heads = {name.rpartition(".")[0] for name in model.skipped_head_tensors}
    assert heads == {
        "cls.predictions", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.seq_relationship",
    }  # fmt: skip
    assert torch.equal(
        model.root.heads["classify"].pooler.dense.weight,
        load_file(tmp_path / "model.safetensors")["bert.pooler.dense.weight"],
    )
    assert logged == [f"{tmp_path}: the head classify is new and starts from random weights"]
    logged.clear()
    model.report_skipped_heads(tmp_path)
    (line,) = logged
    assert line.startswith(f"{tmp_path}: these heads of the checkpoint were not loaded: cls.predictions")


@pytest.mark.parametrize(
    ("family", "architecture", "dropped"),
    [
        ("bert", "BertForPreTraining", ""),
        ("modernbert", "ModernBertForMaskedLM", ""),
        ("bert", "BertForSequenceClassification", "classifier"),
    ],
)
def test_fine_tuning_reports_only_dropped_heads_of_tasks(
    family: str, architecture: str, dropped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    save(family, architecture, tmp_path)
    model = load_model(tmp_path, parse_objective("answer"))
    assert model.skipped_head_tensors
    monkeypatch.setattr("pretune.models.model.log_info", logged.append)
    model.report_skipped_heads(tmp_path, tasks_only=True)
    assert logged == ([f"{tmp_path}: these heads of the checkpoint were not loaded: {dropped}"] if dropped else [])


def test_an_unknown_head_is_refused(tmp_path: Path) -> None:
    save("bert", "BertForSequenceClassification", tmp_path)
    edit_tensors(tmp_path, **{"classifier2.weight": torch.zeros(2, 32)})
    for read in (load, load_model):
        with pytest.raises(
            PretuneError, match=r"unknown tensors for bert: classifier2\.weight; pass --ignore-mismatched"
        ):
            read(tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"), [("openai-gpt", "OpenAIGPTDoubleHeadsModel"), ("gpt2", "GPT2DoubleHeadsModel")]
)
def test_a_model_with_two_heads_has_a_language_model_and_a_multiple_choice_head(
    name: str, kind: str, tmp_path: Path
) -> None:
    import transformers

    save(name, kind, tmp_path)
    reference = getattr(transformers, kind).from_pretrained(tmp_path).eval()
    case = CASES[name]
    model = load(tmp_path)
    assert list(model.root.heads) == ["choose", "lm"] and not model.untrained and not model.skipped_head_tensors
    (batch,) = case.batches(reference.config)
    with torch.no_grad():
        ours = model.root.eval().heads["lm"](model.backbone(batch.packed).last, model.backbone.embed.tokens)
        close(ours, batch.flat(reference(**batch.inputs).logits))


def test_a_backbone_without_prefix_beside_a_head_is_read(tmp_path: Path) -> None:
    """GPT-2 was released without a prefix in its tensor names; names of heads never have one."""
    save("gpt2", "GPT2ForSequenceClassification", tmp_path)
    whole = load(tmp_path)
    rename(tmp_path, "transformer.", "")
    assert_same(whole.root, load(tmp_path).root)


def test_old_and_new_names_of_a_tensor_must_have_equal_values(tmp_path: Path) -> None:
    save("bert", "BertModel", tmp_path)
    edit_tensors(
        tmp_path,
        **{
            "embeddings.LayerNorm.gamma": load_file(tmp_path / "model.safetensors")[
                "embeddings.LayerNorm.weight"
            ].clone()
        },
    )
    load(tmp_path)
    edit_tensors(tmp_path, **{"embeddings.LayerNorm.gamma": torch.zeros(32)})
    with pytest.raises(PretuneError, match=r"are two names of one parameter"):
        load(tmp_path)
