"""Untied output embeddings of language models, and bias tensors with two names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.adapt_vocabulary import replace_vocabulary
from pretune.models.create_model import make_model
from pretune.models.loading import load, load_model
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents
from tests.support.parity import assert_same, close
from tests.support.transformers_cases import CASES, Case, edit_config, quick

UNTIED = [name for name in CASES if FAMILIES[name].table.output]


def reload(case: Case, folder: Path) -> Any:
    """Return the logits of `transformers` for the model in a folder."""
    import transformers

    reference, report = getattr(transformers, case.kind).from_pretrained(folder, output_loading_info=True)
    missing = [
        name for name in report["missing_keys"] if ".pooler." not in name
    ]  # BigBird's pooler, which no head reads
    assert not missing and not report["unexpected_keys"], report
    return reference.eval()


def untied(case: Case, folder: Path) -> Any:
    """Save a `transformers` model with an untied output embedding; encoder and decoder share the input embedding."""
    case.reference(folder, {"tie_word_embeddings": False})
    table = FAMILIES[case.family].table
    tensors = load_file(folder / "model.safetensors")
    own = torch.randn(60, tensors[table.embedding[0]].shape[1], generator=torch.Generator().manual_seed(1))
    tensors |= {name: tensors[table.embedding[0]].clone() for name in table.embedding} | {table.output: own}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return reload(case, folder)


@pytest.mark.parametrize("name", quick(UNTIED))
def test_untied_output_embedding_round_trips(name: str, tmp_path: Path) -> None:
    case, table = CASES[name], FAMILIES[name].table
    reference = untied(case, tmp_path / "reference")
    close(case.ours(tmp_path / "reference", reference.config), case.theirs(reference))
    model = load(tmp_path / "reference")
    assert not model.config.tie_word_embeddings
    model.save(tmp_path / "a")
    assert not (tmp_path / "a" / "head.safetensors").exists()
    load(tmp_path / "a").save(tmp_path / "b")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    close(case.theirs(reload(case, tmp_path / "a")), case.theirs(reference))
    # Without it the head is untrained; nothing replaces it.
    tensors = load_file(tmp_path / "reference" / "model.safetensors")
    del tensors[table.output]
    save_file(tensors, tmp_path / "reference" / "model.safetensors", {"format": "pt"})
    if name not in ("t5", "mt5"):  # `transformers` ties it whenever it can
        assert [table.published_names(lacking) for lacking in load(tmp_path / "reference").untrained] == [
            (table.output,)
        ]


@pytest.mark.parametrize("name", quick(UNTIED))
def test_a_differing_output_embedding_wins_over_tie_word_embeddings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `transformers` 5; an equal matrix is tied."""
    logged: list[str] = []
    monkeypatch.setattr("pretune.models.loading.log_info", logged.append)
    case, table = CASES[name], FAMILIES[name].table
    case.reference(tmp_path, {})
    tensors = load_file(tmp_path / "model.safetensors")
    (there,) = {table.output, *table.embedding} & tensors.keys()
    embedding = tensors[there]
    both = tensors | {table.embedding[0]: embedding, table.output: embedding.clone()}
    save_file(both, tmp_path / "model.safetensors", {"format": "pt"})
    reference = reload(case, tmp_path)
    close(case.ours(tmp_path, reference.config), case.theirs(reference))
    assert load(tmp_path).config.tie_word_embeddings and not logged
    save_file(both | {table.output: embedding.flip(0)}, tmp_path / "model.safetensors", {"format": "pt"})
    reference = reload(case, tmp_path)
    close(case.ours(tmp_path, reference.config), case.theirs(reference))
    assert logged == [f"{tmp_path}: {table.output} differs from the token embedding, so the two are loaded untied"]


@pytest.mark.parametrize("name", quick(UNTIED))
def test_a_missing_input_embedding_is_read_from_the_tied_output(name: str, tmp_path: Path) -> None:
    """GPT-2 with only lm_head.weight."""
    case, table = CASES[name], FAMILIES[name].table
    reference = case.reference(tmp_path, {})
    tensors = load_file(tmp_path / "model.safetensors")
    (there,) = {table.output, *table.embedding} & tensors.keys()
    tensors[table.output] = tensors.pop(there)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    close(case.ours(tmp_path, reference.config), case.theirs(reference))
    if name not in ("t5", "mt5"):
        edit_config(tmp_path, tie_word_embeddings=False)
        with pytest.raises(PretuneError, match=f"tensors missing: {table.embedding[0]}"):
            load(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", quick(name for name in UNTIED if FAMILIES[name].table.copied))
def test_of_two_bias_tensors_the_one_used_by_transformers_is_read(name: str, tied: bool, tmp_path: Path) -> None:
    case = CASES[name]
    ((copy, source),) = FAMILIES[name].table.copied.items()
    case.reference(tmp_path, {"tie_word_embeddings": tied})
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        tensors | {copy: torch.zeros(60), source: torch.arange(60.0)}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    reference = reload(case, tmp_path)
    close(case.ours(tmp_path, reference.config), case.theirs(reference))
    if tied:  # older files have only one
        for only in (copy, source):
            rest = {name: tensor for name, tensor in tensors.items() if name not in (copy, source)}
            save_file(rest | {only: torch.arange(60.0)}, tmp_path / "model.safetensors", {"format": "pt"})
            close(case.ours(tmp_path, reference.config), case.theirs(reference))


def test_different_encoder_and_decoder_embeddings_are_refused(tmp_path: Path) -> None:
    CASES["bart"].reference(tmp_path, {"tie_word_embeddings": False})
    words = r"tensors model\.shared\.weight and model\.encoder\.embed_tokens\.weight differ, but this architecture has one parameter"
    with pytest.raises(PretuneError, match=words):
        load(tmp_path)


def test_tied_tensors_of_transformer_xl_must_be_equal(tmp_path: Path) -> None:
    mixture = parse_objective("lm")
    model = make_model("transfo-xl-tiny")
    model.add_heads(mixture.objectives)
    model.objective = "lm"
    model.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tied = {"crit.out_layers.0.weight": tensors["transformer.word_emb.emb_layers.0.weight"].clone()}
    save_file(tensors | tied, tmp_path / "model.safetensors")
    assert_same(model.root, load_model(tmp_path, mixture).root)
    save_file(tensors | {name: tensor + 1 for name, tensor in tied.items()}, tmp_path / "model.safetensors")
    with pytest.raises(PretuneError, match=r"crit\.out_layers\.0\.weight differ"):
        load_model(tmp_path, mixture)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_replacing_the_vocabulary_selects_rows_of_input_and_output_embeddings(
    name: str, tmp_path: Path, english: list[str]
) -> None:
    case = CASES[name]
    untied(case, tmp_path / "reference")
    model = load(tmp_path / "reference")
    documents = [Document(text, Path("x"), 1) for text in english[:2]]
    old, new = (train_on_documents(documents, "byte-level-bpe", size) for size in (300, 290))
    model.tokenizer = old
    wide, _ = replace_vocabulary(with_more_rows(model, old.size), new)
    head, tokens = wide.root.heads[case.head].output.weight, wide.backbone.embed.tokens
    assert head.shape == tokens.shape == (new.size, tokens.shape[1]) and not torch.equal(head, tokens)


def with_more_rows(model: Any, size: int) -> Any:
    """Return the same model with rows for a full vocabulary."""
    config = replace(model.config, vocab_size=size)
    made = Model(model.family, config, Network(model.family.build(config)), model.tokenizer)
    made.add_heads(parse_objective("mlm" if model.family.name == "bert" else "lm").objectives)
    return made
